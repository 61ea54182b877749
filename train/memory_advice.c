/* memory_advice.c - see memory_advice.h. */
#include "train/memory_advice.h"

#include <stdio.h>
#include <string.h>
#include "base/log.h"

enum { MOST_RANKS = 4096, MOST_TP = 8 };

/* A layout, and what its fullest place needs. */
struct candidate {
    struct layout_spec spec;
    double bytes;
    int changes; /* options that differ from what was asked for */
};

/* Whether the candidate's layout exists and fits; fills bytes. */
static int fits(struct candidate *c, const struct memory_advice *a)
{
    struct layout_spec *s = &c->spec;
    struct err ignored;
    s->sharers = layout_plan_sharers(&s->layout, a->ranks_a_place);
    s->overlap = s->overlap && layout_slices(&s->layout) > 1;
    return layout_check(&s->layout, &s->cfg, &ignored) >= 0 &&
           layout_plan_machine(s, a->ranks_a_place, a->rank_bytes, &c->bytes, &ignored) >= 0 &&
           c->bytes <= a->free_bytes;
}

/* The next smaller micro-batch that divides this one; 0: none. */
static int64_t smaller_micro(int64_t micro) { return micro > 1 ? (micro % 2 ? 1 : micro / 2) : 0; }

static int64_t rows_a_rank(const struct layout_spec *s) { return s->rows / s->layout.dp; }

static int count_changes(const struct layout_spec *s, const struct layout_spec *asked)
{
    return (s->layout.zero != asked->layout.zero) + (s->recompute != asked->recompute) +
           (s->micro != asked->micro) + 2 * (s->dt != asked->dt); /* another dtype gives other bits */
}

/* Tries ZeRO stages, recomputation, micro-batches (and dtypes) from those of `from` on. The fewest changes
 * win; of as many, the first in the order of the loops. 1: *best fits. */
static int try_options(struct candidate *best, const struct layout_spec *from,
                       const struct layout_spec *asked, const struct memory_advice *a)
{
    int last_zero = layout_slices(&from->layout) > 1 ? 3 : from->layout.zero, found = 0;
    for (int dt = 0; dt < 2; dt++)
        for (int zero = from->layout.zero; zero <= last_zero; zero++)
            for (int again = (int)from->recompute; again <= RECOMPUTE_FULL; again++)
                for (int64_t micro = from->micro; micro >= 0;
                     micro = smaller_micro(micro ? micro : rows_a_rank(from))) {
                    struct candidate c = { .spec = *from };
                    c.spec.dt = dt ? DT_BF16 : from->dt;
                    c.spec.layout.zero = zero;
                    c.spec.recompute = (enum recompute)again;
                    c.spec.micro = micro;
                    c.changes = count_changes(&c.spec, asked);
                    if ((!found || c.changes < best->changes) && fits(&c, a)) {
                        *best = c;
                        found = 1;
                    }
                    if (micro == 1 || (micro == 0 && rows_a_rank(from) == 1))
                        break;
                }
    return found;
}

/* Tries these degrees, dp what remains of so many ranks. 1: *best fits. */
static int try_degrees(struct candidate *best, const struct layout_spec *asked, struct layout degrees,
                       int ranks, const struct memory_advice *a)
{
    int inner = degrees.tp * degrees.pp * degrees.cp;
    if (inner > ranks || ranks % inner || ranks / inner > asked->rows)
        return 0;
    struct candidate least = { .spec = *asked };
    struct layout *l = &least.spec.layout;
    *l = degrees;
    l->dp = ranks / inner;
    if (l->cp > 1) /* a micro-batch is one sequence */
        least.spec.micro = 1;
    struct layout_spec from = least.spec;

    /* the layout's smallest form first: where that does not fit, no other does */
    l->zero = layout_slices(l) > 1 ? 3 : 0;
    least.spec.recompute = RECOMPUTE_FULL;
    least.spec.micro = 1;
    if (!fits(&least, a))
        return 0;
    if (!try_options(best, &from, asked, a))
        *best = least;
    return 1;
}

/* Finds a layout of so many ranks on places like the present one; tp, pp and, as far as it divides the leaves
 * of a sequence, cp grow from those asked for. 1: it fits. */
