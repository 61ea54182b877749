/* cuda_emu_model_test.c - a whole model where a GPU is emulated: in fp32 a training step and decoding have the CPU's bits, in bf16 decoding has those of the
 * same tokens all at once; and how often the host asks something of the device in a step of decoding. */
#include "kernels/cuda/emu/emu.h"
#include "tests/unit/model_rig.h"

enum { PROMPT = 19, TOKENS = 70, VOCAB = 701 };

/* ---- training ---- */
struct trained { double before, norm, after; };      /* losses, and the gradients' norm */
static struct trained train(const struct model_config *c, const char *device)
{
    struct trained t;
    struct rig r;
    struct err e = { 0 };
    rig_device = device;
    rig_open(&r, c, DT_F32, 2, 7);
    t.before = rig_forward(&r);
    t.norm = rig_backward(&r);
    struct adamw h = { .lr = 1e-2f, .eps = 1e-8f, .weight_decay = 0.1f, .beta1 = 0.9, .beta2 = 0.95, .bias1 = 0.1f, .bias2 = 0.2f, .clip = 1 };
    CHECK_INT(zero_update(r.z, &h, 0, &e), 0);
    t.after = rig_forward(&r);
    CHECK_INT(dev_check(r.dev, &e), 0);
    rig_close(&r);
    return t;
}

TEST(a_training_step_has_the_cpu_s_bits)
{
    static const int some[] = { -1, 1, 2, 4 };           /* the other two bring nothing that these do not */
    for (size_t k = 0; k < sizeof some / sizeof *some; k++) {
        const int i = some[k];
        struct model_config c = i < 0 ? rig_config(1, 0.1) : rig_family_config(i);
        c.vocab = 101;
        struct trained cpu = train(&c, "cpu"), gpu = train(&c, "cuda");
        if (memcmp(&cpu, &gpu, sizeof cpu))
            test_fail(__FILE__, __LINE__, "%s: losses %.9g, %.9g, norm %.9g on the CPU; %.9g, %.9g, %.9g", i < 0 ? "llama, tied" : rig_families[i].name, cpu.before, cpu.after,
                      cpu.norm, gpu.before, gpu.after, gpu.norm);
    }
}

/* ---- decoding ---- */
struct decode { struct rig r; struct forward_work w; void *memory; char *page[2]; size_t layer; };

static void decode_open(struct decode *d, const struct model_config *c, enum dtype dt, const char *device)
{
    struct arena a = { 0 };
    rig_device = device;
    rig_open_threads(&d->r, c, dt, 1, 128, 1);
    d->layer = model_page_bytes(&d->r.m);
    forward_work_carve(&d->r.m, &a, TOKENS, 1, &d->w);
    d->memory = dev_alloc(d->r.dev, MEM_WORK, a.used);
    a = (struct arena){ d->memory, 0, a.used };
    forward_work_carve(&d->r.m, &a, TOKENS, 1, &d->w);
    for (int i = 0; i < 2; i++)
        d->page[i] = dev_alloc(d->r.dev, MEM_KV, d->layer * (size_t)(d->r.m.n_layers + 1));
    CHECK(d->memory && d->page[1]);
}

static void decode_rows(struct decode *d, int64_t pos, int64_t n, float *logits)
{
    struct attn_seq seq = { 0, n, pos, d->page };
    struct batch b = { n, d->r.ids + pos, 1, &seq, d->layer };
    int32_t want = (int32_t)(n - 1);
    struct head_out h;
    struct err e;
    CHECK_INT(model_forward(&d->r.m, zero_weights(d->r.z), &b, &d->w, &want, 1, &h, &e), 0);
    dev_read(d->r.dev, logits, h.logits, VOCAB * sizeof *logits);
}

static void decode_close(struct decode *d)
{
    struct err e;
    CHECK_INT(dev_check(d->r.dev, &e), 0);
    for (int i = 0; i < 2; i++)
        dev_free(d->r.dev, d->page[i]);
    dev_free(d->r.dev, d->memory);
    rig_close(&d->r);
}

/* The last token's logits: a prompt, then one token a step; or all at once. */
static void last_logits(const struct model_config *c, enum dtype dt, const char *device, int at_once, float *logits)
{
    struct decode d;
    decode_open(&d, c, dt, device);
    decode_rows(&d, 0, at_once ? TOKENS : PROMPT, logits);
    for (int64_t pos = PROMPT; !at_once && pos < TOKENS; pos += pos < PROMPT + 3 ? 1 : TOKENS - 1 - pos > 1 ? TOKENS - 2 - pos : 1)
        decode_rows(&d, pos, pos < PROMPT + 3 ? 1 : TOKENS - 1 - pos > 1 ? TOKENS - 2 - pos : 1, logits);
    decode_close(&d);
}

TEST(decoding_has_the_cpu_s_bits_in_fp32_and_those_of_one_pass_in_bf16)
{
    struct model_config c = rig_config(0, 0.1);
    float cpu[VOCAB], gpu[VOCAB], steps[VOCAB], pass[VOCAB];
    last_logits(&c, DT_F32, "cpu", 0, cpu);
    last_logits(&c, DT_F32, "cuda", 0, gpu);
    CHECK(!memcmp(cpu, gpu, sizeof cpu));
    c.head_dim = 16;                     /* for tensor cores */
    last_logits(&c, DT_BF16, "cuda", 0, steps);
    last_logits(&c, DT_BF16, "cuda", 1, pass);
    CHECK(!memcmp(steps, pass, sizeof pass));
}

/* ---- what the host asks ---- */
TEST(a_decode_step_asks_11_launches_a_layer_and_copies_no_more_for_more_layers)
{
    struct emu_asked of[2];
    for (int more = 0; more < 2; more++) {
        struct model_config c = rig_config(0, 0.1);
        struct decode d;
        float logits[VOCAB];
        c.head_dim = 16;
        c.n_layers = more ? 5 : 2;
        decode_open(&d, &c, DT_BF16, "cuda");
        decode_rows(&d, 0, PROMPT, logits);
        const struct emu_asked before = emu_asked;
        decode_rows(&d, PROMPT, 1, logits);
        of[more] = (struct emu_asked){ emu_asked.launches - before.launches, emu_asked.copies - before.copies, emu_asked.fills - before.fills };
        decode_close(&d);
    }
    CHECK_INT(of[1].launches - of[0].launches, 3 * 11);
    CHECK(of[0].launches <= 2 * 11 + 8);
    CHECK_INT(of[1].copies, of[0].copies);
    CHECK(of[0].copies <= 6);            /* pages, sequences, attention's work, tokens, leaves of the vocabulary; the logits back */
    CHECK_INT(of[1].fills, of[0].fills);
}
