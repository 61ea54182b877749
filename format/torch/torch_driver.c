/* torch_driver.c - opens checkpoints of plain torch.save files: a single .pt or .bin file, or a Hugging Face
 * folder of pytorch_model.bin with or without an index, or an adapter of PEFT (adapter_model.bin). Weights
 * are read by name; of a trainer's file ({"model": …, "optimizer": …}) the model is read. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/jx.h"
#include "format/peft.h"
#include "format/torch/torch_build.h"

#define ONE_FILE "pytorch_model.bin"
#define INDEX "pytorch_model.bin.index.json"
#define INDEX_MAX ((size_t)1 << 28)
/* bytes: a single file up to this is checked whole when it is opened */
#define CHECK_AT_ONCE ((int64_t)16 << 20)

static int has_torch_name(const char *path)
{
    static const char *const endings[] = { ".pt", ".bin", ".pth", ".ckpt" };
    size_t n = strlen(path);
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (n > strlen(endings[i]) && !strcmp(path + n - strlen(endings[i]), endings[i]))
            return 1;
    return 0;
}

int torch_probe(const struct ckpt *c, int is_folder)
{
    if (!is_folder)
        return has_torch_name(c->path) || torch_looks_like(c->path);
    return !build_exists(c, "model.safetensors") && !build_exists(c, "model.safetensors.index.json") &&
           (build_exists(c, ONE_FILE) || build_exists(c, INDEX) ||
            (build_exists(c, PEFT_BIN) && !build_exists(c, PEFT_TENSORS)));
}

/* ---- the tensors of one file ---- */

/* Members in which trainers store the weights. */
static const char *const weight_members[] = { "state_dict", "model_state_dict", "model", "module" };

static int has_tensor(const struct pk *d)
{
    for (uint32_t i = 0; d && d->kind == PK_DICT && i < d->n; i++)
        if (torch_is_tensor(d->item[2 * i + 1]))
            return 1;
    return 0;
}

/* The dict with the weights: the object itself, or one of these members. */
static const struct pk *weights_of(const struct pk *root)
{
    for (size_t i = 0; i < sizeof weight_members / sizeof *weight_members && !has_tensor(root); i++)
        if (has_tensor(pk_get(root, weight_members[i])))
            return pk_get(root, weight_members[i]);
    return root;
}

static int add_tensor(struct build *b, struct torch_file *t, const struct pk *key, const struct pk *value,
                      struct err *e)
{
    struct torch_tensor x;
    char name[FMT_NAME_MAX + 2];
    int before = b->c->n_tensors;
    if (key->kind != PK_TEXT || !torch_is_tensor(value))
        return 0;
    snprintf(name, sizeof name, "%.*s", (int)(key->n < FMT_NAME_MAX ? key->n : FMT_NAME_MAX), key->text);
    int rc = torch_tensor(t, value, name, &x, e);
    if (rc < 0 || (rc = build_whole(b, ROLE_WEIGHT, key->text, (int)key->n, t, &x, e)) < 0)
        return rc;
    if (b->c->n_tensors == before)
        return err_set(e, ERR_FORMAT, "%s: %s is there twice: remove one", b->c->file[t->file].path, name);
    return 0;
}

static int add_file(struct build *b, const char *name, struct err *e)
{
    struct ckpt *c = b->c;
    struct torch_file t = { 0 };
    int file = build_file(c, name, e), rc = file, before = c->n_tensors;

    if (rc < 0 || (rc = torch_open(&t, c, file, 0, c->file[file].bytes, e)) < 0)
        return rc;
    const struct pk *d = weights_of(t.root);
    for (uint32_t i = 0; d->kind == PK_DICT && i < d->n && rc >= 0; i++)
        rc = add_tensor(b, &t, d->item[2 * i], d->item[2 * i + 1], e);
    if (rc >= 0 && d != t.root && pk_get(t.root, "optimizer") && !c->note)
        rc = build_note(c, e,
                        "the file's optimizer is left out: it is numbered, and the order of its parameters "
                        "is not in the file");
    torch_close(&t);
    if (rc >= 0 && c->n_tensors == before)
        rc =
            err_set(e, ERR_FORMAT,
                    "%s: holds no tensors by name: is it an optimizer's file, or one of a sharded checkpoint",
                    c->file[file].path);
    return rc < 0 ? rc : 0;
}

