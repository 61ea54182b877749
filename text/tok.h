/* tok.h - private to room text: what the parts of a tokenizer share.
 *
 *   text --split at added tokens--> pieces --normalise--> --split at normalised added tokens-->
 *        --pre-tokenise--> words
 *        --BPE or Unigram--> ids --post-process--> ids          and back: ids -> tokens --decoder steps-->
 * text
 *
 * Growing arrays (buf, pieces, ids) remember a failed allocation in `failed` instead of returning an error
 * each time. The function that returns the result checks the flag (text_memory). */
#ifndef SHARDLINE_TEXT_TOK_H
#define SHARDLINE_TEXT_TOK_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"
#include "base/err.h"
#include "base/work_limit.h"
#include "text/text.h"

#define TEXT_LIMIT ((size_t)1 << 30) /* bytes tokenized at once */
#define TOK_STEPS 32                 /* normalisers, pre-tokenisers or decoders in a row */
/* ids are below this, so that a small file cannot make us allocate much */
#define TOK_ID_LIMIT (1 << 24)

/* --- growing characters, pieces, ids (grow.c; base/buf.h) --- */
void buf_add_cp(struct buf *b, uint32_t cp); /* adds the character as UTF-8 */
/* Bytes that the steps of a tokenizer may make of a text of n bytes: the `max` of their buffers. Without it
 * five Replace of "a" by 64 "a" make a gigabyte of one byte. */
size_t text_growth(size_t n);
/* The error of a failed buf. what: the step that filled it; n: bytes of the text that it read. Returns
 * -ERR_CONFIG: beyond its max; -ERR_MEMORY. */
int text_failed(const struct buf *b, const char *what, size_t n, struct err *e);

/* A part of the text. id >= 0: an added token, which later steps leave alone; -1: text. first: the part
 * starts at the start of the whole text. */
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
    const struct work_limit *limit; /* of all work on them; NULL: none */
};
#define PIECES_A_CHECK 64 /* pieces or words of work between two looks at the limit */
/* Adds a piece, unless it is empty. */
void pieces_add(struct pieces *ps, size_t off, size_t n, int32_t id, int first);
void pieces_free(struct pieces *ps);

struct ids {
    int32_t *v;
    size_t n, cap;
    size_t max; /* bpe_pieces gives up beyond it; 0: never */
    int failed;
};
void ids_add(struct ids *l, int32_t id); /* appends id */
/* Hands the array to the caller, who frees it (malloc'd, also when empty); l is empty afterwards.
 * ERR_MEMORY: also when an earlier ids_add failed. */
int ids_detach(struct ids *l, int32_t **ids, size_t *n, struct err *e);
int text_memory(struct err *e); /* sets ERR_MEMORY */

/* --- characters (unicode.c) --- */
/* Bytes of the first extended grapheme cluster (Unicode annex 29) of n >= 1 bytes of valid text. */
size_t uni_cluster(const char *s, size_t n);
/* Reads the first character of n >= 1 bytes. Returns > 0: its bytes; 0: the n bytes are an incomplete
 * character; < 0: minus the bytes of the maximal invalid part. */
int utf8_next(const char *s, size_t n, uint32_t *cp);
/* Reads the last character of valid text, n >= 1. Returns its bytes. */
int utf8_prev(const char *s, size_t n, uint32_t *cp);
/* Adds the text to out with U+FFFD for invalid parts. Returns the bytes used: all if last, else without an
 * incomplete character at the end. */
size_t utf8_repair(const char *s, size_t n, int last, struct buf *out);
/* Properties of characters by the categories of Unicode 16; uni_lower by utf8proc's tables. */
int uni_is_space(uint32_t cp);   /* White_Space */
int uni_is_word(uint32_t cp);    /* \w of UTS 18 */
int uni_is_numeric(uint32_t cp); /* Nd, Nl, No */
int uni_is_punct(uint32_t cp);   /* P*, and the symbols of ASCII */
int uni_is_mark(uint32_t cp);    /* Mn, Mc, Me */
uint32_t uni_lower(uint32_t cp);
/* For a character newer than the libraries' tables: an older one of the same category and UTF-8 length; else
 * cp. */
uint32_t uni_stand_in(uint32_t cp);
#define UNI_COMPOSE 1
#define UNI_COMPAT 2
/* Adds a normal form of valid UTF-8 to out. form: 0 NFD, UNI_COMPOSE NFC, UNI_COMPAT NFKD, both NFKC. */
void uni_normalize(const char *s, size_t n, int form, struct buf *out);
/* The character that stands for a byte in byte-level tokenizers: visible, below U+0144. */
uint32_t byte_char(unsigned char b);
int char_byte(uint32_t cp); /* the byte of such a character; -1: it stands for none */

