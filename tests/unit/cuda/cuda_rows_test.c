/* cuda_rows_test.c - row_cases.h with every provider of products on a GPU. Skips without one; the cases
 * run on the fake device, too. */
enum { ROWS = 300, COLS = 136, INNER = 264 };
#include "tests/devices/fake/fake_path.h"
#include "tests/unit/kernels/row_cases.h"

TEST(simt_products_have_the_same_bits_for_every_number_of_rows) { rows_on(NULL, "simt"); }
TEST(own_products_have_the_same_bits_for_every_number_of_rows) { rows_on(NULL, "own"); }
TEST(cublaslt_products_have_the_same_bits_for_every_number_of_rows) { rows_on(NULL, "lt"); }
TEST(these_cases_hold_on_the_fake_device) { rows_on(fake_device(), "simt"); }
