/* plot - draws the loss of one run, or several, from ptrain's --log files: in the terminal, and as SVG.
 * usage: plot [--svg FILE] [--title TEXT] RUN.jsonl... */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/jx.h"
#include "base/opt.h"

struct plot_opts { const char *svg, *title; int64_t width, height; };
#define AT(member) offsetof(struct plot_opts, member)
static const struct opt table[] = {
    { OPT_GROUP, "Plot", 0, NULL, NULL, NULL, 0, 0, 0 },
    { OPT_TEXT, "svg", AT(svg), NULL, "FILE", "write the curve as SVG too", 0, 0, 0 },
    { OPT_TEXT, "title", AT(title), "training loss", "TEXT", "heading", 0, 0, 0 },
    { OPT_INT, "width", AT(width), "72", "N", "columns in the terminal", 20, 400, 0 },
    { OPT_INT, "height", AT(height), "16", "N", "rows in the terminal", 4, 100, 0 },
    { OPT_GROUP, NULL, 0, NULL, NULL, NULL, 0, 0, 0 },
};
static void print_version(FILE *out) { fprintf(out, "plot (Shardline) 0.1\n"); }
static const struct opt_program program = { "plot", "draws the loss of runs from ptrain's --log files", "RUN.jsonl...", table, 1, -1, print_version };

struct run { const char *path; int64_t n; double *step, *loss; };
struct range { double step0, step1, loss0, loss1; };
static const char *const colours[] = { "#1f6feb", "#d1242f", "#1a7f37", "#9a6700", "#8250df", "#57606a" };

static int read_run(struct run *r, const char *path, struct err *e)
{
    char line[4096];
    int64_t room = 0;
    FILE *f = fopen(path, "r");
    r->path = path;
    if (!f)
        return err_sys(e, "%s: cannot open it", path);
    while (fgets(line, sizeof line, f)) {
        json_t *o = json_loads(line, 0, NULL), *loss = json_object_get(o, "loss"), *step = json_object_get(o, "step");
        if (json_is_number(loss) && json_is_number(step)) {
            if (r->n == room) {
                room = room ? 2 * room : 256;
                r->step = realloc(r->step, (size_t)room * sizeof *r->step);
                r->loss = realloc(r->loss, (size_t)room * sizeof *r->loss);
                if (!r->step || !r->loss) {
                    json_decref(o);
                    fclose(f);
                    return err_set(e, ERR_MEMORY, "no memory for %s", path);
                }
            }
            r->step[r->n] = json_number_value(step);
            r->loss[r->n++] = json_number_value(loss);
        }
        json_decref(o);
    }
    fclose(f);
    return r->n ? 0 : err_set(e, ERR_FORMAT, "%s: no line with step and loss: is it a --log file of ptrain", path);
}

static struct range range_of(const struct run *runs, int n)
{
    struct range g = { INFINITY, -INFINITY, INFINITY, -INFINITY };
    for (int k = 0; k < n; k++) {
        for (int64_t i = 0; i < runs[k].n; i++) {
            g.step0 = fmin(g.step0, runs[k].step[i]);
            g.step1 = fmax(g.step1, runs[k].step[i]);
            g.loss0 = fmin(g.loss0, runs[k].loss[i]);
            g.loss1 = fmax(g.loss1, runs[k].loss[i]);
        }
    }
    if (g.step1 <= g.step0)
        g.step1 = g.step0 + 1;
    if (g.loss1 <= g.loss0)
        g.loss1 = g.loss0 + 1;
    return g;
}

