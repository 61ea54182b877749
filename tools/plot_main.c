/* plot - draws the figures of one run, or compares several, from ptrain's --log files: in the terminal, as
 * SVG, as PNG, as event files of TensorBoard.
 * usage: plot [--y KEY] [--x step|time|tokens] [--svg FILE] [--png FILE] [--tensorboard DIR] RUN.jsonl...
 *
 * One chart, two canvases: chart() draws lines and texts on a page of 800 x 420; the canvas writes them
 * (SVG) or paints them (PNG). */
#include <jansson.h>
#include <math.h>
#include <png.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/env.h"
#include "base/io.h"
#include "base/opt.h"
#include "comm/comm.h"
#include "store/sidecar.h"
#include "tools/plot_axis.h"
#include "tools/plot_events.h"
#include "tools/plot_font.h"

struct plot_opts {
    const char *svg, *png, *tensorboard, *title, *y;
    int64_t width, height;
    double smooth;
    int colour, x, log_x, log_y;
};
#define AT(member) offsetof(struct plot_opts, member)
/* clang-format off */
/* kind, name, member, default, unit, help, least, most, flags */
static const struct opt table[] = {
    { OPT_GROUP, "Plot", 0, NULL, NULL, NULL, 0, 0, 0 },
    { OPT_TEXT,   "y",      AT(y),      "loss", "KEY",
      "what to draw: loss, grad_norm, lr, tokens_per_s, mfu, comm_fraction, rss_bytes, eval_loss, …; of "
      "a list (expert_load, expert_idle: a layer each) a curve an item, or KEY.N the item N, from 0",
      0, 0, 0 },
    { OPT_CHOICE, "x",      AT(x),      "step", "step|time|tokens",
      "over what: updates, wall-clock time since the run's first line, or tokens", 0, 0, 0 },
    { OPT_SWITCH, "log-x",  AT(log_x),  "0",    NULL, "logarithmic x axis", 0, 0, 0 },
    { OPT_SWITCH, "log-y",  AT(log_y),  "0",    NULL, "logarithmic y axis", 0, 0, 0 },
    { OPT_FLOAT,  "smooth", AT(smooth), "0",    "WEIGHT",
      "running mean: how much the mean so far weighs, from 0 (off) to below 1", 0, 0.9999, 0 },
    { OPT_TEXT,   "svg",    AT(svg),    NULL,   "FILE", "write it as SVG too", 0, 0, 0 },
    { OPT_TEXT,   "png",    AT(png),    NULL,   "FILE", "write it as PNG too", 0, 0, 0 },
    { OPT_TEXT,   "tensorboard", AT(tensorboard), NULL, "DIR",
      "write all figures of each run as an event file, in DIR/RUN", 0, 0, 0 },
    { OPT_TEXT,   "title",  AT(title),  NULL,   "TEXT", "heading (default: what is drawn)", 0, 0, 0 },
    { OPT_INT,    "width",  AT(width),  "72",   "N", "columns in the terminal", 20, 400, 0 },
    { OPT_INT,    "height", AT(height), "16",   "N", "rows in the terminal", 4, 100, 0 },
    { OPT_CHOICE, "color",  AT(colour), "auto", "auto|always|never",
      "tell runs apart by colour in the terminal (never, or no terminal: by letters)", 0, 0, 0 },
    { OPT_GROUP, NULL, 0, NULL, NULL, NULL, 0, 0, 0 },
};
/* clang-format on */

static void print_version(FILE *out) { comm_version(out, "plot", ""); }
/* clang-format off */
#define PROGRAM(name) { \
    name, "draws the figures of runs from ptrain's --log files", "RUN.jsonl...", table, 1, -1, \
    print_version, \
    .examples = "# the loss in the terminal, and as a picture\n" \
                name " run.jsonl --svg loss.svg\n" \
                "# two runs in one chart\n" \
                name " --y grad_norm run.jsonl other.jsonl\n", \
}
/* clang-format on */

/* plotutils has a /usr/bin/plot, so the Debian package has this program under the second name alone. */
static const struct opt_program names[] = { PROGRAM("plot"), PROGRAM("shardline-plot") };

/* The program under the name that it was started by. */
static const struct opt_program *named(const char *argv0)
{
    const char *slash = strrchr(argv0, '/');
    return &names[!strcmp(slash ? slash + 1 : argv0, names[1].name)];
}

