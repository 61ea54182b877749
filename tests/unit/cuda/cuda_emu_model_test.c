/* cuda_emu_model_test.c - a whole model where a GPU is emulated: in fp32 a training step and decoding have
 * the CPU's bits, in bf16 decoding has those of the same tokens all at once; and how often the host asks
 * something of the device in a step of decoding. */
#include "tests/devices/emu/emu.h"
#include "tests/unit/model/adapter_rig.h"

enum { PROMPT = 19, TOKENS = RIG_DECODE_ROWS, VOCAB = 701 };

/* ---- training ---- */
/* losses, and the gradients' norm */
struct trained {
    double before, norm, after;
};
static struct trained train(const struct model_config *c, const char *device)
{
    struct trained t;
    struct rig r;
    struct err e = { 0 };
    rig_device = device;
    rig_open(&r, c, DT_F32, 2, 7);
    t.before = rig_forward(&r);
    t.norm = rig_backward(&r);
    struct adamw h = { .lr = 1e-2f,
                       .eps = 1e-8f,
                       .weight_decay = 0.1f,
                       .beta1 = 0.9,
                       .beta2 = 0.95,
                       .bias1 = 0.1f,
                       .bias2 = 0.2f,
                       .clip = 1 };
    CHECK_INT(zero_update(r.z, &h, 0, &e), 0);
    t.after = rig_forward(&r);
    CHECK_INT(dev_check(r.dev, &e), 0);
    rig_close(&r);
    return t;
}

TEST(a_training_step_has_the_cpu_s_bits)
{
    static const int some[] = { -1, 1, 2, 4 }; /* the other two bring nothing that these do not */
    for (size_t k = 0; k < sizeof some / sizeof *some; k++) {
        const int i = some[k];
        struct model_config c = i < 0 ? rig_config(1, 0.1) : rig_family_config(i);
        c.vocab = 101;
        struct trained cpu = train(&c, "cpu"), gpu = train(&c, "cuda");
        if (memcmp(&cpu, &gpu, sizeof cpu))
            test_fail(__FILE__, __LINE__, "%s: losses %.9g, %.9g, norm %.9g on the CPU; %.9g, %.9g, %.9g",
                      i < 0 ? "llama, tied" : rig_families[i].name, cpu.before, cpu.after, cpu.norm,
                      gpu.before, gpu.after, gpu.norm);
    }
}

/* Latent attention whose one kv head is wider than what a task of attention keeps; values end inside it. */
TEST(latent_attention_of_more_than_256_components_has_the_cpu_s_bits)
{
    struct model_config c;
    for (int i = 0; i < RIG_FAMILIES; i++)
        if (strstr(rig_families[i].name, "q not compressed"))
            c = rig_family_config(i);
    c.vocab = 101;
    c.n_layers = 1;
    c.latent.kv_rank = 290;
    struct trained cpu = train(&c, "cpu"), gpu = train(&c, "cuda");
    CHECK(cpu.norm > 0);
    CHECK(!memcmp(&cpu, &gpu, sizeof cpu));
}

/* The same with the model frozen under an adapter. */
static double loss_of(struct tuned *t)
{
    struct rig *r = &t->r;
    struct err e;
    double sum = 0;
    CHECK_INT(model_train_forward(zero_weights(r->z), t->work, r->ids, r->targets, r->logprobs, &e), 0);
    for (int64_t i = 0; i < r->n_seq * r->T; i++)
        sum -= (double)r->logprobs[i];
    return sum;
}

