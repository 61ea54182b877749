/* ranks: 1 2 3 4 8 */
/* comm_shm_test.c - every collective over shared memory. */
#define TRANSPORT "shm"
#include "tests/ranks/comm_cases.h"