/* One curve: a figure of a run, or one item of a figure that is a list. */
struct run {
    char *label;
    int item; /* -1: the figure is no list */
    int64_t n, capacity;
    double *x, *y;
};
struct runs {
    int n, capacity;
    struct run *run;
};
enum x_kind { X_STEP, X_TIME, X_TOKENS };
/* The axes of all runs. unit: of x, for the end of its axis; scale: what x is divided by. */
struct page {
    struct axis x, y;
    const char *unit;
    double scale;
};
struct point {
    double x, y;
};

/* ---- runs ---- */
static int add_point(struct run *r, double x, double y, struct err *e)
{
    if (r->n == r->capacity) {
        int64_t capacity = r->capacity ? 2 * r->capacity : 256;
        double *xs = realloc(r->x, (size_t)capacity * sizeof *xs), *ys = NULL;
        if (xs) {
            r->x = xs;
            ys = realloc(r->y, (size_t)capacity * sizeof *ys);
        }
        if (!ys)
            return err_set(e, ERR_MEMORY, "no memory for %s", r->label);
        r->y = ys;
        r->capacity = capacity;
    }
    r->x[r->n] = x;
    r->y[r->n++] = y;
    return 0;
}

/* The curve of an item among those from `first` on; made where there is none. item -1: the figure is no list.
 * NULL: *e is set. */
static struct run *curve_of(struct runs *all, int first, const char *path, int item, struct err *e)
{
    char label[4200];
    for (int k = first; k < all->n; k++)
        if (all->run[k].item == item)
            return &all->run[k];
    snprintf(label, sizeof label, item < 0 ? "%s" : "%s [%d]", path, item);
    if (all->n == all->capacity) {
        int capacity = all->capacity ? 2 * all->capacity : 8;
        struct run *grown = realloc(all->run, (size_t)capacity * sizeof *grown);
        all->run = grown ? grown : all->run;
        all->capacity = grown ? capacity : all->capacity;
    }
    if (all->n < all->capacity)
        all->run[all->n] = (struct run){ .item = item, .label = strdup(label) };
    if (all->n == all->capacity || !all->run[all->n].label) {
        err_set(e, ERR_MEMORY, "no memory for %s", path);
        return NULL;
    }
    return &all->run[all->n++];
}

/* What --y names: a key, and the item of a list, -1: all. */
struct key {
    char name[256];
    int item;
};
static struct key key_of(const char *text)
{
    struct key k = { .item = -1 };
    const char *dot = strrchr(text, '.');
    size_t digits = dot ? strspn(dot + 1, "0123456789") : 0;
    int n = (int)strlen(text);
    if (dot && digits && digits < 9 && !dot[1 + digits]) {
        k.item = atoi(dot + 1);
        n = (int)(dot - text);
    }
    snprintf(k.name, sizeof k.name, "%.*s", n, text);
    return k;
}

/* A run that is being read. */
struct reading {
    const char *path;
    int first;                 /* of its curves */
    double first_time, tokens; /* of its first line; of the last step so far */
};

/* What a line of the log is plotted at; NAN: the line does not say it. */
static double x_of(struct reading *run, const json_t *line, enum x_kind kind)
{
    const json_t *time = json_object_get(line, "time"), *n = json_object_get(line, "tokens");
    if (json_is_number(time) && isnan(run->first_time))
        run->first_time = json_number_value(time);
    if (json_is_number(n))
        run->tokens = json_number_value(n);
    switch (kind) {
    case X_STEP: return json_number_value(json_object_get(line, "step"));
    case X_TIME: return json_is_number(time) ? json_number_value(time) - run->first_time : NAN;
    case X_TOKENS: return run->tokens;
    }
    return NAN;
}

