/* pickle.c - see pickle.h. A table has one handler for each opcode; other opcodes are rejected. */
#include "format/torch/pickle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK_BYTES ((size_t)64 << 10)
#define MEMORY_MAX ((size_t)1 << 30) /* bytes of nodes: a pickle of a thousand ranks needs less */
#define PROTOCOL_MAX 5
#define SMALL_INTS 257 /* shared nodes for 0 … 256, which fill shapes and offsets */

struct pk_block {
    struct pk_block *next;
    size_t used, size;
    char data[];
};

struct machine {
    const unsigned char *data;
    size_t n, at;
    const char *what;
    struct err *e;
    struct pk_doc *doc;
    size_t memory;
    struct pk **stack, **memo;
    size_t n_stack, stack_capacity, n_memo, memo_capacity;
    size_t *mark;
    size_t n_marks, mark_capacity;
    struct pk *small[SMALL_INTS], *none, *flag[2], *empty;
    int done;
};

/* ---- memory ---- */

static int no_memory(struct machine *m)
{
    return err_set(m->e, ERR_MEMORY, "%s: no memory for the objects of its pickle", m->what);
}

static void *arena(struct machine *m, size_t bytes)
{
    struct pk_block *b = m->doc->block;
    bytes = (bytes + 7) & ~(size_t)7;
    if (!b || b->size - b->used < bytes) {
        size_t size = bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES;
        if (m->memory + size > MEMORY_MAX || !(b = malloc(sizeof *b + size))) {
            no_memory(m);
            return NULL;
        }
        m->memory += size;
        *b = (struct pk_block){ m->doc->block, 0, size };
        m->doc->block = b;
    }
    void *p = b->data + b->used;
    b->used += bytes;
    return p;
}

static struct pk *node(struct machine *m, enum pk_kind kind)
{
    struct pk *p = arena(m, sizeof *p);
    if (p) {
        memset(p, 0, sizeof *p);
        p->kind = (uint8_t)kind;
    }
    return p;
}

/* Makes space for entry n in an array of the machine (array: the address of its pointer). The bytes of the
 * pickle bound the sizes. */
static int reserve(struct machine *m, void *array, size_t n, size_t *have, size_t size)
{
    void *old, *grown;
    if (n < *have)
        return 0;
    size_t want = *have ? *have * 2 : 256;
    while (want <= n)
        want *= 2;
    memcpy(&old, array, sizeof old);
    grown = want * size <= MEMORY_MAX ? realloc(old, want * size) : NULL;
    if (!grown)
        return no_memory(m);
    memcpy(array, &grown, sizeof grown);
    *have = want;
    return 0;
}

/* ---- bytes ---- */

static int bad(struct machine *m, const char *text)
{
    return err_set(m->e, ERR_FORMAT, "%s: the pickle %s at byte %zu: is the file damaged", m->what, text,
                   m->at);
}

static const unsigned char *take(struct machine *m, uint64_t n)
{
    if (n > m->n - m->at) {
        err_set(m->e, ERR_FORMAT, "%s: the pickle wants %llu bytes at byte %zu of %zu: is the file whole",
                m->what, (unsigned long long)n, m->at, m->n);
        return NULL;
    }
    const unsigned char *p = m->data + m->at;
    m->at += n;
    return p;
}

/* A little-endian number of `bytes` bytes. */
static int take_number(struct machine *m, int bytes, uint64_t *out)
{
    const unsigned char *p = take(m, (uint64_t)bytes);
    *out = 0;
    for (int i = bytes - 1; p && i >= 0; i--)
        *out = *out << 8 | p[i];
    return p ? 0 : -ERR_FORMAT;
}

/* ---- stack ---- */

static int push(struct machine *m, struct pk *p)
{
    if (!p || reserve(m, &m->stack, m->n_stack, &m->stack_capacity, sizeof *m->stack) < 0)
        return -m->e->code;
    m->stack[m->n_stack++] = p;
    return 0;
}

static size_t floor_of(const struct machine *m) { return m->n_marks ? m->mark[m->n_marks - 1] : 0; }

static struct pk *pop(struct machine *m)
{
    if (m->n_stack <= floor_of(m)) {
        bad(m, "takes from an empty stack");
        return NULL;
    }
    return m->stack[--m->n_stack];
}

