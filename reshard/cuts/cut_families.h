/* cut_families.h - private to reshard/: templates of cut tables, for model types that model/ does not
 * compute.
 *
 * A template is the text of a cut table (cuts.h) whose numbers are expressions of config.json, and whose rows
 * need no tensor. Beside the words of cut tables it has:
 *
 *     @             in front of a pattern: the prefix of the language model, as "model." or
 *                   "language_model.model."
 *     ~             in front of a pattern: a layer, "@layers.{layer}."
 *     layer P [W]   from here on ~ stands for P, and rows end with the words W
 *     NAME.+        two rows: NAME.weight and NAME.bias
 *     $A,B          numbers: expressions of whole numbers, keys of config.json, + - * / and parentheses
 *     size $A,B     shape $A,B of all tensors of the pattern; left out where config.json lacks one of them
 *     %KEY=WORD/N   the layers whose entry in the list KEY is WORD, as 3,7-9; without the list every Nth one.
 *                   %KEY!WORD/N: the other layers
 *     ?A            the row stands only where the expression is not 0
 *
 * A row is left out where it fits no tensor, or one that an earlier row fits. */
#ifndef SHARDLINE_RESHARD_CUT_FAMILIES_H
#define SHARDLINE_RESHARD_CUT_FAMILIES_H

#define CUT_FAMILY_PARTS 14

struct cut_family {
    const char *types; /* model_type, several with spaces between them */
    /* "KEY=EXPRESSION ...": values of keys that config.json lacks, and names for expressions. May be NULL. */
    const char *sizes;
    const char *part[CUT_FAMILY_PARTS]; /* the template, piece by piece */
};
/* NULL: no template has this model_type. */
const struct cut_family *cut_family_find(const char *model_type);
/* Sizes of all families, behind their own: as struct cut_family's. */
extern const char cut_family_sizes[];
/* Rows of all families, behind their own. */
extern const char cut_family_rows[];
/* Template number i, for tests; NULL: there are fewer. */
const struct cut_family *cut_family_at(int i);

#endif