/* Adds what a line says to the curves of its run. x: as x_of. */
static int add_line(struct runs *all, const struct reading *run, const struct key *key, double x,
                    const json_t *o, struct err *e)
{
    const json_t *y = json_object_get(o, key->name), *v;
    const char *path = run->path;
    const int first = run->first;
    struct run *r;
    size_t i;
    if (!json_is_number(json_object_get(o, "step")) || isnan(x))
        return 0;
    if (json_is_number(y) && key->item < 0) {
        r = curve_of(all, first, path, -1, e);
        return r ? add_point(r, x, json_number_value(y), e) : -e->code;
    }
    json_array_foreach(y, i, v) {
        int rc = 0;
        if (!json_is_number(v) || (key->item >= 0 && (int)i != key->item))
            continue;
        r = curve_of(all, first, path, (int)i, e);
        rc = r ? add_point(r, x, json_number_value(v), e) : -e->code;
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* Replaces every value by the mean of all so far, in which each weighs `weight` times its successor. */
static void smooth(struct run *r, double weight)
{
    double sum = 0, weights = 0;
    for (int64_t i = 0; weight > 0 && i < r->n; i++) {
        sum = weight * sum + (1 - weight) * r->y[i];
        weights = weight * weights + (1 - weight);
        r->y[i] = sum / weights;
    }
}

/* Points that a logarithmic axis cannot show are left out. */
static void keep_positive(struct run *r, int log_x, int log_y)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < r->n; i++) {
        if ((log_x && r->x[i] <= 0) || (log_y && r->y[i] <= 0))
            continue;
        r->x[kept] = r->x[i];
        r->y[kept++] = r->y[i];
    }
    r->n = kept;
}

/* The curves of a run that was read, as they are drawn. */
static int finish_run(struct runs *all, const struct reading *run, const struct plot_opts *o, struct err *e)
{
    static const char *const also[] = { "", " and for time", " and for tokens" };
    if (all->n == run->first)
        return err_set(e, ERR_USAGE, "%s: no line with a number for %s%s: choose another --y", run->path,
                       o->y, also[o->x]);
    for (int k = run->first; k < all->n; k++) {
        struct run *r = &all->run[k];
        smooth(r, o->smooth);
        keep_positive(r, o->log_x, o->log_y);
        if (!r->n)
            return err_set(e, ERR_USAGE, "%s: no number above 0 for %s: leave the logarithmic axis out",
                           r->label, o->y);
    }
    return 0;
}

/* Reads the curves of a run. Lines without the key, and a last line that is cut off, are passed over. */
static int read_run(struct runs *all, const char *path, const struct plot_opts *o, struct err *e)
{
    const struct key key = key_of(o->y);
    struct reading run = { .path = path, .first = all->n, .first_time = NAN };
    struct stat st;
    char *line = NULL;
    size_t line_bytes = 0;
    int rc = 0;
    int64_t steps = 0;
    struct sidecars sidecars = { 0 };
    const char *here = sidecar_file(&sidecars, path, e);
    FILE *f = here ? fopen(here, "r") : NULL;
    sidecar_close(&sidecars); /* the open file stays readable */
    if (!here)
        return -e->code;
    if (!f)
        return err_sys(e, "%s: cannot open it", path);
    if (fstat(fileno(f), &st) == 0 && S_ISDIR(st.st_mode))
        rc = err_set(e, ERR_USAGE, "%s is a folder: name the --log file of the run", path);

    while (rc >= 0 && getline(&line, &line_bytes, f) > 0) {
        json_t *all_of = json_loads(line, 0, NULL);
        steps += json_is_number(json_object_get(all_of, "step"));
        rc = add_line(all, &run, &key, x_of(&run, all_of, (enum x_kind)o->x), all_of, e);
        json_decref(all_of);
    }

    if (rc >= 0 && ferror(f))
        rc = err_sys(e, "%s: cannot read it", path);
    free(line);
    fclose(f);
    if (rc >= 0 && !steps)
        return err_set(e, ERR_FORMAT, "%s: no line with a step: is it a --log file of ptrain", path);
    return rc < 0 ? rc : finish_run(all, &run, o, e);
}

struct range {
    double x0, x1, y0, y1;
};
static struct range range_of(const struct run *runs, int n)
{
    struct range g = { INFINITY, -INFINITY, INFINITY, -INFINITY };
    for (int k = 0; k < n; k++) {
        for (int64_t i = 0; i < runs[k].n; i++) {
            g.x0 = fmin(g.x0, runs[k].x[i]);
            g.x1 = fmax(g.x1, runs[k].x[i]);
            g.y0 = fmin(g.y0, runs[k].y[i]);
            g.y1 = fmax(g.y1, runs[k].y[i]);
        }
    }
    return g;
}

