/* train_offload_test.c - the store of --offload DIR by itself: many pieces a vector, two generations,
 * updates that are begun ahead and undone, bytes that changed on the disk. */
#include "tests/test.h"

#include <dirent.h>
#include <unistd.h>
#include "base/io.h"
#include "train/offload/offload.h"

enum { PIECE = 4096, VECTORS = 8 };

/* What the store calls: an update adds 1 to masters, 2 and 3 to the moments, and notes the weights. */
struct fake {
    float *weight[VECTORS]; /* what training would compute with: the masters of the last update */
    int n_updates[VECTORS];
    int n_restored;
};

static int run(void *ctx, const struct state_piece *p, struct err *e)
{
    struct fake *f = ctx;
    (void)e;
    f->n_updates[p->v]++;
    for (int64_t i = 0; i < p->n; i++) {
        p->state[ZERO_MASTER][i] += 1;
        p->state[ZERO_EXP_AVG][i] += 2;
        p->state[ZERO_EXP_AVG_SQ][i] += 3;
        f->weight[p->v][p->at + i] = p->state[ZERO_MASTER][i];
    }
    return 0;
}

static int restore(void *ctx, const struct state_piece *p, struct err *e)
{
    struct fake *f = ctx;
    (void)e;
    f->n_restored++;
    memcpy(f->weight[p->v] + p->at, p->state[ZERO_MASTER], (size_t)p->n * sizeof(float));
    return 0;
}

struct place {
    struct mem mem;
    struct dev *dev;
    struct world *world;
    struct mesh mesh;
    struct model m;
    struct offload *o;
    struct state_store *s;
    struct fake fake;
    char dir[400];
};

static void open_place(struct place *p, const char *name)
{
    static const int one[AXIS_COUNT] = { 1, 1, 1, 1 };
    static const struct layout lay = { 1, 1, 1, 1, 1, 0, 1 };
    struct model_config c;
    struct err e = { 0 };
    memset(p, 0, sizeof *p);
    snprintf(p->dir, sizeof p->dir, "%s/%s", test_tmp_dir(), name);
    CHECK_INT(dev_open(&p->dev, "cpu", 1, &p->mem, &e), 0);
    CHECK_INT(world_open(&p->world, "self", 0, p->dev, &p->mem, &e), 0);
    CHECK_INT(mesh_open(&p->mesh, p->world, one, &e), 0);
    CHECK_INT(model_config_preset(&c, "tiny", &e), 0);
    c.n_layers = 2;
    CHECK_INT(model_shape(&p->m, &c, &lay, (struct rank_at){ 0 }, DT_BF16, 0, &e), 0);
    p->m.dev = p->dev;
    struct offload_spec spec = { .what = { .kind = OFFLOAD_FILES, .piece_elements = PIECE },
                                 .dir = p->dir,
                                 .out = test_tmp_dir(),
                                 .all = p->mesh.all };
    CHECK_INT(offload_open(&p->o, &p->m, 0, &spec, &e), 0);
    p->s = offload_store(p->o);
    p->s->update = (struct state_update){ run, restore, &p->fake };
    for (int v = 0; v < p->m.local.n_trained; v++)
        p->fake.weight[v] = calloc((size_t)zero_own(&p->m, 0, v), sizeof(float));
}

static void close_place(struct place *p)
{
    offload_close(p->o);
    for (int v = 0; v < p->m.local.n_trained; v++)
        free(p->fake.weight[v]);
    p->m.dev = NULL; /* it was only shaped */
    model_close(&p->m);
    mesh_close(&p->mesh);
    world_close(p->world);
    dev_close(p->dev);
}

/* Values that no other place has, small enough that adding to them is exact. */
static float value(int v, enum zero_state k, int64_t i)
{
    return (float)((i * 3 + v * 7 + (int)k * 11) % 100003);
}

static void write_all(struct place *p)
{
    struct err e;
    for (int v = 0; v < p->m.local.n_trained; v++)
        for (enum zero_state k = ZERO_MASTER; k < ZERO_STATES; k++) {
            int64_t n = zero_own(&p->m, 0, v), step = 700; /* runs end inside pieces */
            for (int64_t at = 0; at < n; at += step) {
                float x[700];
                int64_t some = n - at < step ? n - at : step;
                for (int64_t i = 0; i < some; i++)
                    x[i] = value(v, k, at + i);
                CHECK_INT(p->s->ops->write(p->s, v, k, at, some, x, &e), 0);
            }
        }
}

/* All states are those of write_all after n updates; returns how many elements are not. */
static int64_t differing(struct place *p, int n_updates)
{
    int64_t wrong = 0;
    struct err e;
    for (int v = 0; v < p->m.local.n_trained; v++)
        for (enum zero_state k = ZERO_MASTER; k < ZERO_STATES; k++) {
            int64_t n = zero_own(&p->m, 0, v), step = 3000;
            for (int64_t at = 0; at < n; at += step) {
                float x[3000];
                int64_t some = n - at < step ? n - at : step;
                CHECK_INT(p->s->ops->read(p->s, v, k, at, some, x, &e), 0);
                for (int64_t i = 0; i < some; i++)
                    wrong += x[i] != value(v, k, at + i) + (float)(n_updates * (int)k);
            }
        }
    return wrong;
}

static void update(struct place *p)
{
    struct err e;
    CHECK_INT(p->s->ops->begin(p->s, &e), 0);
    for (int v = 0; v < p->m.local.n_trained; v++) {
        CHECK_INT(p->s->ops->wait(p->s, v, &e), 0);
        CHECK(p->fake.weight[v][0] != value(v, ZERO_MASTER, 0));
    }
}

