/* rows_portable.c - the row ops in portable C. */
#define ROWS_TABLE rows_portable
#include "kernels/rows/rows.inc"