/* Times in a unit in which they are small numbers. */
static void set_unit(struct page *g, enum x_kind kind, double longest)
{
    static const char *const name[] = { "step", "seconds", "tokens" };
    g->unit = name[kind];
    g->scale = 1;
    if (kind == X_TIME && longest >= 7200) {
        g->unit = "hours";
        g->scale = 3600;
    } else if (kind == X_TIME && longest >= 120) {
        g->unit = "minutes";
        g->scale = 60;
    }
}

/* How many ticks the x axis should have: steps are whole numbers, so few steps have few. */
static int x_ticks(enum x_kind kind, double range)
{
    if (kind != X_STEP || range >= 5)
        return 5;
    return range < 1 ? 1 : (int)range;
}

static struct page page_of(struct run *runs, int n, const struct plot_opts *o)
{
    struct page g = { .scale = 1 };
    struct range r = range_of(runs, n);
    set_unit(&g, (enum x_kind)o->x, r.x1);
    for (int k = 0; g.scale > 1 && k < n; k++)
        for (int64_t i = 0; i < runs[k].n; i++)
            runs[k].x[i] /= g.scale;
    axis_make(&g.x, r.x0 / g.scale, r.x1 / g.scale, o->log_x, 0, x_ticks((enum x_kind)o->x, r.x1 - r.x0));
    axis_make(&g.y, r.y0, r.y1, o->log_y, 1, 5);
    return g;
}

/* ---- the terminal ---- */
static const int ansi[] = { 34, 31, 32, 33, 35, 36 };
#define COLOURS 6

/* A cell is 2 x 4 dots of braille, in the colour of the last run there. Without colours it is a letter,
 * one for each run, or * where several runs have dots. */
struct cell {
    unsigned char dots, run, many;
};

static void mark(struct cell *cells, const struct run *r, int k, const struct page *g, int w, int h)
{
    static const unsigned char dot[4][2] = { { 0x01, 0x08 }, { 0x02, 0x10 }, { 0x04, 0x20 }, { 0x40, 0x80 } };
    for (int64_t i = 0; i < r->n; i++) {
        int x = (int)lround(axis_place(&g->x, r->x[i]) * (2 * w - 1));
        int y = (int)lround((1 - axis_place(&g->y, r->y[i])) * (4 * h - 1));
        struct cell *c = &cells[y / 4 * w + x / 2];
        c->many |= (unsigned char)(c->dots && c->run != k);
        c->run = (unsigned char)k;
        c->dots |= dot[y % 4][x % 2];
    }
}

static char letter_of(int run) { return (char)((run % 52 < 26 ? 'a' : 'A' - 26) + run % 52); }

static void print_cell(const struct cell *c, int letters, int colour)
{
    int u = 0x2800 + c->dots;
    if (letters)
        putchar(!c->dots ? ' ' : c->many ? '*' : letter_of(c->run));
    else if (colour && c->dots)
        printf("\033[%dm%c%c%c\033[0m", ansi[c->run % COLOURS], 0xe0 | u >> 12, 0x80 | (u >> 6 & 0x3f),
               0x80 | (u & 0x3f));
    else
        printf("%c%c%c", 0xe0 | u >> 12, 0x80 | (u >> 6 & 0x3f), 0x80 | (u & 0x3f));
}

static void print_run(const struct run *r, int k, int colour)
{
    double last = r->y[r->n - 1];
    if (colour)
        printf("%10s \033[%dm%s\033[0m: last %.6g\n", "", ansi[k % COLOURS], r->label, last);
    else
        printf("%10c %s: last %.6g\n", letter_of(k), r->label, last);
}

/* The tick of the y axis that belongs to row y of h; NAN: none. */
static double tick_of_row(const struct axis *a, int y, int h)
{
    for (int i = 0; i < a->n; i++)
        if (lround((1 - axis_place(a, a->tick[i])) * (h - 1)) == y)
            return a->tick[i];
    return NAN;
}

/* The ticks of the x axis below their columns, those that have space, and what they count. */
static void print_x(const struct page *g, int w)
{
    int at = 0;
    printf("%11s", "");
    for (int i = 0; i < g->x.n; i++) {
        char s[32];
        int n = snprintf(s, sizeof s, "%.6g", g->x.tick[i]),
            column = (int)lround(axis_place(&g->x, g->x.tick[i]) * w);
        column = column - n / 2 < 0 ? 0 : column - n / 2;
        column = column + n > w ? w - n : column;
        if (at && column < at + 1)
            continue;
        printf("%*s%s", column - at, "", s);
        at = column + n;
    }
    printf("%*s  %s\n", at < w ? w - at : 0, "", g->unit);
}

