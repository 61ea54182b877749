/* err.h - one error value: a code from one list, one line of text that says what is wrong and what to do.
 *
 * Functions that can fail return 0 (or a count >= 0) or a negative code, and fill *e. On the way up, context
 * is put in
 * front with err_add: "reading model.safetensors: short read at 4096: is the file still being copied". */
#ifndef SHARDLINE_BASE_ERR_H
#define SHARDLINE_BASE_ERR_H

/* The list: name, exit status of the program, hint printed when the text itself has none. */
#define ERR_LIST(X) \
    X(USAGE, 2, "see --help")                     /* wrong option, impossible layout: nothing was started */ \
    X(CONFIG, 2, "check the model's config.json") /* a config, manifest or tokenizer that makes no sense */ \
    X(FILE, 1, "check the path and permissions")  /* open, read, write, rename failed */ \
    X(FORMAT, 1, "is it a whole checkpoint")      /* bytes that are not what the format says */ \
    X(INTEGRITY, 1, "restore it from a good copy") /* a checksum or digest that does not fit */ \
    X(SPACE, 1, "free some space")                 /* disk or memory is full */ \
    X(MEMORY, 1, "use more ranks or smaller batches") \
    X(PEER, 1, "see the other ranks' messages") /* another rank failed, died or does not answer */ \
    X(DEVICE, 1, "use --device cpu") \
    X(NUMBER, 1, "lower the learning rate") /* NaN or Inf where none may be */ \
    X(STOPPED, 1, "")                       /* a signal asked for the end */ \
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
    char text[1024]; /* one line, lower case, no full stop */
};

/* Sets *e and returns -code. */
int err_set(struct err *e, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* As err_set, with ": " and strerror(errno) behind the text; ENOSPC and EDQUOT become ERR_SPACE. */
int err_sys(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Puts "context: " in front of the text; returns -e->code. */
int err_add(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Prints "program: text" (and ": hint" where the text has none) as one line on stderr; returns the exit
 * status. */
int err_print(const struct err *e, const char *program);
int err_exit_status(int code);

/* On failure go to out; needs `int rc` in scope. */
#define TRY(call) \
    do { \
        if ((rc = (call)) < 0) \
            goto out; \
    } while (0)

#endif
