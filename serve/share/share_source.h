/* share_source.h - where pshare finds versions: one checkpoint, a folder of `step-N`, or a process that keeps
 * sets in memory (mem:PID, or mem:PID/PREFIX- for sets whose names begin so). */
#ifndef SHARDLINE_SERVE_SHARE_SOURCE_H
#define SHARDLINE_SERVE_SHARE_SOURCE_H

#include "serve/share/versions.h"

/* Looks for a version with a step above `after` (-1: any). 1: *path (of at most `room` bytes) is a checkpoint
 * and *step its step, -1 where its name tells none; 0: there is none. */
int source_newest(const char *source, int64_t after, char *path, size_t room, int64_t *step);
/* A descriptor that poll() finds readable when the process of mem:PID has ended; -1: another source. */
int source_watch(const char *source);
/* 1: newer versions may appear at the source. */
int source_follows(const char *source);

#endif