static int draw_terminal(const struct run *runs, int n, const struct page *g, const struct plot_opts *o,
                         struct err *e)
{
    int w = (int)o->width, h = (int)o->height,
        colour = n > 1 && (o->colour == 1 || (!o->colour && isatty(1) && !env_get(ENV_NO_COLOR)));
    struct cell *cells = calloc((size_t)(w * h), sizeof *cells);
    if (!cells)
        return err_set(e, ERR_MEMORY, "no memory for %d x %d characters", w, h);
    for (int k = 0; k < n; k++)
        mark(cells, &runs[k], k, g, w, h);

    printf("%10s  %s\n", "", o->title);
    for (int y = 0; y < h; y++) {
        double tick = tick_of_row(&g->y, y, h);
        if (!isnan(tick))
            printf("%10.5g |", tick);
        else
            printf("%10s |", "");
        for (int x = 0; x < w; x++)
            print_cell(&cells[y * w + x], n > 1 && !colour, colour);
        printf("\n");
    }

    printf("%10s +", "");
    for (int x = 0; x < w; x++)
        printf("-");
    printf("\n");
    print_x(g, w);
    for (int k = 0; n > 1 && k < n; k++)
        print_run(&runs[k], k, colour);
    free(cells);
    return fflush(stdout) ? err_sys(e, "cannot write the plot to stdout") : 0;
}

/* ---- the chart, on a canvas ---- */
enum { W = 800, H = 420, LEFT = 76, RIGHT = 20, TOP = 40, BOTTOM = 40 };
enum anchor { ANCHOR_START, ANCHOR_MIDDLE, ANCHOR_END };
struct canvas {
    void (*curve)(struct canvas *c, const struct point *p, int64_t n, double width, unsigned rgb);
    void (*text)(struct canvas *c, double x, double y, enum anchor at, unsigned rgb, const char *s);
    FILE *svg;
    unsigned char *pixels;
};
static const unsigned colours[COLOURS] = { 0x1f6feb, 0xd1242f, 0x1a7f37, 0x9a6700, 0x8250df, 0x57606a };

static void chart_grid(struct canvas *c, const struct page *g)
{
    const double w = W - LEFT - RIGHT, h = H - TOP - BOTTOM;
    char s[64];
    for (int i = 0; i < g->y.n; i++) {
        double y = TOP + h * (1 - axis_place(&g->y, g->y.tick[i]));
        c->curve(c, (struct point[]){ { LEFT, y }, { W - RIGHT, y } }, 2, 1, 0xd0d7de);
        snprintf(s, sizeof s, "%.5g", g->y.tick[i]);
        c->text(c, LEFT - 8, y + 4, ANCHOR_END, 0x1f2328, s);
    }
    for (int i = 0; i < g->x.n; i++) {
        double x = LEFT + w * axis_place(&g->x, g->x.tick[i]);
        c->curve(c, (struct point[]){ { x, H - BOTTOM }, { x, H - BOTTOM + 4 } }, 2, 1, 0xd0d7de);
        snprintf(s, sizeof s, "%.6g", g->x.tick[i]);
        c->text(c, x, H - BOTTOM + 20, ANCHOR_MIDDLE, 0x1f2328, s);
    }
    c->text(c, W - RIGHT, H - 6, ANCHOR_END, 0x1f2328, g->unit);
}

static int chart(struct canvas *c, const struct run *runs, int n, const struct page *g, const char *title,
                 struct err *e)
{
    const double w = W - LEFT - RIGHT, h = H - TOP - BOTTOM;
    c->text(c, LEFT, 24, ANCHOR_START, 0x1f2328, title);
    chart_grid(c, g);
    for (int k = 0; k < n; k++) {
        struct point *p = malloc(sizeof *p * (size_t)runs[k].n);
        if (!p)
            return err_set(e, ERR_MEMORY, "no memory for %lld points", (long long)runs[k].n);
        for (int64_t i = 0; i < runs[k].n; i++)
            p[i] = (struct point){ LEFT + w * axis_place(&g->x, runs[k].x[i]),
                                   TOP + h * (1 - axis_place(&g->y, runs[k].y[i])) };
        c->curve(c, p, runs[k].n, 1.5, colours[k % COLOURS]);
        c->text(c, W - RIGHT - 4, TOP + 16 + 16 * k, ANCHOR_END, colours[k % COLOURS], runs[k].label);
        free(p);
    }
    return 0;
}

