/* cluster_fuzz.c - any bytes as a cluster's file (train/simulate/cluster.h): what is accepted is written,
 * read again, and a step is simulated on it,
 * whose seconds are a number. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tests/fuzz/fuzz.h"
#include "train/simulate/sim_clock.h"

/* A step of a small model on four ranks: two stages of two. */
static void simulate(const struct cluster *c)
{
    struct model_config m;
    struct err e;
    struct clock_result r;
    struct sim_run run = { .cfg = &m,
                           .tp = 2,
                           .pp = 2,
                           .vpp = 1,
                           .cp = 1,
                           .dp = 1,
                           .ep = 1,
                           .rows = 4,
                           .micro = 1,
                           .seq_len = 64,
                           .schedule = PIPE_1F1B,
                           .dtype = SIM_BF16,
                           .engine = c->engine };
    if (model_config_preset(&m, "tiny", &e) >= 0 && clock_step(&r, &run, c, NULL, &e) >= 0 &&
        !isfinite(r.step_s))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct cluster *c = malloc(2 * sizeof *c);
    struct err e;
    char *text = malloc(n + 1), *again = NULL;
    size_t size;
    if (n)
        memcpy(text, data, n);
    text[n] = 0;
    if (c && cluster_parse(c, text, "cluster.toml", &e) >= 0) {
        FILE *out = open_memstream(&again, &size);
        cluster_write(c, out);
        fclose(out);
        if (cluster_parse(c + 1, again, "cluster.toml", &e) < 0)
            abort();
        simulate(c);
    }
    free(again);
    free(text);
    free(c);
    return 0;
}