static struct pk *top(struct machine *m)
{
    if (m->n_stack <= floor_of(m)) {
        bad(m, "needs an object on the stack");
        return NULL;
    }
    return m->stack[m->n_stack - 1];
}

/* Pops the last mark and the items above it, which stay in the stack's memory until the next push. */
static int pop_mark(struct machine *m, struct pk ***item, size_t *n)
{
    if (!m->n_marks)
        return bad(m, "has no mark");
    size_t from = m->mark[--m->n_marks];
    *item = from ? m->stack + from : m->stack; /* without a stack: NULL + 0 is undefined */
    *n = m->n_stack - from;
    m->n_stack = from;
    return 0;
}

static int add_items(struct machine *m, struct pk *p, struct pk **item, size_t n, size_t per)
{
    size_t have = (size_t)p->n * per;
    if (have + n > (size_t)p->capacity * per) {
        size_t want = (size_t)p->capacity * 2;
        want = want * per < have + n ? (have + n + per - 1) / per : want;
        struct pk **grown = want < UINT32_MAX ? arena(m, want * per * sizeof *grown) : NULL;
        if (!grown)
            return no_memory(m);
        if (have)
            memcpy(grown, p->item, have * sizeof *grown);
        p->item = grown;
        p->capacity = (uint32_t)want;
    }

    if (n)
        memcpy(p->item + have, item, n * sizeof *item);
    p->n += (uint32_t)(n / per);
    return 0;
}

/* ---- values ---- */

static int push_int(struct machine *m, int64_t v)
{
    struct pk **shared = v >= 0 && v < SMALL_INTS ? &m->small[v] : NULL, *p = shared ? *shared : NULL;
    if (!p) {
        if (!(p = node(m, PK_INT)))
            return -m->e->code;
        p->i = v;
        if (shared)
            *shared = p;
    }
    return push(m, p);
}

static int push_shared(struct machine *m, struct pk **shared, enum pk_kind kind, int64_t v)
{
    if (!*shared && (*shared = node(m, kind)))
        (*shared)->i = v;
    return push(m, *shared);
}

static int push_text(struct machine *m, enum pk_kind kind, uint64_t n)
{
    const unsigned char *p = take(m, n);
    struct pk *t = p && n < UINT32_MAX ? node(m, kind) : NULL;
    if (p && n >= UINT32_MAX)
        return bad(m, "has a text of 4 GiB");
    if (!t)
        return -m->e->code;
    t->text = (const char *)p;
    t->n = (uint32_t)n;
    return push(m, t);
}

/* Two's complement, little-endian; PK_BIG if it does not fit in 64 bits. */
static int push_long(struct machine *m, uint64_t n)
{
    const unsigned char *p = take(m, n);
    if (!p)
        return -m->e->code;
    unsigned char sign = n && p[n - 1] & 0x80 ? 0xff : 0;
    uint64_t v = sign ? ~(uint64_t)0 : 0;
    for (uint64_t i = 8; i < n; i++)
        if (p[i] != sign)
            return push(m, node(m, PK_BIG));
    if (n > 8 && (p[7] & 0x80) != (sign & 0x80))
        return push(m, node(m, PK_BIG));
    for (int i = n < 8 ? (int)n - 1 : 7; i >= 0; i--)
        v = v << 8 | p[i];
    return push_int(m, (int64_t)v);
}

/* ---- handlers, called after the opcode is read ---- */

static int op_proto(struct machine *m, int arg)
{
    uint64_t v;
    (void)arg;
    if (take_number(m, 1, &v) < 0)
        return -m->e->code;
    return v <= PROTOCOL_MAX
               ? 0
               : err_set(m->e, ERR_FORMAT, "%s: a pickle of protocol %d, this program reads up to %d",
                         m->what, (int)v, PROTOCOL_MAX);
}

static int op_frame(struct machine *m, int arg)
{
    uint64_t v;
    (void)arg;
    if (take_number(m, 8, &v) < 0)
        return -m->e->code;
    return v <= m->n - m->at ? 0 : bad(m, "has a frame that passes its end");
}

static int op_mark(struct machine *m, int arg)
{
    (void)arg;
    if (reserve(m, &m->mark, m->n_marks, &m->mark_capacity, sizeof *m->mark) < 0)
        return -m->e->code;
    m->mark[m->n_marks++] = m->n_stack;
    return 0;
}

