/* tok.h - inside of room text: what the parts of a tokenizer share.
 *
 *   text --split at added tokens--> pieces --normalise--> --split at normalised added tokens-->
 *        --pre-tokenise--> words
 *        --BPE--> ids --post-process--> ids          and back: ids -> tokens --decoder steps--> text
 *
 * Growing things (buf, pieces, ids) keep a failed flag instead of returning an error each time: the one who
 * hands the result on looks at it (text_memory). */
#ifndef SHARDLINE_TEXT_TOK_H
#define SHARDLINE_TEXT_TOK_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"
#include "base/err.h"
#include "text/text.h"

#define TEXT_LIMIT ((size_t)1 << 30) /* bytes tokenized at once */
#define TOK_STEPS 32                 /* normalisers, pre-tokenisers or decoders in a row */
/* ids are below this: a file cannot make us allocate more than its size suggests */
#define TOK_ID_LIMIT (1 << 24)

/* --- growing characters, pieces, ids (grow.c; base/buf.h)
 * ------------------------------------------------------------------------------- */
void buf_add_cp(struct buf *b, uint32_t cp);

/* A stretch of the text. id >= 0: an added token, done; else still text. first: it begins where the whole
 * text begins. */
struct piece {
    size_t off, n;
    int32_t id;
    int32_t first;
};
struct pieces {
    struct buf text;
    struct piece *v;
    size_t n, cap;
    int failed;
};
/* empty pieces are left out */
void pieces_add(struct pieces *ps, size_t off, size_t n, int32_t id, int first);
void pieces_free(struct pieces *ps);

struct ids {
    int32_t *v;
    size_t n, cap;
    int failed;
};
void ids_add(struct ids *l, int32_t id);
/* The list becomes the caller's (malloc'd, also when it is empty); l is left without it. ERR_MEMORY: an
 * ids_add before had failed, too. */
int ids_give(struct ids *l, int32_t **ids, size_t *n, struct err *e);
int text_memory(struct err *e); /* sets ERR_MEMORY */

/* --- characters (unicode.c)
 * -------------------------------------------------------------------------------------------- */
/* > 0: bytes of the valid character; 0: the n bytes are the beginning of one; < 0: minus the bytes of the
 * maximal invalid part. n >= 1. */
int utf8_next(const char *s, size_t n, uint32_t *cp);
/* last character of valid text, n >= 1: its bytes */
int utf8_prev(const char *s, size_t n, uint32_t *cp);
/* bytes used: all when last, else without a cut character behind */
size_t utf8_repair(const char *s, size_t n, int last, struct buf *out);
int uni_is_space(uint32_t cp);   /* White_Space */
int uni_is_word(uint32_t cp);    /* \w of UTS 18 */
int uni_is_numeric(uint32_t cp); /* Nd, Nl, No */
int uni_is_punct(uint32_t cp);   /* P*, and the symbols of ASCII */
int uni_is_mark(uint32_t cp);    /* Mn, Mc, Me */
uint32_t uni_lower(uint32_t cp);
/* A character of the same category and length that older tables know, for one that is newer than they are;
 * else cp itself. */
uint32_t uni_stand_in(uint32_t cp);
#define UNI_COMPOSE 1
#define UNI_COMPAT 2
void uni_normalize(const char *s, size_t n, int form,
                   struct buf *out); /* form 0: NFD; valid UTF-8 in and out */
/* the map of byte-level tokenizers: every byte as a visible character below U+0144 */
uint32_t byte_char(unsigned char b);
int char_byte(uint32_t cp); /* -1: stands for no byte */

/* --- patterns (pattern.c)
 * ---------------------------------------------------------------------------------------------- */
/* a string as it is, or a PCRE2 program */
struct pattern {
    char *literal;
    size_t n;
    void *code;
};
/* {"String": …} or {"Regex": …} */
int pattern_load(struct pattern *p, const json_t *node, const char *what, struct err *e);
int pattern_regex(struct pattern *p, const char *regex, size_t n, const char *what, struct err *e);
void pattern_free(struct pattern *p);
/* one walk over one text after the other, one thread */
struct matcher {
    const struct pattern *pat;
    const char *s;
    size_t n, at, last_end;
    void *data, *context, *stack;
    struct buf stand; /* the text with characters in it that PCRE2 knows */
};
int matcher_open(struct matcher *m, const struct pattern *p, struct err *e);
void matcher_text(struct matcher *m, const char *s, size_t n);
/* 1 found, 0 no more, negative */
int matcher_next(struct matcher *m, size_t *start, size_t *end, struct err *e);
void matcher_close(struct matcher *m);

/* --- normalisers (normalize.c), pre-tokenisers (split.c), decoders (detok.c): a table of kinds, a row a
 * type ------------- */
struct step {
    const struct step_kind *kind;
    struct pattern pat;
    char *content; /* Replace, Prepend, Metaspace: what to put there */
    size_t n_content;
    int form, left, right, behavior, invert, prefix, split, count;
    uint32_t cp;
};
struct step_kind {
    const char *type;
    int (*load)(struct step *s, const json_t *node, const char *what, struct err *e);
    /* normalisers */
    int (*run)(const struct step *s, const char *text, size_t n, struct buf *out, struct err *e);
    /* pre-tokenisers */
    int (*split)(const struct step *s, struct pieces *ps, struct err *e);
    int (*is)(uint32_t cp); /* pre-tokenisers that split at characters of a class */
    int code;               /* decoders */
};
struct steps {
    struct step v[TOK_STEPS];
    int n;
};
/* Reads a section (null, one step, or Sequences of them, flattened). list: the key of a Sequence's list. */
int steps_load(struct steps *s, const json_t *node, const struct step_kind *kinds, const char *list,
               const char *what, struct err *e);
