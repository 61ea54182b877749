/* memory_place.c - see memory_place.h. */
#define _GNU_SOURCE
#include "comm/memory_place.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/log.h"

static void look(struct memory_place *p, struct dev *dev, const int64_t bytes[MEM_CATS])
{
    *p = (struct memory_place){ .n_ranks = 1 };
    memcpy(p->bytes, bytes, sizeof p->bytes);
    if (dev && dev->memory) {
        p->is_gpu = 1;
        p->memory = (struct machine_memory){ .free_bytes = (int64_t)dev->memory->free_bytes(dev),
                                             .limit_bytes = -1 };
        snprintf(p->name, sizeof p->name, "GPU %s", dev->memory->identity(dev));
    } else {
        machine_memory(&p->memory);
        p->bytes[MEM_OTHER] += RANK_OVERHEAD_BYTES;
        gethostname(p->name, sizeof p->name - 1);
    }
    for (int c = 0; c < MEM_CATS; c++)
        p->total_bytes += p->bytes[c];
}

/* Adds a rank's view of a place to what is known of the place. */
static void merge(struct memory_place *p, const struct memory_place *rank)
{
    if (rank->memory.free_bytes < p->memory.free_bytes)
        p->memory = rank->memory;
    for (int c = 0; c < MEM_CATS; c++)
        p->bytes[c] += rank->bytes[c];
    p->total_bytes += rank->total_bytes;
    p->n_ranks++;
}

static int compare(const void *pa, const void *pb)
{
    const struct memory_place *a = pa, *b = pb;
    int64_t left_a = a->memory.free_bytes - a->total_bytes, left_b = b->memory.free_bytes - b->total_bytes;
    return left_a != left_b ? (left_a > left_b) - (left_a < left_b) : strcmp(a->name, b->name);
}

int memory_places(struct comm *all, struct dev *dev, const int64_t bytes[MEM_CATS], struct memory_place **out,
                  int *n, struct err *e)
{
    const int n_ranks = all ? comm_size(all) : 1;
    struct memory_place mine, *p = calloc((size_t)n_ranks, sizeof *p);
    int rc = p ? 0 : err_set(e, ERR_MEMORY, "no memory for the needs of %d ranks", n_ranks);
    look(&mine, dev, bytes);
    TRY(all ? comm_agree(all, rc, e) : rc);
    if (all)
        TRY(comm_all_gather(all, p, &mine, sizeof mine, e));
    else
        p[0] = mine;

    *n = 0;
    for (int r = 0; r < n_ranks; r++) {
        int k = 0;
        while (k < *n && strcmp(p[k].name, p[r].name))
            k++;
        if (k == *n)
            p[(*n)++] = p[r];
        else
            merge(&p[k], &p[r]);
    }
    qsort(p, (size_t)*n, sizeof *p, compare);
    *out = p;
    p = NULL;
out:
    free(p);
    return rc < 0 ? rc : 0;
}

int memory_place_is_full(const struct memory_place *p) { return p->total_bytes > p->memory.free_bytes; }

/* The categories of the place that need most, the largest first. */
static void list_largest(const struct memory_place *p, char *out, size_t size)
{
    int shown[MEM_CATS] = { 0 };
    out[0] = 0;
    for (int k = 0; k < 3; k++) {
        char text[32];
        int most = -1;
        for (int c = 0; c < MEM_CATS; c++)
            if (!shown[c] && p->bytes[c] > 0 && (most < 0 || p->bytes[c] > p->bytes[most]))
                most = c;
        if (most < 0)
            return;
        shown[most] = 1;
        log_bytes(text, (double)p->bytes[most]);
        size_t used = strlen(out);
        snprintf(out + used, size - used, "%s%s %s", k ? ", " : "", mem_cat_name((enum mem_cat)most), text);
    }
}

void memory_place_text(const struct memory_place *p, char out[MEMORY_PLACE_TEXT])
{
    char need[32], have[MACHINE_TEXT], left[32], largest[160];
    log_bytes(need, (double)p->total_bytes);
    log_bytes(left, (double)p->memory.free_bytes);
    list_largest(p, largest, sizeof largest);
    if (p->is_gpu)
        snprintf(have, sizeof have, "%s are free on a GPU", left);
    else
        machine_memory_text(&p->memory, have);
    snprintf(out, MEMORY_PLACE_TEXT, "%s are needed and %s (%d rank%s; %s)", need, have, p->n_ranks,
             p->n_ranks > 1 ? "s" : "", largest);
}
