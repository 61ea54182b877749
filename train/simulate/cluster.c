/* cluster.c - see cluster.h. One table names every key, its place and its limits; the reader is a loop over
 * the lines of the file. */
#include "train/simulate/cluster.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/io.h"
#include "base/opt.h"

#define AT(member) offsetof(struct cluster, member)
#define IN_LEVEL(member) offsetof(struct cluster_level, member)
#define IN_PRODUCT(member) offsetof(struct cluster_product, member)
#define IN_OP(member) offsetof(struct cluster_op, member)
#define IN_COLLECTIVE(member) offsetof(struct cluster_collective, member)
#define IN_WAIT(member) offsetof(struct cluster_wait, member)
#define IN_SERVE(member) offsetof(struct cluster_serve, member)
#define NEEDED (-1.0)
/* Where 0 means that there is none: anything smaller would make times without end. */
static const double least_above_0 = 1e-15;

enum section { TOP, DEVICE, NETWORK, STORAGE, JOB, ENGINE, PRODUCT, OP, COLLECTIVE, WAIT, SERVE, N_SECTIONS };
/* repeated: at most so many, of `size` bytes each from `at` on, counted at `count`. */
static const struct {
    const char *name;
    int repeated;
    size_t at, size, count;
} sections[N_SECTIONS] = {
    [TOP] = { "", 0, 0, 0, 0 },
    [DEVICE] = { "device", 0, 0, 0, 0 },
    [NETWORK] = { "network", CLUSTER_LEVELS, AT(level), sizeof(struct cluster_level), AT(n_levels) },
    [STORAGE] = { "storage", 0, 0, 0, 0 },
    [JOB] = { "job", 0, 0, 0, 0 },
    [ENGINE] = { "engine", 0, 0, 0, 0 },
    [PRODUCT] = { "product", CLUSTER_PRODUCTS, AT(product), sizeof(struct cluster_product), AT(n_products) },
    [OP] = { "op", CLUSTER_OPS, AT(op), sizeof(struct cluster_op), AT(n_ops) },
    [COLLECTIVE] = { "collective", CLUSTER_COLLECTIVES, AT(collective), sizeof(struct cluster_collective),
                     AT(n_collectives) },
    [WAIT] = { "wait", CLUSTER_WAITS, AT(wait), sizeof(struct cluster_wait), AT(n_waits) },
    [SERVE] = { "serve", CLUSTER_SERVES, AT(serve), sizeof(struct cluster_serve), AT(n_serves) },
};

