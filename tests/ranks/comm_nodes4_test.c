/* ranks: 6 8 */
/* comm_nodes4_test.c - comm_nodes_test.c with four ranks a machine; 6 ranks: the second machine has two. */
#include <stdlib.h>
__attribute__((constructor)) static void cut(void) { setenv("SHARDLINE_RANKS_PER_NODE", "4", 1); }
#define TRANSPORT "mpi"
#define OPEN_AS "auto"
#include "tests/ranks/comm_cases.h"
