/* place.c - the folder in which a checkpoint is put together, how the checkpoint gets its name, and how it
 * loses it.
 *
 *     dst.tmp-save        the usual place; base/tmp_folder.h says what its marker and lock are
 *     dst.2.tmp-save, …   the place while the one before is not ours, is read, or holds a whole checkpoint
 *     dst.removed.tmp-old a checkpoint that is being removed
 * Only folders with our marker are removed, and of those only what a writer of this program makes. */
#include <dirent.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/io.h"
#include "base/jx.h"
#include "base/tmp_folder.h"
#include "format/ckpt_write.h"
#include "format/fmt.h"
#include "format/native/manifest.h"
#include "format/quant_view.h"
#include "format/hf/small_files.h"
#include "store/memory.h"

#define PATH_BYTES 4096
#define PLACES 100
#define SAVE ".tmp-save"
#define REMOVED ".removed.tmp-old"

/* ---- names ---- */

/* Length of a path without slashes at its end. */
static size_t bare(const char *path)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    return n;
}

/* The k-th name, from 1, of a folder beside path. Returns its length. */
static int name_place(const char *path, int k, const char *ending, char place[PATH_BYTES])
{
    char number[16] = "";
    if (k > 1)
        snprintf(number, sizeof number, ".%d", k);
    return snprintf(place, PATH_BYTES, "%.*s%s%s", (int)bare(path), path, number, ending);
}

static int has_end(const char *path, size_t n, const char *end)
{
    size_t n_end = strlen(end);
    return n > n_end && !memcmp(path + n - n_end, end, n_end);
}

int ckpt_place_of(const char *path, char dst[4096])
{
    size_t n = bare(path);
    if (n >= PATH_BYTES || !has_end(path, n, SAVE))
        return 0;
    n -= strlen(SAVE);

    size_t digits = n;
    while (digits > 0 && path[digits - 1] >= '0' && path[digits - 1] <= '9')
        digits--;
    if (digits < n && digits > 1 && path[digits - 1] == '.')
        n = digits - 1;
    snprintf(dst, PATH_BYTES, "%.*s", (int)n, path);
    return path[n - 1] != '/';
}

/* ---- what a folder holds ---- */

/* Entries that a writer of any format makes, besides the small files. */
static const char *const written[] = {
    TMP_MARKER,
    FMT_MANIFEST,
    FMT_CONFIG,
    "*.safetensors",
    "*.safetensors.zst",
    "*.safetensors.planes.zst",
    "*.index.json",
    "__*.distcp",
    ".metadata",
    "*.pt",
    "latest*",
    "zero",
    "global_step*",
    "zero_*",
    "*.gguf",
    QUANT_KEPT_TENSORS,
};

int ckpt_is_written(const char *name)
{
    for (size_t i = 0; i < sizeof written / sizeof *written; i++)
        if (!fnmatch(written[i], name, 0))
            return 1;
    return small_file_is_known(name);
}

/* 1: the folder holds an entry for which `known` answers 0; its name is in name[256]. */
static int find_other(const char *path, int (*known)(const void *arg, const char *name), const void *arg,
                      char name[256])
{
    DIR *d = opendir(path);
    struct dirent *x;
    int found = 0;
    while (d && !found && (x = readdir(d))) {
        found = strcmp(x->d_name, ".") && strcmp(x->d_name, "..") && !known(arg, x->d_name);
        snprintf(name, 256, "%.255s", x->d_name);
    }
    if (d)
        closedir(d);
    return found;
}

static int known_to_writers(const void *arg, const char *name)
{
    (void)arg;
    return ckpt_is_written(name);
}

/* 1: the folder holds a manifest, which is written last: every byte may be there. */
static int may_be_whole(const char *path)
{
    char *manifest = io_join(path, FMT_MANIFEST);
    int there = !manifest || io_exists(manifest);
    free(manifest);
    return there;
}

/* ---- what an interrupted process left ---- */

/* Why a marked folder without a user stays; "": it may be removed. dst: what it was made for; NULL: it is a
 * checkpoint that was being removed. */
static void reason_to_keep(const char *path, const char *dst, char why[400])
{
    char name[256];
    *why = 0;
    if (!dst) /* ckpt_remove has looked before it began */
        return;
    if (find_other(path, known_to_writers, NULL, name))
        snprintf(why, 400, "holds %s, which no save writes: move that file away, or remove the folder", name);
    else if (may_be_whole(path) && !io_exists(dst))
        snprintf(why, 400, "holds all files of a checkpoint: `reshard verify` says how to publish it");
}

