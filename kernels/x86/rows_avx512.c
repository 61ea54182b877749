/* rows_avx512.c - the row ops for AVX-512: the same text, the compiler's vectors of 16. */
#define ROWS_TABLE rows_avx512
#include "kernels/rows/rows.inc"
