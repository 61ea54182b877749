/* convert.c - the whole walk: open, plan, stream, prove, publish. */
#include <stdlib.h>
#include "base/clock.h"
#include "base/io.h"
#include "reshard/reshard.h"

#define PATH_ROOM 4096

/* Every process has the folder's name afterwards, and the folder is there; the first one has its lock. */
static int begin(const struct request *req, char *tmp, int *lock, struct err *e)
{
    int rc = share_agree(req->share, share_rank(req->share) ? 0 : ckpt_begin(req->dst, tmp, lock, e), e);
    return rc < 0 ? rc : share_tell(req->share, tmp, PATH_ROOM, e);
}

static int write_and_prove(const struct plan *p, struct log *log, struct err *e)
{
    const struct share *share = p->req->share;
    char tmp[PATH_ROOM] = "";
    int lock = -1, first = share_rank(share) == 0, rc = begin(p->req, tmp, &lock, e);
    struct ckpt_digest *digest = rc < 0 ? NULL : calloc((size_t)p->n + 1, sizeof *digest);
    TRY(rc);
    TRY(share_agree(share, digest ? 0 : err_set(e, ERR_MEMORY, "no room for the digests of %d tensors", p->n),
                    e));
    TRY(stream_run(p, tmp, digest, log, e));
    TRY(prove_run(p, tmp, digest, log, e));
    TRY(share_agree(share,
                    request_stopped(p->req)
                        ? err_set(e, ERR_STOPPED, "stopped by a signal: nothing was written")
                        : 0,
                    e));
out:
    free(digest);
    if (rc < 0) {
        if (first && *tmp)
            ckpt_abandon(tmp, lock);
        return rc;
    }
    rc = first ? ckpt_reveal(tmp, p->req->dst, e) : 0;
    io_close(lock);
    return share_agree(share, rc, e);
}

static void say_remarks(const struct ckpt *src, const struct request *req, struct log *log)
{
    if (ckpt_remark(src))
        log_line(log, "%s: %s", req->src, ckpt_remark(src));
    if (ckpt_note(src))
        log_line(log, "%s: %s", req->src, ckpt_note(src));
    if (ckpt_writer(src) && !ckpt_state(src)->has_state)
        log_line(log, "%s: optimizer state: absent", req->src);
}

int reshard_convert(const struct request *req, struct log *log, struct err *e)
{
    struct ckpt *src = NULL;
    struct plan p = { 0 };
    char size[32];
    int rc = 0;
    double start = clock_s();
    TRY(share_agree(req->share,
                    ckpt_open(&src, req->src, &(struct ckpt_open_opts){ .config_path = req->config_path }, e),
                    e));
    say_remarks(src, req, log);
    TRY(share_agree(req->share, plan_make(&p, src, req, log, e), e));
    TRY(write_and_prove(&p, log, e));
    double s = clock_s() - start;
    log_bytes(size, (double)p.bytes_out);
    log_progress(log, 1, "%s: %s in %lld pieces, %.1f s; digests of source and target agree", req->dst, size,
                 (long long)p.n_pieces, s);
out:
    plan_free(&p);
    ckpt_close(src);
    return rc < 0 ? rc : 0;
}