/* Checks the bytes of a small file at once, so that listing its tensors finds damage too. */
static int check_small(struct ckpt *c, struct err *e)
{
    int rc = 0;
    for (int64_t i = 0; i < c->file[0].n_records && c->file[0].bytes <= CHECK_AT_ONCE && rc >= 0; i++)
        rc = fmt_check_record(c, 0, c->file[0].record[i].begin, e);
    return rc < 0 ? rc : 0;
}

/* ---- folders ---- */

static int check_indexed(const struct ckpt *c, const json_t *map, struct err *e)
{
    const char *tensor;
    json_t *v;
    json_object_foreach((json_t *)map, tensor, v) {
        int i = ckpt_find(c, ROLE_WEIGHT, tensor);
        if (i < 0 || strcmp(c->file[c->piece[c->first_piece[i]].file].name, json_string_value(v)))
            return err_set(e, ERR_FORMAT,
                           "%s: %s puts %.100s in %s, which does not hold it: is the index of another save",
                           c->path, INDEX, tensor, json_string_value(v));
    }
    return 0;
}

static int add_indexed(struct build *b, const json_t *map, struct err *e)
{
    const char *tensor, *name;
    json_t *v, *files = json_object();
    int rc = 0;

    json_object_foreach((json_t *)map, tensor, v) {
        if (!json_is_string(v)) {
            rc = err_set(e, ERR_FORMAT, "%s: %s gives no file for %.100s", b->c->path, INDEX, tensor);
            goto out;
        }
        TRY(fmt_file_name_check(json_string_value(v), INDEX, e));
        json_object_set_new(files, json_string_value(v), json_true());
    }

    json_object_foreach(files, name, v)
        if ((rc = add_file(b, name, e)) < 0) {
            rc = err_add(e, "%s names %s", INDEX, name);
            goto out;
        }
out:
    json_decref(files);
    return rc < 0 ? rc : 0;
}

static int open_index(struct build *b, struct err *e)
{
    char *path = io_join(b->c->dir, INDEX);
    json_t *root = path ? jx_load(path, INDEX_MAX, e) : NULL, *map = json_object_get(root, "weight_map");
    int rc = 0;

    if (!root)
        rc = path ? -e->code : err_set(e, ERR_MEMORY, "%s: no memory for a path", b->c->path);
    else if (!json_is_object(map) || !json_object_size(map))
        rc = err_set(e, ERR_FORMAT, "%s: has no weight_map: is it whole", path);
    if (rc < 0)
        goto out;
    TRY(add_indexed(b, map, e));
    TRY(build_finish(b, e));
    TRY(check_indexed(b->c, map, e));
out:
    json_decref(root);
    free(path);
    return rc < 0 ? rc : 0;
}

int torch_open_ckpt(struct ckpt *c, int is_folder, struct err *e)
{
    struct build b = { .c = c };
    const char *slash = strrchr(c->path, '/');
    int rc = 0;
    TRY(build_config(c, e));
    if (is_folder && !build_exists(c, ONE_FILE) && build_exists(c, INDEX)) {
        TRY(open_index(&b, e));
    } else {
        const char *file = build_exists(c, ONE_FILE) ? ONE_FILE : PEFT_BIN;
        TRY(add_file(&b, is_folder ? file : slash ? slash + 1 : c->path, e));
        TRY(build_finish(&b, e));
        TRY(check_small(c, e));
    }
    TRY(build_writer(c, "torch.save", NULL, 0, e));
out:
    build_free(&b);
    return rc < 0 ? rc : 0;
}