static int op_stop(struct machine *m, int arg)
{
    (void)arg;
    /* items below it are ignored, as in Python */
    struct pk *root = m->n_marks ? NULL : top(m);
    if (!root)
        return m->n_marks ? bad(m, "ends inside a mark") : -m->e->code;
    m->doc->root = root;
    m->doc->used = m->at;
    m->done = 1;
    return 0;
}

static int op_none(struct machine *m, int arg)
{
    (void)arg;
    return push_shared(m, &m->none, PK_NONE, 0);
}
static int op_bool(struct machine *m, int arg) { return push_shared(m, &m->flag[arg], PK_BOOL, arg); }
static int op_empty_tuple(struct machine *m, int arg)
{
    (void)arg;
    return push_shared(m, &m->empty, PK_TUPLE, 0);
}
static int op_empty(struct machine *m, int arg) { return push(m, node(m, (enum pk_kind)arg)); }

static int op_int(struct machine *m, int arg)
{
    uint64_t v;
    if (take_number(m, arg, &v) < 0)
        return -m->e->code;
    return push_int(m, arg == 4 ? (int32_t)(uint32_t)v : (int64_t)v);
}

static int op_long(struct machine *m, int arg)
{
    uint64_t n;
    if (take_number(m, arg, &n) < 0)
        return -m->e->code;
    return arg == 4 && n > INT32_MAX ? bad(m, "has a number of negative length") : push_long(m, n);
}

static int op_float(struct machine *m, int arg)
{
    const unsigned char *p = take(m, 8);
    struct pk *f = p ? node(m, PK_FLOAT) : NULL;
    uint64_t bits = 0;
    (void)arg;
    if (!f)
        return -m->e->code;
    for (int i = 0; i < 8; i++)
        bits = bits << 8 | p[i];
    memcpy(&f->f, &bits, sizeof bits);
    return push(m, f);
}

/* arg: bytes of the length field; negative: bytes, not text */
static int op_text(struct machine *m, int arg)
{
    uint64_t n;
    if (take_number(m, arg < 0 ? -arg : arg, &n) < 0)
        return -m->e->code;
    return push_text(m, arg < 0 ? PK_BYTES : PK_TEXT, n);
}

static int op_tuple(struct machine *m, int arg)
{
    struct pk *t = node(m, PK_TUPLE), **item = NULL;
    size_t n = (size_t)arg;
    if (!t)
        return -m->e->code;
    if (arg < 0) {
        if (pop_mark(m, &item, &n) < 0)
            return -m->e->code;
    } else {
        if (m->n_stack - floor_of(m) < n)
            return bad(m, "takes from an empty stack");
        item = m->stack + m->n_stack - n;
        m->n_stack -= n;
    }
    return add_items(m, t, item, n, 1) < 0 ? -m->e->code : push(m, t);
}

/* arg: the kind of the object below the items; an object of an inert class drops them */
static int add_to(struct machine *m, struct pk *to, int kind, struct pk **item, size_t n)
{
    size_t per = kind == PK_DICT ? 2 : 1;
    if (!to)
        return -m->e->code;
    if (to->kind == PK_CALL && to->cls->id == PK_INERT)
        return 0;
    if (to->kind != kind || to == m->empty)
        return bad(m, "adds items to something that takes none");
    return n % per ? bad(m, "adds a key without a value") : add_items(m, to, item, n, per);
}

static int op_add(struct machine *m, int arg)
{
    struct pk **item = NULL;
    size_t n = 0;
    if (pop_mark(m, &item, &n) < 0)
        return -m->e->code;
    return add_to(m, top(m), arg, item, n);
}

static int op_add_one(struct machine *m, int arg)
{
    struct pk *item[2];
    int n = arg == PK_DICT ? 2 : 1;
    for (int i = n - 1; i >= 0; i--)
        if (!(item[i] = pop(m)))
            return -m->e->code;
    return add_to(m, top(m), arg, item, (size_t)n);
}

