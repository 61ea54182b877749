/* tmp_folder.h - folders of unfinished work (DST.tmp-save, DST.tmp-fetch), which a later process may remove
 * or continue. Such a folder holds an empty file TMP_MARKER from its first moment to its last: what has no
 * marker belongs to the user and is never removed. The process that works in the folder holds an exclusive
 * lock on the marker, and readers hold a shared one. The kernel releases the locks when a process ends,
 * also by SIGKILL. On NFS the locks hold between machines, because the marker is a file. */
#ifndef SHARDLINE_BASE_TMP_FOLDER_H
#define SHARDLINE_BASE_TMP_FOLDER_H

#include "base/err.h"

#define TMP_MARKER ".shardline-tmp"

enum tmp_folder {
    TMP_ABSENT,   /* no such path */
    TMP_EMPTY,    /* an empty folder: its maker ended before the marker, or is about to make the marker */
    TMP_FOREIGN,  /* no marker: not ours */
    TMP_LEFT,     /* marked, and no process uses it */
    TMP_READ,     /* marked, and a process reads it */
    TMP_WRITTEN,  /* marked, and a process works in it */
    TMP_NO_LOCKS, /* marked, on a file system without locks: it is unknown whether a process uses it */
};

/* State of the path. TMP_LEFT: *lock is a descriptor with the exclusive lock; otherwise -1. */
enum tmp_folder tmp_folder_look(const char *path, int *lock);

/* Makes the folder with its marker on the disk, and locks it. 1: *lock is the descriptor. 0: another process
 * was faster: look again. */
int tmp_folder_make(const char *path, int *lock, struct err *e);

/* Keeps other processes from removing a marked folder while this one reads it. Returns a descriptor for
 * io_close. -1: the folder has no marker, or the process that works in it holds the lock. */
int tmp_folder_hold(const char *path);

/* 1 when the lock of tmp_folder_look or tmp_folder_make is that of the folder which now has this name. */
int tmp_folder_is_at(int lock, const char *path);

/* 1 when the folder holds the marker and nothing else. */
int tmp_folder_is_unused(const char *path);

/* Removes the folder, the marker last, so that a part of the folder is never taken for a foreign one. */
int tmp_folder_remove(const char *path, struct err *e);

/* Removes the marker of a finished folder, which has its own name by now. */
int tmp_folder_finish(const char *path, struct err *e);

#endif
