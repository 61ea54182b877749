/* offload_priv.h - private to offload/: the pieces of a rank's state, its files, the walk over them. */
#ifndef SHARDLINE_TRAIN_OFFLOAD_OFFLOAD_PRIV_H
#define SHARDLINE_TRAIN_OFFLOAD_OFFLOAD_PRIV_H

#include <pthread.h>
#include "base/aio.h"
#include "train/offload/offload.h"

/* ---- offload_pieces.c: which elements lie where ---- */
/* What a place in a file holds. State k of a piece is kind k - ZERO_MASTER. */
enum kind {
    KIND_MASTER,
    KIND_EXP_AVG,
    KIND_EXP_AVG_SQ,
    KIND_STATES,
    KIND_GRADS = KIND_STATES,
    KIND_WEIGHTS,
    KINDS
};
/* Both generations hold states. A file of gradients holds the partial sums one after the other. */
enum { FILE_A, FILE_B, FILE_GRADS, FILE_WEIGHTS, FILES };

struct piece {
    int vector;
    int64_t at, n;    /* elements, from the beginning of what the rank owns of the vector */
    size_t section;   /* bytes of n floats on the disk */
    size_t weights;   /* of n weights */
    int64_t state_at; /* in a generation, of the masters; the moments follow. -1: it has none */
    int64_t grad_at;  /* in a partial sum */
    int64_t weight_at;
};
struct state_pieces {
    int n_vectors; /* of the model; pieces of vector n_vectors are those of the tied head's gradients */
    int n_pieces;
    int *order; /* [n_vectors]: vectors in the order of the walk, unit by unit */
    int *first; /* [n_vectors + 1]: the pieces of vector v are first[v] .. end[v] */
    int *end;   /* [n_vectors + 1] */
    struct piece *piece;
    int64_t run;          /* elements of a piece, but for the last one of a vector */
    int64_t most;         /* of the largest piece */
    int n_levels;         /* partial sums of gradients that are kept */
    int64_t bytes[FILES]; /* of the files; 0: there is none */
    int64_t elements;     /* of all vectors */
};
/* What is kept in files. */
struct state_shape {
    int stage;
    int64_t run;     /* elements, a multiple of 1024 */
    int grad_levels; /* --offload-grads: partial sums of gradients; else 0 */
    int weights;     /* --offload-params */
};
/* ERR_MEMORY. */
int state_pieces_open(struct state_pieces *p, const struct model *m, const struct state_shape *s,
                      struct err *e);
void state_pieces_close(struct state_pieces *p);
/* n elements of so many bytes on the disk. */
size_t state_section_bytes(int64_t n, size_t element);

/* ---- offload_files.c: the files and their checksums ---- */
struct state_files {
    const struct model *m; /* for messages */
    const struct state_pieces *of;
    struct aio_file file[FILES];
    char path[FILES][4300];
    int now;              /* generation A: the file that holds the state */
    uint64_t *sum[FILES]; /* XXH3 of every place; 0: never written, all elements are 0 */
};
/* Writes the path of this rank's file to path; `what` says what it holds ("grads"). */
void state_file_path(char path[4300], const char *dir, const char *out, int rank, const char *what);
/* Makes a file for this run alone, with all its space; returns the descriptor. ERR_SPACE; ERR_FILE: another
 * run uses it. */
int state_file_open(const char *path, int64_t bytes, struct err *e);
/* Makes the folder of --offload. ERR_FILE: it cannot be made or written. */
int state_folder_make(const char *dir, struct err *e);
/* Removes what dead runs with the same --out left in dir. */
void state_files_drop(const char *dir, const char *out);
/* Makes the files, with all their space. ERR_SPACE, ERR_FILE. */
int state_files_open(struct state_files *f, const char *dir, const char *out, int rank, struct err *e);
void state_files_close(struct state_files *f); /* also removes them */

