/* fused_experts_test.c - fused experts are shown as tensors of their own, however the pieces of the fused
 * ones are cut: by experts, rows, columns and ranges of elements, and with strides. */
#include "format/fmt.h"
#include "format/hf/fused_experts.h"
#include "tests/test.h"
#include "tests/unit/format/format_make.h"

enum { E = 3, I = 5, H = 4, PIECES = 64 };
#define GATE_UP "model.layers.0.mlp.experts.gate_up_proj"
#define DOWN "model.layers.0.mlp.experts.down_proj"

/* Element (x, r, c) of the tensor with `rows` rows an expert: unique over both tensors. */
static uint16_t value_at(int64_t rows, int64_t x, int64_t r, int64_t c)
{
    return (uint16_t)(rows * 1000 + x * 200 + r * 10 + c);
}

/* How pieces are cut: rows of a box, columns of a box, ranges a box, and whether a box is stored with its
 * columns first. */
struct cuts {
    int experts, rows, columns, ranges, strided;
};

struct made {
    struct ckpt *c;
    FILE *f;
    int64_t at; /* bytes written */
    struct cuts cuts;
};

static void add_piece(struct made *m, int tensor, const struct box *b, int64_t lo, int64_t hi)
{
    int64_t rows = m->c->tensor[tensor].shape[1], *stride = NULL, n[3];
    struct fmt_piece *p = &m->c->piece[m->c->n_pieces++];
    if (m->cuts.strided) {
        stride = malloc(3 * sizeof *stride);
        memcpy(stride, (int64_t[]){ b->extent[1] * b->extent[2], 1, b->extent[1] }, 3 * sizeof *stride);
        m->c->owned[m->c->n_owned++] = stride;
    }
    *p = (struct fmt_piece){ tensor, 0, m->at, *b, lo, hi, stride };
    for (int64_t i = lo; i < hi; i++) {
        n[0] = i / (b->extent[1] * b->extent[2]);
        n[1] = stride ? i % b->extent[1] : i / b->extent[2] % b->extent[1];
        n[2] = stride ? i / b->extent[1] % b->extent[2] : i % b->extent[2];
        uint16_t v = value_at(rows, b->start[0] + n[0], b->start[1] + n[1], b->start[2] + n[2]);
        fwrite(&v, sizeof v, 1, m->f);
    }
    m->at += (hi - lo) * (int64_t)sizeof(uint16_t);
}

static void add_tensor(struct made *m, int tensor, const char *name, int64_t rows, int64_t cols)
{
    const struct cuts *k = &m->cuts;
    m->c->tensor[tensor] = (struct ckpt_tensor){
        .name = strdup(name), .dtype = STORED_BF16, .n_dims = 3, .shape = { E, rows, cols }
    };
    for (int64_t x = 0; x < E; x += k->experts)
        for (int64_t r = 0; r < rows; r += k->rows)
            for (int64_t c = 0; c < cols; c += k->columns) {
                struct box b = { 3,
                                 { x, r, c },
                                 { x + k->experts > E ? E - x : k->experts,
                                   r + k->rows > rows ? rows - r : k->rows,
                                   c + k->columns > cols ? cols - c : k->columns } };
                for (int i = 0; i < k->ranges; i++)
                    add_piece(m, tensor, &b, box_count(&b) * i / k->ranges,
                              box_count(&b) * (i + 1) / k->ranges);
            }
}

/* An open checkpoint as a driver leaves it. */
static struct ckpt *made(struct cuts cuts)
{
    char path[512];
    struct err e;
    struct made m = { .c = calloc(1, sizeof *m.c), .cuts = cuts };
    struct ckpt *c = m.c;
    pthread_mutex_init(&c->lock, NULL);
    c->hold = -1;
    c->path = strdup("made");
    c->dir = strdup(test_tmp_dir());
    c->config = strdup("{\"model_type\":\"qwen3_moe\"}");
    c->n_tensors = 2;
    c->tensor = calloc(2, sizeof *c->tensor);
    c->piece = calloc(PIECES * 4, sizeof *c->piece);
    c->owned = calloc(PIECES * 4, sizeof *c->owned);
    c->first_piece = calloc(3, sizeof *c->first_piece);

    m.f = fopen(in_tmp(test_tmp_dir(), "data", path), "wb");
    add_tensor(&m, 0, DOWN, H, I);
    add_tensor(&m, 1, GATE_UP, (int64_t)2 * I, H);
    fclose(m.f);
    CHECK(fmt_add_file(c, "data", m.at, &e) != NULL);
    fmt_sort_tensors(c);
    return c;
}

