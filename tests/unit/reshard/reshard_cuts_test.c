/* cut tables: what the text may say, what each word cuts, and what is refused. */
#include <stdlib.h>
#include <string.h>
#include "reshard/cuts.h"
#include "tests/test.h"
#include "tests/unit/model/published_tables.h"

static int parse(struct cuts *c, const char *text, struct err *e)
{
    *e = (struct err){ 0 };
    return cuts_parse(c, text, strlen(text), "cuts.txt", e);
}

TEST(a_wrong_line_is_named_with_the_remedy)
{
    static const struct {
        const char *text, *message;
    } bad[] = {
        { "", "cuts.txt: is empty: a cut table begins with the line \"cuts 1\"" },
        { "a whole\n", "cuts.txt: line 1: a cut table begins with the line \"cuts 1\"" },
        { "cuts 2\n", "line 1: cuts 2: give a whole number from 1 to 1" },
        { "cuts 1 2\n", "line 1: 2 behind the number: remove it" },
        { "cuts 1\n\n# x\na dmi 0\n", "line 4: dmi is not a word of a row" },
        { "cuts 1\na dim 8\n", "line 2: dim 8: give a whole number from 0 to 7" },
        { "cuts 1\na dim\n", "line 2: dim : give a whole number" },
        { "cuts 1\na dim 0 dim 1\n", "line 2: dim stands twice" },
        { "cuts 1\na dim 99999999999999999999\n", "line 2: dim 99999999999999999999: give" },
        { "cuts 1\na\n", "line 2: a has neither whole nor dim" },
        { "cuts 1\na whole unit 4\n", "line 2: a is whole, and how a dim is cut" },
        { "cuts 1\na dim 0 copies\n", "line 2: a has copies without unit" },
        { "cuts 1\na dim 0 unit 4 blocks\n", "line 2: a has blocks and unit" },
        { "cuts 1\na dim 0 parts 4\n", "line 2: parts: give the sizes of 2 to 6 parts" },
        { "cuts 1\na dim 0 parts 1,1,1,1,1,1,1\n", "line 2: parts: more than 6 sizes" },
        { "cuts 1\na dim 0 parts 1,1,1 unit 4,4\n", "line 2: a has not as many units as parts" },
        { "cuts 1\na dim 0 unit\n", "line 2: unit : give a whole number" },
        { "cuts 1\na.{layer} whole layers 3,\n", "line 2: layers 3,: give numbers and ranges" },
        { "cuts 1\na.{layer} whole layers 4-3\n", "line 2: layers 4-3: give numbers and ranges" },
        { "cuts 1\na whole layers 3\n", "line 2: a has layers without {layer}" },
        { "cuts 1\na.{layer} whole layers 3\na.{layer} whole\n", "line 3: a.{layer} is in line 2 too" },
        { "cuts 1\na dim 0 expert-dim 0\n", "line 2: a cuts dim 0, which counts experts" },
        { "cuts 1\n{expert}.a dim 1 expert-dim 0\n", "has expert-dim and {expert}: keep one" },
        { "cuts 1\n{layer}.a dim 1 last\n", "has last and {layer}" },
        { "cuts 1\n{row}.a whole\n", "{row}.a: {...} is {layer} or {expert}" },
        { "cuts 1\n*.*.*.*.* whole\n", "at most one {layer}, one {expert}, and 4 of them" },
        { "cuts 1\na whole\na dim 0\n", "line 3: a is in line 2 too: keep one" },
        { "cuts 1\ngrain 65\n", "line 2: grain 65: give a whole number from 1 to 64" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct cuts c;
        struct err e;
        CHECK_INT(parse(&c, bad[i].text, &e), -ERR_FORMAT);
        CHECK_HAS(e.text, bad[i].message);
        cuts_free(&c);
    }
}

TEST(numbers_and_stars_match_one_word)
{
    int64_t layer, expert;
    CHECK(cuts_match("h.{layer}.x.{expert}.w", "h.12.x.3.w", &layer, &expert));
    CHECK_INT(layer, 12);
    CHECK_INT(expert, 3);
    CHECK(!cuts_match("h.{layer}.w", "h.01.w", &layer, &expert));
    CHECK(!cuts_match("h.{layer}.w", "h.x.w", &layer, &expert));
    CHECK(!cuts_match("h.{layer}.w", "h.1.w.more", &layer, &expert));
    CHECK(!cuts_match("h.{layer}.w", "h.99999999999999999999.w", &layer, &expert));
    CHECK(cuts_match("h.*_proj.w", "h.up_proj.w", &layer, &expert));
    CHECK(!cuts_match("h.*.w", "h.a.b.w", &layer, &expert));
    CHECK_INT(layer, -1);
}

static struct ckpt_tensor matrix(const char *name, int64_t a, int64_t b, int64_t c)
{
    return (struct ckpt_tensor){ .name = name,
                                 .dtype = STORED_F32,
                                 .n_dims = c   ? 3
                                           : b ? 2
                                               : 1,
                                 .shape = { a, b ? b : 1, c ? c : 1, 1 } };
}

static int open_one(struct cut_model *m, const char *text, const struct ckpt_tensor *t,
                    const struct layout *l, struct err *e)
{
    struct cuts c;
    int rc = parse(&c, text, e);
    CHECK_INT(rc, 0);
    rc = cut_model_open(m, &c, &t, 1, l, e);
    cuts_free(&c);
    return rc;
}

/* What tp rank 1 of 2 holds of one tensor: [start, extent] of each part's cut dim. */
TEST(each_word_cuts_as_it_says)
{
    static const struct {
        const char *row;
        int64_t shape[3];
        int n, dim;
        int64_t start[3], extent[3];
    } cases[] = {
        { "a whole", { 8, 6 }, 1, 0, { 0 }, { 8 } },
        { "a dim 1", { 8, 6 }, 1, 1, { 3 }, { 3 } },
        { "a dim 0 unit 4", { 16, 6 }, 1, 0, { 8 }, { 8 } },
        { "a dim 0 unit 4 copies", { 4, 6 }, 1, 0, { 0 }, { 4 } },
        { "a dim 0 unit 2 parts 4,1,1", { 24, 6 }, 3, 0, { 8, 18, 22 }, { 8, 2, 2 } },
        { "a dim 0 unit 2,1,4 copies parts 2,1,1", { 16, 6 }, 3, 0, { 4, 10, 12 }, { 4, 2, 4 } },
        { "a dim 1 interleave 2", { 8, 12 }, 1, 1, { 6 }, { 6 } },
        { "a dim 1 block 4 values 12", { 8, 3 }, 1, 1, { 1 }, { 2 } },
        { "a dim 2 parts 1,1 expert-dim 0", { 1, 3, 8 }, 2, 2, { 2, 6 }, { 2, 2 } },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct layout l = { 2, 1, 1, 1, 1, 0 };
        struct ckpt_tensor t = matrix("a", cases[i].shape[0], cases[i].shape[1], cases[i].shape[2]);
        struct cut_model m;
        struct params_local local;
        struct err e = { 0 };
        char text[96];
        snprintf(text, sizeof text, "cuts 1\n%s\n", cases[i].row);
        CHECK_INT(open_one(&m, text, &t, &l, &e), 0);
        CHECK_INT(m.table.n, cases[i].n);
        CHECK_INT(params_local_open(&local, &m.table, &l, layout_at(&l, 1), &e), 0);
        for (int k = 0; k < cases[i].n; k++) {
            CHECK_INT(local.part[k].box.start[cases[i].dim], cases[i].start[k]);
            CHECK_INT(local.part[k].box.extent[cases[i].dim], cases[i].extent[k]);
        }
        params_local_close(&local);
        cut_model_close(&m);
    }
}

/* 320 columns in blocks of 128: tp 2 cuts inside of the second block, which rank 0 writes. */
TEST(a_companion_is_cut_as_its_weight)
{
    static const char text[] = "cuts 1\nh.{layer}.w dim 1\nh.{layer}.scale companion h.{layer}.w block 128\n";
    const struct layout l = { 2, 1, 1, 1, 1, 0 };
    const struct ckpt_tensor t[2] = { matrix("h.1.w", 256, 320, 0), matrix("h.1.scale", 2, 3, 0) };
    const struct ckpt_tensor *list[2] = { &t[0], &t[1] };
    struct params_local local;
    struct cut_model m;
    struct cuts c;
    struct err e;
    CHECK_INT(parse(&c, text, &e), 0);
    CHECK_INT(cut_model_open(&m, &c, list, 2, &l, &e), 0);
    CHECK_STR(m.name[0], "h.1.scale");
    CHECK_INT(params_local_open(&local, &m.table, &l, layout_at(&l, 1), &e), 0);
    CHECK_INT(local.part[0].box.start[1], 1);
    CHECK_INT(local.part[0].box.extent[1], 2);
    CHECK_INT(local.part[0].skip, 32);
    params_local_close(&local);
    cut_model_close(&m);

    CHECK(cut_model_open(&m, &c, list + 1, 1, &l, &e) < 0);
    CHECK_HAS(e.text, "line 2: no tensor fits h.{layer}.w");
    cuts_free(&c);
    CHECK_INT(parse(&c, "cuts 1\na companion b\n", &e), -ERR_FORMAT);
    CHECK_HAS(e.text, "line 2: companion b: no row cuts this pattern: add one");
    cuts_free(&c);
}

TEST(a_table_that_does_not_fit_the_tensors_is_refused)
{
    static const struct {
        const char *rows;
        struct layout l;
        const char *message;
    } bad[] = {
        { "a.{layer} dim 0\n* whole\n*.0 dim 1\n", { 2, 1, 1, 1, 1, 0 }, "a.0 is in lines 2 and 4" },
        { "a.{layer} dim 0\nb whole\n", { 2, 1, 1, 1, 1, 0 }, "line 3: no tensor fits b: correct" },
        { "a.0 dim 2\n", { 2, 1, 1, 1, 1, 0 }, "line 2: a.0: has 2 dims, the row cuts dim 2" },
        { "a.0 dim 0 unit 5\n", { 2, 1, 1, 1, 1, 0 }, "12 values of dim 0 are no multiple of unit 5" },
        { "a.0 dim 0 unit 4\n", { 2, 1, 1, 1, 1, 0 }, "--tp 2 does not divide the 3 units of dim 0" },
        { "a.0 dim 0 parts 4,1\n",
          { 2, 1, 1, 1, 1, 0 },
          "12 values of dim 0 are no multiple of the parts' 5" },
        { "a.0 dim 0 block 4 values 60\n",
          { 2, 1, 1, 1, 1, 0 },
          "60 values in blocks of 4 are not the 12 indices of dim 0" },
        { "a.{layer} dim 0\n", { 2, 2, 1, 1, 1, 0 }, "--pp 2 stages for 1 layers" },
        { "a.{layer} dim 0\n", { 2, 1, 1, 1, 2, 0 }, "--ep 2: this model has no experts" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct ckpt_tensor t = matrix("a.0", 12, 6, 0);
        struct cut_model m;
        struct err e = { 0 };
        char text[160];
        snprintf(text, sizeof text, "cuts 1\n%s", bad[i].rows);
        CHECK(open_one(&m, text, &t, &bad[i].l, &e) < 0);
        CHECK_HAS(e.text, bad[i].message);
    }
}

/* Layer 0 has 2 experts, layer 1 has 4: ep 2 gives each rank half of either. */
TEST(layers_may_have_different_numbers_of_experts)
{
    static const char *const names[] = { "h.0.x.0.w", "h.0.x.1.w", "h.1.x.0.w",
                                         "h.1.x.1.w", "h.1.x.2.w", "h.1.x.3.w" };
    const struct layout l = { 1, 1, 1, 2, 2, 0 };
    struct ckpt_tensor t[6];
    const struct ckpt_tensor *list[6];
    struct params_local local;
    struct cut_model m;
    struct cuts c;
    struct err e;
    for (int i = 0; i < 6; i++) {
        t[i] = matrix(names[i], 4, 4, 0);
        list[i] = &t[i];
    }
    CHECK_INT(parse(&c, "cuts 1\nh.{layer}.x.{expert}.w dim 0\n", &e), 0);
    CHECK_INT(cut_model_open(&m, &c, list, 6, &l, &e), 0);
    for (int rank = 0; rank < 2; rank++) {
        static const char *const first[] = { "h.0.x.0.w", "h.0.x.1.w" };
        CHECK_INT(params_local_open(&local, &m.table, &l, layout_at(&l, rank), &e), 0);
        CHECK_INT(local.n_parts, 3);
        CHECK_STR(m.name[local.part[0].param], first[rank]);
        params_local_close(&local);
    }
    cut_model_close(&m);
    cuts_free(&c);
}

/* One pattern may stand for both orientations; a third one is refused. */
TEST(a_shape_chooses_the_row_or_refuses_the_tensor)
{
    static const char text[] = "cuts 1\na dim 1 shape 4,6 optional\na dim 0 shape 6,4 optional\n";
    const struct layout l = { 2, 1, 1, 1, 1, 0 };
    static const int64_t shape[][2] = { { 4, 6 }, { 6, 4 }, { 6, 6 } };
    for (int i = 0; i < 3; i++) {
        struct ckpt_tensor t = matrix("a", shape[i][0], shape[i][1], 0);
        struct cut_model m;
        struct err e = { 0 };
        struct cuts c;
        const struct ckpt_tensor *list = &t;
        CHECK_INT(parse(&c, text, &e), 0);
        int rc = cut_model_open(&m, &c, &list, 1, &l, &e);
        CHECK_INT(rc, i < 2 ? 0 : -ERR_CONFIG);
        if (i < 2)
            CHECK_INT(m.table.p[0].split_dim, i ? 0 : 1);
        else
            CHECK_HAS(e.text, "a: is [6,6], the row says [6,4]: is it turned round");
        cut_model_close(&m);
        cuts_free(&c);
    }
}

/* ---- printed tables cut as their families do ---- */

static const struct model_config sizes[PUBLISHED_MODELS] = {
#define SMALL .hidden = 160, .n_layers = 2, .n_heads = 8, .vocab = 24, .n_experts = 4, .head_dim = 4
    [MIXTRAL] = { SMALL, .n_kv = 2, .expert_inter = 96 },
    [QWEN3_MOE] = { SMALL, .n_kv = 4, .inter = 16, .expert_inter = 96 },
    [QWEN3_MOE_FUSED] = { SMALL, .n_kv = 4, .inter = 16, .expert_inter = 96 },
    [FUSED_FP8] = { SMALL, .n_kv = 4, .inter = 16, .expert_inter = 256 },
    [GPT_OSS] = { SMALL, .n_kv = 2, .expert_inter = 100 },
    [GPT_OSS_MXFP4] = { SMALL, .n_kv = 2, .expert_inter = 96 },
};

struct named_piece {
    const char *name;
    struct param_piece p;
};
static int compare_pieces(const void *pa, const void *pb)
{
    const struct named_piece *a = pa, *b = pb;
    int c = strcmp(a->name, b->name);
    return c ? c : memcmp(a->p.box.start, b->p.box.start, sizeof a->p.box.start);
}

/* What a rank writes, sorted. names NULL: those of the table. */
static int pieces_of(const struct param_table *t, const char **names, const struct layout *l, int rank,
                     struct named_piece *out)
{
    struct params_local local;
    struct err e = { 0 };
    struct param_piece *p = calloc((size_t)t->n, sizeof *p);
    CHECK_INT(params_local_open(&local, t, l, layout_at(l, rank), &e), 0);
    int n = params_pieces(&local, layout_at(l, rank).dp, 0, p);
    for (int i = 0; i < n; i++) {
        int param = local.part[p[i].part].param;
        out[i] = (struct named_piece){ names ? names[param] : t->p[param].name, p[i] };
    }
    params_local_close(&local);
    free(p);
    qsort(out, (size_t)n, sizeof *out, compare_pieces);
    return n;
}

static void compare_ranks(const struct param_table *t, const struct cut_model *m, const struct layout *l)
{
    struct named_piece *a = calloc((size_t)t->n, sizeof *a), *b = calloc((size_t)m->table.n, sizeof *b);
    for (int rank = 0; rank < layout_ranks(l); rank++) {
        int n = pieces_of(t, NULL, l, rank, a);
        CHECK_INT(pieces_of(&m->table, m->name, l, rank, b), n);
        for (int i = 0; i < n; i++) {
            CHECK_STR(b[i].name, a[i].name);
            CHECK(box_equal(&b[i].p.box, &a[i].p.box));
        }
    }
    free(a);
    free(b);
}

static void check_printed(enum published_model which, const struct layout *l)
{
    struct family f = published_family(which);
    struct model_config c = published_config(&f, sizes[which], 0);
    struct param_table t;
    struct cut_model m;
    struct cuts cuts;
    struct err e = { 0 };
    char *text = NULL;
    size_t bytes = 0;
    int n = 0;
    CHECK_INT(param_table_open(&t, &c, &e), 0);
    FILE *out = open_memstream(&text, &bytes);
    CHECK_INT(cuts_print(&t, out, &e), 0);
    fclose(out);

    struct ckpt_tensor *tensor = calloc((size_t)t.n, sizeof *tensor);
    const struct ckpt_tensor **list = calloc((size_t)t.n, sizeof *list);
    for (int i = 0; i < t.n; i++) {
        const struct param *p = &t.p[i];
        if (!p->n_sharing)
            continue;
        tensor[n] = (struct ckpt_tensor){ .name = p->name, .dtype = STORED_BF16, .n_dims = p->n_dims };
        memcpy(tensor[n].shape, p->shape, sizeof p->shape);
        list[n] = &tensor[n];
        n++;
    }
    CHECK_INT(parse(&cuts, text, &e), 0);
    CHECK_INT(cut_model_open(&m, &cuts, list, n, l, &e), 0);
    CHECK_STR(e.text, "");
    CHECK_INT(m.n_unmatched, 0);
    compare_ranks(&t, &m, l);

    cut_model_close(&m);
    cuts_free(&cuts);
    param_table_close(&t);
    free(tensor);
    free(list);
    free(text);
}

TEST(a_printed_table_cuts_fused_stacked_alternating_and_packed_experts_as_the_family)
{
    static const struct layout layouts[] = {
        { 2, 1, 1, 1, 1, 0 }, { 4, 2, 1, 1, 1, 0 }, { 2, 1, 1, 2, 4, 0 }, { 1, 1, 1, 2, 2, 0 }
    };
    for (int which = 0; which < DEEPSEEK_V3; which++)
        for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++)
            check_printed((enum published_model)which, &layouts[i]);
}
