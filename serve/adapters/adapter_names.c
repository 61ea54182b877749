/* adapter_names.c - see adapter_names.h. */
#include "serve/adapters/adapter_names.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "serve/api/json_out.h"

struct adapter_names {
    const char *base;
    pthread_mutex_t lock;
    pthread_cond_t unused;      /* there is an unused adapter, or the table ends */
    struct adapter_name *first; /* sorted by name */
    uint64_t taken[ADAPTERS_MAX / 64];
    int ends, were_used;
};

int adapter_names_open(struct adapter_names **out, const char *base, struct err *e)
{
    struct adapter_names *t = calloc(1, sizeof *t);
    *out = t;
    if (!t)
        return err_set(e, ERR_MEMORY, "no memory for a table of adapters");
    t->base = base;
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->unused, NULL);
    return 0;
}

void adapter_names_close(struct adapter_names *t)
{
    if (!t)
        return;
    while (t->first) {
        struct adapter_name *a = t->first;
        t->first = a->next;
        free(a->path);
        free(a);
    }
    pthread_mutex_destroy(&t->lock);
    pthread_cond_destroy(&t->unused);
    free(t);
}

/* ---- requests ---- */

/* The published adapter of that name, or NULL. */
static struct adapter_name *published(struct adapter_names *t, const char *name)
{
    struct adapter_name *a = t->first;
    while (a && (a->state != ADAPTER_PUBLISHED || strcmp(a->name, name)))
        a = a->next;
    return a;
}

struct adapter_name *adapter_names_find(struct adapter_names *t, const char *name)
{
    if (!t)
        return NULL;
    pthread_mutex_lock(&t->lock);
    struct adapter_name *a = published(t, name);
    if (a)
        a->refs++;
    pthread_mutex_unlock(&t->lock);
    return a;
}

int adapter_names_serve(const struct service *sv, const char *name)
{
    struct adapter_name *a = adapter_names_find(sv->adapters, name);
    adapter_name_release(a);
    return a || !strcmp(name, sv->model);
}

/* A withdrawn adapter without references is unused. */
static void check_unused(struct adapter_name *a)
{
    if (a->state != ADAPTER_WITHDRAWN || a->refs)
        return;
    a->state = ADAPTER_UNUSED;
    pthread_cond_signal(&a->table->unused);
}

void adapter_name_release(struct adapter_name *a)
{
    if (!a)
        return;
    pthread_mutex_t *lock = &a->table->lock;
    pthread_mutex_lock(lock);
    a->refs--;
    check_unused(a);
    pthread_mutex_unlock(lock);
}

/* ---- operators ---- */

static int check_name(const struct adapter_names *t, const char *name, struct fault *f)
{
    size_t n = strlen(name);
    int printable = n > 0;
    for (size_t i = 0; i < n; i++)
        printable &= (unsigned char)name[i] >= ' ' && name[i] != 127;
    if (!printable || n > ADAPTER_NAME_MAX)
        return fault_set(
            f, 400, "lora_name",
            "the name of an adapter has %zu bytes, must have 1 to %d, without control characters", n,
            ADAPTER_NAME_MAX);
    if (!strcmp(name, t->base))
        return fault_set(f, 400, "lora_name", "'%.100s' is the name of the model itself: choose another one",
                         name);
    return 0;
}

/* A free slot, or 0. */
static int32_t free_slot(const struct adapter_names *t)
{
    for (int32_t i = 0; i < ADAPTERS_MAX; i++)
        if (!(t->taken[i / 64] >> (i % 64) & 1))
            return i + 1;
    return 0;
}

static void set_taken(struct adapter_names *t, int32_t slot, int taken)
{
    uint64_t bit = (uint64_t)1 << ((slot - 1) % 64), *word = &t->taken[(slot - 1) / 64];
    *word = taken ? *word | bit : *word & ~bit;
}

/* Inserts in order; equal names: the newer one behind. */
static void insert(struct adapter_names *t, struct adapter_name *a)
{
    struct adapter_name **at = &t->first;
    while (*at && strcmp((*at)->name, a->name) <= 0)
        at = &(*at)->next;
    a->next = *at;
    *at = a;
}

/* Is an adapter of that name published, or being loaded? */
static int is_taken(const struct adapter_names *t, const char *name, int replaces)
{
    for (const struct adapter_name *a = t->first; a; a = a->next)
        if (!strcmp(a->name, name) &&
            (a->state == ADAPTER_RESERVED || (a->state == ADAPTER_PUBLISHED && !replaces)))
            return 1;
    return 0;
}

static int reserve(struct adapter_names *t, struct adapter_name *a, int replaces, struct fault *f)
{
    if (is_taken(t, a->name, replaces))
        return fault_set(f, 400, "lora_name",
                         "The lora adapter '%.100s' has already been loaded. If you want to load the adapter "
                         "in place, set 'load_inplace' to True.",
                         a->name);
    a->slot = free_slot(t);
    if (!a->slot)
        return fault_set(f, 400, "lora_name",
                         "there are %d adapters, the most that one server holds: unload one", ADAPTERS_MAX);
    set_taken(t, a->slot, 1);
    insert(t, a);
    return 0;
}