/* clang-format off */
/* section, key, member, least, most, value where the file has none (NEEDED: it must have one) */
static const struct key {
    enum section in;
    const char *name;
    size_t at;
    double least, most, otherwise;
} keys[] = {
    { DEVICE,  "fp32_flops",         AT(peak[SIM_F32]),      0,     1e18, 0 },
    { DEVICE,  "bf16_flops",         AT(peak[SIM_BF16]),     0,     1e18, 0 },
    { DEVICE,  "fp8_flops",          AT(peak[SIM_FP8]),      0,     1e18, 0 },
    { DEVICE,  "efficiency",         AT(efficiency),         1e-3,  1,    NEEDED },
    { DEVICE,  "clock",              AT(clock),              0.01,  10,   1 },
    { DEVICE,  "units",              AT(units),              1,     1e6,  1 },
    { DEVICE,  "cores",              AT(cores),              0,     1e6,  0 },
    { DEVICE,  "tile_m",             AT(tile_m),             1,     1e6,  128 },
    { DEVICE,  "tile_n",             AT(tile_n),             1,     1e6,  128 },
    { DEVICE,  "tile_k",             AT(tile_k),             0,     1e6,  128 },
    { DEVICE,  "attention",          AT(attention),          1e-3,  1,    0.5 },
    { DEVICE,  "attention_backward", AT(attention_backward), 1e-3,  1,    0.4 },
    { DEVICE,  "hbm_bytes_per_s",    AT(hbm_bytes_per_s),    1e6,   1e15, NEEDED },
    { DEVICE,  "hbm_bytes",          AT(hbm_bytes),          1e6,   1e15, NEEDED },
    { DEVICE,  "kernel_s",           AT(kernel_s),           0,     1,    0 },
    { DEVICE,  "measured",           AT(measured),           0.01,  100,  1 },
    { DEVICE,  "watts",              AT(watts),              0,     1e6,  0 },
    { DEVICE,  "idle_watts",         AT(idle_watts),         0,     1e6,  0 },
    { DEVICE,  "price_per_hour",     AT(price_per_hour),     0,     1e6,  0 },
    { STORAGE, "host_bytes_per_s",   AT(host_bytes_per_s),   1e3,   1e15, 25e9 },
    { STORAGE, "disk_bytes_per_s",   AT(disk_bytes_per_s),   1e3,   1e15, 3e9 },
    { STORAGE, "store_bytes_per_s",  AT(store_bytes_per_s),  0,     1e15, 0 },
    { JOB,     "site_bytes_per_s",   AT(site_bytes_per_s),   0,     1e15, 0 },
    { JOB,     "failures_a_day",     AT(failures_a_day),     0,     1e6,  0 },
    { JOB,     "restart_s",          AT(restart_s),          0,     1e7,  0 },
    { JOB,     "jitter",             AT(jitter),             0,     1,    0 },
    { ENGINE,  "ring",               AT(engine.ring),        0,     1, 0 },
    { ENGINE,  "nested",             AT(engine.nested),      0,     1, 0 },
    { ENGINE,  "fp8",                AT(engine.fp8),         0,     1, 0 },
    { ENGINE,  "sum_bytes",          AT(engine.sum_bytes),   0,     8, 0 },
    { ENGINE,  "grad_bytes",         AT(engine.grad_bytes),  0,     8, 0 },
    { ENGINE,  "row_bytes",          AT(engine.row_bytes),   0,     1000, 0 },
    { ENGINE,  "dp_overlap",         AT(engine.dp_overlap),  0,     1, 0 },
    { ENGINE,  "gather_overlap",     AT(engine.gather_overlap), 0,     1, 0 },
    { ENGINE,  "wait_sends",         AT(engine.wait_sends),  0,     1, 0 },
    { ENGINE,  "unfused",            AT(engine.unfused),     0,     2, 0 },
    { ENGINE,  "attention",          AT(engine.attention),   0,     10, 0 },
    { ENGINE,  "recompute_products", AT(engine.recompute_products), 0,     1, 0 },
    { ENGINE,  "cp_contiguous",      AT(engine.cp_contiguous), 0,     1, 0 },
    { ENGINE,  "sync_s",             AT(engine.sync_s),      0,     10, 0 },
    { ENGINE,  "tp_hidden",          AT(engine.tp_hidden),   0,     1, 0 },
    { ENGINE,  "cp_hidden",          AT(engine.cp_hidden),   0,     1, 0 },
    { ENGINE,  "ep_hidden",          AT(engine.ep_hidden),   0,     1, 0 },
    { ENGINE,  "ep_nodes",           AT(engine.ep_nodes),    0,     1e6, 0 },
    { ENGINE,  "ep_fp8",             AT(engine.ep_fp8),      0,     1, 0 },
    { ENGINE,  "ends_count",         AT(engine.ends_count),  0,     1, 0 },
    { NETWORK, "ranks",              IN_LEVEL(ranks),        0,     1e7,  NEEDED },
    { NETWORK, "alpha_s",            IN_LEVEL(alpha_s),      0,     10,   NEEDED },
    { NETWORK, "bytes_per_s",        IN_LEVEL(bytes_per_s),  1e3,   1e15, NEEDED },
    { NETWORK, "unit_bytes_per_s",   IN_LEVEL(unit_bytes_per_s), 0, 1e15, 0 },
    { PRODUCT, "m",                  IN_PRODUCT(m),          1,     1e9,  NEEDED },
    { PRODUCT, "n",                  IN_PRODUCT(n),          1,     1e9,  NEEDED },
    { PRODUCT, "k",                  IN_PRODUCT(k),          1,     1e9,  NEEDED },
    { PRODUCT, "flops_per_s",        IN_PRODUCT(flops_per_s), 1e3,  1e18, NEEDED },
    { OP,      "rows",               IN_OP(rows),            1,     1e15, NEEDED },
    { OP,      "cols",               IN_OP(cols),            0,     1e9,  0 },
    { OP,      "other",              IN_OP(other),           0,     1e9,  0 },
    { OP,      "seq_len",            IN_OP(seq_len),         0,     1e9,  0 },
    { OP,      "seconds",            IN_OP(seconds),         1e-12, 1e6,  NEEDED },
    { OP,      "alone_s",            IN_OP(alone_s),         0,     1e6,  0 },
    { OP,      "all_s",              IN_OP(all_s),           0,     1e6,  0 },
    { OP,      "at_once",            IN_OP(at_once),         0,     1e6,  0 },
    { COLLECTIVE, "ranks",           IN_COLLECTIVE(ranks),   1,     1e6,  NEEDED },
    { COLLECTIVE, "bytes",           IN_COLLECTIVE(bytes),   0,     1e15, NEEDED },
    { COLLECTIVE, "seconds",         IN_COLLECTIVE(seconds), 0,     1e6,  NEEDED },
    { WAIT,    "ranks",              IN_WAIT(ranks),         1,     1e6,  NEEDED },
    { WAIT,    "at_once",            IN_WAIT(at_once),       1,     1e6,  NEEDED },
    { WAIT,    "seconds",            IN_WAIT(seconds),       0,     1e6,  NEEDED },
    { SERVE,   "tp",                 IN_SERVE(tp),           1,     1e6,  NEEDED },
    { SERVE,   "batch",              IN_SERVE(batch),        1,     1e6,  NEEDED },
    { SERVE,   "tokens_per_s",       IN_SERVE(tokens_per_s), 1e-6,  1e12, NEEDED },
    { SERVE,   "first_s",            IN_SERVE(first_s),      0,     1e6,  NEEDED },
};
/* clang-format on */
enum { N_KEYS = sizeof keys / sizeof *keys };
static const char *const dtypes[] = { "fp32", "bf16", "fp8", NULL };
static const char *const collectives[] = { "all-reduce", "reduce-scatter", "gather", NULL };
#define K(name) #name,
static const char *const ops[] = { SIM_OP_LIST(K) NULL };
#undef K
/* Keys whose value is one of a list; every one is needed. */
static const struct word {
    enum section in;
    const char *name;
    size_t at;
    const char *const *list;
    const char *say;
} words[] = {
    { PRODUCT, "dtype", IN_PRODUCT(dtype), dtypes, "a dtype is \"fp32\", \"bf16\" or \"fp8\"" },
    { OP, "dtype", IN_OP(dtype), dtypes, "a dtype is \"fp32\", \"bf16\" or \"fp8\"" },
    { OP, "name", IN_OP(name), ops, "no such kernel: docs/simulator.md lists them" },
    { COLLECTIVE, "kind", IN_COLLECTIVE(kind), collectives,
      "a collective is \"all-reduce\", \"reduce-scatter\" or \"gather\"" },
};
enum { N_WORDS = sizeof words / sizeof *words };

