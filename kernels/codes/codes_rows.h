/* codes_rows.h - a text repeated for every row of a tile: gcc 12 keeps arrays of vectors in memory, so that
 * accumulators are single named variables. */
#ifndef SHARDLINE_KERNELS_CODES_CODES_ROWS_H
#define SHARDLINE_KERNELS_CODES_CODES_ROWS_H

#define ROWS_1(X) X(0)
#define ROWS_2(X) ROWS_1(X) X(1)
#define ROWS_3(X) ROWS_2(X) X(2)
#define ROWS_4(X) ROWS_3(X) X(3)
#define ROWS_5(X) ROWS_4(X) X(4)
#define ROWS_6(X) ROWS_5(X) X(5)
#define ROWS_7(X) ROWS_6(X) X(6)
#define ROWS_8(X) ROWS_7(X) X(7)
#define ROWS_9(X) ROWS_8(X) X(8)
#define ROWS_10(X) ROWS_9(X) X(9)
#define ROWS_11(X) ROWS_10(X) X(10)
#define ROWS_12(X) ROWS_11(X) X(11)
#define ROWS_13(X) ROWS_12(X) X(12)
#define ROWS_14(X) ROWS_13(X) X(13)
#define HEIGHTS_4(X) X(1) X(2) X(3) X(4)
#define HEIGHTS_6(X) HEIGHTS_4(X) X(5) X(6)
#define HEIGHTS_8(X) HEIGHTS_6(X) X(7) X(8)
#define HEIGHTS_12(X) HEIGHTS_8(X) X(9) X(10) X(11) X(12)
#define HEIGHTS_14(X) HEIGHTS_12(X) X(13) X(14)

#endif
