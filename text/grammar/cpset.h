/* cpset.h - private to room text: sets of code points, as ranges. Surrogates are members like others; no text
 * has them. */
#ifndef SHARDLINE_TEXT_GRAMMAR_CPSET_H
#define SHARDLINE_TEXT_GRAMMAR_CPSET_H

#include <stddef.h>
#include <stdint.h>

#define CP_MAX 0x10FFFF
struct cprange {
    uint32_t lo, hi;
};
/* Zero it to start. In order, with gaps between ranges, after cpset_normalise. */
struct cpset {
    struct cprange *v;
    size_t n, cap;
    int failed;
};
/* Adds the code points lo to hi. */
void cpset_add(struct cpset *s, uint32_t lo, uint32_t hi);
/* Adds every member of b. */
void cpset_join(struct cpset *s, const struct cpset *b);
/* Sorts and joins the ranges. */
void cpset_normalise(struct cpset *s);
/* Replaces a normalised set by what it lacks. */
void cpset_invert(struct cpset *s);
/* Is cp a member of a normalised set? */
int cpset_has(const struct cpset *s, uint32_t cp);
/* Frees what s holds, not s. */
void cpset_free(struct cpset *s);

/* Sets by name. ECMA 262 and Python's re disagree on characters beyond ASCII: NARROW is what both have, WIDE
 * what one of them has. A negated class takes away the wide set, so that both agree with every text. */
enum cp_class { CP_DIGIT, CP_WORD, CP_SPACE };
/* Adds a class to s. */
void cpset_class(struct cpset *s, enum cp_class which, int wide);
/* Adds a general category ("L", "Lu", "Letter"); 0: added, -1: unknown. */
int cpset_category(struct cpset *s, const char *name, size_t n);

#endif
