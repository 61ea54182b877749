/* rows_avx2.c - the row ops for AVX2 with FMA: the same text, the compiler's vectors of 8. */
#define ROWS_TABLE rows_avx2
#include "kernels/rows/rows.inc"