void steps_free(struct steps *s);
extern const struct step_kind normalizer_kinds[], split_kinds[], decoder_kinds[];

int normalize(const struct steps *s, const char *text, size_t n, struct buf *out, struct err *e);
int split_run(const struct steps *s, struct pieces *ps, struct err *e);

/* --- the vocabulary (vocab.c)
 * ------------------------------------------------------------------------------------------ */
enum { TOKEN_MODEL = 1, TOKEN_ADDED = 2, TOKEN_SPECIAL = 4, TOKEN_REWRITTEN = 8 };
struct token {
    size_t off, n; /* its text as the file has it */
    /* the text that decoding starts from: another one for added tokens that normalising changes */
    size_t shown_off, shown_n;
    size_t raw_off, raw_n; /* the bytes it stands for */
    int flags;             /* 0: the id does not exist; REWRITTEN: shown is not the text */
};
struct vocab {
    struct token *v;
    int32_t n; /* highest id + 1 */
    size_t cap;
    struct buf text, raw; /* texts and bytes of all tokens, a NUL behind each */
    int32_t *slot;        /* hash table of ids; -1: empty */
    size_t n_slots, n_used;
};
int vocab_put(struct vocab *v, const char *s, size_t n, int64_t id, int flags, const char *what,
              struct err *e);
int vocab_show(struct vocab *v, int32_t id, const char *s, size_t n, struct err *e);
int32_t vocab_find(const struct vocab *v, const char *s, size_t n); /* any token; -1: none */
void vocab_free(struct vocab *v);

/* --- byte pair encoding (bpe.c)
 * ---------------------------------------------------------------------------------------- */
/* ids of the first characters without a look-up: covers the byte-level map */
#define BPE_CHARS 2048
struct merge {
    uint64_t pair;
    int32_t rank, id;
};
struct bpe {
    struct merge *slot; /* hash table by pair of ids */
    size_t n_slots;
    /* bits by hash: some merge joins a token that ends in x and one that begins with y */
    uint64_t *joints;
    int32_t char_id[BPE_CHARS], byte_id[256], unk;
    int byte_fallback, fuse_unk, ignore_merges;
};
int bpe_load(struct bpe *b, struct vocab *v, const json_t *model, const char *what, struct err *e);
void bpe_free(struct bpe *b);
int bpe_pieces(const struct bpe *b, const struct vocab *v, const struct pieces *ps, struct ids *out,
               struct err *e);

/* --- added tokens (added.c)
 * -------------------------------------------------------------------------------------------- */
struct added {
    int32_t id;
    int single_word, lstrip, rstrip, special;
};
/* first child, next sibling, index of the token that ends here */
struct trie_node {
    int32_t child, next, added;
    unsigned char byte;
};
struct trie {
    struct trie_node *v;
    size_t n, cap;
    struct added *added;
    size_t n_added, cap_added;
    unsigned char begins[256]; /* some token begins with this byte */
    int has_special;
};
int trie_put(struct trie *t, const char *s, size_t n, const struct added *a, struct err *e);
/* Adds to out->v; its text is the caller's. user: a byte for each of text, or NULL: special tokens are found
 * only where all are 0. */
void trie_split(const struct trie *t, const char *text, const char *user, const struct piece *p,
                struct pieces *out);
void trie_free(struct trie *t);

/* --- all together (tokenizer.c, load.c, marked.c)
 * -------------------------------------------------------------------------------- */
struct tokenizer {
    struct vocab vocab;
    struct bpe bpe;
    struct trie plain, normal; /* added tokens found before and after normalisation */
    struct steps normalizer, splitter, decoder;
    struct ids before, after; /* what the post-processor adds */
    int raw_bytes;            /* tokenizer_bytes */
    int joins_with_space;     /* no decoder: tokens are joined with spaces */
    int32_t bos, eos;
};
/* raw->text to the pieces of out, at added tokens, normalised. user as in trie_split; touched: gets a byte
 * for each piece of out, 1 where some of it came from outside; both NULL: nothing did. */
int split_added(const struct tokenizer *t, struct pieces *raw, const char *user, struct pieces *out,
                struct buf *touched, struct err *e);
int tokenizer_load(struct tokenizer *t, const json_t *root, const char *what, struct err *e);
int tokenizer_load_config(struct tokenizer *t, const json_t *config, const char *what, struct err *e);
/* vocab.raw from vocab.text (detok.c) */
int token_bytes_fill(struct tokenizer *t, struct err *e);
/* NULs in strings allowed, unlike jx_parse */
json_t *text_json(const char *text, size_t n, const char *what, struct err *e);
/* A text member: 1 found, 0 absent or null, negative: another type. */
int text_member(const json_t *o, const char *key, const char **s, size_t *n, const char *what, struct err *e);
int flag_member(const json_t *o, const char *key, int absent, int *out, const char *what, struct err *e);
int text_copy(char **to, size_t *n_to, const char *s, size_t n, struct err *e);

#endif
