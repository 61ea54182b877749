/* gguf_open.c - the driver of GGUF: one file, a split set, or a folder with one of them. Settings and
 * vocabulary come from the metadata, whatever else lies in the folder. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/io.h"
#include "format/gguf/gguf_model.h"
#include "format/gguf_read.h"

#define ENDING ".gguf"

static int ends_in_gguf(const char *name)
{
    size_t n = strlen(name), k = sizeof ENDING - 1;
    return n > k && !strcmp(name + n - k, ENDING);
}

static int has_magic(const char *path)
{
    struct err ignored;
    char first[4] = "";
    int fd = io_open_read(path, &ignored), yes = 0;
    if (fd >= 0 && io_pread(fd, path, first, 4, 0, &ignored) >= 0)
        yes = !memcmp(first, GGUF_MAGIC, 4);
    io_close(fd);
    return yes;
}

/* Names of GGUF files in a folder that begin a model: not the later ones of a split set. */
static int list_firsts(const struct ckpt *c, struct names *l, struct err *e)
{
    int kept = 0, rc = names_read(l, c, "", e);
    if (rc < 0)
        return rc;
    for (int i = 0; i < l->n; i++) {
        char first[256];
        int stem, n = gguf_split_count(l->name[i], &stem), is_first = ends_in_gguf(l->name[i]);
        if (n) {
            gguf_split_name(l->name[i], stem, 0, n, first);
            is_first = !strcmp(first, l->name[i]);
        }
        if (is_first)
            l->name[kept++] = l->name[i];
        else
            free(l->name[i]);
    }
    l->n = kept;
    return 0;
}

int gguf_probe(const struct ckpt *c, int is_folder)
{
    static const char *const others[] = { "model.safetensors", "model.safetensors.index.json",
                                          "pytorch_model.bin", "pytorch_model.bin.index.json" };
    struct names l;
    struct err ignored;
    if (!is_folder)
        return ends_in_gguf(c->path) || has_magic(c->path);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (build_exists(c, others[i]))
            return 0;
    if (list_firsts(c, &l, &ignored) < 0)
        return 0;
    int yes = l.n > 0;
    names_free(&l);
    return yes;
}

/* ---- files ---- */

/* The name in c->dir of the file to open. */
static int choose_file(const struct ckpt *c, int is_folder, char out[256], struct err *e)
{
    const char *slash = strrchr(c->path, '/'), *name = slash ? slash + 1 : c->path;
    struct names l = { 0 };
    int rc = 0;
    if (is_folder && (rc = list_firsts(c, &l, e)) < 0)
        return rc;
    if (!is_folder)
        snprintf(out, 256, "%s", name);
    else if (l.n == 1)
        snprintf(out, 256, "%s", l.name[0]);
    else
        rc = err_set(e, ERR_FORMAT, "%s: has %d models in GGUF files, %.80s …: name one of the files",
                     c->path, l.n, l.n ? l.name[0] : "");
    names_free(&l);
    return rc;
}

static int check_split(const struct gguf_model *m, int i, int n, struct err *e)
{
    const struct gguf_file *f = &m->part[i].f;
    int64_t count = n, no = i, tensors = -1, all = 0;
    gguf_int(f, "split.count", &count);
    gguf_int(f, "split.no", &no);
    if ((n > 1 && count != n) || (count > 1 && n == 1))
        return err_set(e, ERR_FORMAT,
                       "%s: is one of %lld files by its metadata, and one of %d by its name: give the files "
                       "the names that llama-gguf-split gave them",
                       f->path, (long long)count, n);
    if (no != i)
        return err_set(e, ERR_FORMAT, "%s: is number %lld of its set by its metadata, %d by its name",
                       f->path, (long long)no + 1, i + 1);
    if (i < n - 1 || n == 1 || !gguf_int(&m->part[0].f, "split.tensors.count", &tensors))
        return 0;
    for (int k = 0; k < n; k++)
        all += m->part[k].f.n_tensors;
    return all == tensors ? 0
                          : err_set(e, ERR_FORMAT, "%s: the set has %lld tensors, its metadata say %lld",
                                    f->path, (long long)all, (long long)tensors);
}

