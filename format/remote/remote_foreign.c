/* remote_foreign.c - which files a folder of another framework at a URL consists of. A server lists no
 * folder, so the small files in it that name the others are fetched first; ranks are numbered, so they are
 * asked for from 0 on until one is missing.
 *
 *     DeepSpeed   latest → TAG/, one model file (a rank in stage 3), an optimizer file a rank
 *     Megatron    latest_checkpointed_iteration.txt → iter_…/, then metadata.json: as DCP, and common.pt;
 *     else a folder a rank
 *     DCP         .metadata names its files
 * The folders' own places below the checkpoint's are kept: TAG/file. What the files say is checked when they
 * are opened. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/io.h"
#include "format/fmt.h"
#include "format/remote/remote_list.h"

#define METADATA ".metadata"
#define METADATA_MAX ((size_t)1 << 29)
#define RANKS_MAX 65536
#define NAME_MAX_BYTES 255

/* ---- files by name ---- */

/* First line of a small file that is there, without blanks at its end; malloc'd. */
static char *read_line(struct url_cache *c, const char *name, struct err *e)
{
    void *text = NULL;
    size_t n = 0;
    char *path = io_join(url_cache_dir(c), name);
    int rc = path ? io_read_file(path, 4096, &text, &n, e) : err_set(e, ERR_MEMORY, "no memory for a path");
    free(path);
    if (rc < 0)
        return NULL;
    for (n = strcspn(text, "\n"); n && strchr(" \t\r", ((char *)text)[n - 1]);)
        n--;
    ((char *)text)[n] = 0;
    return text;
}

static int make_folder(struct url_cache *c, const char *sub, struct err *e)
{
    char *path = io_join(url_cache_dir(c), sub);
    int rc = path ? io_make_dirs(path, e) : err_set(e, ERR_MEMORY, "no memory for a path");
    free(path);
    return rc;
}

/* Files by a pattern with one number, from 0 until one is missing. Returns how many. */
static int numbered(struct url_cache *c, const char *sub, const char *before, const char *after,
                    struct err *e)
{
    char name[1024];
    int n = 0, rc;
    for (; n < RANKS_MAX; n++) {
        snprintf(name, sizeof name, "%s%s%d%s", sub, before, n, after);
        if ((rc = url_cache_large(c, name, e)) <= 0)
            return rc < 0 ? rc : n;
    }
    return n;
}

/* ---- PyTorch DCP ---- */

/* Calls visit for every text in the pickle that names a data file: as a short text (0x8c, length) or a long
 * one ('X', four bytes). */
static int each_file(const unsigned char *p, size_t n, struct url_cache *c, const char *sub, struct err *e)
{
    static const char ending[] = ".distcp";
    char name[NAME_MAX_BYTES + 1], full[1024];
    size_t k = sizeof ending - 1;
    int rc = 0, found = 0;
    for (size_t end = k; end <= n; end++) {
        if (memcmp(p + end - k, ending, k))
            continue;
        for (size_t len = k + 1; len <= NAME_MAX_BYTES && len + 5 <= end; len++) {
            const unsigned char *at = p + end - len;
            int is_short = at[-2] == 0x8c && at[-1] == len;
            int is_long = at[-5] == 'X' && at[-4] == len && !at[-3] && !at[-2] && !at[-1];
            if (!is_short && !is_long)
                continue;
            memcpy(name, at, len);
            name[len] = 0;
            snprintf(full, sizeof full, "%s%s", sub, name);
            if (strlen(name) != len || (rc = fmt_file_name_check(name, METADATA, e)) < 0 ||
                (rc = remote_large(c, full, e)) < 0)
                return rc < 0 ? rc
                              : err_set(e, ERR_FORMAT,
                                        METADATA ": names a file with a zero byte: is it damaged");
            found++;
            break;
        }
    }
    return found;
}

/* 1: sub has a .metadata, its files are listed. */
static int find_dcp(struct url_cache *c, const char *sub, struct err *e)
{
    char name[1024], *path;
    void *text = NULL;
    size_t n = 0;
    snprintf(name, sizeof name, "%s" METADATA, sub);
    int rc = url_cache_small(c, name, e);
    if (rc <= 0)
        return rc;
    path = io_join(url_cache_dir(c), name);
    rc = path ? io_read_file(path, METADATA_MAX, &text, &n, e)
              : err_set(e, ERR_MEMORY, "no memory for a path");
    if (rc >= 0)
        rc = each_file(text, n, c, sub, e);
    free(text);
    free(path);
    return rc < 0 ? rc : rc ? 1 : err_set(e, ERR_FORMAT, "%s names no files: is it of a checkpoint", name);
}

/* ---- DeepSpeed ---- */

