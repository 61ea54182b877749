/* kv_disk.h - the second level of the prefix cache (--kv-disk): pages that are evicted go to a folder
 * (kv_files.h), and a later prompt with the same beginning, in this process or another one, gets them back.
 *
 * The content of a page is a pure function of weights, adapter, arithmetic, kind of storage and the tokens up
 * to its end (kernels/NUMERICS.md), so these name it: a chain of SHA-256 over the pages of a beginning. A
 * record is what one kv head has in a page, all layers of a stage and page group: ranks of any tp write and
 * read the same records. Stages are part of the key: other degrees of pp have records of their own.
 *
 * Rank 0 of a replica decides, the ranks obey orders (STEP_PAGES): a page is saved before the step that uses
 * its memory again, and loaded before the sequence that needs it is admitted. A page counts as loaded when
 * every rank has found its records whole; any other is computed. */
#ifndef SHARDLINE_SERVE_KV_KV_DISK_H
#define SHARDLINE_SERVE_KV_KV_DISK_H

#include "model/model.h"
#include "serve/engine/step_run.h"
#include "serve/kv/kv.h"
#include "serve/kv/kv_files.h"
#include "serve/kv/kv_name.h"

/* A page group's records on this rank. */
struct kv_records {
    struct kv *kv; /* borrowed */
    int64_t layers;
    size_t layer_bytes, head_bytes; /* of a layer in a page; of a kv head in it */
    int n_heads;                    /* this rank's */
};
struct kv_disk {
    struct kv_files *files; /* NULL: there is none */
    struct dev *dev;        /* borrowed */
    struct comm *all;       /* borrowed */
    struct kv_records group[PAGE_GROUPS];
    int n_groups, stage, n_stages;
    int first_head, all_heads; /* of this rank; of the model */
    int saves, loads;          /* whether this rank does so: not where another one has the same pages */
    char *record;
};
struct kv_disk_open {
    const char *dir;
    int64_t limit;
    const struct model *m; /* borrowed during the call, as ranks */
    const struct replica_ranks *ranks;
    struct kv *kv;   /* [PAGE_GROUPS], borrowed */
    struct log *log; /* of the rank that may speak; NULL */
};
/* ERR_MEMORY and the errors of kv_files_open(). kv_disk_close() is safe on zeroes. Not collective. */
int kv_disk_open(struct kv_disk *d, const struct kv_disk_open *how, struct err *e);
void kv_disk_close(struct kv_disk *d);
/* Runs orders, in their order. ok[n]: whether each was obeyed, on all ranks together (a page that is not
 * saved counts as obeyed). Collective over the replica. */
int kv_disk_run(struct kv_disk *d, const struct kv_order *o, int64_t n, int64_t *ok, struct err *e);
/* Whether the records of all heads and stages of a page are there; asks for them ahead. Rank 0. */
int kv_disk_has(struct kv_disk *d, int group, struct kv_key name);
void kv_disk_ask_ahead(struct kv_disk *d, int group, struct kv_key name);

#endif
