/* model_bits_test.c - recorded bits of one step: log-probs and every kind of gradient, the same on all CPU
 * classes.
 *
 * The numbers are hashes of fp32 bits, taken when every op had been compared with its definition. A change
 * of any order in the model changes them; a change that is meant (a new contract) records them again: run
 * the test, it prints the new table. */
#include "tests/unit/model/model_rig.h"

/* log-probs first, then gradients by kind over all layers; 0: no such kind */
#define HASHES (P_KINDS + 1)
#define MODELS (3 + 2 * RIG_FAMILIES) /* Llamas, then every family in fp32 and bf16 */

static const uint64_t recorded[MODELS][HASHES] = {
#include "tests/unit/model/model_bits.inc"
};
static const struct {
    const char *name;
    int tied;
    enum dtype dt;
} llamas[3] = {
    { "fp32", 0, DT_F32 },
    { "fp32, tied", 1, DT_F32 },
    { "bf16", 0, DT_BF16 },
};
static int family_of(int model) { return (model - 3) / 2; }
static enum dtype dtype_of(int model)
{
    return model < 3 ? llamas[model].dt : (model - 3) % 2 ? DT_BF16 : DT_F32;
}

#define HASH_START 0xcbf29ce484222325u
static uint64_t hash(uint64_t h, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, x + i, 4);
        h = (h ^ u) * 0x100000001b3u;
        h ^= h >> 29;
    }
    return h;
}

static void step_hashes(int model, uint64_t h[HASHES])
{
    struct rig r;
    struct model_config c = model < 3 ? rig_config(llamas[model].tied, 0.1)
                                      : rig_family_config(family_of(model));
    /* runs of three; more than one block of keys; 420 is no power of two */
    rig_open(&r, &c, dtype_of(model), 6, 70);
    if (model >= 3 && dtype_of(model) == DT_F32)
        rig_shake(&r);
    rig_forward(&r);
    rig_backward(&r);
    memset(h, 0, HASHES * sizeof *h);
    h[0] = hash(HASH_START, r.logprobs, r.n_seq * r.T);
    for (int i = 0; i < r.m.local.n_parts; i++) {
        enum param_kind kind = r.m.table.p[r.m.local.part[i].param].kind;
        if (rig_grad(&r, i))
            h[kind + 1] = hash(h[kind + 1] ? h[kind + 1] : HASH_START, rig_grad(&r, i),
                               r.m.local.part[i].count);
    }
    rig_close(&r);
}

static void check_all(const char *isa)
{
    for (int m = 0; m < MODELS; m++) {
        uint64_t h[HASHES];
        int same = 1;
        step_hashes(m, h);
        for (int k = 0; k < HASHES; k++)
            same &= h[k] == recorded[m][k];
        if (same)
            continue;
        test_fail(__FILE__, __LINE__, "%s %s (%s): other bits than recorded",
                  m < 3 ? llamas[m].name : rig_families[family_of(m)].name, dtype_name(dtype_of(m)), isa);
        printf("    {");
        for (int k = 0; k < HASHES; k++)
            printf(" 0x%016llx,%s", (unsigned long long)h[k], k % 5 == 4 ? "\n     " : "");
        printf(" },\n");
    }
}

TEST(a_step_has_the_recorded_bits) { check_all("this CPU"); }

TEST(a_step_in_portable_c_has_the_recorded_bits)
{
    setenv("SHARDLINE_ISA", "portable", 1);
    check_all("portable");
    unsetenv("SHARDLINE_ISA");
}
