/* tpl_eval.c - evaluates expressions: a table with one function for each kind of node. */
#include "text/jinja/tpl.h"

#include <string.h>

#define SCOPE_BYTES 16 /* looking into a scope costs as much as so many bytes of a string */

const struct val *scope_find(struct tpl *t, const struct scope *s, const struct str *name)
{
    for (; s && tpl_bytes(t, SCOPE_BYTES) == 0; s = s->parent) {
        const struct val *v = v_dict_text(&s->vars, name->p, name->n);
        if (v)
            return v;
    }
    return NULL;
}

int scope_set(struct tpl *t, struct scope *s, const struct str *name, struct val v)
{
    return v_dict_put(t, &s->vars, (struct val){ .type = V_STR, .u.s = name }, v);
}

/* --- constants, names, lists, dicts --- */

static int eval_const(struct tpl *t, const struct node *n, struct val *out)
{
    (void)t;
    *out = n->v;
    return 0;
}

static int eval_name(struct tpl *t, const struct node *n, struct val *out)
{
    const struct val *v = scope_find(t, t->scope, n->name);
    const struct fn *f;
    if (v)
        *out = *v;
    else if ((f = fn_find(tpl_functions, n->name->p, n->name->n)))
        *out = (struct val){ .type = V_FUNC, .u.fn = f };
    else
        return v_undef_of(t, out, "'%.*s' is undefined", (int)(n->name->n < 100 ? n->name->n : 100),
                          n->name->p);
    return 0;
}

static int eval_list(struct tpl *t, const struct node *n, struct val *out)
{
    struct val all;
    RETURN_IF_ERROR(v_list_new(t, n->kind == N_TUPLE ? L_TUPLE : L_LIST, &all));
    for (const struct node *k = n->list; k; k = k->next) {
        struct val v;
        RETURN_IF_ERROR(tpl_eval(t, k, &v));
        RETURN_IF_ERROR(v_list_add(t, all.u.l, v));
    }
    *out = all;
    return 0;
}

static int eval_dict(struct tpl *t, const struct node *n, struct val *out)
{
    struct val all;
    RETURN_IF_ERROR(v_dict_new(t, &all));
    for (const struct node *pair = n->list; pair; pair = pair->next) {
        struct val k, v;
        RETURN_IF_ERROR(tpl_eval(t, pair->a, &k));
        RETURN_IF_ERROR(tpl_eval(t, pair->b, &v));
        RETURN_IF_ERROR(v_dict_put(t, all.u.d, k, v));
    }
    *out = all;
    return 0;
}

/* --- subscripts --- */

static int eval_attr(struct tpl *t, const struct node *n, struct val *out)
{
    struct val v;
    RETURN_IF_ERROR(tpl_eval(t, n->a, &v));
    t->line = n->line;
    return get_attr(t, v, n->name, out);
}

static int eval_item(struct tpl *t, const struct node *n, struct val *out)
{
    struct val v, key;
    RETURN_IF_ERROR(tpl_eval(t, n->a, &v));
    RETURN_IF_ERROR(tpl_eval(t, n->b, &key));
    t->line = n->line;
    return get_item(t, v, key, out);
}

static int eval_slice(struct tpl *t, const struct node *n, struct val *out)
{
    const struct node *parts[3] = { n->b, n->c, n->list };
    struct val v, bound[3];
    RETURN_IF_ERROR(tpl_eval(t, n->a, &v));
    for (int i = 0; i < 3; i++) {
        bound[i] = v_none();
        if (parts[i])
            RETURN_IF_ERROR(tpl_eval(t, parts[i], &bound[i]));
    }
    t->line = n->line;
    return get_slice(t, v, bound, out);
}

/* --- calls --- */

static int eval_args(struct tpl *t, const struct node *n, struct args *out)
{
    *out = (struct args){ 0 };
    for (const struct node *k = n->list; k; k = k->next)
        out->n++;
    for (const struct node *k = n->more; k; k = k->next)
        out->n_kw++;
    out->v = tpl_alloc(t, out->n * sizeof *out->v);
    out->kw = tpl_alloc(t, out->n_kw * sizeof *out->kw);
    if (t->failed)
        return t->failed;
    size_t i = 0;
    for (const struct node *k = n->list; k; k = k->next)
        RETURN_IF_ERROR(tpl_eval(t, k, &out->v[i++]));
    i = 0;
    for (const struct node *k = n->more; k; k = k->next, i++) {
        out->kw[i].name = k->name;
        RETURN_IF_ERROR(tpl_steps(t, i / 8));
        for (size_t j = 0; j < i; j++)
            if (str_same(out->kw[j].name, k->name))
                return tpl_fail(t, ERR_USAGE, "the argument '%.*s' is there twice",
                                (int)(k->name->n < 60 ? k->name->n : 60), k->name->p);
        RETURN_IF_ERROR(tpl_eval(t, k->a, &out->kw[i].v));
    }
    return 0;
}

int tpl_call(struct tpl *t, struct val callee, const struct args *args, struct val *out)
{
    struct val no_self = v_none();
    switch (callee.type) {
    case V_FUNC: return fn_run(t, callee.u.fn, no_self, args, out);
    case V_METHOD: return fn_run(t, callee.u.m->fn, callee.u.m->self, args, out);
    case V_MACRO: return tpl_macro(t, callee.u.mac, args, out);
    case V_UNDEF: return tpl_fail(t, ERR_USAGE, "%s", callee.u.why);
    default: return tpl_fail(t, ERR_USAGE, "a %s cannot be called", v_type(callee));
    }
}

