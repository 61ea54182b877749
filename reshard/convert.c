/* convert.c - the whole walk: open, plan, stream, prove, publish. */
#include <stdlib.h>
#include "reshard/reshard.h"

static int write_and_prove(const struct plan *p, struct log *log, struct err *e)
{
    char tmp[4096];
    int rc = ckpt_begin(p->req->dst, tmp, e);
    struct ckpt_digest *digest = rc < 0 ? NULL : calloc((size_t)p->n + 1, sizeof *digest);
    if (rc < 0)
        return rc;
    if (!digest) {
        rc = err_set(e, ERR_MEMORY, "no room for the digests of %d tensors", p->n);
        goto out;
    }
    TRY(stream_run(p, tmp, digest, log, e));
    TRY(prove_run(p, tmp, digest, log, e));
    if (p->req->stop && *p->req->stop)
        rc = err_set(e, ERR_STOPPED, "stopped by a signal: nothing was written");
out:
    free(digest);
    if (rc < 0) {
        ckpt_abandon(tmp);
        return rc;
    }
    return ckpt_reveal(tmp, p->req->dst, e);
}

int reshard_convert(const struct request *req, struct log *log, struct err *e)
{
    struct ckpt *src = NULL;
    struct plan p;
    char size[32];
    int rc = ckpt_open_config(&src, req->src, req->config_path, e);
    if (rc < 0)
        return rc;
    if (ckpt_remark(src))
        log_line(log, "%s: %s", req->src, ckpt_remark(src));
    if (ckpt_note(src))
        log_line(log, "%s: %s", req->src, ckpt_note(src));
    double start = log_now_s();
    rc = plan_make(&p, src, req, log, e);
    if (rc >= 0) {
        rc = write_and_prove(&p, log, e);
        if (rc >= 0) {
            double s = log_now_s() - start;
            log_bytes(size, (double)p.bytes_out);
            log_progress(log, 1, "%s: %s in %lld pieces, %.1f s; digests of source and target agree", req->dst, size, (long long)p.n_pieces, s);
        }
        plan_free(&p);
    }
    ckpt_close(src);
    return rc < 0 ? rc : 0;
}