const char *cluster_op_name(enum sim_op op) { return ops[op]; }
int cluster_op_of(const char *name, size_t n)
{
    for (int i = 0; ops[i]; i++)
        if (strlen(ops[i]) == n && !memcmp(ops[i], name, n))
            return i;
    return -1;
}

struct reader {
    struct cluster *c;
    const char *what;
    int line;
    enum section in;
    char seen[N_KEYS], word_seen[N_WORDS]; /* in this section */
    struct err *e;
};

static int refuse(const struct reader *r, const char *text, const char *word)
{
    return err_set(r->e, ERR_CONFIG, "%s: line %d: %s: %s", r->what, r->line, word, text);
}

static int *count_of(const struct reader *r) { return (int *)((char *)r->c + sections[r->in].count); }

/* The struct that the members of a section are in. */
static char *base_of(const struct reader *r)
{
    return sections[r->in].repeated
               ? (char *)r->c + sections[r->in].at + sections[r->in].size * (size_t)(*count_of(r) - 1)
               : (char *)r->c;
}

static int missing(const struct reader *r, const char *key)
{
    return err_set(r->e, ERR_CONFIG, "%s: line %d: the [[%s]] that ends here has no %s: add it", r->what,
                   r->line, sections[r->in].name, key);
}

/* Whether the section that ends here has all that it needs; fills what it may leave out. */
static int end_section(struct reader *r)
{
    if (!sections[r->in].repeated)
        return 0;
    for (int i = 0; i < N_KEYS; i++) {
        if (keys[i].in != r->in || r->seen[i])
            continue;
        if (keys[i].otherwise < 0)
            return missing(r, keys[i].name);
        memcpy(base_of(r) + keys[i].at, &keys[i].otherwise, sizeof(double));
    }
    for (int i = 0; i < N_WORDS; i++)
        if (words[i].in == r->in && !r->word_seen[i])
            return missing(r, words[i].name);
    return 0;
}