static int op_put(struct machine *m, int arg)
{
    uint64_t i = m->n_memo;
    struct pk *p = top(m);
    if (!p || (arg && take_number(m, arg, &i) < 0))
        return -m->e->code;
    if (i >= m->n) /* every entry needs a byte: a larger index would only make us allocate memory */
        return err_set(m->e, ERR_FORMAT, "%s: memo entry %llu in a pickle of %zu bytes: is the file damaged",
                       m->what, (unsigned long long)i, m->n);
    if (reserve(m, &m->memo, i, &m->memo_capacity, sizeof *m->memo) < 0)
        return -m->e->code;
    while (m->n_memo <= i)
        m->memo[m->n_memo++] = NULL;
    m->memo[i] = p;
    return 0;
}

static int op_get(struct machine *m, int arg)
{
    uint64_t i;
    if (take_number(m, arg, &i) < 0)
        return -m->e->code;
    if (i >= m->n_memo || !m->memo[i])
        return bad(m, "takes a memo entry that was never put");
    return push(m, m->memo[i]);
}

static int op_dup(struct machine *m, int arg)
{
    (void)arg;
    return push(m, top(m));
}

static int op_pop(struct machine *m, int arg)
{
    struct pk **item;
    size_t n;
    if (arg || (m->n_marks && m->n_stack == floor_of(m)))
        return pop_mark(m, &item, &n);
    return pop(m) ? 0 : -m->e->code;
}

/* ---- classes and calls ---- */

static int push_class(struct machine *m, const char *module, size_t n_module, const char *name, size_t n_name)
{
    const struct pk_class *c = pk_class_find(module, n_module, name, n_name);
    struct pk *p;
    if (!c)
        return err_set(m->e, ERR_FORMAT,
                       "%s: the pickle names %.*s.%.*s, which is not a class of checkpoints: nothing was "
                       "run; do not load this file elsewhere",
                       m->what, (int)(n_module < 100 ? n_module : 100), module,
                       (int)(n_name < 100 ? n_name : 100), name);
    if (!(p = node(m, PK_CLASS)))
        return -m->e->code;
    p->cls = c;
    p->text = name;
    p->n = (uint32_t)n_name;
    return push(m, p);
}

static int op_global(struct machine *m, int arg)
{
    const char *part[2];
    size_t n[2];
    (void)arg;
    for (int i = 0; i < 2; i++) {
        const char *from = (const char *)m->data + m->at, *end = memchr(from, '\n', m->n - m->at);
        if (!end)
            return bad(m, "has a class name without an end");
        part[i] = from;
        n[i] = (size_t)(end - from);
        m->at += n[i] + 1;
    }
    return push_class(m, part[0], n[0], part[1], n[1]);
}

static int op_stack_global(struct machine *m, int arg)
{
    struct pk *name = pop(m), *module = name ? pop(m) : NULL;
    (void)arg;
    if (!module)
        return -m->e->code;
    if (name->kind != PK_TEXT || module->kind != PK_TEXT)
        return bad(m, "names a class by something that is not text");
    return push_class(m, module->text, module->n, name->text, name->n);
}

/* protocol 2 writes bytes as text with one character for each byte: converts it back */
static int push_latin1(struct machine *m, const struct pk *args)
{
    const struct pk *t = pk_at(args, 0);
    if (!t || t->kind != PK_TEXT || !pk_is_text(pk_at(args, 1), "latin1"))
        return bad(m, "encodes something that is not text as latin1");
    struct pk *b = node(m, PK_BYTES);
    char *out = b ? arena(m, t->n + 1u) : NULL;
    if (!out)
        return -m->e->code;
    for (uint32_t i = 0; i < t->n; i++) {
        unsigned char c = (unsigned char)t->text[i];
        if (c >= 0x80) {
            unsigned char next = i + 1 < t->n ? (unsigned char)t->text[i + 1] : 0;
            if ((c & 0xfc) != 0xc0 || (next & 0xc0) != 0x80)
                return bad(m, "encodes a character that latin1 does not have");
            c = (unsigned char)(c << 6 | (next & 0x3f));
            i++;
        }
        out[b->n++] = (char)c;
    }

    b->text = out;
    return push(m, b);
}

static int push_dict(struct machine *m, const struct pk *args)
{
    struct pk *d = node(m, PK_DICT);
    /* OrderedDict([[k, v], …]); defaultdict(factory) */
    const struct pk *pairs = pk_at(args, args->n ? args->n - 1 : 0);
    if (!d)
        return -m->e->code;
    for (uint32_t i = 0; pairs && (pairs->kind == PK_LIST || pairs->kind == PK_TUPLE) && i < pairs->n; i++) {
        const struct pk *pair = pk_at(pairs, i);
        if (!pair || !pk_at(pair, 1) || pair->n != 2)
            return bad(m, "makes a dict of something that is not pairs");
        if (add_items(m, d, pair->item, 2, 2) < 0)
            return -m->e->code;
    }
    return push(m, d);
}