static int read_parts(struct gguf_model *m, int is_folder, struct err *e)
{
    struct ckpt *c = m->c;
    char name[256], one[256];
    int rc = choose_file(c, is_folder, name, e), stem = 0, n = 1, file;
    if (rc < 0)
        return rc;
    if ((n = gguf_split_count(name, &stem)) == 0)
        n = 1;
    if (!(m->part = calloc((size_t)n, sizeof *m->part)))
        return err_set(e, ERR_MEMORY, "%s: no memory for %d files", c->path, n);

    for (int i = 0; i < n; i++) {
        snprintf(one, sizeof one, "%s", name);
        if (stem)
            gguf_split_name(name, stem, i, n, one);
        if ((rc = file = build_file(c, one, e)) < 0)
            return n > 1 ? err_add(e, "opening file %d of %d", i + 1, n) : rc;
        m->n_parts = i + 1;
        if ((rc = gguf_part_read(c, file, &m->part[i], e)) < 0 || (rc = check_split(m, i, n, e)) < 0)
            return rc;
        c->file[file].data = m->part[i].f.data;
    }
    return 0;
}

/* ---- what it is ---- */

static void find_family(struct gguf_model *m)
{
    const struct gguf_file *f = &m->part[0].f;
    struct gguf_text arch = { "", 0 };
    char key[128];
    int64_t experts = 0, router = 0;
    gguf_get_text(f, "general.architecture", &arch);
    if (arch.n < 1 || arch.n >= (int64_t)sizeof m->arch || memchr(arch.p, 0, (size_t)arch.n))
        return;
    memcpy(m->arch, arch.p, (size_t)arch.n);

    snprintf(key, sizeof key, "%s.expert_count", m->arch);
    gguf_int(f, key, &experts);
    snprintf(key, sizeof key, "%s.expert_gating_func", m->arch);
    gguf_int(f, key, &router);
    m->family = gguf_family_of_file(m->arch, experts > 0, router == 2);
    snprintf(key, sizeof key, "%s.attention.head_count", m->arch);
    gguf_int(f, key, &m->heads);
    m->kv_heads = m->heads;
    snprintf(key, sizeof key, "%s.attention.head_count_kv", m->arch);
    gguf_int(f, key, &m->kv_heads);
}

/* fp32 vectors were bf16 where matrices are bf16. */
static void find_dtype(struct gguf_model *m)
{
    int has[2] = { 0, 0 };
    for (int p = 0; p < m->n_parts; p++)
        for (int i = 0; i < m->part[p].f.n_tensors; i++) {
            const struct gguf_tensor *t = &m->part[p].f.tensor[i];
            has[0] |= t->type->id == GGUF_BF16;
            has[1] |= t->type->id == GGUF_F16;
        }
    m->is_bf16 = has[0] && !has[1];
}

/* ---- the driver ---- */

void gguf_model_free(struct gguf_model *m)
{
    if (!m)
        return;
    for (int i = 0; i < m->n_parts; i++)
        gguf_part_free(&m->part[i]);
    free(m->part);
    for (int k = 0; k < 2; k++) {
        struct gguf_calc *list = k ? m->block : m->calc;
        for (int i = 0; i < (k ? m->n_blocks : m->n_calcs); i++) {
            free((char *)list[i].t.name);
            free(list[i].entry_name[0]);
            free(list[i].entry_name[1]);
        }
        free(list);
    }
    build_free(&m->b);
    free(m);
}

static int describe(struct gguf_model *m, struct err *e)
{
    struct ckpt *c = m->c;
    int rc = 0;
    if (!m->family)
        rc = build_note(c, e,
                        "the architecture \"%.60s\" of the GGUF file is not known here: tensors keep the "
                        "names that they have in it, and there is no config.json",
                        m->arch);
    else if (m->n_unknown)
        rc = build_note(c, e, "%d tensors of the GGUF file keep their names, because %s has no such ones: %s",
                        m->n_unknown, m->family->model_type, m->unknown);
    return rc < 0 ? rc : build_writer(c, "GGUF", NULL, 0, e);
}

int gguf_open(struct ckpt *c, int is_folder, struct err *e)
{
    struct gguf_model *m = calloc(1, sizeof *m);
    int rc = 0;
    if (!m)
        return err_set(e, ERR_MEMORY, "%s: no memory for its tables", c->path);
    c->gguf = m;
    m->c = m->b.c = c;
    TRY(read_parts(m, is_folder, e));
    find_family(m);
    find_dtype(m);
    TRY(gguf_add_tensors(m, e));
    TRY(build_finish(&m->b, e));
    if (c->config_path)
        TRY(build_config(c, e));
    else if (m->family && !(c->config = gguf_config(m, e)))
        rc = -e->code;
    if (rc < 0)
        goto out;
    TRY(gguf_add_vocabulary(m, e));
    TRY(describe(m, e));
out:
    for (int i = 0; i < m->n_parts; i++)
        gguf_part_free(&m->part[i]);
    m->n_parts = 0;
    build_free(&m->b);
    return rc < 0 ? rc : 0;
}
