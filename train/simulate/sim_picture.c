/* sim_picture.c - see sim_picture.h. */
#include "train/simulate/sim_picture.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include "base/buf.h"

enum { WIDTH = 1200, LEFT = 70, ROW = 22, TOP = 30 };

static const struct {
    char what;
    const char *name, *color;
} kinds[] = { { 'F', "forward", "#4c78a8" },        { 'B', "backward", "#f58518" },
              { 'I', "backward input", "#e4a04a" }, { 'W', "weight gradients", "#72b7b2" },
              { 'S', "sums over dp", "#b279a2" },   { 'U', "update", "#54a24b" },
              { 'G', "gathers", "#9d755d" } };
enum { N_KINDS = sizeof kinds / sizeof *kinds };

static int kind_of(char what)
{
    for (int i = 0; i < N_KINDS; i++)
        if (kinds[i].what == what)
            return i;
    return 0;
}

static void add(struct buf *b, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add(struct buf *b, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    buf_add(b, text, n < (int)sizeof text ? (size_t)n : sizeof text - 1);
}

static int give(struct buf *b, char **text, size_t *n, struct err *e)
{
    if (b->failed) {
        buf_free(b);
        return err_set(e, ERR_MEMORY, "no memory for a picture");
    }
    *text = b->p;
    *n = b->n;
    return 0;
}

int sim_picture_trace(const struct clock_timeline *t, char **text, size_t *n, struct err *e)
{
    struct buf b = { 0 };
    add(&b, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[");
    for (int64_t i = 0; i < t->n; i++) {
        const struct clock_span *s = &t->span[i];
        add(&b,
            "%s\n{\"name\":\"%s\",\"cat\":\"step\",\"ph\":\"X\",\"pid\":0,\"tid\":%d,\"ts\":%.3f,\"dur\":%."
            "3f,"
            "\"args\":{\"chunk\":%d,\"micro\":%lld}}",
            i ? "," : "", kinds[kind_of(s->what)].name, s->what == 'S' ? s->stage + 100000 : s->stage,
            s->begin * 1e6, (s->end - s->begin) * 1e6, s->chunk, (long long)s->micro);
    }
    add(&b, "\n]}\n");
    return give(&b, text, n, e);
}

static void begin_svg(struct buf *b, int width, int height)
{
    add(b,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\" "
        "font-size=\"11\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
        width, height);
}

int sim_picture_svg(const struct clock_timeline *t, int stages, double step_s, char **text, size_t *n,
                    struct err *e)
{
    struct buf b = { 0 };
    double scale = (WIDTH - LEFT - 10) / (step_s > 0 ? step_s : 1);
    begin_svg(&b, WIDTH, TOP + ROW * stages + 40);
    for (int i = 0; i < N_KINDS; i++)
        add(&b,
            "<rect x=\"%d\" y=\"8\" width=\"10\" height=\"10\" fill=\"%s\"/><text x=\"%d\" "
            "y=\"17\">%s</text>\n",
            LEFT + i * 140, kinds[i].color, LEFT + 14 + i * 140, kinds[i].name);
    for (int i = 0; i < stages; i++)
        add(&b,
            "<text x=\"4\" y=\"%d\">stage %d</text><rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" "
            "fill=\"#eeeeee\"/>\n",
            TOP + i * ROW + 14, i, LEFT, TOP + i * ROW, WIDTH - LEFT - 10, ROW - 3);
    for (int64_t i = 0; i < t->n; i++) {
        const struct clock_span *s = &t->span[i];
        double width = (s->end - s->begin) * scale;
        int thin = s->what == 'S'; /* sums run beside other work */
        if (width < 0.1)
            continue;
        add(&b,
            "<rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" fill=\"%s\" stroke=\"white\" "
            "stroke-width=\"0.3\"/>\n",
            LEFT + s->begin * scale, TOP + s->stage * ROW + (thin ? ROW - 7 : 0), width, thin ? 4 : ROW - 7,
            kinds[kind_of(s->what)].color);
    }
    add(&b,
        "<text x=\"%d\" y=\"%d\">0 s</text><text x=\"%d\" y=\"%d\" text-anchor=\"end\">%.4g "
        "s</text>\n</svg>\n",
        LEFT, TOP + ROW * stages + 16, WIDTH - 10, TOP + ROW * stages + 16, step_s);
    return give(&b, text, n, e);
}

int sim_picture_scale(const struct sim_point *p, int n_points, char **text, size_t *n, struct err *e)
{
    enum { HEIGHT = 420, BOTTOM = 380 };
    struct buf b = { 0 };
    double x0 = log(p[0].ranks), x1 = log(p[n_points - 1].ranks), y1 = log(p[0].step_s), y0 = y1 - (x1 - x0);
    for (int i = 0; i < n_points; i++) {
        y0 = log(p[i].step_s) < y0 ? log(p[i].step_s) : y0;
        y1 = log(p[i].step_s) > y1 ? log(p[i].step_s) : y1;
    }
    double dx = x1 > x0 ? (WIDTH - LEFT - 60) / (x1 - x0) : 0, dy = y1 > y0 ? (BOTTOM - TOP) / (y1 - y0) : 0;
    begin_svg(&b, WIDTH, HEIGHT);
    add(&b, "<text x=\"%d\" y=\"17\">seconds of a step against ranks (grey: perfect)</text>\n", LEFT);
    add(&b, "<line x1=\"%d\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#bbbbbb\"/>\n", LEFT,
        BOTTOM - (log(p[0].step_s) - y0) * dy, LEFT + (x1 - x0) * dx,
        BOTTOM - (log(p[0].step_s) - (x1 - x0) - y0) * dy);
    for (int i = 0; i < n_points; i++) {
        double x = LEFT + (log(p[i].ranks) - x0) * dx, y = BOTTOM - (log(p[i].step_s) - y0) * dy;
        add(&b,
            "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" fill=\"#4c78a8\"/><text x=\"%.1f\" y=\"%.1f\">%.3g s, "
            "%.1f "
            "%%</text><text x=\"%.1f\" y=\"%d\">%.0f</text>\n",
            x, y, x + 6, y - 6, p[i].step_s, 100 * p[i].mfu, x - 8, HEIGHT - 14, p[i].ranks);
    }
    add(&b, "</svg>\n");
    return give(&b, text, n, e);
}

int sim_picture_memory(const struct sim_bar *bar, int n_bars, double memory, char **text, size_t *n,
                       struct err *e)
{
    static const char *const colors[] = { "#4c78a8", "#f58518", "#54a24b", "#72b7b2",
                                          "#b279a2", "#9d755d", "#e45756", "#bab0ac" };
    enum { N_COLORS = sizeof colors / sizeof *colors, NAME = 330, TIMES = 120 };
    struct buf b = { 0 };
    double most = memory;
    for (int i = 0; i < n_bars; i++) {
        double sum = 0;
        for (int k = 0; k < MEM_CATS; k++)
            sum += bar[i].bytes[k];
        most = sum > most ? sum : most;
    }
    double scale = (WIDTH - NAME - TIMES) / (most > 0 ? most : 1);
    begin_svg(&b, WIDTH, TOP + ROW * n_bars + 30);
    for (int k = 0, x = NAME; k < MEM_CATS; k++, x += 90)
        add(&b,
            "<rect x=\"%d\" y=\"8\" width=\"10\" height=\"10\" fill=\"%s\"/><text x=\"%d\" "
            "y=\"17\">%s</text>\n",
            x, colors[k % N_COLORS], x + 14, mem_cat_name((enum mem_cat)k));
    for (int i = 0; i < n_bars; i++) {
        double x = NAME;
        int y = TOP + i * ROW;
        add(&b, "<text x=\"4\" y=\"%d\">%s</text>\n", y + 14, bar[i].name);
        for (int k = 0; k < MEM_CATS; k++) {
            double width = bar[i].bytes[k] * scale;
            if (width >= 0.1)
                add(&b, "<rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" fill=\"%s\"/>\n", x, y, width,
                    ROW - 4, colors[k % N_COLORS]);
            x += width;
        }
        add(&b, "<text x=\"%.1f\" y=\"%d\">%.4g GB, %.3g s</text>\n", x + 4, y + 14, (x - NAME) / scale / 1e9,
            bar[i].step_s);
    }
    double line = NAME + memory * scale;
    add(&b,
        "<line x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\" stroke=\"black\"/><text x=\"%.1f\" y=\"%d\" "
        "text-anchor=\"end\">%.4g GB</text>\n</svg>\n",
        line, TOP, line, TOP + ROW * n_bars, line, TOP + ROW * n_bars + 16, memory / 1e9);
    return give(&b, text, n, e);
}
