/* reshard, random models through random chains of layouts: digests stay, and back in the first layout the
 * files have the same bytes. Random mutations (heads, gate and up, rows, experts): always found.
 * SHARDLINE_CHAINS=N: how many of each (100). */
#include "tests/unit/reshard/random_model.h"

static void one_chain(uint64_t *s, const struct random_model *m)
{
    char first[512], at[512], next[512], last[512], whole[512];
    struct err e = { 0 };
    struct layout home = random_layout(s, m);
    CHECK_INT(make(named("whole", whole), m, &(struct change){ NOTHING, 0, 0, 0, 0, 0 }, &e), 0);
    CHECK_INT(convert(whole, named("first", first), home, CODEC_PLAIN, 1, &e), 0);
    struct ckpt_digests want = digests_of(whole);
    CHECK(same_digests(digests_of(first), want));
    snprintf(at, sizeof at, "%s", first);
    for (int hop = 0, n = 1 + draw(s, 4); hop < n; hop++) {
        enum ckpt_codec codec = draw(s, 3) ? CODEC_PLAIN : draw(s, 2) ? CODEC_ZSTD : CODEC_PLANES;
        struct layout l = random_layout(s, m);
        named(hop % 2 ? "odd" : "even", next);
        if (convert(at, next, l, codec, 1 + draw(s, 3), &e) < 0)
            test_fail(__FILE__, __LINE__, "%s: to tp %d pp %d dp %d zero %d: %s", m->config, l.tp, l.pp, l.dp,
                      l.zero, e.text);
        snprintf(at, sizeof at, "%s", next);
        if (!same_digests(digests_of(at), want))
            test_fail(__FILE__, __LINE__, "%s: another digest at tp %d pp %d dp %d zero %d", m->config, l.tp,
                      l.pp, l.dp, l.zero);
    }
    CHECK_INT(convert(at, named("last", last), home, CODEC_PLAIN, 2, &e), 0);
    if (!same_bytes(first, last))
        test_fail(__FILE__, __LINE__, "%s: back at tp %d pp %d dp %d zero %d with other bytes", m->config,
                  home.tp, home.pp, home.dp, home.zero);
}

TEST(random_chains_of_layouts_keep_the_digests_and_come_back_to_the_same_bytes)
{
    static struct random_model m;
    uint64_t s = 11;
    for (int i = 0; i < n_chains(); i++) {
        random_model(&s, &m);
        one_chain(&s, &m);
        param_table_close(&m.table);
    }
}

/* ---- mutations ---- */

static int tensor_like(const struct random_model *m, const char *part, int from)
{
    for (int i = from; i < m->n; i++)
        if (strstr(m->tensor[i].name, part))
            return i;
    return -1;
}

/* A mutation of the kind that this model can have: 1, or 0. */
static int random_change(uint64_t *s, const struct random_model *m, int kind, struct change *c)
{
    *c = (struct change){ TWO_TENSORS, -1, -1, 0, 0, 0 };
    if (kind == 0) { /* gate and up */
        c->a = tensor_like(m, "gate_proj.weight", draw(s, m->n));
        c->b = c->a < 0 ? -1 : tensor_like(m, "up_proj.weight", c->a);
        return c->b >= 0 && m->tensor[c->a].role == m->tensor[c->b].role;
    }
    if (kind == 1) { /* an expert and the next */
        c->a = tensor_like(m, "experts.0.w1", draw(s, m->n));
        c->b = c->a < 0 ? -1 : tensor_like(m, "experts.1.w1", c->a);
        return c->b >= 0 && m->tensor[c->a].role == m->tensor[c->b].role;
    }
    if (kind == 2) { /* two heads */
        c->kind = TWO_HEADS;
        c->a = tensor_like(m, "q_proj.weight", draw(s, m->n));
        c->rows = m->cfg.head_dim;
        c->first = draw(s, (int)m->cfg.n_heads);
        c->second = (c->first + 1) % m->cfg.n_heads;
        return c->a >= 0;
    }
    c->kind = ROWS_SHIFTED; /* one row */
    c->a = draw(s, m->n);
    return m->tensor[c->a].shape[0] > 1;
}

/* A random model that can have a random mutation of this kind: 1, or 0 after a while (no family with experts
 * is known). */
static int random_mutant(uint64_t *s, struct random_model *m, int kind, struct change *c)
{
    for (int i = 0; i < 40; i++) {
        random_model(s, m);
        if (random_change(s, m, kind, c))
            return 1;
        param_table_close(&m->table);
    }
    return 0;
}

static int diff_says(const char *a, const char *b, const char *name)
{
    struct ckpt *x = NULL, *y = NULL;
    struct report_options o = { 0 };
    struct err e = { 0 };
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    CHECK(ckpt_open(&x, a, NULL, &e) >= 0 && ckpt_open(&y, b, NULL, &e) >= 0);
    int rc = report_diff(x, y, &o, f, &e), found;
    fclose(f);
    found = rc == 1 && strstr(text, name);
    free(text);
    ckpt_close(x);
    ckpt_close(y);
    return found;
}

/* The mutant's bytes under the first one's manifest, as a converter that moved them would leave them. */
static void put_bytes_of(const char *mutant, const char *base, enum ckpt_role role)
{
    char from[512], to[512];
    void *data = NULL;
    size_t n = 0;
    struct err e = { 0 };
    const char *file = role == ROLE_WEIGHT ? "weights-00000.safetensors" : "optim-00000.safetensors";
    CHECK_INT(io_read_file(in_tmp(mutant, file, from), 1 << 26, &data, &n, &e), 0);
    unlink(in_tmp(base, file, to));
    CHECK_INT(io_write_file(to, data, n, &e), 0);
    free(data);
}

TEST(random_mutations_are_found_by_digest_diff_verify_and_the_next_reshard)
{
    static struct random_model m;
    uint64_t s = 5;
    char base[512], mutant[512], x[512];
    int n_seen[4] = { 0 };
    for (int i = 0; i < n_chains(); i++) {
        struct change c;
        struct err e = { 0 };
        int kind = i % 4;
        if (!random_mutant(&s, &m, kind, &c))
            continue;
        n_seen[kind]++;
        CHECK_INT(make(named("base", base), &m, &(struct change){ NOTHING, 0, 0, 0, 0, 0 }, &e), 0);
        CHECK_INT(make(named("mutant", mutant), &m, &c, &e), 0);
        /* each is whole: only the other one says that it is wrong */
        CHECK(verifies(base) && verifies(mutant));
        CHECK(!same_digests(digests_of(base), digests_of(mutant)));
        CHECK(diff_says(base, mutant, m.tensor[c.a].name));
        put_bytes_of(mutant, base, m.tensor[c.a].role);
        CHECK(!verifies(base));
        CHECK(convert(base, named("x", x), random_layout(&s, &m), CODEC_PLAIN, 1, &e) < 0 &&
              e.code == ERR_INTEGRITY && !io_exists(x));
        param_table_close(&m.table);
    }
    struct err e;
    int experts = model_config_parse(&m.cfg, "{\"model_type\":\"mixtral\",\"num_local_experts\":3}",
                                     "config.json", &e) >= 0;
    CHECK(n_seen[0] && n_seen[2] && n_seen[3] && (n_seen[1] || !experts));
}
