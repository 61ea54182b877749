/* note.h - what the ranks of an elastic run leave for its first process, and for the ranks that follow them:
 * one page of shared memory (comm/relay.h). Rank 0 writes, unless a line says otherwise. */
#ifndef SHARDLINE_TRAIN_NOTE_H
#define SHARDLINE_TRAIN_NOTE_H

#include <stdint.h>
#include "store/memory.h"
#include "train/elastic/layout_file.h"

#define NOTE_PATH 4096
#define NOTE_MACHINES 64
struct note {
    char dir[MEMORY_PATH_BYTES]; /* the first process: who keeps sets of state, mem:PID/step-N */
    _Atomic int64_t hangups;     /* the first process: SIGHUP so far … */
    int64_t heard;               /* … of which so many were answered */
    _Atomic int64_t step;        /* the last finished one */
    char tokenizer[NOTE_PATH];   /* of the run, which sets in memory do not give to the next ranks */

    int n_machines;                /* the first process: of the job */
    int64_t keeper[NOTE_MACHINES]; /* likewise: process that keeps files of a machine; 0: none */

    /* a change of layout: the ranks end, others go on with the newest set */
    _Atomic int change;
    char args[LAYOUT_ARGS_BYTES]; /* of the new layout */
    char from[LAYOUT_ARGS_BYTES], to[LAYOUT_ARGS_BYTES];
    int64_t changed_at; /* the last step before it */
    int64_t end_ns; /* clock_ns: when the last step of the old layout had ended, or the failure was seen */

    /* ranks that start early (turn.h): turns count from 1 on */
    _Atomic int64_t asked;              /* the newest turn that ranks were asked for … */
    int64_t asked_step;                 /* … after this step … */
    char asked_args[LAYOUT_ARGS_BYTES]; /* … in this layout */
    _Atomic int64_t passed;             /* any process: the last turn that has come */
    _Atomic int64_t called_off;         /* likewise: this one and those before it will not come any more */

    /* what is going to start */
    char refused[LAYOUT_ARGS_BYTES]; /* the first process: a layout whose ranks did not come to a step */
    int resumed;                     /* 1: after a change; the first process: 2: after a failure, 0: else */
};

/* The name of a set. */
#define NOTE_SET "step-"
/* 1: --resume names such a set. */
static inline int note_is_kept(const char *resume) { return resume && memory_is(resume); }

#endif
