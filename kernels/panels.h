/* panels.h - how the elements of weights W [n][k] may lie in memory for the forward product.
 *
 * All kinds give the same bits where they hold the same elements (kernels/NUMERICS.md, Stored weights). A
 * rank whose leaves are a part of the contraction points into the first panel and gives the stride of whole
 * panels. */
#ifndef SHARDLINE_KERNELS_PANELS_H
#define SHARDLINE_KERNELS_PANELS_H

#include <stdint.h>

enum panel_kind {
    /* Panels of 32 outputs, contraction-major: what linear_pack writes for this CPU class (gemm_core.h). */
    PANEL_PLAIN,
    PANEL_ROWS,  /* elements of dt in natural order: a row an output, row-major */
    PANEL_B12,   /* bf16 in 12 bits, lossless */
    PANEL_CODES, /* quantised: struct panel_codes says how */
    PANEL_KINDS
};

/* Neighbouring outputs that lie one behind the other. A run begins with a panel of its own; its last panel
 * may have fewer than 32 outputs, and then its memory is padded to 32. */
struct panel_run {
    const void *p; /* 64-byte aligned; PANEL_ROWS: aligned to an element */
    int64_t n;     /* outputs */
};

/* The codes, scales and groups of quantised panels. */
struct panel_codes;

#endif
