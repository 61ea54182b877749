/* dest.c - see dest.h. */
#include "reshard/dest.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>
#include "base/io.h"
#include "base/tmp_folder.h"
#include "reshard/gguf/gguf_prepare.h"
#include "store/store.h"
#include "store/upload.h"
#include "store/url_cache.h"

#define AT_ONCE 8 /* parts that are sent at once */

/* The files that make a checkpoint of the others, in the order in which they are put. NULL: a format that is
 * not written to URLs. */
static const char *const native_last[] = { "manifest.json", NULL };
static const char *const hf_last[] = { "adapter_config.json", "config.json", "model.safetensors.index.json",
                                       NULL };
static const char *const dcp_last[] = { ".metadata", NULL };
static const char *const *const last_files[] = { [TARGET_NATIVE] = native_last,
                                                 [TARGET_HF] = hf_last,
                                                 [TARGET_DCP] = dcp_last,
                                                 [TARGET_MEGATRON] = NULL,
                                                 [TARGET_SERVE] = native_last };

static const char *const *last_of(enum target_format f)
{
    return (size_t)f < sizeof last_files / sizeof *last_files ? last_files[f] : NULL;
}

int dest_check(const char *dst, enum target_format f, struct err *e)
{
    if (!strstr(dst, "://"))
        return 0;
    if (!strncmp(dst, "hf://", 5))
        return err_set(e, ERR_USAGE,
                       "%s: nothing is written to the hub directly: write --format hf to a folder, then `hf "
                       "upload %s FOLDER`",
                       dst, dst + 5);
    if (strncmp(dst, "s3://", 5))
        return err_set(e, ERR_USAGE, "%s: nothing is written there: give a folder or s3://bucket/prefix",
                       dst);
    if (!last_of(f))
        return err_set(e, ERR_USAGE,
                       "%s: this format is not written to a URL: write it to a folder and copy that, or use "
                       "native, hf or dcp",
                       dst);
    return 0;
}

/* ---- a folder of this machine ---- */

/* Every process gets the folder's name, the first one its lock. */
static int begin_here(struct dest *d, const struct request *req, struct log *log, struct err *e)
{
    int rc = procs_rank(req->procs) ? 0 : ckpt_begin(req->dst, d->tmp, &d->lock, log, e);
    rc = procs_agree(req->procs, rc, e);
    return rc < 0 ? rc : procs_broadcast(req->procs, d->tmp, DEST_PATH, e);
}

/* ---- a URL ---- */

static int is_known(const char *name) { return !strchr(name, '/') && ckpt_is_written(name); }

/* Makes and locks the folder for this URL. What a killed process left in it is of no use: the parts that it
 * sent are at the URL. */
static int take_folder(struct dest *d, const char *url, struct err *e)
{
    char root[DEST_PATH];
    int rc = url_cache_root(root, e);
    if (rc < 0 || (rc = io_make_dirs(root, e)) < 0)
        return rc;
    snprintf(d->tmp, sizeof d->tmp, "%.4000s/%016llx.tmp-upload", root,
             (unsigned long long)XXH3_64bits(url, strlen(url)));
    for (int tries = 0; tries < 100; tries++) {
        enum tmp_folder state = tmp_folder_look(d->tmp, &d->lock);
        if (state == TMP_WRITTEN || state == TMP_READ)
            return err_set(e, ERR_FILE, "another process is writing %s: wait until it ends", url);
        if (state == TMP_FOREIGN || state == TMP_NO_LOCKS)
            return err_set(e, ERR_FILE,
                           "%s is not ours, or its file system has no locks: set SHARDLINE_CACHE to another "
                           "folder",
                           d->tmp);
        if (state == TMP_EMPTY)
            rmdir(d->tmp);
        if (state == TMP_LEFT)
            ckpt_abandon(d->tmp, d->lock);
        d->lock = -1;
        if ((rc = tmp_folder_make(d->tmp, &d->lock, e)))
            return rc < 0 ? rc : 0;
    }
    return err_set(e, ERR_FILE, "%s is made and removed by other processes: try again", d->tmp);
}

static int begin_url(struct dest *d, const struct request *req, struct log *log, struct err *e)
{
    struct upload_opts how = { .last = last_of(req->format),
                               .is_known = is_known,
                               .hidden = CKPT_PROOF,
                               .n_threads = AT_ONCE,
                               .stop = req->stop,
                               .log = log };
    if (procs_size(req->procs) > 1)
        return err_set(e, ERR_USAGE,
                       "%s: one process writes to a URL, several parts at once: start reshard without mpirun "
                       "and --ranks",
                       req->dst);
    int rc = take_folder(d, req->dst, e);
    if (rc < 0)
        return rc;
    if ((rc = upload_open(&d->upload, req->dst, d->tmp, &how, e)) < 0)
        ckpt_abandon(d->tmp, d->lock);
    return rc;
}

static int on_begin(void *arg, const char *name, int64_t bytes, struct err *e)
{
    return upload_file(arg, name, bytes, e);
}

static int on_final(void *arg, const char *name, int64_t off, int64_t n, struct err *e)
{
    return upload_range(arg, name, off, n, e);
}

void dest_watch(struct ckpt_watch *w, struct upload *u) { *w = (struct ckpt_watch){ on_begin, on_final, u }; }

/* ---- any ---- */

int dest_open(struct dest *d, const struct request *req, struct log *log, struct err *e)
{
    *d = (struct dest){ .lock = -1 };
    return store_is_url(req->dst) ? begin_url(d, req, log, e) : begin_here(d, req, log, e);
}

int dest_send(const struct dest *d, struct err *e) { return d->upload ? upload_rest(d->upload, e) : 0; }

int dest_publish(struct dest *d, const struct request *req, struct log *log, struct err *e)
{
    char sent[32], found[32];
    int rc = 0;
    if (!d->upload) {
        if (procs_rank(req->procs) == 0)
            rc = req->format == TARGET_GGUF && gguf_is_file_name(req->dst)
                     ? ckpt_reveal_file(d->tmp, GGUF_FILE, req->dst, e)
                     : ckpt_reveal(d->tmp, req->dst, e);
        io_close(d->lock);
        return procs_agree(req->procs, rc, e);
    }
    rc = upload_publish(d->upload, e);
    if (rc < 0) {
        dest_fail(d, req, e);
        return rc;
    }
    log_bytes(sent, (double)upload_sent(d->upload));
    log_bytes(found, (double)upload_found(d->upload));
    if (upload_found(d->upload))
        log_line(log, "%s: %s were there from an earlier run, %s sent", req->dst, found, sent);
    upload_close(d->upload);
    ckpt_abandon(d->tmp, d->lock);
    return 0;
}

void dest_fail(struct dest *d, const struct request *req, struct err *e)
{
    struct err other = { 0 };
    if (d->upload && (e->code == ERR_STOPPED || e->code == ERR_INTEGRITY)) {
        int rc = upload_abort(d->upload, &other);
        if (rc < 0)
            err_set(e, e->code, "%.400s; parts of it stay at %.200s: %.400s", e->text, req->dst, other.text);
    } else if (d->upload && !upload_is_taken(d->upload) &&
               upload_sent(d->upload) + upload_found(d->upload) > 0) {
        err_set(e, e->code, "%.800s; what was sent is kept: the same command goes on from there", e->text);
    }
    upload_close(d->upload);
    d->upload = NULL;
    if (*d->tmp && procs_rank(req->procs) == 0)
        ckpt_abandon(d->tmp, d->lock);
}
