/* tpl_exec.c - runs statements: a table with one function for each kind of node. */
#include "text/jinja/tpl.h"

#include <string.h>

static int new_scope(struct tpl *t, struct scope *parent, struct scope **out)
{
    *out = tpl_alloc(t, sizeof **out);
    if (!*out)
        return t->failed;
    (*out)->parent = parent;
    return 0;
}

/* Runs the statements in scope `inside`. */
static int exec_inside(struct tpl *t, const struct node *list, struct scope *inside)
{
    struct scope *outside = t->scope;
    t->scope = inside;
    int rc = tpl_exec(t, list);
    t->scope = outside;
    return rc;
}

/* Runs the statements and returns their output as a string. */
static int capture(struct tpl *t, const struct node *list, struct scope *inside, struct val *out)
{
    struct sb b = { .t = t }, *outside = t->out;
    t->out = &b;
    int rc = exec_inside(t, list, inside);
    t->out = outside;
    RETURN_IF_ERROR(rc);
    RETURN_IF_ERROR(sb_done(&b, out));
    return rc;
}

static int write_limit(struct tpl *t)
{
    if (t->failed)
        return t->failed;
    if (t->out->n > t->max_text)
        return tpl_fail(t, ERR_USAGE, "the text is longer than %zu MiB: use shorter messages",
                        t->max_text >> 20);
    return 0;
}

static int exec_data(struct tpl *t, const struct node *n)
{
    sb_str(t->out, n->v.u.s);
    return write_limit(t);
}

static int exec_output(struct tpl *t, const struct node *n)
{
    struct val v;
    RETURN_IF_ERROR(tpl_eval(t, n->a, &v));
    RETURN_IF_ERROR(v_print(t->out, v));
    return write_limit(t);
}

static int exec_if(struct tpl *t, const struct node *n)
{
    for (const struct node *branch = n->a; branch; branch = branch->next) {
        struct val v;
        RETURN_IF_ERROR(tpl_eval(t, branch->a, &v));
        if (v_true(v))
            return tpl_exec(t, branch->list);
    }
    return tpl_exec(t, n->a->more);
}

/* --- setting --- */

static int assign(struct tpl *t, const struct node *target, struct val v)
{
    if (target->kind == N_NAME)
        return scope_set(t, t->scope, target->name, v);
    if (target->kind == N_NSREF) {
        const struct val *ns = scope_find(t, t->scope, target->a->name);
        if (!ns || ns->type != V_NAMESPACE)
            return tpl_fail(t, ERR_USAGE, "'%.*s' is not a namespace: its attribute cannot be set",
                            (int)(target->a->name->n < 60 ? target->a->name->n : 60), target->a->name->p);
        return v_dict_put(t, ns->u.d, (struct val){ .type = V_STR, .u.s = target->name }, v);
    }

    struct list *l;
    size_t n = 0, i = 0;
    RETURN_IF_ERROR(v_iterate(t, v, &l));
    for (const struct node *k = target->list; k; k = k->next)
        n++;
    if (n != l->n)
        return tpl_fail(t, ERR_USAGE, "%zu names for %zu values", n, l->n);
    for (const struct node *k = target->list; k; k = k->next)
        RETURN_IF_ERROR(assign(t, k, l->v[i++]));
    return 0;
}

static int exec_set(struct tpl *t, const struct node *n)
{
    struct val v;
    RETURN_IF_ERROR(tpl_eval(t, n->b, &v));
    t->line = n->line;
    return assign(t, n->a, v);
}

/* Applies a chain of filters to v. */
static int filtered(struct tpl *t, const struct node *filters, struct val v, struct val *out)
{
    struct node inner = { .kind = N_CONST, .line = t->line, .v = v }, copy;
    *out = v;
    if (!filters)
        return 0;
    /* a filter's operand is the filter inside of it: apply the innermost first */
    for (const struct node *done = NULL; done != filters;) {
        const struct node *k = filters;
        while (k->a != done) {
            RETURN_IF_ERROR(tpl_steps(t, 1));
            k = k->a;
        }
        copy = *k;
        copy.a = &inner;
        RETURN_IF_ERROR(tpl_eval(t, &copy, out));
        inner.v = *out;
        done = k;
    }
    return 0;
}

