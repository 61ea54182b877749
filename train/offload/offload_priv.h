/* offload_priv.h - private to offload/: the pieces of a rank's state, its files, the walk over them. */
#ifndef SHARDLINE_TRAIN_OFFLOAD_OFFLOAD_PRIV_H
#define SHARDLINE_TRAIN_OFFLOAD_OFFLOAD_PRIV_H

#include <pthread.h>
#include "base/aio.h"
#include "train/offload/offload.h"

/* ---- offload_pieces.c: which elements lie where ---- */
enum { KINDS = 3 }; /* masters, first moments, second moments: state k is ZERO_MASTER + k */
struct piece {
    int vector;
    int64_t at, n;   /* elements, from the beginning of what the rank owns of the vector */
    int64_t file_at; /* of the masters; the moments follow, each `section` bytes long */
    size_t section;
};
struct pieces_of_state {
    int n_vectors, n_pieces;
    int *order; /* [n_vectors]: vectors in the order of the walk, unit by unit */
    int *first; /* [n_vectors + 1] by vector: its pieces are first[v] .. end[v] */
    int *end;   /* [n_vectors] */
    struct piece *piece;
    int64_t most;     /* elements of the largest piece */
    int64_t bytes;    /* of a file */
    int64_t elements; /* of all pieces */
};
/* most: elements of a piece, a multiple of 1024. ERR_MEMORY. */
int state_pieces_open(struct pieces_of_state *p, const struct model *m, int stage, int64_t most,
                      struct err *e);
void state_pieces_close(struct pieces_of_state *p);
size_t state_section_bytes(int64_t n);

/* ---- offload_files.c: two files and their checksums ---- */
struct state_files {
    const struct model *m; /* for messages */
    const struct pieces_of_state *of;
    struct aio *aio;
    struct aio_file file[2];
    char path[2][4300];
    int now;          /* generation A: the file that holds the state */
    uint64_t *sum[2]; /* [n_pieces][KINDS] XXH3; 0: never written, all elements are 0 */
};
/* Removes what dead runs with the same --out left in dir. */
void state_files_drop(const char *dir, const char *out);
/* Makes the two files, with all their space. ERR_SPACE, ERR_FILE. */
int state_files_open(struct state_files *f, const char *dir, const char *out, int rank, struct err *e);
void state_files_close(struct state_files *f);
/* Fills j: the reading or writing of states [k, k + n) of a piece. */
void state_files_job(const struct state_files *f, struct aio_job *j, int generation, int piece, int k, int n,
                     void *buf, int write);
/* Of states [k, k + n) at buf: notes their checksums for a generation; compares them. ERR_INTEGRITY. */
void state_files_sum(struct state_files *f, int generation, int piece, int k, int n, const void *buf);
int state_files_check(const struct state_files *f, int generation, int piece, int k, int n, const void *buf,
                      struct err *e);

/* ---- offload_sections.c: single states of pieces, between updates ---- */
enum { WALK_BUFFERS = 3, SECTIONS = WALK_BUFFERS * KINDS };
struct section {
    int piece, k; /* piece -1: none */
    int dirty;
    int64_t used;
    char *buf;
};
/* Elements of a state through the sections, which take the walk's buffers. */
int sections_move(struct offload *o, int v, enum zero_state s, int64_t at, int64_t n, float *out,
                  const float *in, struct err *e);
/* Writes what was changed and forgets all: before the buffers are used for another purpose. */
int sections_flush(struct offload *o, struct err *e);

/* ---- offload_walk.c: the thread ---- */
enum vector_state { VECTOR_OLD, VECTOR_READY, VECTOR_TAKEN, VECTOR_NEW };
struct walk_slot {
    enum { SLOT_FREE, SLOT_READING, SLOT_WRITING } doing;
    int piece;
    char *buf;
    struct aio_job job;
};
/* Opens the thread where the store is late; walk_close ends it. ERR_MEMORY. */
int walk_open(struct offload *o, struct err *e);
/* Also after walk_open failed, or was not called. */
void walk_close(struct offload *o);
extern const struct state_ops offload_in_files;

/* ---- offload_host.c ---- */
extern const struct state_ops offload_in_host;
int host_open(struct offload *o, struct err *e);
void host_close(struct offload *o);

struct offload {
    struct state_store store; /* first: its functions cast back */
    const struct model *m;
    enum offload_kind kind;
    struct pieces_of_state of;
    float **host[KINDS]; /* OFFLOAD_HOST: [n_vectors], pinned */

    struct state_files files;
    char *memory; /* of the buffers */
    struct walk_slot slot[WALK_BUFFERS];
    struct section section[SECTIONS];
    int64_t clock;

    /* the walk; all below under `lock` */
    pthread_t thread;
    int has_thread;
    pthread_mutex_t lock;
    pthread_cond_t to_do, done;
    enum vector_state *state; /* [n_vectors] */
    int begun;                /* all vectors are to be updated; else those that are ready */
    int stop, cancel;         /* ends the thread; ends what was begun ahead */
    int busy;                 /* the thread walks */
    int rc;                   /* its error */
    struct err err;
    struct aio_count before; /* at the beginning of the update that runs */
    struct offload_count count;
};

#endif
