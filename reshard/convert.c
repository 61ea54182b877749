/* convert.c - the whole walk: open, plan, stream, prove, publish. */
#include <stdlib.h>
#include "base/clock.h"
#include "reshard/dest.h"
#include "reshard/gguf/gguf_prepare.h"
#include "reshard/lora/adapters.h"
#include "reshard/serve/serve_b12.h"

static int write_and_prove(const struct plan *p, const struct adapters *merged, struct log *log,
                           struct err *e)
{
    const struct procs *procs = p->req->procs;
    struct dest d;
    int rc = dest_open(&d, p->req, log, e);
    if (rc < 0)
        return rc;
    struct ckpt_digest *digest = calloc((size_t)p->n + 1, sizeof *digest);
    TRY(procs_agree(procs,
                    digest ? 0 : err_set(e, ERR_MEMORY, "no memory for the digests of %d tensors", p->n), e));

    TRY(stream_run(p, &d, digest, log, e));
    TRY(dest_send(&d, e));
    TRY(prove_run(p, &d, digest, log, e));
    prove_tied(p, digest, log);
    TRY(adapters_check(merged, procs, e));
    if (p->req->quant.quantize || merged->n)
        TRY(prove_computed(p, digest, log, e));
    TRY(procs_agree(procs,
                    request_stopped(p->req)
                        ? err_set(e, ERR_STOPPED, "stopped by a signal: nothing was written")
                        : 0,
                    e));
out:
    free(digest);
    if (rc < 0) {
        dest_fail(&d, p->req, e);
        return rc;
    }
    return dest_publish(&d, p->req, log, e);
}

static void log_remarks(const struct ckpt *src, const struct request *req, struct log *log)
{
    if (ckpt_remark(src))
        log_line(log, "%s: %s", req->src, ckpt_remark(src));
    if (ckpt_note(src))
        log_line(log, "%s: %s", req->src, ckpt_note(src));
    if (ckpt_writer(src) && !ckpt_state(src)->has_state)
        log_line(log, "%s: optimizer state: absent", req->src);
    if (req->format == TARGET_SERVE && ckpt_state(src)->has_state)
        log_line(log, "%s: optimizer state is left out: the serve format has weights only", req->src);
}

int reshard_convert(const struct request *req, struct log *log, struct err *e)
{
    struct ckpt *src = NULL;
    struct plan p = { 0 };
    struct gguf_target *gguf = NULL;
    struct adapters merged = { 0 };
    char size[32];
    int n_narrow = 0, rc = 0;
    double start = clock_s();
    TRY(procs_agree(req->procs,
                    ckpt_open(&src, req->src,
                              &(struct ckpt_open_opts){ .config_path = req->config_path, .with_cards = 1 },
                              e),
                    e));
    log_remarks(src, req, log);
    TRY(procs_agree(req->procs, source_views(&src, &merged, &n_narrow, req, log, e), e));
    if (n_narrow)
        log_line(log, "%d matrices stay as they are: their columns are no multiple of the group", n_narrow);
    if (req->format == TARGET_GGUF)
        TRY(gguf_target_prepare(&src, &gguf, req, log, e));
    TRY(procs_agree(req->procs, plan_make(&p, src, req, log, e), e));
    p.gguf = gguf;
    if (req->panels == CKPT_PANELS_B12)
        TRY(serve_b12_choose(&p, p.serve, e));
    if (p.serve && p.serve->narrow.packs + p.serve->narrow.wide)
        log_line(log, "%d packs in 12 bits with %lld escapes of %lld values, %d in 16 bits",
                 p.serve->narrow.packs, (long long)p.serve->narrow.escapes, (long long)p.serve->narrow.values,
                 p.serve->narrow.wide);
    TRY(procs_check_memory(req->procs, plan_memory_bytes(&p), "use a smaller --threads", e));
    TRY(write_and_prove(&p, &merged, log, e));
    if (gguf && gguf_target_rounded(gguf))
        log_line(log, "%lld values of norms are rounded: the file has 1 + w of them",
                 (long long)gguf_target_rounded(gguf));
    double s = clock_s() - start;
    log_bytes(size, (double)p.bytes_out);
    log_progress(log, 1, "%s: %s in %lld pieces, %.1f s; digests of source and target agree", req->dst, size,
                 (long long)p.n_pieces, s);
out:
    plan_free(&p);
    adapters_free(&merged);
    ckpt_close(src);
    return rc < 0 ? rc : 0;
}