static int exec_set_block(struct tpl *t, const struct node *n)
{
    struct scope *inside;
    struct val v, text;
    RETURN_IF_ERROR(new_scope(t, t->scope, &inside));
    int rc = capture(t, n->list, inside, &v);
    RETURN_IF_ERROR(rc);
    RETURN_IF_ERROR(filtered(t, n->b, v, &text));
    RETURN_IF_ERROR(assign(t, n->a, text));
    return rc;
}

static int exec_filter_block(struct tpl *t, const struct node *n)
{
    struct scope *inside;
    struct val v, text;
    RETURN_IF_ERROR(new_scope(t, t->scope, &inside));
    int rc = capture(t, n->list, inside, &v);
    RETURN_IF_ERROR(rc);
    RETURN_IF_ERROR(filtered(t, n->b, v, &text));
    RETURN_IF_ERROR(v_print(t->out, text));
    RETURN_IF_ERROR(write_limit(t));
    return rc;
}

static int exec_with(struct tpl *t, const struct node *n)
{
    struct scope *inside, *outside = t->scope;
    RETURN_IF_ERROR(new_scope(t, outside, &inside));
    for (const struct node *set = n->more; set; set = set->next) {
        struct val v;
        RETURN_IF_ERROR(tpl_eval(t, set->b, &v));
        t->scope = inside;
        int rc = assign(t, set->a, v);
        t->scope = outside;
        RETURN_IF_ERROR(rc);
    }
    return exec_inside(t, n->list, inside);
}

static int exec_scope(struct tpl *t, const struct node *n)
{
    struct scope *inside;
    RETURN_IF_ERROR(new_scope(t, t->scope, &inside));
    return exec_inside(t, n->list, inside);
}

static int exec_generation(struct tpl *t, const struct node *n)
{
    size_t from = t->out->n;
    int rc = exec_scope(t, n);
    sb_mark_model(t->out, from);
    return rc;
}

/* --- loops --- */

/* The items for which the condition of "for x in items if condition" holds. */
static int loop_items(struct tpl *t, const struct node *n, struct list *from, struct list **out)
{
    struct val kept, is;
    struct scope *outside = t->scope;

    *out = from;
    if (!n->c)
        return 0;
    RETURN_IF_ERROR(v_list_new(t, L_LIST, &kept));
    for (size_t i = 0; i < from->n; i++) {
        RETURN_IF_ERROR(new_scope(t, outside, &t->scope));
        RETURN_IF_ERROR(assign(t, n->a, from->v[i]));
        RETURN_IF_ERROR(tpl_eval(t, n->c, &is));
        if (v_true(is))
            RETURN_IF_ERROR(v_list_add(t, kept.u.l, from->v[i]));
        t->scope = outside;
    }

    *out = kept.u.l;
    return 0;
}

static int exec_for(struct tpl *t, const struct node *n)
{
    static const struct str loop_name = { "loop", NULL, 4, 0 };
    struct scope *outside = t->scope;
    struct loop *loop = tpl_alloc(t, sizeof *loop);
    struct list *items;
    struct val v;
    int rc = 0;

    if (!loop)
        return t->failed;
    RETURN_IF_ERROR(tpl_eval(t, n->b, &v));
    t->line = n->line;
    RETURN_IF_ERROR(v_iterate(t, v, &items));
    RETURN_IF_ERROR(loop_items(t, n, items, &loop->items));
    for (; loop->at < loop->items->n && rc != RUN_BREAK; loop->at++) {
        t->line = n->line;
        RETURN_IF_ERROR(new_scope(t, outside, &t->scope));
        RETURN_IF_ERROR(scope_set(t, t->scope, &loop_name, (struct val){ .type = V_LOOP, .u.loop = loop }));
        RETURN_IF_ERROR(assign(t, n->a, loop->items->v[loop->at]));
        RETURN_IF_ERROR(rc = tpl_exec(t, n->list));
        t->scope = outside;
    }
    return loop->items->n ? 0 : tpl_exec(t, n->more);
}

