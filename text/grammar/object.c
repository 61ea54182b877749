/* object.c - keys of an object of JSON: which it has, and which may come. */
#include <stdlib.h>
#include <string.h>
#include "text/grammar/automaton.h"

/* Which keys an object has. The set without a byte is the empty one. */
struct key_set {
    int32_t count;   /* of keys; only with a limit of their number */
    int32_t last;    /* in_order: keys before this one do not come any more */
    int32_t missing; /* required ones */
    uint32_t bits[]; /* [words] declared keys that are there; none with in_order */
};
#define SET_HEAD offsetof(struct key_set, bits)

static size_t set_words(const struct object *o) { return o->in_order ? 0 : ((size_t)o->n_keys + 31) / 32; }

static const struct key_set *read_set(const struct machine *m, uint32_t set)
{
    size_t n;
    return intern_key(&m->sets, set, &n);
}

uint32_t key_set_begin(struct machine *m) { return intern_put(&m->sets, "", 0); }

static int32_t missing(const struct machine *m, const struct object *o, uint32_t set)
{
    return set ? read_set(m, set)->missing : o->n_required;
}
static int32_t count(const struct machine *m, uint32_t set) { return set ? read_set(m, set)->count : 0; }

int object_may_close(const struct machine *m, int32_t object, uint32_t set)
{
    const struct object *o = &m->p->object[object];
    return missing(m, o, set) == 0 && count(m, set) >= o->min;
}

/* Is there room for one more key? is_required: it is a required one. */
static int has_room(const struct machine *m, const struct object *o, uint32_t set, int is_required)
{
    return o->max < 0 || count(m, set) + 1 + missing(m, o, set) - is_required <= o->max;
}

/* May declared key i come? */
static int key_allowed(const struct machine *m, const struct object *o, uint32_t set, int32_t i)
{
    const struct object_key *k = &o->key[i];
    if (k->forbidden || !has_room(m, o, set, k->required))
        return 0;
    if (!o->in_order)
        return !set || !(read_set(m, set)->bits[i / 32] >> (i % 32) & 1);
    int32_t last = set ? read_set(m, set)->last : 0;
    for (int32_t j = last; j < i; j++)
        if (o->key[j].required)
            return 0;
    return i >= last;
}

static int others_allowed(const struct machine *m, const struct object *o, uint32_t set)
{
    return o->has_others && has_room(m, o, set, 0) && (!o->in_order || missing(m, o, set) == 0);
}

int object_may_go_on(const struct machine *m, int32_t object, uint32_t set)
{
    const struct object *o = &m->p->object[object];
    if (others_allowed(m, o, set))
        return 1;
    for (int32_t i = 0; i < o->n_keys; i++)
        if (key_allowed(m, o, set, i))
            return 1;
    return 0;
}

int key_live(struct machine *m, int32_t object, uint32_t set, int32_t vector)
{
    const struct object *o = &m->p->object[object];
    uint32_t node = vector_states(m, vector)[0];
    if (others_allowed(m, o, set) && vector_live(m, vector))
        return 1;
    if (node == STATE_DEAD)
        return 0;
    const struct words *w = &m->p->component[o->words].words;
    for (int32_t i = w->node[node].first; i < w->node[node].end; i++)
        if (key_allowed(m, o, set, o->word_of[w->order[i]]))
            return 1;
    return 0;
}

int key_is_other(struct machine *m, const struct terminal *t, const uint32_t *states)
{
    const struct object *o = &m->p->object[t->object];
    int class = 0;
    if (states[0] != STATE_DEAD && m->p->component[o->words].words.node[states[0]].word >= 0)
        return 0;
    for (int i = 0; i < t->n_parts - 1; i++) {
        int accepts = part_accepts(m, t->part[i + 1].component, states[i + 1]);
        if (i < o->n_patterns)
            class |= accepts << i;
        else if (accepts == t->part[i + 1].negated)
            return 0;
    }
    return o->rule_of_class[class] >= 0;
}

/* The set with one key more. i: a declared one; -1: another one. */
static uint32_t set_with(struct machine *m, const struct object *o, uint32_t set, int32_t i)
{
    size_t n = SET_HEAD + set_words(o) * sizeof(uint32_t);
    struct key_set *to = calloc(1, n + sizeof(uint32_t));
    uint32_t id = 0;
    if (!to) {
        m->failed = ERR_MEMORY;
        return 0;
    }
    if (set)
        memcpy(to, read_set(m, set), n);
    else
        to->missing = o->n_required;
    to->count += o->max >= 0 || to->count < o->min;
    if (i >= 0) {
        to->missing -= o->key[i].required;
        to->last = o->in_order ? i + 1 : 0;
        if (!o->in_order)
            to->bits[i / 32] |= 1u << (i % 32);
    } else if (o->in_order) {
        to->last = o->n_keys;
    }
    id = intern_put(&m->sets, to, n);
    free(to);
    if (m->sets.failed)
        m->failed = ERR_MEMORY;
    return id;
}

int32_t key_end(struct machine *m, int32_t object, uint32_t set, int32_t vector, uint32_t *with)
{
    const struct object *o = &m->p->object[object];
    const struct terminal *t = &m->p->terminal[o->terminal];
    const struct words *w = &m->p->component[o->words].words;
    const uint32_t *states = vector_states(m, vector);
    int class = 0;

    if (states[0] != STATE_DEAD && w->node[states[0]].word >= 0) {
        int32_t i = o->word_of[w->node[states[0]].word];
        if (!key_allowed(m, o, set, i))
            return -1;
        *with = set_with(m, o, set, i);
        return o->key[i].rule;
    }

    if (!others_allowed(m, o, set) || !m->vector[vector].accepts)
        return -1;
    for (int i = 0; i < o->n_patterns; i++)
        class |= part_accepts(m, t->part[i + 1].component, states[i + 1]) << i;
    *with = set_with(m, o, set, -1);
    return o->rule_of_class[class];
}