TEST(updates_walk_over_every_piece_once)
{
    struct place p;
    open_place(&p, "walk");
    write_all(&p);
    CHECK_INT(differing(&p, 0), 0);
    for (int n = 1; n <= 5; n++) {
        update(&p);
        if (n != 2)
            CHECK_INT(differing(&p, n), 0);
        for (int v = 0; v < p.m.local.n_trained; v++)
            CHECK_INT(p.fake.n_updates[v], n * ((zero_own(&p.m, 0, v) + PIECE - 1) / PIECE));
    }
    struct offload_count c = offload_count(p.o);
    CHECK_INT(c.updates, 5);
    int64_t bytes = 0; /* pieces end at 4 KiB */
    for (int v = 0; v < p.m.local.n_trained; v++)
        bytes += 12 * ((zero_own(&p.m, 0, v) + 1023) / 1024 * 1024);
    CHECK_INT(c.read_bytes, bytes);
    CHECK_INT(c.written_bytes, bytes);
    close_place(&p);
}

TEST(what_was_never_written_is_zero)
{
    struct place p;
    struct err e;
    float x[2 * PIECE];
    open_place(&p, "zero");
    p.s->ops->ahead(p.s, 1);
    usleep(20000);
    CHECK_INT(p.s->ops->cancel(p.s, &e), 0);
    CHECK_INT(p.s->ops->begin(p.s, &e), 0);
    CHECK_INT(p.s->ops->read(p.s, 1, ZERO_EXP_AVG_SQ, 500, 2 * PIECE, x, &e), 0);
    for (int i = 0; i < 2 * PIECE; i++)
        CHECK_BITS(x[i], 3);
    close_place(&p);
}

TEST(what_was_updated_ahead_counts_once)
{
    struct place p;
    open_place(&p, "ahead");
    write_all(&p);
    for (int n = 1; n <= 3; n++) {
        for (int v = p.m.local.n_trained - 1; v >= (n == 3 ? 0 : 2); v--)
            p.s->ops->ahead(p.s, v);
        update(&p);
        CHECK_INT(differing(&p, n), 0);
    }
    close_place(&p);
}

TEST(what_was_updated_ahead_is_undone)
{
    struct place p;
    struct err e;
    open_place(&p, "undone");
    write_all(&p);
    update(&p);
    for (int turn = 0; turn < 3; turn++) {
        for (int v = p.m.local.n_trained - 1; v >= 1; v--)
            p.s->ops->ahead(p.s, v);
        if (turn)
            usleep(20000); /* some of it is done */
        CHECK_INT(p.s->ops->cancel(p.s, &e), 0);
        CHECK_INT(differing(&p, 1), 0);
        for (int v = 0; v < p.m.local.n_trained; v++)
            for (int64_t i = 0; i < zero_own(&p.m, 0, v); i += 97)
                CHECK_BITS(p.fake.weight[v][i], value(v, ZERO_MASTER, i) + 1);
    }
    CHECK(p.fake.n_restored > 0);
    update(&p);
    CHECK_INT(differing(&p, 2), 0);
    CHECK_INT(offload_count(p.o).redone, 3);
    close_place(&p);
}

/* Changes a byte of every file of a folder at an offset. */
static void change(const char *dir, int64_t at)
{
    DIR *d = opendir(dir);
    struct dirent *x;
    struct err e;
    while (d && (x = readdir(d))) {
        char path[800], byte;
        if (x->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", dir, x->d_name);
        int fd = io_open_write(path, &e);
        CHECK_INT(io_pread(fd, path, &byte, 1, at, &e), 0);
        byte = (char)(byte ^ 1);
        CHECK_INT(io_pwrite(fd, path, &byte, 1, at, &e), 0);
        io_close(fd);
    }
    if (d)
        closedir(d);
}

TEST(a_changed_byte_is_found_in_an_update_and_in_a_save)
{
    struct place p;
    struct err e;
    float x[PIECE];
    open_place(&p, "changed");
    write_all(&p);
    update(&p);
    CHECK_INT(p.s->ops->read(p.s, 0, ZERO_MASTER, 0, 1, x, &e), 0);
    /* piece 2 of the first vector: its first moments begin at 64 KiB */
    change(p.dir, 65536 + 40);
    CHECK_INT(p.s->ops->read(p.s, 0, ZERO_MASTER, PIECE, PIECE, x, &e), 0);
    CHECK_INT(p.s->ops->read(p.s, 0, ZERO_EXP_AVG, PIECE, 1, x, &e), -ERR_INTEGRITY);
    CHECK_HAS(e.text, "unit 0, piece 2 of");
    CHECK_HAS(e.text, "the first moments at bytes 65536 to 81919 are not those that were written");
    CHECK_INT(p.s->ops->begin(p.s, &e), 0);
    CHECK_INT(p.s->ops->wait(p.s, 0, &e), -ERR_INTEGRITY);
    CHECK_HAS(e.text, "rank-00000.");
    CHECK_INT(p.s->ops->wait(p.s, 1, &e), -ERR_INTEGRITY);
    close_place(&p);
}

TEST(files_are_removed_and_those_in_use_are_left_alone)
{
    struct place p, other;
    struct err e;
    open_place(&p, "removed");
    struct offload_spec spec = { .what = { .kind = OFFLOAD_FILES, .piece_elements = PIECE },
                                 .dir = p.dir,
                                 .out = test_tmp_dir(),
                                 .all = p.mesh.all };
    CHECK_INT(offload_open(&other.o, &p.m, 0, &spec, &e), -ERR_FILE);
    CHECK_HAS(e.text, "is in use by another run");
    offload_close(other.o);
    write_all(&p);
    CHECK_INT(differing(&p, 0), 0);
    close_place(&p);
    CHECK_INT(rmdir(p.dir), 0);
}