static int exec_break(struct tpl *t, const struct node *n)
{
    (void)t;
    return n->kind == N_BREAK ? RUN_BREAK : RUN_CONTINUE;
}

/* --- macros --- */

static int exec_macro(struct tpl *t, const struct node *n)
{
    struct macro *m = tpl_alloc(t, sizeof *m);
    if (!m)
        return t->failed;
    *m = (struct macro){ n, t->scope };
    return scope_set(t, t->scope, n->name, (struct val){ .type = V_MACRO, .u.mac = m });
}

static int bind_params(struct tpl *t, const struct node *macro, const struct args *args, struct scope *inside)
{
    size_t at = 0, used = 0;
    for (const struct node *p = macro->more; p; p = p->next, at++) {
        struct val v = { .type = V_ABSENT };
        if (at < args->n)
            v = args->v[at];
        RETURN_IF_ERROR(tpl_steps(t, args->n_kw / 8));
        for (size_t k = 0; k < args->n_kw; k++)
            if (str_same(args->kw[k].name, p->name)) {
                if (v.type != V_ABSENT)
                    return tpl_fail(t, ERR_USAGE, "a macro has an argument twice");
                v = args->kw[k].v;
                used++;
            }
        if (v.type == V_ABSENT && p->a)
            RETURN_IF_ERROR(tpl_eval(t, p->a, &v));
        else if (v.type == V_ABSENT)
            RETURN_IF_ERROR(v_undef_of(t, &v, "parameter '%.*s' was not given",
                                       (int)(p->name->n < 60 ? p->name->n : 60), p->name->p));
        RETURN_IF_ERROR(scope_set(t, inside, p->name, v));
    }

    if (args->n > at || used < args->n_kw)
        return tpl_fail(t, ERR_USAGE, "the macro '%.*s' has %zu parameters: an argument has no place",
                        (int)(macro->name->n < 60 ? macro->name->n : 60), macro->name->p, at);
    return 0;
}

int tpl_macro(struct tpl *t, const struct macro *m, const struct args *args, struct val *out)
{
    struct scope *outside = t->scope, *inside;
    RETURN_IF_ERROR(tpl_enter(t));
    RETURN_IF_ERROR(new_scope(t, m->scope, &inside));
    t->scope = inside;
    RETURN_IF_ERROR(bind_params(t, m->node, args, inside));
    t->scope = outside;
    int rc = capture(t, m->node->list, inside, out);
    t->depth--;
    return rc < 0 ? rc : 0;
}

static int (*const execs[N_KINDS])(struct tpl *t, const struct node *n) = {
    [N_DATA] = exec_data,
    [N_OUTPUT] = exec_output,
    [N_IF] = exec_if,
    [N_FOR] = exec_for,
    [N_SET] = exec_set,
    [N_SET_BLOCK] = exec_set_block,
    [N_MACRO] = exec_macro,
    [N_FILTER_BLOCK] = exec_filter_block,
    [N_WITH] = exec_with,
    [N_SCOPE] = exec_scope,
    [N_GENERATION] = exec_generation,
    [N_BREAK] = exec_break,
    [N_CONTINUE] = exec_break,
};

int tpl_exec(struct tpl *t, const struct node *list)
{
    for (const struct node *n = list; n; n = n->next) {
        RETURN_IF_ERROR(tpl_enter(t));
        t->line = n->line;
        int rc = execs[n->kind](t, n);
        t->depth--;
        if (rc)
            return rc;
    }
    return t->failed;
}