int adapter_names_reserve(struct adapter_names *t, const char *name, const char *path, int replaces,
                          struct adapter_name **out, struct fault *f)
{
    *out = NULL;
    if (check_name(t, name, f) < 0)
        return -1;
    struct adapter_name *a = calloc(1, sizeof *a);
    if (!a || !(a->path = strdup(path))) {
        free(a);
        return fault_set(f, 503, NULL, "no memory for an adapter's name");
    }
    snprintf(a->name, sizeof a->name, "%s", name);
    a->table = t;

    pthread_mutex_lock(&t->lock);
    int rc = reserve(t, a, replaces, f);
    pthread_mutex_unlock(&t->lock);
    if (rc < 0) {
        free(a->path);
        free(a);
        return rc;
    }
    *out = a;
    return 0;
}

static void withdraw(struct adapter_name *a)
{
    a->state = ADAPTER_WITHDRAWN;
    check_unused(a);
}

void adapter_names_publish(struct adapter_name *a, const char *digest)
{
    struct adapter_names *t = a->table;
    pthread_mutex_lock(&t->lock);
    struct adapter_name *before = published(t, a->name);
    if (before)
        withdraw(before);
    snprintf(a->digest, sizeof a->digest, "%s", digest);
    a->created = (int64_t)time(NULL);
    a->state = ADAPTER_PUBLISHED;
    t->were_used = 1;
    pthread_mutex_unlock(&t->lock);
}

int adapter_names_withdraw(struct adapter_names *t, const char *name, struct fault *f)
{
    pthread_mutex_lock(&t->lock);
    struct adapter_name *a = published(t, name);
    if (a)
        withdraw(a);
    pthread_mutex_unlock(&t->lock);
    return a ? 0 : fault_set(f, 404, "lora_name", "The lora adapter '%.100s' cannot be found.", name);
}

struct adapter_name *adapter_names_wait_unused(struct adapter_names *t)
{
    struct adapter_name *a = NULL;
    pthread_mutex_lock(&t->lock);
    while (!t->ends) {
        for (a = t->first; a && a->state != ADAPTER_UNUSED; a = a->next)
            ;
        if (a)
            break;
        pthread_cond_wait(&t->unused, &t->lock);
    }
    pthread_mutex_unlock(&t->lock);
    return a;
}

void adapter_names_end(struct adapter_names *t)
{
    pthread_mutex_lock(&t->lock);
    t->ends = 1;
    pthread_cond_broadcast(&t->unused);
    pthread_mutex_unlock(&t->lock);
}

void adapter_names_forget(struct adapter_name *a)
{
    struct adapter_names *t = a->table;
    pthread_mutex_lock(&t->lock);
    struct adapter_name **at = &t->first;
    while (*at != a)
        at = &(*at)->next;
    *at = a->next;
    set_taken(t, a->slot, 0);
    pthread_mutex_unlock(&t->lock);
    free(a->path);
    free(a);
}

/* ---- lists ---- */

void adapter_names_each(struct adapter_names *t, void (*fn)(void *arg, const struct adapter_name *a),
                        void *arg)
{
    if (!t)
        return;
    pthread_mutex_lock(&t->lock);
    for (const struct adapter_name *a = t->first; a; a = a->next)
        if (a->state == ADAPTER_PUBLISHED)
            fn(arg, a);
    pthread_mutex_unlock(&t->lock);
}

void adapter_names_write(struct adapter_names *t, const uint64_t bits[ADAPTERS_MAX / 64], struct json_out *o)
{
    struct json_out list = { 0 };
    pthread_mutex_lock(&t->lock);
    for (const struct adapter_name *a = t->first; a; a = a->next) {
        int is_in = bits[(a->slot - 1) / 64] >> ((a->slot - 1) % 64) & 1;
        if (is_in && a->state != ADAPTER_RESERVED)
            json_out_fmt(&list, "%s%s", list.n ? "," : "", a->name);
    }
    pthread_mutex_unlock(&t->lock);
    json_out_string_n(o, list.p ? list.p : "", list.n);
    o->failed |= list.failed;
    json_out_free(&list);
}

/* ---- a name that is none ---- */

/* The first names of a list, quoted; n: of all. */
struct some_names {
    char text[600];
    int n, n_here;
};
static void add_name(void *arg, const struct adapter_name *a)
{
    struct some_names *s = arg;
    size_t at = strlen(s->text);
    s->n++;
    if (s->n_here + 1 < s->n || at + strlen(a->name) + sizeof ", ''" > sizeof s->text)
        return;
    snprintf(s->text + at, sizeof s->text - at, ", '%s'", a->name);
    s->n_here++;
}

int adapter_names_unknown(const struct service *sv, const char *name, struct fault *f)
{
    struct some_names s = { 0 };
    adapter_names_each(sv->adapters, add_name, &s);
    return fault_set(f, 404, "model", "model '%.100s' is not served here: use %s'%.200s'%s%s", name,
                     s.n ? "one of " : "", sv->model, s.text,
                     s.n_here < s.n ? ", … (GET /v1/models has all)" : "");
}

int adapter_names_were_used(struct adapter_names *t)
{
    if (!t)
        return 0;
    pthread_mutex_lock(&t->lock);
    int were = t->were_used;
    pthread_mutex_unlock(&t->lock);
    return were;
}