/* Removes a folder that an interrupted process left, under its lock, or says why the folder stays. 1: the
 * name is free. */
static int drop_left(const char *path, const char *dst, int lock, struct log *log)
{
    char why[400];
    struct err e = { 0 };
    reason_to_keep(path, dst, why);
    int failed = !*why && tmp_folder_remove(path, &e) < 0;
    io_close(lock);
    if (failed)
        snprintf(why, sizeof why, "cannot be removed: %.300s", e.text);
    if (log && *why)
        log_line(log, "%s, left by an interrupted process, stays: it %s", path, why);
    else if (log)
        log_line(log, "%s, left by an interrupted process, is removed", path);
    return !*why;
}

static const char *const stays[] = {
    [TMP_FOREIGN] = ("stays: it has no " TMP_MARKER ", so no save of this version made it"),
    [TMP_READ] = "stays: a process reads it",
    [TMP_NO_LOCKS] = "stays: this file system has no locks, so another process may use it",
};

int ckpt_drop_left(const char *path, struct log *log)
{
    char dst[PATH_BYTES];
    int lock, is_place = ckpt_place_of(path, dst);
    if (!is_place && !has_end(path, bare(path), REMOVED))
        return 0;
    enum tmp_folder state = tmp_folder_look(path, &lock);
    if (state == TMP_LEFT)
        return drop_left(path, is_place ? dst : NULL, lock, log);
    if (state == TMP_EMPTY)
        return rmdir(path) == 0;
    if (log && (state == TMP_FOREIGN || state == TMP_READ || state == TMP_NO_LOCKS))
        log_line(log, "%s %s", path, stays[state]);
    return state == TMP_ABSENT;
}

/* ---- the place ---- */

/* Makes and locks the first place that is free. A process that ends while it makes a folder, or is slow
 * there, only costs the other one another try. */
static int take_place(const char *dst, char *tmp, int *lock, struct log *log, struct err *e)
{
    for (int k = 1, tries = 0; k < PLACES && tries < 10 * PLACES; tries++) {
        name_place(dst, k, SAVE, tmp);
        enum tmp_folder state = tmp_folder_look(tmp, lock);
        if (state == TMP_WRITTEN)
            return err_set(e, ERR_FILE,
                           "another process is writing %s: wait until it ends, or choose another name", tmp);
        if (state != TMP_ABSENT) {
            io_close(*lock);
            k += !ckpt_drop_left(tmp, log);
            continue;
        }
        int rc = tmp_folder_make(tmp, lock, e);
        if (rc)
            return rc < 0 ? rc : 0;
    }
    return err_set(e, ERR_FILE, "%.*s" SAVE " and the places after it are taken: remove what is left there",
                   (int)bare(dst), dst);
}

int ckpt_begin(const char *dst, char *tmp, int *lock, struct log *log, struct err *e)
{
    size_t n = bare(dst);
    int fd = -1;
    if (memory_is(dst)) { /* it is there when its manifest is: no other name is needed before */
        snprintf(tmp, PATH_BYTES, "%s", dst);
        if (lock)
            *lock = -1;
        int made = memory_begin(dst, e);
        *tmp = made < 0 ? 0 : *tmp;
        return made;
    }
    if (io_exists(dst))
        return err_set(e, ERR_FILE, "%s exists: choose another name or remove it", dst);
    if (n == 0 || n + 32 > PATH_BYTES)
        return err_set(e, ERR_USAGE, "a checkpoint's name has %zu bytes: choose another one", n);
    int rc = take_place(dst, tmp, &fd, log, e);
    if (rc == 0 && io_exists(dst)) { /* another process has published it meanwhile */
        ckpt_abandon(tmp, fd);
        rc = err_set(e, ERR_FILE, "%s exists: choose another name or remove it", dst);
    }
    if (rc < 0) {
        *tmp = 0; /* it is not ours to remove */
        return rc;
    }
    if (lock)
        *lock = fd;
    else
        io_close(fd);
    return 0;
}

void ckpt_abandon(const char *tmp, int lock)
{
    struct err e;
    if (memory_is(tmp))
        memory_drop(tmp, &e);
    else if (lock < 0 || tmp_folder_is_at(lock, tmp))
        tmp_folder_remove(tmp, &e); /* not reported: the caller reports an earlier error */
    io_close(lock);
}