static int eval_call(struct tpl *t, const struct node *n, struct val *out)
{
    struct val callee;
    struct args args;
    RETURN_IF_ERROR(tpl_eval(t, n->a, &callee));
    RETURN_IF_ERROR(eval_args(t, n, &args));
    t->line = n->line;
    return tpl_call(t, callee, &args, out);
}

static int eval_filter(struct tpl *t, const struct node *n, struct val *out)
{
    struct val v;
    struct args args;
    const struct fn *f = filter_find(n->name);
    if (!f)
        return tpl_fail(t, ERR_USAGE, "no filter is named '%.*s'", (int)(n->name->n < 60 ? n->name->n : 60),
                        n->name->p);
    RETURN_IF_ERROR(tpl_eval(t, n->a, &v));
    RETURN_IF_ERROR(eval_args(t, n, &args));
    t->line = n->line;
    return fn_run(t, f, v, &args, out);
}

static int eval_test(struct tpl *t, const struct node *n, struct val *out)
{
    struct val v;
    struct args args;
    const struct fn *f = fn_find(tpl_tests, n->name->p, n->name->n);
    if (!f)
        return tpl_fail(t, ERR_USAGE, "no test is named '%.*s'", (int)(n->name->n < 60 ? n->name->n : 60),
                        n->name->p);
    RETURN_IF_ERROR(tpl_eval(t, n->a, &v));
    RETURN_IF_ERROR(eval_args(t, n, &args));
    t->line = n->line;
    return fn_run(t, f, v, &args, out);
}

/* --- operators --- */

static int eval_not(struct tpl *t, const struct node *n, struct val *out)
{
    struct val v;
    RETURN_IF_ERROR(tpl_eval(t, n->a, &v));
    *out = v_bool(!v_true(v));
    return 0;
}

static int eval_sign(struct tpl *t, const struct node *n, struct val *out)
{
    struct val v;
    RETURN_IF_ERROR(tpl_eval(t, n->a, &v));
    return op_sign(t, n->kind == N_NEG, v, out);
}

static int eval_binary(struct tpl *t, const struct node *n, struct val *out)
{
    struct val a, b;
    RETURN_IF_ERROR(tpl_eval(t, n->a, &a));
    RETURN_IF_ERROR(tpl_eval(t, n->b, &b));
    t->line = n->line;
    return op_arith(t, n->op, a, b, out);
}

static int eval_compare(struct tpl *t, const struct node *n, struct val *out)
{
    struct val a, b;
    int is = 1;
    RETURN_IF_ERROR(tpl_eval(t, n->a, &a));
    for (const struct node *part = n->list; part && is; part = part->next) {
        RETURN_IF_ERROR(tpl_eval(t, part->a, &b));
        t->line = n->line;
        RETURN_IF_ERROR(op_compare(t, part->op, a, b, &is));
        a = b;
    }
    *out = v_bool(is);
    return 0;
}

static int eval_and_or(struct tpl *t, const struct node *n, struct val *out)
{
    RETURN_IF_ERROR(tpl_eval(t, n->a, out));
    return v_true(*out) == (n->kind == N_OR) ? 0 : tpl_eval(t, n->b, out);
}

static int eval_concat(struct tpl *t, const struct node *n, struct val *out)
{
    struct sb b = { .t = t };
    struct val v[2];
    RETURN_IF_ERROR(tpl_eval(t, n->a, &v[0]));
    RETURN_IF_ERROR(tpl_eval(t, n->b, &v[1]));
    for (int i = 0; i < 2; i++)
        RETURN_IF_ERROR(v_print(&b, v[i]));
    return sb_done(&b, out);
}

static int eval_cond(struct tpl *t, const struct node *n, struct val *out)
{
    RETURN_IF_ERROR(tpl_eval(t, n->b, out));
    if (v_true(*out))
        return tpl_eval(t, n->a, out);
    if (n->c)
        return tpl_eval(t, n->c, out);
    *out = v_undef("an if without else was false");
    return 0;
}

static int (*const evals[N_KINDS])(struct tpl *t, const struct node *n, struct val *out) = {
    [N_CONST] = eval_const, [N_NAME] = eval_name,     [N_TUPLE] = eval_list,    [N_LIST] = eval_list,
    [N_DICT] = eval_dict,   [N_ATTR] = eval_attr,     [N_ITEM] = eval_item,     [N_SLICE] = eval_slice,
    [N_CALL] = eval_call,   [N_FILTER] = eval_filter, [N_TEST] = eval_test,     [N_NOT] = eval_not,
    [N_NEG] = eval_sign,    [N_POS] = eval_sign,      [N_BINARY] = eval_binary, [N_COMPARE] = eval_compare,
    [N_AND] = eval_and_or,  [N_OR] = eval_and_or,     [N_CONCAT] = eval_concat, [N_COND] = eval_cond,
};

int tpl_eval(struct tpl *t, const struct node *n, struct val *out)
{
    RETURN_IF_ERROR(tpl_enter(t));
    t->line = n->line;
    int rc = evals[n->kind]
                 ? evals[n->kind](t, n, out)
                 : tpl_fail(t, ERR_INTERNAL, "a node of kind %d is not an expression", (int)n->kind);
    t->depth--;
    return rc < 0 ? rc : t->failed;
}