static struct trained train_adapter(const struct model_config *c, const char *device)
{
    struct trained x;
    struct tuned t;
    struct err e;
    float scale[14];
    struct adamw h = {
        .lr = 1e-2f, .eps = 1e-8f, .beta1 = 0.9, .beta2 = 0.95, .bias1 = 0.1f, .bias2 = 0.2f, .clip = 1
    };
    rig_device = device;
    tuned_open(&t, c, DT_F32, 3, (struct work_shape){ .n_seq = 2, .seq_len = 7 });
    for (int i = 0; i < 14; i++)
        scale[i] = 1.0f / 14;
    x.before = loss_of(&t);
    CHECK_INT(zero_begin_rows(t.z, 0, 0, &e), 0);
    CHECK_INT(model_train_backward(zero_weights(t.r.z), t.work, t.r.ids, t.r.targets, scale, zero_grads(t.z),
                                   &e),
              0);
    CHECK_INT(zero_norm(t.z, &x.norm, &e), 0);
    CHECK_INT(zero_update(t.z, &h, 0, &e), 0);
    x.after = loss_of(&t);
    tuned_close(&t);
    rig_adapter_rank = 0;
    return x;
}

TEST(a_training_step_of_an_adapter_has_the_cpu_s_bits)
{
    struct model_config c = rig_family_config(5); /* mixtral: dense matrices and experts */
    c.vocab = 101;
    struct trained cpu = train_adapter(&c, "cpu"), gpu = train_adapter(&c, "cuda");
    CHECK(cpu.norm > 0 && cpu.after != cpu.before);
    CHECK(!memcmp(&cpu, &gpu, sizeof cpu));
}

/* ---- decoding ---- */
/* The last token's logits: all tokens at once; or a prompt, three single tokens, the others but one
 * together, and the last one alone. */
static void last_logits(const struct model_config *c, enum dtype dt, const char *device, int at_once,
                        float *logits)
{
    static const int64_t whole[] = { TOKENS }, steps[] = { PROMPT, 1, 1, 1, TOKENS - PROMPT - 4, 1 };
    const int64_t *n = at_once ? whole : steps;
    const float *there = NULL;
    struct rig_decode d;
    rig_device = device;
    rig_decode_open(&d, c, dt, 1);
    for (int64_t pos = 0; pos < TOKENS; pos += *n++)
        there = rig_decode_rows(&d, pos, *n);
    dev_read(d.r.dev, logits, there, VOCAB * sizeof *logits);
    rig_decode_close(&d);
}

TEST(decoding_has_the_cpu_s_bits_in_fp32_and_those_of_one_pass_in_bf16)
{
    struct model_config c = rig_config(0, 0.1);
    float cpu[VOCAB], gpu[VOCAB], steps[VOCAB], pass[VOCAB];
    last_logits(&c, DT_F32, "cpu", 0, cpu);
    last_logits(&c, DT_F32, "cuda", 0, gpu);
    CHECK(!memcmp(cpu, gpu, sizeof cpu));
    c.head_dim = 16; /* for tensor cores */
    last_logits(&c, DT_BF16, "cuda", 0, steps);
    last_logits(&c, DT_BF16, "cuda", 1, pass);
    CHECK(!memcmp(steps, pass, sizeof pass));
}

/* ---- what the host asks ---- */
TEST(a_decode_step_asks_11_launches_a_layer_and_copies_no_more_for_more_layers)
{
    struct emu_calls of[2];
    for (int more = 0; more < 2; more++) {
        struct model_config c = rig_config(0, 0.1);
        struct rig_decode d;
        float logits[VOCAB];
        c.head_dim = 16;
        c.n_layers = more ? 5 : 2;
        rig_device = "cuda";
        rig_decode_open(&d, &c, DT_BF16, 1);
        rig_decode_rows(&d, 0, PROMPT);
        const struct emu_calls before = emu_calls;
        dev_read(d.r.dev, logits, rig_decode_rows(&d, PROMPT, 1), sizeof logits);
        of[more] = (struct emu_calls){ emu_calls.launches - before.launches, emu_calls.copies - before.copies,
                                       emu_calls.fills - before.fills };
        rig_decode_close(&d);
    }
    CHECK_INT(of[1].launches - of[0].launches, 3 * 11);
    CHECK(of[0].launches <= 2 * 11 + 8);
    CHECK_INT(of[1].copies, of[0].copies);
    /* pages, sequences, attention's work, tokens, leaves of the vocabulary; the logits back */
    CHECK(of[0].copies <= 6);
    CHECK_INT(of[1].fills, of[0].fills);
}
