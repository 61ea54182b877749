/* ranks: 1 2 3 4 8 */
/* comm_mpi_test.c - every collective over messages. */
#define TRANSPORT "mpi"
#include "tests/ranks/comm_cases.h"