static int try_ranks(struct candidate *best, const struct layout_spec *asked, int ranks,
                     const struct memory_advice *a)
{
    struct layout l = asked->layout;
    const int cp = l.cp, leaves = asked->cp_grain > 1 ? asked->cp_grain : 1;
    for (; l.tp <= MOST_TP || l.tp == asked->layout.tp; l.tp *= 2)
        for (l.pp = asked->layout.pp; l.pp <= asked->cfg.n_layers; l.pp *= 2)
            for (l.cp = cp; leaves % l.cp == 0; l.cp *= 2)
                if (try_degrees(best, asked, l, ranks, a))
                    return 1;
    return 0;
}

/* The same ranks with --offload DIR: states in files, then gradients, then weights too. 1: it fits. */
static int try_files(struct candidate *best, const struct layout_spec *asked, const struct memory_advice *a)
{
    static const struct {
        int zero, grads, params;
    } variant[] = { { 0, 0, 0 }, { 2, 1, 0 }, { 3, 1, 1 } };
    for (size_t i = 0; i < sizeof variant / sizeof *variant; i++) {
        struct layout_spec from = *asked;
        from.offload = OFFLOAD_FILES;
        from.save_async = 0;
        from.offload_grads = variant[i].grads;
        from.offload_params = variant[i].params;
        from.layout.zero = from.layout.zero > variant[i].zero ? from.layout.zero : variant[i].zero;
        if (try_options(best, &from, asked, a))
            return 1;
    }
    return 0;
}

/* ---- words ---- */
static void add_option(char *out, size_t size, const char *name, const char *value)
{
    size_t n = strlen(out);
    snprintf(out + n, size - n, "%s--%s%s%s", n ? " " : "", name, *value ? " " : "", value);
}

/* The options of a layout that differ from what was asked for. */
static void list_options(const struct layout_spec *s, const struct layout_spec *asked, char out[160])
{
    static const char *const recompute[] = { "none", "selective", "full" };
    const struct {
        const char *name;
        int64_t value, was;
    } number[] = { { "tp", s->layout.tp, asked->layout.tp },
                   { "pp", s->layout.pp, asked->layout.pp },
                   { "cp", s->layout.cp, asked->layout.cp },
                   { "zero", s->layout.zero, asked->layout.zero },
                   { "micro-batch", s->micro, asked->micro } };
    char text[24];
    out[0] = 0;
    for (size_t i = 0; i < sizeof number / sizeof *number; i++) {
        snprintf(text, sizeof text, "%lld", (long long)number[i].value);
        if (number[i].value != number[i].was)
            add_option(out, 160, number[i].name, text);
    }
    if (s->recompute != asked->recompute)
        add_option(out, 160, "recompute", recompute[s->recompute]);
    if (s->offload != asked->offload)
        add_option(out, 160, "offload", "DIR");
    if (s->offload_grads && !asked->offload_grads)
        add_option(out, 160, "offload-grads", "");
    if (s->offload_params && !asked->offload_params)
        add_option(out, 160, "offload-params", "");
    if (s->dt != asked->dt)
        add_option(out, 160, "dtype", dtype_name(s->dt));
}

void memory_advice_text(const struct layout_spec *asked, const struct memory_advice *a,
                        char out[MEMORY_ADVICE_TEXT])
{
    const int now = layout_ranks(&asked->layout);
    struct candidate best;
    char options[160], bytes[32];
    out[0] = 0;
    if (try_options(&best, asked, asked, a)) {
        list_options(&best.spec, asked, options);
        log_bytes(bytes, best.bytes);
        snprintf(out, MEMORY_ADVICE_TEXT, "use %s (%s)", options, bytes);
        return;
    }

    for (int ranks = 2 * now; ranks <= MOST_RANKS; ranks *= 2) {
        if (!try_ranks(&best, asked, ranks, a))
            continue;
        list_options(&best.spec, asked, options);
        log_bytes(bytes, best.bytes);
        snprintf(out, MEMORY_ADVICE_TEXT, "%d %ss like this one hold it, %d ranks in all%s%s (%s each)",
                 ranks / a->ranks_a_place, a->place, ranks, *options ? " with " : "", options, bytes);
        break;
    }
    if (!*out)
        snprintf(out, MEMORY_ADVICE_TEXT,
                 "no layout of up to %d ranks fits: use a smaller --seq-len or --global-batch", MOST_RANKS);
    if (asked->offload == OFFLOAD_NONE && !a->is_gpu && try_files(&best, asked, a)) {
        size_t n = strlen(out);
        list_options(&best.spec, asked, options);
        log_bytes(bytes, best.bytes);
        snprintf(out + n, MEMORY_ADVICE_TEXT - n, "; or use %s (%s)", options, bytes);
    }
}
