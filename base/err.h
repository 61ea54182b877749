/* err.h - one error value: a code and one line of text that says what is wrong and what to do.
 *
 * A function that can fail returns 0 (or a count >= 0) on success, a negative code on failure, and fills *e.
 * Callers add context in front with err_add: "reading model.safetensors: short read at 4096: is the file
 * still being copied". */
#ifndef SHARDLINE_BASE_ERR_H
#define SHARDLINE_BASE_ERR_H

/* X(name, exit status of the program, hint that is printed when the text has none) */
#define ERR_LIST(X) \
    X(USAGE, 2, "see --help")                     /* wrong option, impossible layout: nothing was started */ \
    X(CONFIG, 2, "check the model's config.json") /* inconsistent config, manifest or tokenizer */ \
    X(FILE, 1, "check the path and permissions")  /* open, read, write, rename failed */ \
    X(FORMAT, 1, "is it a whole checkpoint")      /* bytes that violate the format */ \
    X(INTEGRITY, 1, "restore it from a good copy") /* a checksum or digest differs */ \
    X(SPACE, 1, "free some space")                 /* disk or memory is full */ \
    X(MEMORY, 1, "use more ranks or smaller batches") \
    X(PEER, 1, "see the other ranks' messages") /* another rank failed, exited or hangs */ \
    X(DEVICE, 1, "use --device cpu") \
    X(NUMBER, 1, "lower the learning rate") /* NaN or Inf where none may be */ \
    X(STOPPED, 1, "")                       /* a signal asked the program to stop */ \
    X(INTERNAL, 1, "please report it")

enum err_code {
    ERR_NONE = 0,
#define X(name, status, hint) ERR_##name,
    ERR_LIST(X)
#undef X
        ERR_COUNT
};

struct err {
    int code;        /* enum err_code */
    char text[1024]; /* one line, lower case, no full stop; a longer one loses its middle, not its ends */
};

/* Sets *e. Returns -code. */
int err_set(struct err *e, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* As err_set, with ": " and strerror(errno) appended. The code follows errno: ENOSPC and EDQUOT give
 * ERR_SPACE, ENOMEM ERR_MEMORY, all others ERR_FILE. */
int err_sys(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Puts "context: " in front of the text. Returns -e->code. */
int err_add(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Prints "program: text" as one line on stderr, with ": hint" appended when the text contains no ": ".
 * Returns the exit status. */
int err_print(const struct err *e, const char *program);

/* Exit status of a program that fails with this code; the code may be negated. */
int err_exit_status(int code);

/* Jumps to the label out when the call fails. Needs `int rc` in scope. */
#define TRY(call) \
    do { \
        if ((rc = (call)) < 0) \
            goto out; \
    } while (0)

#endif