/* [name] or [[name]]. */
static int begin_section(struct reader *r, char *word)
{
    int twice = word[1] == '[';
    size_t n = strlen(word);
    int rc = end_section(r);
    if (rc < 0)
        return rc;
    for (int s = DEVICE; s < N_SECTIONS; s++) {
        size_t len = strlen(sections[s].name);
        if (n != len + 2 + 2 * (size_t)twice || strncmp(word + 1 + twice, sections[s].name, len) ||
            strcmp(word + 1 + twice + len, twice ? "]]" : "]"))
            continue;
        if (twice != (sections[s].repeated > 0))
            return refuse(r,
                          sections[s].repeated ? "there may be several: write [[ ]]"
                                               : "there is one: write [ ]",
                          word);
        r->in = (enum section)s;
        if (twice && *count_of(r) == sections[s].repeated)
            return err_set(r->e, ERR_CONFIG, "%s: line %d: %s: more than %d of them: leave some out", r->what,
                           r->line, word, sections[s].repeated);
        *count_of(r) += twice;
        memset(r->word_seen, 0, sizeof r->word_seen);
        for (int i = 0; i < N_KEYS && twice; i++)
            if (keys[i].in == r->in)
                r->seen[i] = 0;
        return 0;
    }
    return refuse(r,
                  "no such section: there are [device], [[network]], [storage], [job], [engine], "
                  "[[product]], [[op]], [[collective]], [[wait]] and [[serve]]",
                  word);
}

/* A number, or a string with a suffix ("80GB"). */
static int read_number(const struct reader *r, const struct key *k, char *text, double *out)
{
    char *end = text;
    size_t n = strlen(text);
    int64_t size;
    if (n > 1 && text[0] == '"' && text[n - 1] == '"') {
        text[n - 1] = 0;
        if (opt_parse_size(text + 1, &size) < 0)
            return err_set(r->e, ERR_CONFIG,
                           "%s: line %d: %s is \"%s\": use a number, or a size such as \"80GB\"", r->what,
                           r->line, k->name, text + 1);
        *out = (double)size;
    } else {
        if (strspn(text, "+-0123456789.eE") == n && n)
            *out = strtod(text, &end);
        if (end == text || *end)
            return err_set(r->e, ERR_CONFIG,
                           "%s: line %d: %s is %.60s: use a number, or a size such as \"80GB\"", r->what,
                           r->line, k->name, text);
    }
    if (*out > 0 && *out < least_above_0 && !k->least)
        return err_set(r->e, ERR_CONFIG, "%s: line %d: %s is %g: use 0, or %g and more", r->what, r->line,
                       k->name, *out, least_above_0);
    if (!(*out >= k->least && *out <= k->most))
        return err_set(r->e, ERR_CONFIG, "%s: line %d: %s is %g: it must be from %g to %g", r->what, r->line,
                       k->name, *out, k->least, k->most);
    return 0;
}