/* ---- SVG ---- */
static void svg_curve(struct canvas *c, const struct point *p, int64_t n, double width, unsigned rgb)
{
    fprintf(c->svg, "<polyline fill=\"none\" stroke=\"#%06x\" stroke-width=\"%g\" points=\"", rgb, width);
    for (int64_t i = 0; i < n; i++)
        fprintf(c->svg, "%.1f,%.1f ", p[i].x, p[i].y);
    fprintf(c->svg, "\"/>\n");
    if (n == 1) /* a line of one point is not drawn */
        fprintf(c->svg, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"2\" fill=\"#%06x\"/>\n", p->x, p->y, rgb);
}

static void svg_text(struct canvas *c, double x, double y, enum anchor at, unsigned rgb, const char *s)
{
    static const char *const anchor[] = { "start", "middle", "end" };
    fprintf(c->svg, "<text x=\"%.1f\" y=\"%.1f\" fill=\"#%06x\" text-anchor=\"%s\">", x, y, rgb, anchor[at]);
    for (; *s; s++) {
        if (*s == '<' || *s == '&' || *s == '>')
            fprintf(c->svg, *s == '<' ? "&lt;" : *s == '&' ? "&amp;" : "&gt;");
        else
            fputc((unsigned char)*s < ' ' ? '?' : *s, c->svg); /* a control character is no XML */
    }
    fprintf(c->svg, "</text>\n");
}

static int draw_svg(const struct plot_opts *o, const struct run *runs, int n, const struct page *g,
                    struct err *e)
{
    struct canvas c = { svg_curve, svg_text, io_write_text(o->svg, 0, e), NULL };
    if (!c.svg)
        return -e->code;
    fprintf(c.svg,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" "
            "font-size=\"13\">\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
            W, H);
    int rc = chart(&c, runs, n, g, o->title, e);
    fprintf(c.svg, "</svg>\n");
    int lost = ferror(c.svg);
    return fclose(c.svg) || lost ? err_sys(e, "%s: cannot write", o->svg) : rc;
}

/* ---- PNG: SCALE pixels a unit of the page, RGB ---- */
enum { SCALE = 2, PW = W * SCALE, PH = H * SCALE };

/* share: how much of the pixel the colour covers */
static void blend(unsigned char *pixels, int x, int y, unsigned rgb, double share)
{
    unsigned char *p = pixels + 3 * ((size_t)y * PW + (size_t)x);
    for (int i = 0; i < 3; i++)
        p[i] = (unsigned char)lround(p[i] + ((rgb >> (16 - 8 * i) & 0xff) - (double)p[i]) * share);
}

/* Every pixel near the segment, by its distance from it. */
static void paint_segment(unsigned char *pixels, struct point a, struct point b, double half, unsigned rgb)
{
    double dx = b.x - a.x, dy = b.y - a.y, len2 = dx * dx + dy * dy;
    int x0 = (int)fmax(0, floor(fmin(a.x, b.x) - half - 1)),
        x1 = (int)fmin(PW - 1, ceil(fmax(a.x, b.x) + half + 1));
    int y0 = (int)fmax(0, floor(fmin(a.y, b.y) - half - 1)),
        y1 = (int)fmin(PH - 1, ceil(fmax(a.y, b.y) + half + 1));
    for (int y = y0; y <= y1; y++) {
        for (int x = x0; x <= x1; x++) {
            double px = x + 0.5 - a.x, py = y + 0.5 - a.y,
                   t = len2 > 0 ? fmax(0, fmin(1, (px * dx + py * dy) / len2)) : 0;
            double share = half + 0.5 - hypot(px - t * dx, py - t * dy);
            if (share > 0)
                blend(pixels, x, y, rgb, fmin(1, share));
        }
    }
}

static void paint_curve(struct canvas *c, const struct point *p, int64_t n, double width, unsigned rgb)
{
    for (int64_t i = 0; i < n; i++) {
        struct point a = p[i], b = p[i + 1 < n ? i + 1 : i];
        if (i + 1 < n || n == 1)
            paint_segment(c->pixels, (struct point){ SCALE * a.x, SCALE * a.y },
                          (struct point){ SCALE * b.x, SCALE * b.y }, SCALE * (n == 1 ? 2 : width / 2), rgb);
    }
}

