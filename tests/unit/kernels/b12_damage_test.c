/* b12_damage_test.c - weights in 12 bits whose escapes are not those of any writer (a bit of a mapped file
 * flips while it is in use): products read nothing behind the panels, write nothing but their result, and
 * end. */
#include <sys/mman.h>

#include "tests/unit/kernels/rows_rig.h"

enum { N = 40, K = 300, PAGE = 4096 };

/* Memory that ends where no process may read. */
struct guarded {
    char *map, *at;
    size_t bytes, all;
};
static struct guarded guarded_new(size_t bytes)
{
    struct guarded g = { .bytes = bytes, .all = (bytes + 2 * PAGE - 1) / PAGE * PAGE + PAGE };
    g.map = mmap(NULL, g.all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(g.map != MAP_FAILED);
    mprotect(g.map + g.all - PAGE, PAGE, PROT_NONE);
    g.at = g.map + g.all - PAGE - (bytes + 63) / 64 * 64;
    return g;
}

/* Makes a piece of `bytes` bytes wrong, in one of several ways. */
static void spoil(int way, uint32_t *word, size_t n, uint64_t seed)
{
    for (size_t i = 4; i < n; i++) /* behind the table */
        switch (way) {
        case 0: word[i] = 0; break;                                                /* no list ends */
        case 1: word[i] = (uint32_t)(K * 32 - 1 - i) << 8; break;                  /* falls */
        case 2: word[i] = i % 2 ? 0 : (uint32_t)(K * 32 - 1) << 8; break;          /* up and down */
        case 3: word[i] = (uint32_t)mix(seed + i); break;                          /* anything */
        case 4: word[i] = (uint32_t)(mix(seed + i) % (K * 32)) << 8 | 0x7f; break; /* any place */
        default: word[i] = UINT32_MAX - 1; break;                                  /* behind the leaf */
        }
}

static void product(struct dev *d, const struct panels *p, int rows)
{
    enum { ROOM = 64 };
    struct mat x = new_mat(DT_BF16, rows, K, 4), y = new_mat(DT_F32, rows + 2 * ROOM, N, 0);
    for (int64_t i = 0; i < y.rows * y.ld; i++)
        ((float *)y.p)[i] = 7;
    struct mat part = y;
    part.p = (float *)y.p + ROOM * y.ld;
    part.rows = rows;
    KERNEL(d, linear, part, x, p);
    for (int64_t i = 0; i < ROOM * y.ld; i++) {
        CHECK(((float *)y.p)[i] == 7);
        CHECK(((float *)y.p)[(ROOM + rows) * y.ld + i] == 7);
    }
    FREE(x, y);
}

TEST(escapes_that_no_writer_writes_are_read_within_their_panel)
{
    static const int rows[] = { 1, 2, 4, 5, 9, 40 };
    const struct leaves l = { 3, { 100, 299, K } };
    struct rig *r = rig_open();
    EACH_DEV(r, d)
    for (int way = 0; way < 6 && strcmp(d->isa, "simt") != 0; way++) {
        struct panels p = { NULL, N, K, DT_BF16, l, PANEL_B12 };
        struct mat w = new_mat(DT_BF16, N, K, 3);
        struct guarded g = guarded_new(panels_size(&p));
        p.p = g.at;
        KERNEL(d, linear_pack, &p, 1, &w);
        spoil(way, (uint32_t *)p.p, g.bytes / 4, 11);
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
            product(d, &p, rows[i]);
        munmap(g.map, g.all);
        free(w.p);
    }
    rig_close(r);
}