static int find_ranks(struct url_cache *c, const char *sub, struct err *e)
{
    static const char *const prefixes[] = { "", "bf16_", "fp16_" };
    static const char *const others[] = { "mp_rank_01_model_states.pt",
                                          "zero_pp_rank_0_mp_rank_01_model_states.pt" };
    char before[64], one[1024];
    int rc = 0, n;
    snprintf(one, sizeof one, "%smp_rank_00_model_states.pt", sub);
    if ((n = numbered(c, sub, "zero_pp_rank_", "_mp_rank_00_model_states.pt", e)) <= 0 &&
        (n < 0 || (n = url_cache_large(c, one, e)) <= 0))
        return n;
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes && !rc; i++) {
        snprintf(before, sizeof before, "%szero_pp_rank_", prefixes[i]);
        if ((rc = numbered(c, sub, before, "_mp_rank_00_optim_states.pt", e)) < 0)
            return rc;
    }
    /* the reader refuses them, but must see one */
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        snprintf(one, sizeof one, "%s%s", sub, others[i]);
        if ((rc = url_cache_large(c, one, e)) < 0)
            return rc;
    }
    return 1;
}

static int find_deepspeed(struct url_cache *c, struct err *e)
{
    char *tag = NULL, sub[300];
    int rc = url_cache_small(c, "latest", e);
    if (rc <= 0)
        return rc < 0 ? rc : find_ranks(c, "", e);
    if (!(tag = read_line(c, "latest", e)))
        return -e->code;
    if ((rc = fmt_file_name_check(tag, "latest", e)) >= 0) {
        snprintf(sub, sizeof sub, "%s/", tag);
        if ((rc = make_folder(c, sub, e)) >= 0 && (rc = find_ranks(c, sub, e)) == 0)
            rc = err_set(e, ERR_FORMAT,
                         "latest names %.100s, which has no files of ZeRO (the universal form cannot be read "
                         "by URL: fetch the folder first)",
                         tag);
    }
    free(tag);
    return rc;
}

/* ---- Megatron ---- */

/* The folder of a rank of the legacy kind: 1 it is there. */
static int rank_folder(struct url_cache *c, const char *sub, const char *rank, struct err *e)
{
    static const char *const files[] = { "model_optim_rng.pt", "distrib_optim.pt" };
    char name[1024];
    int rc;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(name, sizeof name, "%s%s/%s", sub, rank, files[i]);
        if ((rc = url_cache_large(c, name, e)) < 0 || (rc == 0 && i == 0))
            return rc;
    }
    return 1;
}

static int find_legacy(struct url_cache *c, const char *sub, struct err *e)
{
    char rank[64];
    int found = 0, rc = 1;
    for (int tp = 0; tp < RANKS_MAX && rc > 0; tp++) {
        snprintf(rank, sizeof rank, "mp_rank_%02d", tp);
        if ((rc = rank_folder(c, sub, rank, e)) < 0)
            return rc;
        found |= rc;
        for (int pp = 0; pp < RANKS_MAX; pp++) {
            snprintf(rank, sizeof rank, "mp_rank_%02d_%03d", tp, pp);
            int one = rank_folder(c, sub, rank, e);
            if (one < 0)
                return one;
            if (!one)
                break;
            found = rc = 1;
        }
    }
    return found;
}

static int find_iteration(struct url_cache *c, const char *sub, struct err *e)
{
    char name[1024];
    int rc;
    snprintf(name, sizeof name, "%smetadata.json", sub);
    if ((rc = url_cache_small(c, name, e)) < 0)
        return rc;
    if (!rc)
        return find_legacy(c, sub, e);
    snprintf(name, sizeof name, "%scommon.pt", sub);
    return (rc = url_cache_large(c, name, e)) < 0 ? rc : find_dcp(c, sub, e);
}

static int find_megatron(struct url_cache *c, struct err *e)
{
    static const char tracker[] = "latest_checkpointed_iteration.txt";
    char *text, sub[64] = "release/";
    int rc = url_cache_small(c, tracker, e);
    if (rc <= 0)
        return rc < 0 ? rc : find_iteration(c, "", e);
    if (!(text = read_line(c, tracker, e)))
        return -e->code;
    size_t digits = strspn(text, "0123456789");
    if (digits && digits < 16 && !text[digits])
        snprintf(sub, sizeof sub, "iter_%07lld/", strtoll(text, NULL, 10));
    else if (strcmp(text, "release"))
        rc = err_set(e, ERR_FORMAT, "%s: says \"%.60s\", an iteration or \"release\" is expected", tracker,
                     text);
    free(text);
    if (rc >= 0 && (rc = make_folder(c, sub, e)) >= 0 && (rc = find_iteration(c, sub, e)) == 0)
        rc = err_set(e, ERR_FILE, "%s names %s, which has no files of Megatron", tracker, sub);
    return rc;
}

int remote_foreign(struct url_cache *c, struct err *e)
{
    int rc = find_megatron(c, e);
    if (rc == 0)
        rc = find_deepspeed(c, e);
    return rc ? rc : find_dcp(c, "", e);
}
