/* small_files.c - see small_files.h. */
#include "format/hf/small_files.h"

#include <dirent.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>
#include "base/io.h"
#include "format/fmt.h"
#include "format/peft.h"
#include "format/quant.h"
#include "format/quant_view.h"
#include "store/sidecar.h"

const char *const small_file_names[SMALL_FILES] = { FMT_CUTS,        QUANT_GPTQ_FILE, QUANT_MODELOPT_FILE,
                                                    QUANT_KEPT_FILE, PEFT_CONFIG,     PEFT_MERGED,
                                                    CKPT_MODULES,    CKPT_POOLING };
const char *const card_file_names[CARD_FILES] = {
    "LICENSE",
    "LICENSE.md",
    "LICENSE.txt",
    "NOTICE",
    "README.md",
    "USE_POLICY.md",
    "preprocessor_config.json",
    "processor_config.json",
    "sentencepiece.bpe.model",
    "spiece.model",
    "tekken.json",
    "video_preprocessor_config.json",
    "vocab.txt",
};

static int is_in(const char *name, const char *const *list, int n)
{
    for (int i = 0; i < n; i++)
        if (!strcmp(list[i], name))
            return 1;
    return 0;
}

int small_file_is_known(const char *name)
{
    return is_in(name, tokenizer_file_names, TOKENIZER_FILES) || is_in(name, small_file_names, SMALL_FILES) ||
           is_in(name, card_file_names, CARD_FILES) || !strcmp(name, POOLING_FOLDER) ||
           !fnmatch("*.py", name, 0);
}

/* ---- found ---- */

static int add(struct ckpt *c, const char *name, struct err *e)
{
    for (int i = 0; i < c->n_extra; i++)
        if (!strcmp(c->extra[i].name, name))
            return 0;
    struct fmt_extra *grown = realloc(c->extra, sizeof *grown * ((size_t)c->n_extra + 1));
    c->extra = grown ? grown : c->extra;
    char *copy = grown ? strdup(name) : NULL;
    if (!copy)
        return err_set(e, ERR_MEMORY, "%s: no memory for the names of its files", c->path);
    grown[c->n_extra++] = (struct fmt_extra){ .name = copy };
    return 0;
}

static int add_listed(struct ckpt *c, const char *const *list, int n, struct err *e)
{
    int rc = 0;
    for (int i = 0; i < n && rc >= 0; i++) {
        char *path = io_join(c->dir, list[i]);
        if (!path)
            return err_set(e, ERR_MEMORY, "%s: no memory for a path", c->path);
        /* a model's folder may hold the config of an adapter that it was made with */
        int is_adapter = c->n_files && !strncmp(c->file[0].name, "adapter_model", strlen("adapter_model"));
        if (io_exists(path) && (is_adapter || strcmp(list[i], PEFT_CONFIG)))
            rc = add(c, list[i], e);
        free(path);
    }
    return rc < 0 ? rc : 0;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The code of a model that transformers has not (auto_map in config.json), by name. */
static int add_code(struct ckpt *c, struct err *e)
{
    char *found[CODE_FILES_MAX];
    int n = 0, rc = 0;
    DIR *d = opendir(c->dir);
    for (struct dirent *f; d && n < CODE_FILES_MAX && (f = readdir(d));)
        if (!fnmatch("*.py", f->d_name, FNM_PERIOD) && (found[n] = strdup(f->d_name)))
            n++;
    if (d)
        closedir(d);
    qsort(found, (size_t)n, sizeof *found, compare_names);
    for (int i = 0; i < n; i++) {
        rc = rc < 0 ? rc : add(c, found[i], e);
        free(found[i]);
    }
    return rc;
}

static int read_pooling(struct ckpt *c, const char *name, void **data, size_t *bytes, struct err *e)
{
    char *path = io_join(c->dir, POOLING_PLACE);
    int rc = path ? io_read_file(path, FMT_EXTRA_MAX, data, bytes, e)
                  : err_set(e, ERR_MEMORY, "%s: no memory for the path of %s", c->path, name);
    free(path);
    return rc;
}

/* The pooling of a model of embeddings, which lies in a folder of its own. */
static int add_pooling(struct ckpt *c, struct err *e)
{
    char *path = io_join(c->dir, POOLING_PLACE);
    int n = c->n_extra, rc = path ? 0 : err_set(e, ERR_MEMORY, "%s: no memory for a path", c->path);
    if (path && io_exists(path))
        rc = add(c, CKPT_POOLING, e);
    if (c->n_extra > n)
        c->extra[n].make = read_pooling;
    free(path);
    return rc;
}

int small_files_find(struct ckpt *c, int is_folder, struct err *e)
{
    static const char *const always[] = { FMT_CUTS, PEFT_MERGED };
    int rc = 0;
    if (!strcmp(c->driver, "gguf")) /* its metadata hold the rest */
        return add_listed(c, always, 2, e);
    TRY(add_listed(c, tokenizer_file_names, TOKENIZER_FILES, e));
    TRY(add_listed(c, small_file_names, SMALL_FILES, e));
    TRY(add_pooling(c, e));
    if (is_folder && (!strcmp(c->driver, "hf") || !strcmp(c->driver, "torch")))
        TRY(add_listed(c, card_file_names, CARD_FILES, e));
    if (is_folder && c->config && strstr(c->config, "\"auto_map\""))
        TRY(add_code(c, e));
out:
    return rc < 0 ? rc : 0;
}

/* ---- written ---- */

static int write_one(const char *dir, const char *name, const void *data, size_t n, struct err *e)
{
    char *path = io_join(dir, name);
    int rc = path ? fmt_file_name_check(name, "files to carry along", e)
                  : err_set(e, ERR_MEMORY, "no memory for the path of %s", name);
    if (rc >= 0)
        rc = io_write_file(path, data, n, e);
    free(path);
    return rc < 0 ? rc : 0;
}

static int write_pooling(const char *dir, const void *data, size_t n, struct err *e)
{
    char *sub = io_join(dir, POOLING_FOLDER);
    int rc = sub ? io_mkdir(sub, e) : err_set(e, ERR_MEMORY, "no memory for the path of " POOLING_PLACE);
    if (rc >= 0)
        rc = write_one(sub, "config.json", data, n, e);
    if (rc >= 0)
        rc = io_sync_dir(sub, e);
    free(sub);
    return rc;
}

int small_files_write(const char *dir, const struct ckpt_meta *meta, struct err *e)
{
    int rc = 0;
    if (meta->config_json)
        rc = write_one(dir, FMT_CONFIG, meta->config_json, strlen(meta->config_json), e);
    for (int i = 0; i < meta->n_extra && rc >= 0; i++)
        rc = strcmp(meta->extra_name[i], CKPT_POOLING)
                 ? write_one(dir, meta->extra_name[i], meta->extra_data[i], meta->extra_bytes[i], e)
                 : write_pooling(dir, meta->extra_data[i], meta->extra_bytes[i], e);
    return rc;
}