/* Braille: a cell is 2 x 4 dots. */
static void draw_terminal(const struct run *runs, int n, struct range g, int w, int h, const char *title)
{
    static const unsigned char dot[4][2] = { { 0x01, 0x08 }, { 0x02, 0x10 }, { 0x04, 0x20 }, { 0x40, 0x80 } };
    unsigned char *cell = calloc((size_t)w * (size_t)h, 1);
    if (!cell)
        return;
    for (int k = 0; k < n; k++) {
        for (int64_t i = 0; i < runs[k].n; i++) {
            int x = (int)lround((runs[k].step[i] - g.step0) / (g.step1 - g.step0) * (2 * w - 1));
            int y = (int)lround((g.loss1 - runs[k].loss[i]) / (g.loss1 - g.loss0) * (4 * h - 1));
            cell[y / 4 * w + x / 2] |= dot[y % 4][x % 2];
        }
    }
    printf("%9s  %s\n", "", title);
    for (int y = 0; y < h; y++) {
        if (y == 0 || y == h - 1 || y == h / 2)
            printf("%9.4f |", g.loss1 - (g.loss1 - g.loss0) * y / (h - 1));
        else
            printf("%9s |", "");
        for (int x = 0; x < w; x++) {
            int c = 0x2800 + cell[y * w + x];
            printf("%c%c%c", 0xe0 | c >> 12, 0x80 | (c >> 6 & 0x3f), 0x80 | (c & 0x3f));
        }
        printf("\n");
    }
    printf("%9s +", "");
    for (int x = 0; x < w; x++)
        printf("-");
    printf("\n%10s%-*.0f%*.0f  step\n", "", w / 2, g.step0, w - w / 2, g.step1);
    free(cell);
}

static void svg_text(FILE *f, const char *s)
{
    for (; *s; s++) {
        if (*s == '<' || *s == '&' || *s == '>')
            fprintf(f, *s == '<' ? "&lt;" : *s == '&' ? "&amp;" : "&gt;");
        else
            fputc(*s, f);
    }
}

static int draw_svg(const char *path, const struct run *runs, int n, struct range g, const char *title, struct err *e)
{
    enum { W = 800, H = 420, L = 70, R = 20, T = 40, B = 40 };
    FILE *f = fopen(path, "w");
    if (!f)
        return err_sys(e, "%s: cannot write", path);
    fprintf(f, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" font-size=\"13\">\n"
               "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n<text x=\"%d\" y=\"24\" font-size=\"16\">", W, H, L);
    svg_text(f, title);
    fprintf(f, "</text>\n");
    for (int i = 0; i <= 4; i++) {
        double y = T + (H - T - B) * i / 4.0, x = L + (W - L - R) * i / 4.0;
        fprintf(f, "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#d0d7de\"/>\n", L, W - R, y, y);
        fprintf(f, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.3f</text>\n", L - 8, y + 4, g.loss1 - (g.loss1 - g.loss0) * i / 4);
        fprintf(f, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.0f</text>\n", x, H - B + 20, g.step0 + (g.step1 - g.step0) * i / 4);
    }
    for (int k = 0; k < n; k++) {
        const char *colour = colours[k % 6];
        fprintf(f, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"1.5\" points=\"", colour);
        for (int64_t i = 0; i < runs[k].n; i++)
            fprintf(f, "%.1f,%.1f ", L + (W - L - R) * (runs[k].step[i] - g.step0) / (g.step1 - g.step0),
                    T + (H - T - B) * (g.loss1 - runs[k].loss[i]) / (g.loss1 - g.loss0));
        fprintf(f, "\"/>\n<text x=\"%d\" y=\"%d\" fill=\"%s\" text-anchor=\"end\">", W - R - 4, T + 16 + 16 * k, colour);
        svg_text(f, runs[k].path);
        fprintf(f, "</text>\n");
    }
    fprintf(f, "<text x=\"%d\" y=\"%d\">step</text>\n</svg>\n", W - R - 30, H - 6);
    return fclose(f) ? err_sys(e, "%s: cannot write", path) : 0;
}

int main(int argc, char **argv)
{
    struct plot_opts o;
    struct opt_args args;
    struct err e = { 0 };
    struct run *runs = NULL;
    int rc = opt_parse(&program, argc, argv, &o, &args, NULL, &e), n = 0;
    if (rc)
        return rc < 0 ? err_print(&e, "plot") : 0;
    runs = calloc((size_t)args.n, sizeof *runs);
    if (!runs)
        TRY(err_set(&e, ERR_MEMORY, "no memory for %d runs", args.n));
    for (; n < args.n; n++)
        TRY(read_run(&runs[n], args.item[n], &e));
    struct range g = range_of(runs, n);
    draw_terminal(runs, n, g, (int)o.width, (int)o.height, o.title);
    if (o.svg)
        TRY(draw_svg(o.svg, runs, n, g, o.title, &e));
out:
    for (int i = 0; runs && i < args.n; i++) {
        free(runs[i].step);
        free(runs[i].loss);
    }
    free(runs);
    opt_free(&program, &o, &args);
    return rc < 0 ? err_print(&e, "plot") : 0;
}