/* --- patterns (pattern.c) --- */
struct pattern {
    char *literal; /* a string, n bytes, or NULL: a regex */
    size_t n;
    void *code; /* the compiled regex (PCRE2) */
};
/* From {"String": …} or {"Regex": …}; and from the text of a regex. ERR_CONFIG: neither, or a regex that is
 * not supported. pattern_free frees p's memory, not p. */
int pattern_load(struct pattern *p, const json_t *node, const char *what, struct err *e);
int pattern_regex(struct pattern *p, const char *regex, size_t n, const char *what, struct err *e);
void pattern_free(struct pattern *p);
/* Finds the matches of a pattern, in one text after another. Belongs to one thread. */
struct finder {
    const struct pattern *pat;
    const char *s;
    size_t n, at, last_end;
    void *data, *context, *stack;
    struct buf stand; /* the text with stand-ins for characters that PCRE2 does not know */
};
/* Open once, set a text (borrowed), call finder_next until it returns 0, set the next text. finder_next
 * returns 1: bytes [*start, *end) match; 0: no more matches. */
int finder_open(struct finder *m, const struct pattern *p, struct err *e);
void finder_text(struct finder *m, const char *s, size_t n);
int finder_next(struct finder *m, size_t *start, size_t *end, struct err *e);
void finder_close(struct finder *m);

/* --- normalisers (normalize.c), pre-tokenisers (split.c), decoders (detok.c): one row a type --- */
struct step {
    const struct step_kind *kind;
    struct pattern pat;
    char *content; /* Replace, Prepend, Metaspace: the text to insert */
    size_t n_content;
    int form, left, right, behavior, invert, prefix, split, count;
    uint32_t cp;
};
struct step_kind {
    const char *type;
    int (*load)(struct step *s, const json_t *node, const char *what, struct err *e);
    /* normalisers: adds the result to out */
    int (*run)(const struct step *s, const char *text, size_t n, struct buf *out, struct err *e);
    /* pre-tokenisers: replaces the pieces by smaller ones */
    int (*split)(const struct step *s, struct pieces *ps, struct err *e);
    int (*is)(uint32_t cp); /* pre-tokenisers that split at characters of a class */
    int code;               /* decoders: enum decoder */
};
struct steps {
    struct step v[TOK_STEPS];
    int n;
};
/* Loads a section of tokenizer.json: null, one step, or a Sequence, which is flattened. list: the key of a
 * Sequence's list. */
int steps_load(struct steps *s, const json_t *node, const struct step_kind *kinds, const char *list,
               const char *what, struct err *e);
void steps_free(struct steps *s);
extern const struct step_kind normalizer_kinds[], split_kinds[], decoder_kinds[];

/* Run all steps of the section; normalize adds the result to out. */
int normalize(const struct steps *s, const char *text, size_t n, struct buf *out, struct err *e);
int split_run(const struct steps *s, struct pieces *ps, struct err *e);

/* --- the vocabulary (vocab.c) --- */
enum { TOKEN_MODEL = 1, TOKEN_ADDED = 2, TOKEN_SPECIAL = 4, TOKEN_REWRITTEN = 8 };
struct token {
    size_t off, n; /* its text as the file has it */
    /* the text that decoding starts from; differs for added tokens that the normaliser changes */
    size_t decoded_off, decoded_n;
    size_t raw_off, raw_n; /* the bytes it stands for */
    int flags;             /* 0: the id does not exist; TOKEN_REWRITTEN: the decoded text differs */
};
struct vocab {
    struct token *v;
    int32_t n; /* highest id + 1 */
    size_t cap;
    struct buf text, raw; /* texts and bytes of all tokens, a NUL behind each */
    int32_t *slot;        /* hash table of ids; -1: empty */
    size_t n_slots, n_used;
};
/* Adds a token, or flags to the token that has this text and id. ERR_CONFIG: a text with two ids, an id with
 * two texts, or an id out of range. */
int vocab_put(struct vocab *v, const char *s, size_t n, int64_t id, int flags, const char *what,
              struct err *e);
/* Sets the text that decoding of token id starts from. */
int vocab_set_decoded(struct vocab *v, int32_t id, const char *s, size_t n, struct err *e);
int32_t vocab_find(const struct vocab *v, const char *s, size_t n); /* any token; -1: none */
void vocab_free(struct vocab *v);                                   /* not v itself */

/* --- byte pair encoding (bpe.c) --- */
/* characters whose ids are in an array; covers the byte-level map */
#define BPE_CHARS 2048
struct merge {
    uint64_t pair;
    int32_t rank, id;
};
struct bpe {
    struct merge *slot; /* hash table by pair of ids */
    size_t n_slots;
    /* a bit for the hash of characters x, y: some merge joins a token that ends in x and one that starts
     * with y */
    uint64_t *joints;
    int32_t char_id[BPE_CHARS], byte_id[256], unk;
    int byte_fallback, fuse_unk, ignore_merges;
};
/* Loads the model and its vocabulary. ERR_CONFIG: not BPE, or an option that is not supported. */
int bpe_load(struct bpe *b, struct vocab *v, const json_t *model, const char *what, struct err *e);
void bpe_free(struct bpe *b); /* not b itself */
/* Appends the ids of all pieces to out. ERR_CONFIG: more than out->max. ERR_STOPPED: ps->limit is reached. */
int bpe_pieces(const struct bpe *b, const struct vocab *v, const struct pieces *ps, struct ids *out,
               struct err *e);