/* Where a kind of a piece lies. */
struct state_place {
    const struct aio_file *file;
    int64_t at;
    size_t bytes, padded; /* of the elements; on the disk */
    uint64_t *sum;
    int piece;
    enum kind kind;
};
/* generation: of states; the partial sum of gradients; weights: 0. */
struct state_place state_place_of(const struct state_files *f, enum kind kind, int generation, int piece);
/* The reading or writing of a place and the n - 1 that follow it. */
struct aio_job state_place_job(const struct state_place *p, int n, void *buf, int write);
/* Notes the checksum of what is written; compares it with what was read. ERR_INTEGRITY. */
void state_place_sum(const struct state_place *p, const void *buf);
int state_place_check(const struct state_files *f, const struct state_place *p, const void *buf,
                      struct err *e);

/* ---- offload_sections.c: single states of pieces, between updates ---- */
enum { WALK_BUFFERS = 3, SECTIONS = WALK_BUFFERS * KIND_STATES };
struct section {
    int piece; /* -1: none */
    enum kind kind;
    int dirty;
    int64_t used;
    char *buf;
};
/* Elements of a state through the sections, which take the walk's buffers. */
int sections_move(struct offload *o, int v, enum kind kind, int64_t at, int64_t n, void *out, const void *in,
                  struct err *e);
/* Writes what was changed and forgets all: before the buffers are used for another purpose. */
int sections_flush(struct offload *o, struct err *e);

/* ---- offload_walk.c: the thread ---- */
enum vector_state { VECTOR_OLD, VECTOR_READY, VECTOR_TAKEN, VECTOR_NEW };
struct walk_slot {
    enum { SLOT_FREE, SLOT_READING, SLOT_WRITING } doing;
    int piece;
    int n_read;            /* states that were written before: masters, or all */
    char *buf;             /* the states, then gradients, then weights */
    struct aio_job job[3]; /* of states, gradients, weights */
};
/* Where gradients and weights of a piece lie in a slot. */
float *walk_grads(const struct offload *o, const struct walk_slot *s);
char *walk_weights(const struct offload *o, const struct walk_slot *s);
/* Opens the thread where the store is late; walk_close ends it. ERR_MEMORY. */
int walk_open(struct offload *o, struct err *e);
/* Also after walk_open failed, or was not called. */
void walk_close(struct offload *o);
extern const struct state_ops offload_in_files;

/* ---- offload_side.c: gradients and weights on their way between training and files ---- */
enum { SIDE_BUFFERS = 3 };
struct side_buffer {
    char *buf;
    int writing;
    struct aio_job job;
};
struct side_fetch {
    int v; /* -1: none */
    char *to;
    struct aio_job job;
};
struct side {
    struct aio *aio;
    char *memory;
    struct side_buffer buffer[SIDE_BUFFERS];
    int next;
    int rc; /* the first error of a write */
    struct err err;
    struct side_fetch fetch[STATE_FETCHES];
};
/* Memory of the buffers, for plans. */
size_t side_bytes(const struct state_pieces *p);
/* ERR_MEMORY. side_close: also after an error, when nothing is under way in the walk. */
int side_open(struct offload *o, struct err *e);
/* Waits for what is under way. */
void side_close(struct offload *o);
/* Waits until all gradients are written. An error stays: a later call returns the same. */
int side_settle(struct offload *o, struct err *e);
/* Of state_ops. */
int side_put_grads(struct state_store *s, int v, int level, int64_t at, int64_t n, const float *in,
                   struct err *e);
int side_get_grads(struct state_store *s, int v, int level, int64_t at, int64_t n, float *out, struct err *e);
int side_fetch(struct state_store *s, int slot, int v, void *to, struct err *e);
int side_fetched(struct state_store *s, int slot, struct err *e);

/* ---- offload_host.c ---- */
extern const struct state_ops offload_in_host;
int host_open(struct offload *o, struct err *e);
void host_close(struct offload *o);

struct offload {
    struct state_store store; /* first: its functions cast back */
    const struct model *m;
    enum offload_kind kind;
    struct state_pieces of;
    float **host[KIND_STATES]; /* OFFLOAD_HOST: [n_vectors], pinned */

    struct state_files files;
    struct aio *aio; /* of the walk */
    struct side side;
    char *memory; /* of the buffers */
    struct walk_slot slot[WALK_BUFFERS];
    struct section section[SECTIONS];
    int any_dirty; /* sections */
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