static int push_copy(struct machine *m, enum pk_kind kind, const struct pk *args)
{
    const struct pk *from = pk_at(args, 0);
    struct pk *p = node(m, kind);
    if (!p)
        return -m->e->code;
    if (from && (from->kind == PK_LIST || from->kind == PK_TUPLE || from->kind == PK_SET) &&
        add_items(m, p, from->item, from->n, 1) < 0)
        return -m->e->code;
    return push(m, p);
}

static int push_call(struct machine *m, const struct pk *callee, struct pk *args)
{
    struct pk *p;
    if (callee->kind != PK_CLASS || args->kind != PK_TUPLE)
        return bad(m, "calls something that is not a class");
    switch (callee->cls->id) {
    case PK_MAKES_TUPLE: return push_copy(m, PK_TUPLE, args);
    case PK_MAKES_LIST: return push_copy(m, PK_LIST, args);
    case PK_MAKES_SET: return push_copy(m, PK_SET, args);
    case PK_MAKES_DICT: return push_dict(m, args);
    case PK_MAKES_BYTES: return push_latin1(m, args);
    default: break;
    }

    if (!(p = node(m, PK_CALL)))
        return -m->e->code;
    p->cls = callee->cls;
    p->text = callee->text;
    p->n = callee->n;
    p->args = args;
    return push(m, p);
}

static int op_call(struct machine *m, int arg)
{
    struct pk *kwargs = arg ? pop(m) : NULL, *args = arg && !kwargs ? NULL : pop(m),
              *callee = args ? pop(m) : NULL;
    return callee ? push_call(m, callee, args) : -m->e->code;
}

static int op_build(struct machine *m, int arg)
{
    struct pk *state = pop(m), *p = state ? top(m) : NULL;
    (void)arg;
    if (!p)
        return -m->e->code;
    if (p->kind != PK_CALL && p->kind != PK_DICT)
        return bad(m, "gives a state to something that is not an object");
    p->state = state;
    return 0;
}

static int op_persid(struct machine *m, int arg)
{
    struct pk *args = pop(m), *p = args ? node(m, PK_PERSID) : NULL;
    (void)arg;
    if (!p)
        return -m->e->code;
    p->args = args;
    p->state = m->doc->persid;
    m->doc->persid = p;
    return push(m, p);
}

/* ---- the table ---- */

static const struct {
    int (*run)(struct machine *m, int arg);
    int arg;
} ops[256] = {
    [0x80] = { op_proto, 0 },        [0x95] = { op_frame, 0 },      ['('] = { op_mark, 0 },
    ['.'] = { op_stop, 0 },          ['N'] = { op_none, 0 },        [0x88] = { op_bool, 1 },
    [0x89] = { op_bool, 0 },         ['K'] = { op_int, 1 },         ['M'] = { op_int, 2 },
    ['J'] = { op_int, 4 },           [0x8a] = { op_long, 1 },       [0x8b] = { op_long, 4 },
    ['G'] = { op_float, 0 },         ['X'] = { op_text, 4 },        [0x8c] = { op_text, 1 },
    [0x8d] = { op_text, 8 },         ['T'] = { op_text, 4 },        ['U'] = { op_text, 1 },
    ['B'] = { op_text, -4 },         ['C'] = { op_text, -1 },       [0x8e] = { op_text, -8 },
    [0x96] = { op_text, -8 },        [')'] = { op_empty_tuple, 0 }, [']'] = { op_empty, PK_LIST },
    ['}'] = { op_empty, PK_DICT },   [0x8f] = { op_empty, PK_SET }, ['t'] = { op_tuple, -1 },
    [0x85] = { op_tuple, 1 },        [0x86] = { op_tuple, 2 },      [0x87] = { op_tuple, 3 },
    ['s'] = { op_add_one, PK_DICT }, ['u'] = { op_add, PK_DICT },   ['a'] = { op_add_one, PK_LIST },
    ['e'] = { op_add, PK_LIST },     [0x90] = { op_add, PK_SET },   ['q'] = { op_put, 1 },
    ['r'] = { op_put, 4 },           [0x94] = { op_put, 0 },        ['h'] = { op_get, 1 },
    ['j'] = { op_get, 4 },           ['2'] = { op_dup, 0 },         ['0'] = { op_pop, 0 },
    ['1'] = { op_pop, 1 },           ['c'] = { op_global, 0 },      [0x93] = { op_stack_global, 0 },
    ['R'] = { op_call, 0 },          [0x81] = { op_call, 0 },       [0x92] = { op_call, 1 },
    ['b'] = { op_build, 0 },         ['Q'] = { op_persid, 0 },
};