/* Returns 0: the key is none of words[]. */
static int read_word(struct reader *r, const char *name, const char *value)
{
    size_t n = strlen(value);
    for (int i = 0; i < N_WORDS; i++) {
        if (words[i].in != r->in || strcmp(words[i].name, name))
            continue;
        if (r->word_seen[i])
            return refuse(r, "it is there twice: leave one out", name);
        for (int k = 0; words[i].list[k]; k++) {
            size_t len = strlen(words[i].list[k]);
            if (n != len + 2 || value[0] != '"' || value[n - 1] != '"' ||
                memcmp(value + 1, words[i].list[k], len))
                continue;
            memcpy(base_of(r) + words[i].at, &k, sizeof k);
            r->word_seen[i] = 1;
            return 1;
        }
        return refuse(r, words[i].say, value);
    }
    return 0;
}

static int read_name(struct reader *r, const char *value)
{
    size_t n = strlen(value);
    if (n < 2 || value[0] != '"' || value[n - 1] != '"' || n - 2 >= sizeof r->c->name)
        return refuse(r, "a name is a string of at most 63 bytes", value);
    memcpy(r->c->name, value + 1, n - 2);
    r->c->name[n - 2] = 0;
    return 0;
}

static int read_value(struct reader *r, const char *name, char *value)
{
    double x = 0;
    if (r->in == TOP && !strcmp(name, "name"))
        return read_name(r, value);
    int rc = read_word(r, name, value);
    if (rc)
        return rc < 0 ? rc : 0;
    for (int i = 0; i < N_KEYS; i++) {
        if (keys[i].in != r->in || strcmp(keys[i].name, name))
            continue;
        if (r->seen[i])
            return refuse(r, "it is there twice: leave one out", name);
        r->seen[i] = 1;
        rc = read_number(r, &keys[i], value, &x);
        memcpy(base_of(r) + keys[i].at, &x, sizeof x);
        return rc;
    }
    return err_set(r->e, ERR_CONFIG, "%s: line %d: %s: no such key %s%s: docs/simulator.md lists them",
                   r->what, r->line, name, r->in == TOP ? "before the first section" : "in ",
                   sections[r->in].name);
}

/* Cuts off a comment and the blanks at both ends. */
static char *trim(char *line)
{
    int quoted = 0;
    size_t n = 0;
    line += strspn(line, " \t\r");
    for (; line[n] && (quoted || line[n] != '#'); n++)
        quoted ^= line[n] == '"';
    while (n && strchr(" \t\r", line[n - 1]))
        n--;
    line[n] = 0;
    return line;
}

static int read_line(struct reader *r, char *text)
{
    char *line = trim(text), *equals;
    if (!*line)
        return 0;
    if (*line == '[')
        return begin_section(r, line);
    if (!(equals = strchr(line, '=')))
        return refuse(r, "no = in the line: every line is KEY = VALUE or [SECTION]", line);
    *equals = 0;
    return read_value(r, trim(line), trim(equals + 1));
}

/* Things that no single value shows. */
static int check(const struct reader *r)
{
    const struct cluster *c = r->c;
    for (int i = 0; i < N_KEYS; i++)
        if (keys[i].otherwise < 0 && keys[i].in == DEVICE && !r->seen[i])
            return err_set(r->e, ERR_CONFIG, "%s: [device] has no %s: add it", r->what, keys[i].name);
    if (c->peak[SIM_F32] <= 0 && c->peak[SIM_BF16] <= 0)
        return err_set(r->e, ERR_CONFIG, "%s: [device] has neither bf16_flops nor fp32_flops: add one",
                       r->what);
    if (!c->n_levels)
        return err_set(r->e, ERR_CONFIG,
                       "%s: no [[network]]: add a level with ranks, alpha_s and bytes_per_s", r->what);
    for (int i = 0; i + 1 < c->n_levels; i++) {
        double here = c->level[i].ranks, above = c->level[i + 1].ranks;
        if (here < 1 || (above && above <= here))
            return err_set(r->e, ERR_CONFIG,
                           "%s: network level %d has %g ranks and the level above it %g: the innermost level "
                           "comes first, and only the last has 0 (all)",
                           r->what, i + 1, here, above);
    }
    for (int i = 0; i < c->n_serves; i++)
        if (c->serve[i].tp != floor(c->serve[i].tp) || c->serve[i].batch != floor(c->serve[i].batch))
            return err_set(r->e, ERR_CONFIG, "%s: [[serve]] %d has tp %g and batch %g: use whole numbers",
                           r->what, i + 1, c->serve[i].tp, c->serve[i].batch);
    if (c->idle_watts > c->watts)
        return err_set(r->e, ERR_CONFIG, "%s: idle_watts is %g and watts %g: idle_watts may not be larger",
                       r->what, c->idle_watts, c->watts);
    return 0;
}