static void paint_letter(unsigned char *pixels, int x0, int y0, const unsigned char *rows, unsigned rgb)
{
    for (int y = 0; y < FONT_H * SCALE; y++)
        for (int x = 0; x < FONT_W * SCALE; x++)
            if (rows[y / SCALE] & 0x10 >> x / SCALE && x0 + x >= 0 && x0 + x < PW && y0 + y >= 0 &&
                y0 + y < PH)
                blend(pixels, x0 + x, y0 + y, rgb, 1);
}

/* Characters that the font lacks become a question mark each. */
static void paint_text(struct canvas *c, double x, double y, enum anchor at, unsigned rgb, const char *s)
{
    int n = 0, step = SCALE * (FONT_W + 1), i = 0;
    for (const char *p = s; *p; p++)
        n += (*p & 0xc0) != 0x80;
    int left = (int)lround(SCALE * x) - (at == ANCHOR_START    ? 0
                                         : at == ANCHOR_MIDDLE ? n * step / 2
                                                               : n * step);
    for (; *s; s++) {
        int ch = (unsigned char)*s;
        if ((ch & 0xc0) == 0x80)
            continue;
        paint_letter(c->pixels, left + step * i++, (int)lround(SCALE * y) - SCALE * (FONT_H - 1),
                     font[(ch < FONT_FIRST || ch > FONT_LAST ? '?' : ch) - FONT_FIRST], rgb);
    }
}

static int draw_png(const struct plot_opts *o, const struct run *runs, int n, const struct page *g,
                    struct err *e)
{
    png_image image = { .version = PNG_IMAGE_VERSION, .width = PW, .height = PH, .format = PNG_FORMAT_RGB };
    struct canvas c = { paint_curve, paint_text, NULL, malloc(3 * (size_t)PW * PH) };
    if (!c.pixels)
        return err_set(e, ERR_MEMORY, "no memory for %d x %d pixels", PW, PH);
    memset(c.pixels, 0xff, 3 * (size_t)PW * PH);
    int rc = chart(&c, runs, n, g, o->title, e);
    if (rc >= 0 && !png_image_write_to_file(&image, o->png, 0, c.pixels, 0, NULL))
        rc = err_set(e, ERR_FILE, "%s: cannot write: %s", o->png, image.message);
    png_image_free(&image);
    free(c.pixels);
    return rc;
}

/* Refuses to write a picture over a run's log. */
static int check_target(const char *option, const char *path, const struct opt_args *runs, struct err *e)
{
    for (int i = 0; path && i < runs->n; i++)
        if (io_same_file(path, runs->item[i]))
            return err_set(e, ERR_USAGE, "--%s %s is a run and would be written over: name another file",
                           option, path);
    return 0;
}

int main(int argc, char **argv)
{
    struct plot_opts o;
    struct opt_args args;
    struct err e = { 0 };
    struct runs all = { 0 };
    const struct opt_program *program = named(argv[0]);
    io_begin();
    int rc = opt_parse(program, argc, argv, &o, &args, NULL, &e);
    if (rc)
        return io_end(rc, &e, program->name);

    o.title = o.title ? o.title : o.y;
    TRY(check_target("svg", o.svg, &args, &e));
    TRY(check_target("png", o.png, &args, &e));
    for (int i = 0; i < args.n; i++)
        TRY(read_run(&all, args.item[i], &o, &e));

    struct run *runs = all.run;
    int n = all.n;
    struct page g = page_of(runs, n, &o);
    TRY(draw_terminal(runs, n, &g, &o, &e));
    if (o.svg)
        TRY(draw_svg(&o, runs, n, &g, &e));
    if (o.png)
        TRY(draw_png(&o, runs, n, &g, &e));
    for (int i = 0; o.tensorboard && i < args.n; i++)
        TRY(plot_events_write(o.tensorboard, args.item[i], &e));
out:
    for (int i = 0; i < all.n; i++) {
        free(all.run[i].label);
        free(all.run[i].x);
        free(all.run[i].y);
    }
    free(all.run);
    opt_free(program, &o, &args);
    return io_end(rc, &e, program->name);
}