int pk_parse(struct pk_doc *d, const void *data, size_t n, const char *what, struct err *e)
{
    struct machine m = { .data = data, .n = n, .what = what, .e = e, .doc = d };
    int rc = 0;

    memset(d, 0, sizeof *d);
    while (!m.done && rc >= 0) {
        if (m.at >= n) {
            rc = err_set(e, ERR_FORMAT, "%s: the pickle of %zu bytes has no end: is the file whole", what, n);
            break;
        }
        unsigned char op = m.data[m.at];
        if (!ops[op].run) {
            rc = err_set(e, ERR_FORMAT,
                         "%s: the pickle has opcode 0x%02x at byte %zu, which checkpoints do not use: is the "
                         "file damaged",
                         what, op, m.at);
            break;
        }
        m.at++;
        rc = ops[op].run(&m, ops[op].arg);
    }

    free(m.stack);
    free(m.memo);
    free(m.mark);
    if (rc < 0)
        pk_free(d);
    return rc < 0 ? rc : 0;
}

void pk_free(struct pk_doc *d)
{
    for (struct pk_block *b = d->block, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    memset(d, 0, sizeof *d);
}

/* ---- access to nodes ---- */

int pk_is_text(const struct pk *p, const char *text)
{
    return p && p->kind == PK_TEXT && p->n == strlen(text) && !memcmp(p->text, text, p->n);
}

int pk_ends_with(const struct pk *p, const char *suffix)
{
    size_t n = strlen(suffix);
    return p && p->kind == PK_TEXT && p->n >= n && !memcmp(p->text + p->n - n, suffix, n);
}

struct pk *pk_get(const struct pk *dict, const char *key)
{
    for (uint32_t i = dict && dict->kind == PK_DICT ? dict->n : 0; i-- > 0;)
        if (pk_is_text(dict->item[2 * i], key))
            return dict->item[2 * i + 1];
    return NULL;
}

struct pk *pk_get_int(const struct pk *dict, int64_t key)
{
    for (uint32_t i = dict && dict->kind == PK_DICT ? dict->n : 0; i-- > 0;)
        if (dict->item[2 * i]->kind == PK_INT && dict->item[2 * i]->i == key)
            return dict->item[2 * i + 1];
    return NULL;
}

struct pk *pk_at(const struct pk *seq, uint32_t i)
{
    int is = seq && (seq->kind == PK_TUPLE || seq->kind == PK_LIST || seq->kind == PK_SET);
    return is && i < seq->n ? seq->item[i] : NULL;
}

struct pk *pk_attr(const struct pk *object, const char *name)
{
    const struct pk *s = object && object->kind == PK_CALL ? object->state : object;
    struct pk *found = pk_get(s, name);
    return found ? found : pk_get(pk_at(s, 0), name); /* (dict, slots) */
}

int pk_is_call(const struct pk *p, const char *class_name)
{
    size_t n = strlen(class_name);
    return p && p->kind == PK_CALL && p->n >= n && !memcmp(p->text + p->n - n, class_name, n) &&
           (p->n == n || p->text[p->n - n - 1] == '.');
}

int pk_int(const struct pk *p, int64_t *out)
{
    if (p && p->kind == PK_FLOAT && p->f >= -9e15 && p->f <= 9e15 && p->f == (double)(int64_t)p->f)
        *out = (int64_t)p->f;
    else if (p && p->kind == PK_INT)
        *out = p->i;
    else
        return 0;
    return 1;
}

char *pk_strdup(const struct pk *p)
{
    return p && p->kind == PK_TEXT && !memchr(p->text, 0, p->n) ? strndup(p->text, p->n) : NULL;
}