/* Does the tensor of expert x hold rows from `first` on of the fused one? */
static int holds(struct ckpt *c, int64_t fused_rows, int x, const char *part, int64_t first, int64_t rows,
                 int64_t cols)
{
    char name[128];
    uint16_t got[2 * I * H];
    struct err e = { 0 };
    snprintf(name, sizeof name, "model.layers.0.mlp.experts.%d.%s.weight", x, part);
    int i = ckpt_find(c, ROLE_WEIGHT, name);
    if (i < 0 || c->tensor[i].n_dims != 2 || c->tensor[i].shape[0] != rows || c->tensor[i].shape[1] != cols)
        return 0;

    struct box b = box_whole(2, c->tensor[i].shape);
    CHECK_INT(fmt_cover(&c->tensor[i], &c->piece[c->first_piece[i]],
                        c->first_piece[i + 1] - c->first_piece[i], "made", &e),
              0);
    if (ckpt_read(c, i, &b, got, &e) < 0) {
        printf("%s\n", e.text);
        return 0;
    }
    for (int64_t k = 0; k < rows * cols; k++)
        if (got[k] != value_at(fused_rows, x, first + k / cols, k % cols))
            return 0;
    return 1;
}

TEST(experts_are_found_in_pieces_of_every_cut)
{
    static const struct cuts cuts[] = {
        { E, 2 * I, I, 1, 0 },                        /* whole */
        { 1, 3, I, 1, 0 },                            /* rows that gate and up share */
        { 2, 2 * I, 3, 1, 0 },                        /* columns */
        { E, 2 * I, I, 7, 0 },                        /* ranges, as ZeRO cuts */
        { 2, 4, 2, 3, 0 },     { E, 2 * I, I, 1, 1 }, /* columns first */
        { 2, 3, 3, 1, 1 },
    };
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        struct err e = { 0 };
        struct ckpt *c = made(cuts[i]);
        CHECK_INT(fused_experts_split(c, &e), 0);
        CHECK_INT(ckpt_n_tensors(c), 3 * E);
        for (int x = 0; x < E; x++)
            if (!holds(c, 2 * I, x, "gate_proj", 0, I, H) || !holds(c, 2 * I, x, "up_proj", I, I, H) ||
                !holds(c, H, x, "down_proj", 0, H, I))
                test_fail(__FILE__, __LINE__, "cut %zu, expert %d", i, x);
        ckpt_close(c);
    }
}

TEST(other_families_keep_the_tensors_of_that_name)
{
    struct err e = { 0 };
    struct ckpt *c = made((struct cuts){ E, 2 * I, I, 1, 0 });
    free(c->config);
    c->config = strdup("{\"model_type\":\"gpt_oss\"}");
    CHECK_INT(fused_experts_split(c, &e), 0);
    CHECK_INT(ckpt_n_tensors(c), 2);
    ckpt_close(c);
}

static const struct {
    int tensor; /* 0: down_proj, 1: gate_up_proj */
    struct ckpt_tensor t;
    const char *says;
} bad[] = {
    { 0, { .dtype = STORED_BF16, .n_dims = 3, .shape = { E, I, H } }, "is one of them turned round" },
    { 1, { .dtype = STORED_BF16, .n_dims = 3, .shape = { E, H, 2 * I } }, "is one of them turned round" },
    { 1, { .dtype = STORED_BF16, .n_dims = 3, .shape = { E, 2 * I + 1, H } }, "turned round" },
    { 1, { .dtype = STORED_BF16, .n_dims = 2, .shape = { 2 * I, H } }, "has 2 dimensions" },
    { 1, { .dtype = STORED_BF16, .n_dims = 3, .shape = { E + 1, 2 * I, H } }, "are they of one save" },
    { 1, { .dtype = STORED_F32, .n_dims = 3, .shape = { E, 2 * I, H } }, "are they of one save" },
    { 1, { .dtype = STORED_BF16, .n_dims = 3, .shape = { 0, 2 * I, H } }, "are they of one save" },
};

TEST(shapes_that_are_not_of_the_form_are_refused)
{
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct err e = { 0 };
        struct ckpt *c = made((struct cuts){ E, 2 * I, I, 1, 0 });
        struct ckpt_tensor t = bad[i].t;
        t.name = c->tensor[bad[i].tensor].name;
        c->tensor[bad[i].tensor] = t;
        CHECK(fused_experts_split(c, &e) < 0);
        CHECK_HAS(e.text, bad[i].says);
        CHECK_INT(ckpt_n_tensors(c), 2);
        ckpt_close(c);
    }
}
