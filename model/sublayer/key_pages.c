/* key_pages.c - where the pages of keys and values lie of a training sequence that ranks of cp divide.
 *
 *     documents   [  0  |      1      |  2  ]     blocks of 64 positions count from a document's beginning
 *     ranks       [ 0 |  1  |  1  |  0  ]
 *     pages       [ rank 0's | rank 1's | joined ]
 *
 * A rank stores its positions in pages of its own, one for every block that it has positions of. A block of
 * two ranks has two pages; when all have come together, a third one joins their positions. */
#include <stdlib.h>
#include "model/units.h"

/* The most pages of a rank. Every run of a document in a chunk takes one more than its positions fill, at
 * most; whole sequences fill their pages. */
static int64_t most_of_rank(const struct train_work *w)
{
    int64_t runs = w->documents + 2 * w->r.leaves - 1;
    return w->seq_len / w->m->local.layout.cp / ATTN_PAGE + (w->documents > 1 ? runs : 0);
}

/* Chunks but the last may end inside of a block. */
static int64_t most_joined(const struct train_work *w)
{
    return w->documents > 1 ? 2 * w->r.leaves * w->m->local.layout.cp - 1 : 0;
}

int64_t page_map_pages(const struct train_work *w)
{
    return w->m->local.layout.cp * most_of_rank(w) + most_joined(w);
}

int page_map_open(struct page_map *map, const struct train_work *w, int64_t n)
{
    map->read = calloc((size_t)n, sizeof *map->read);
    map->own = calloc((size_t)n, sizeof *map->own);
    map->joined = calloc((size_t)most_joined(w) + 1, sizeof *map->joined);
    map->count = calloc((size_t)w->m->local.layout.cp, sizeof *map->count);
    return map->read && map->own && map->joined && map->count;
}

void page_map_close(struct page_map *map)
{
    free(map->read);
    free(map->own);
    free(map->joined);
    free(map->count);
}

int page_rank(const struct train_work *w, int64_t token)
{
    int64_t leaves = w->r.leaves * w->m->local.layout.cp, chunk = token / (w->seq_len / (2 * leaves));
    return (int)((chunk < leaves ? chunk : 2 * leaves - 1 - chunk) / w->r.leaves);
}

/* Place of a block of tokens [begin, end), page k of the lists. */
static void place_block(const struct train_work *w, struct page_map *map, int64_t k, int64_t begin,
                        int64_t end)
{
    int first = page_rank(w, begin), second = page_rank(w, end - 1), me = w->m->local.at.cp;
    int64_t at = first * map->each + map->count[first]++;

    map->read[k] = map->own[k] = at;
    if (first == second)
        return;
    struct joined_page *j = &map->joined[map->n_joined];
    *j = (struct joined_page){ w->m->local.layout.cp * map->each + map->n_joined, at,
                               second * map->each + map->count[second]++, 0 };
    while (page_rank(w, begin + j->n_first) == first)
        j->n_first++;
    map->read[k] = j->to;
    map->own[k] = me == second ? j->second : j->first;
    map->n_joined++;
}

/* Counts, then places from 0 on in each rank's pages. */
static void place_documents(const struct train_work *w, struct page_map *map, int n, const int64_t *begin)
{
    int64_t k = 0;
    map->n_joined = 0;
    for (int r = 0; r < w->m->local.layout.cp; r++)
        map->count[r] = 0;
    for (int i = 0; i < n; i++) {
        int64_t from = i ? begin[i] : 0, to = i + 1 < n ? begin[i + 1] : w->seq_len;
        for (int64_t t = from; t < to; t += ATTN_PAGE, k++)
            place_block(w, map, k, t, t + ATTN_PAGE < to ? t + ATTN_PAGE : to);
    }
}

void page_map_make(struct page_map *map, const struct train_work *w, int n, const int64_t *begin)
{
    map->each = 0;
    place_documents(w, map, n, begin);
    for (int r = 0; r < w->m->local.layout.cp; r++)
        map->each = map->count[r] > map->each ? map->count[r] : map->each;
    place_documents(w, map, n, begin);
}