int cluster_parse(struct cluster *c, const char *text, const char *what, struct err *e)
{
    struct reader r = { .c = c, .what = what, .e = e };
    char *copy = strdup(text);
    int rc = copy ? 0 : err_set(e, ERR_MEMORY, "no memory for %s", what);
    memset(c, 0, sizeof *c);
    snprintf(c->name, sizeof c->name, "%.60s", what);
    for (int i = 0; i < N_KEYS; i++)
        if (!sections[keys[i].in].repeated && keys[i].otherwise >= 0)
            memcpy((char *)c + keys[i].at, &keys[i].otherwise, sizeof(double));
    for (char *line = copy, *next; rc >= 0 && line; line = next) {
        if ((next = strchr(line, '\n')))
            *next++ = 0;
        r.line++;
        rc = read_line(&r, line);
    }
    if (rc >= 0)
        rc = end_section(&r);
    if (rc >= 0)
        rc = check(&r);
    free(copy);
    return rc < 0 ? rc : 0;
}

int cluster_open(struct cluster *c, const char *name, struct err *e)
{
    const char *preset = cluster_preset(name);
    void *text = NULL;
    size_t n;
    int rc;
    if (preset)
        return cluster_parse(c, preset, name, e);
    if (!io_exists(name))
        return err_set(e, ERR_USAGE, "--simulate %s: neither a file nor one of the presets %s", name,
                       CLUSTER_PRESETS);
    TRY(io_read_file(name, 1 << 20, &text, &n, e));
    if (memchr(text, 0, n))
        rc = err_set(e, ERR_CONFIG, "%s: it holds a NUL byte: is it TOML", name);
    else
        rc = cluster_parse(c, text, name, e);
out:
    free(text);
    return rc;
}

static void write_repeated(const struct cluster *c, enum section s, FILE *out)
{
    int n, word;
    double x;
    memcpy(&n, (const char *)c + sections[s].count, sizeof n);
    for (int at = 0; at < n; at++) {
        const char *base = (const char *)c + sections[s].at + sections[s].size * (size_t)at;
        fprintf(out, "\n[[%s]]\n", sections[s].name);
        for (int i = 0; i < N_WORDS; i++)
            if (words[i].in == s) {
                memcpy(&word, base + words[i].at, sizeof word);
                fprintf(out, "%s = \"%s\"\n", words[i].name, words[i].list[word]);
            }
        for (int i = 0; i < N_KEYS; i++) {
            if (keys[i].in != s)
                continue;
            memcpy(&x, base + keys[i].at, sizeof x);
            if (keys[i].otherwise < 0 || x != keys[i].otherwise)
                fprintf(out, "%s = %.17g\n", keys[i].name, x);
        }
    }
}

void cluster_write(const struct cluster *c, FILE *out)
{
    enum section last = TOP;
    double x;
    fprintf(out, "name = \"%s\"\n", c->name);
    for (int i = 0; i < N_KEYS; i++) {
        if (sections[keys[i].in].repeated)
            continue;
        if (keys[i].in != last)
            fprintf(out, "\n[%s]\n", sections[keys[i].in].name);
        last = keys[i].in;
        memcpy(&x, (const char *)c + keys[i].at, sizeof x);
        fprintf(out, "%s = %.6g\n", keys[i].name, x);
    }
    for (int s = 0; s < N_SECTIONS; s++)
        if (sections[s].repeated)
            write_repeated(c, (enum section)s, out);
}