/* --- unigram (unigram.c) --- */
struct prefix_node {
    int32_t child; /* its first child; the others follow, in the order of their bytes */
    int32_t id;    /* of the token that ends here; -1: none */
    uint16_t n_children;
    unsigned char byte;
};
struct unigram {
    struct prefix_node *node; /* node 0 is the empty text; NULL: the model is another one */
    size_t n_nodes;
    double *score; /* [n] by id */
    int32_t n, unk;
    double unk_score;
    int byte_fallback;
    int32_t byte_id[256];
};
/* Loads the model and its vocabulary. ERR_CONFIG. unigram_free frees u's memory, not u. */
int unigram_load(struct unigram *u, struct vocab *v, const json_t *model, const char *what, struct err *e);
void unigram_free(struct unigram *u);
/* As bpe_pieces. ERR_CONFIG also for a character without a token in a vocabulary without unk_id. */
int unigram_pieces(const struct unigram *u, const struct vocab *v, const struct pieces *ps, struct ids *out,
                   struct err *e);

/* --- SentencePiece's table of replacements, a normaliser (precompiled.c) --- */
int precompiled_load(struct step *s, const json_t *node, const char *what, struct err *e);
int precompiled_run(const struct step *s, const char *text, size_t n, struct buf *out, struct err *e);

/* --- added tokens (added.c) --- */
struct added {
    int32_t id;
    int single_word, lstrip, rstrip, special;
};
struct trie_node {
    int32_t child, next; /* first child, next sibling */
    int32_t added;       /* index of the token that ends here, or -1 */
    unsigned char byte;
};
struct trie {
    struct trie_node *v;
    size_t n, cap;
    struct added *added;
    size_t n_added, cap_added;
    unsigned char begins[256]; /* some token starts with this byte */
    int has_special;
};
/* Adds a token with text s; of two tokens with one text the first is found. */
int trie_put(struct trie *t, const char *s, size_t n, const struct added *a, struct err *e);
/* Adds the parts of piece p to out->v, not to out->text. user: one byte for each byte of text, or NULL: a
 * special token is found only where all its bytes are 0. */
void trie_split(const struct trie *t, const char *text, const char *user, const struct piece *p,
                struct pieces *out);
void trie_free(struct trie *t);

/* --- the tokenizer (tokenizer.c, tokenizer_load.c, marked.c) --- */
struct tokenizer {
    struct vocab vocab;
    struct bpe bpe; /* one of the two models */
    struct unigram unigram;
    struct trie plain, normal; /* added tokens found before and after normalisation */
    struct steps normalizer, splitter, decoder;
    struct ids before, after; /* ids that the post-processor adds */
    int raw_bytes;            /* tokenizer_bytes */
    int joins_with_space;     /* no decoder: tokens are joined with spaces */
    int32_t bos, eos;
};
/* Splits raw->text at added tokens into the pieces of out and normalises them. user: as in trie_split.
 * touched: receives one byte for each piece of out, 1 if any of it is untrusted. Both NULL: all is
 * trusted. */
int split_added(const struct tokenizer *t, struct pieces *raw, const char *user, struct pieces *out,
                struct buf *touched, struct err *e);
/* The model: appends the ids of all pieces to out. Errors as bpe_pieces and unigram_pieces. */
int model_pieces(const struct tokenizer *t, const struct pieces *ps, struct ids *out, struct err *e);
/* Fill t from the JSON of tokenizer.json and of tokenizer_config.json. */
int tokenizer_load(struct tokenizer *t, const json_t *root, const char *what, struct err *e);
int tokenizer_load_config(struct tokenizer *t, const json_t *config, const char *what, struct err *e);
/* Fills vocab.raw, the bytes of every token, from vocab.text (detok.c). */
int token_bytes_fill(struct tokenizer *t, struct err *e);
/* Parses JSON; unlike jx_parse it allows NUL in strings. NULL: *e is set. The caller owns the result. */
json_t *text_json(const char *text, size_t n, const char *what, struct err *e);
/* A string member of o: 1: found, borrowed from o; 0: absent or null; ERR_CONFIG: of another type. */
int text_member(const json_t *o, const char *key, const char **s, size_t *n, const char *what, struct err *e);
/* A boolean member of o, `absent` if it is absent or null. */
int flag_member(const json_t *o, const char *key, int absent, int *out, const char *what, struct err *e);
/* Copies n bytes and adds a NUL; malloc'd, the caller frees *to. */
int text_copy(char **to, size_t *n_to, const char *s, size_t n, struct err *e);

#endif