static int sync_parent(const char *dst, struct err *e)
{
    char parent[PATH_BYTES];
    size_t n = bare(dst);
    while (n > 0 && dst[n - 1] != '/')
        n--;
    while (n > 1 && dst[n - 1] == '/')
        n--;
    snprintf(parent, sizeof parent, "%.*s", n ? (int)n : 1, n ? dst : ".");
    return io_sync_dir(parent, e);
}

/* Removes what earlier, interrupted writers of dst left. */
static void drop_outdated(const char *dst)
{
    char path[PATH_BYTES];
    for (int k = 1; k < 10; k++) {
        name_place(dst, k, SAVE, path);
        if (io_exists(path))
            ckpt_drop_left(path, NULL);
    }
}

int ckpt_reveal(const char *tmp, const char *dst, struct err *e)
{
    struct err ignored;
    if (memory_is(dst))
        return 0;
    int rc = io_sync_dir(tmp, e), back = 0;
    rc = rc < 0 ? rc : io_rename(tmp, dst, e);
    if (rc >= 0 && (rc = sync_parent(dst, e)) < 0) {
        /* an error must leave nothing at dst; the rename back is as atomic as the one before, and must be on
         * the disk before files are removed */
        back = io_rename(dst, tmp, &ignored);
        back = back < 0 ? back : sync_parent(dst, &ignored);
    }
    if (rc < 0 && back >= 0)
        ckpt_abandon(tmp, -1);
    if (rc < 0)
        return err_add(e, "publishing %s", dst);
    /* not before the name is on the disk: an unmarked temporary folder belongs to the user. What a crash
     * leaves of the marker in a published folder does no harm. */
    tmp_folder_finish(dst, &ignored);
    drop_outdated(dst);
    return 0;
}

int ckpt_reveal_file(const char *tmp, const char *name, const char *dst, struct err *e)
{
    struct err ignored;
    char *file = io_join(tmp, name);
    int rc = file ? io_rename(file, dst, e) : err_set(e, ERR_MEMORY, "no memory for a path"), back = 0;
    if (rc >= 0 && (rc = sync_parent(dst, e)) < 0)
        back = io_rename(dst, file, &ignored);
    free(file);
    if (back >= 0)
        ckpt_abandon(tmp, -1);
    if (rc < 0)
        return err_add(e, "publishing %s", dst);
    drop_outdated(dst);
    return 0;
}

/* ---- removing ---- */

static int known_to_manifest(const void *arg, const char *name)
{
    static const char *const lists[] = { "files", "extra" };
    const json_t *manifest = arg, *f;
    size_t i;
    if (!strcmp(name, FMT_MANIFEST) || !strcmp(name, FMT_CONFIG) || !strcmp(name, TMP_MARKER))
        return 1;
    for (size_t k = 0; k < sizeof lists / sizeof *lists; k++)
        json_array_foreach(json_object_get(manifest, lists[k]), i, f) {
            const char *listed = json_string_value(json_object_get(f, "name"));
            if (listed && !strcmp(listed, name))
                return 1;
        }
    return 0;
}

/* An error: the folder is no checkpoint of ours, or holds what its manifest does not list. */
static int check_removable(const char *path, struct err *e)
{
    char *file = io_join(path, FMT_MANIFEST), name[256];
    json_t *manifest = file ? jx_load(file, FMT_MANIFEST_MAX, e) : NULL;
    int rc = manifest ? 0 : file ? -e->code : err_set(e, ERR_MEMORY, "no memory for a path");
    if (rc == 0 && find_other(path, known_to_manifest, manifest, name))
        rc = err_set(e, ERR_FILE, "%s holds %s, which is not of the checkpoint: move it away", path, name);
    json_decref(manifest);
    free(file);
    return rc;
}

int ckpt_remove(const char *path, struct err *e)
{
    char trash[PATH_BYTES], *marker = NULL;
    int rc, n;
    if (memory_is(path))
        return memory_drop(path, e);
    TRY(check_removable(path, e));
    int k = 1;
    do
        n = name_place(path, k++, REMOVED, trash);
    while (n < PATH_BYTES && io_exists(trash));
    if (n >= PATH_BYTES)
        return err_set(e, ERR_USAGE, "%s: the name is too long", path);

    TRY(io_rename(path, trash, e));
    TRY(sync_parent(path, e)); /* otherwise a crash may keep the name and lose the files */
    marker = io_join(trash, TMP_MARKER);
    if (marker) /* without it the rest would stay where this process is killed; before the sync a crash might
                 * keep it under the checkpoint's name */
        io_close(io_create(marker, e));
    TRY(tmp_folder_remove(trash, e));
out:
    free(marker);
    return rc < 0 ? rc : 0;
}
