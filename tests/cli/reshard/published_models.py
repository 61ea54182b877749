"""Published configurations, scaled down: config.json with the keys of the published file, and names and
shapes of its tensors by the rules of its code. A configuration is a row of `configs`: its config.json, and a
function that lists its tensors.
"""

configs = {}


class Tensors:
    """The tensors of one model. at: what stands in front of the names that follow. bytes: of tensors whose
    bytes are not drawn."""

    def __init__(self, config, at=""):
        self.c, self.at, self.list, self.bytes = config, at, [], {}

    def __call__(self, name, *shape, dtype="BF16"):
        self.list.append((self.at + name, list(shape), dtype))

    def __getattr__(self, key):
        return self.c[key]


def config(name, **keys):
    """A row of `configs`: the decorated function lists the tensors of this config.json."""

    def add(function):
        configs[name] = (keys, function)
        return function

    return add


# ---- what many models have ----


def ends(t, tied=False, head="lm_head.weight", norm_bias=False):
    t("embed_tokens.weight", t.vocab_size, t.hidden_size)
    t("norm.weight", t.hidden_size)
    if norm_bias:
        t("norm.bias", t.hidden_size)
    if not tied:
        t.list.append((head, [t.vocab_size, t.hidden_size], "BF16"))


def norms(t, l, *names):
    for name in names or ("input_layernorm", "post_attention_layernorm"):
        t("layers.%d.%s.weight" % (l, name), t.hidden_size)


def attention(t, l, d=0, kv=0, bias=False, norm="", gate=1, o_bias=False, at="layers.%d.self_attn."):
    """norm: "head" or "all" values of q and k are normed. gate 2: q_proj gives a gate too."""
    p, n, kv, h = at % l, t.num_attention_heads, kv or t.num_key_value_heads, t.hidden_size
    d = d or t.c.get("head_dim") or h // n
    for name, rows in (("q", n * d * gate), ("k", kv * d), ("v", kv * d)):
        t(p + name + "_proj.weight", rows, h)
        if bias:
            t(p + name + "_proj.bias", rows)
    t(p + "o_proj.weight", h, n * d)
    if o_bias:
        t(p + "o_proj.bias", h)
    if norm:
        t(p + "q_norm.weight", d if norm == "head" else n * d)
        t(p + "k_norm.weight", d if norm == "head" else kv * d)


def latent(t, l, q_rank=True, at="layers.%d.self_attn."):
    p, n, h = at % l, t.num_attention_heads, t.hidden_size
    qk = t.qk_nope_head_dim + t.qk_rope_head_dim
    if q_rank:
        t(p + "q_a_proj.weight", t.q_lora_rank, h)
        t(p + "q_a_layernorm.weight", t.q_lora_rank)
        t(p + "q_b_proj.weight", n * qk, t.q_lora_rank)
    else:
        t(p + "q_proj.weight", n * qk, h)
    t(p + "kv_a_proj_with_mqa.weight", t.kv_lora_rank + t.qk_rope_head_dim, h)
    t(p + "kv_a_layernorm.weight", t.kv_lora_rank)
    t(p + "kv_b_proj.weight", n * (t.qk_nope_head_dim + t.v_head_dim), t.kv_lora_rank)
    t(p + "o_proj.weight", h, n * t.v_head_dim)


def gated(t, at, width, names=("gate_proj", "up_proj", "down_proj"), hidden=0):
    h = hidden or t.hidden_size
    t(at + names[0] + ".weight", width, h)
    t(at + names[1] + ".weight", width, h)
    t(at + names[2] + ".weight", h, width)


def experts(t, at, n, width, names=("gate_proj", "up_proj", "down_proj")):
    for x in range(n):
        gated(t, "%sexperts.%d." % (at, x), width, names)


def fused(t, at, n, width, turned=False):
    h = t.hidden_size
    t(at + "experts.gate_up_proj", *([n, h, 2 * width] if turned else [n, 2 * width, h]))
    t(at + "experts.down_proj", *([n, width, h] if turned else [n, h, width]))


W123 = ("w1", "w3", "w2")
SMALL = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=2, head_dim=8,
             intermediate_size=48, vocab_size=104, max_position_embeddings=64, tie_word_embeddings=False,
             torch_dtype="bfloat16", rms_norm_eps=1e-06, hidden_act="silu", rope_theta=10000.0)


def small(model_type, architecture, **keys):
    """head_dim None: the file does not have it."""
    keys = dict(architectures=[architecture], model_type=model_type, **{**SMALL, **keys})
    return keys if keys["head_dim"] else without(keys, "head_dim")


def without(keys, *drop):
    return {k: v for k, v in keys.items() if k not in drop}


# ---- Llama's kin ----


def llama(t, tied=False, **how):
    ends(t, tied)
    for l in range(t.num_hidden_layers):
        norms(t, l)
        attention(t, l, **how)
        gated(t, "layers.%d.mlp." % l, t.intermediate_size)


def plain(name, model_type, architecture, tied=False, keys=None, **how):
    configs[name] = (small(model_type, architecture, **{"tie_word_embeddings": tied, **(keys or {})}),
                     lambda t: llama(at(t, "model."), tied, **how))


def at(t, prefix):
    t.at = prefix
    return t


plain("llama-3.1-8b", "llama", "LlamaForCausalLM")
plain("llama-3.2-1b", "llama", "LlamaForCausalLM", tied=True)
plain("mistral-7b", "mistral", "MistralForCausalLM", keys={"sliding_window": None})
plain("qwen2.5-7b", "qwen2", "Qwen2ForCausalLM", bias=True, keys={"head_dim": None, "hidden_size": 64})
plain("qwen3-8b", "qwen3", "Qwen3ForCausalLM", norm="head")
plain("smollm3-3b", "smollm3", "SmolLM3ForCausalLM", tied=True, keys={"head_dim": None, "pad_token_id": 0})
plain("seed-oss-36b", "seed_oss", "SeedOssForCausalLM", bias=True,
      keys={"attention_bias": True, "attention_out_bias": False})
plain("granite-3-8b", "granite", "GraniteForCausalLM", keys={"head_dim": None})


@config("llama-3.2-tied-and-stored", **small("llama", "LlamaForCausalLM", tie_word_embeddings=True))
def _(t):
    llama(at(t, "model."))


@config("olmo-2-7b", **small("olmo2", "Olmo2ForCausalLM", head_dim=None))
def _(t):
    ends(at(t, "model."))
    for l in range(t.num_hidden_layers):
        norms(t, l, "post_attention_layernorm", "post_feedforward_layernorm")
        attention(t, l, norm="all")
        gated(t, "layers.%d.mlp." % l, t.intermediate_size)


@config("command-r7b", **small("cohere2", "Cohere2ForCausalLM", head_dim=None, tie_word_embeddings=True,
                               pad_token_id=0))
def _(t):
    ends(at(t, "model."), tied=True)
    for l in range(t.num_hidden_layers):
        norms(t, l, "input_layernorm")
        attention(t, l)
        gated(t, "layers.%d.mlp." % l, t.intermediate_size)


@config("phi-3-mini", **small("phi3", "Phi3ForCausalLM", head_dim=None, pad_token_id=0))
def _(t):
    h = t.hidden_size
    ends(at(t, "model."))
    for l in range(t.num_hidden_layers):
        norms(t, l)
        t("layers.%d.self_attn.qkv_proj.weight" % l, h + 2 * h // 8 * t.num_key_value_heads, h)
        t("layers.%d.self_attn.o_proj.weight" % l, h, h)
        t("layers.%d.mlp.gate_up_proj.weight" % l, 2 * t.intermediate_size, h)
        t("layers.%d.mlp.down_proj.weight" % l, h, t.intermediate_size)


@config("glm-4-9b", **small("glm4", "Glm4ForCausalLM", attention_bias=True, pad_token_id=0))
def _(t):
    ends(at(t, "model."))
    for l in range(t.num_hidden_layers):
        norms(t, l, "input_layernorm", "post_attention_layernorm", "post_self_attn_layernorm",
              "post_mlp_layernorm")
        attention(t, l, bias=True)
        t("layers.%d.mlp.gate_up_proj.weight" % l, 2 * t.intermediate_size, t.hidden_size)
        t("layers.%d.mlp.down_proj.weight" % l, t.hidden_size, t.intermediate_size)


@config("internlm2-7b", **without(small("internlm2", "InternLM2ForCausalLM", num_key_value_heads=4),
                                  "head_dim"))
def _(t):
    h = t.hidden_size
    t("model.tok_embeddings.weight", t.vocab_size, h)
    t("output.weight", t.vocab_size, h)
    t("model.norm.weight", h)
    for l in range(t.num_hidden_layers):
        p = "model.layers.%d." % l
        t(p + "attention.wqkv.weight", 2 * h, h)  # a group: 2 heads of q, one of k, one of v
        t(p + "attention.wo.weight", h, h)
        t(p + "attention_norm.weight", h)
        t(p + "ffn_norm.weight", h)
        gated(t, p + "feed_forward.", t.intermediate_size, W123)


# ---- older ones ----


@config("gpt2", architectures=["GPT2LMHeadModel"], model_type="gpt2", n_embd=32, n_layer=2, n_head=8,
        vocab_size=104, n_positions=16, torch_dtype="bfloat16")
def _(t):
    h = t.n_embd
    t.at = "transformer."
    t("wte.weight", t.vocab_size, h)
    t("wpe.weight", t.n_positions, h)
    t("ln_f.weight", h)
    t("ln_f.bias", h)
    for l in range(t.n_layer):
        p = "h.%d." % l
        for name, a, b in (("attn.c_attn", h, 3 * h), ("attn.c_proj", h, h), ("mlp.c_fc", h, 4 * h),
                           ("mlp.c_proj", 4 * h, h)):
            t(p + name + ".weight", a, b)
            t(p + name + ".bias", b)
        for name in ("ln_1", "ln_2"):
            t(p + name + ".weight", h)
            t(p + name + ".bias", h)


def big_layers(t, p, h, qkv, biased, attn="attention", norms=("input_layernorm", "post_attention_layernorm")):
    for name, a, b in ((attn + ".query_key_value", qkv, h), (attn + ".dense", h, h),
                       ("mlp.dense_h_to_4h", 4 * h, h), ("mlp.dense_4h_to_h", h, 4 * h)):
        t(p + name + ".weight", a, b)
        if biased:
            t(p + name + ".bias", a)
    for name in norms:
        t(p + name + ".weight", h)
        t(p + name + ".bias", h)


@config("pythia-1b", architectures=["GPTNeoXForCausalLM"], model_type="gpt_neox", hidden_size=64,
        num_hidden_layers=2, num_attention_heads=8, intermediate_size=256, vocab_size=104, rotary_pct=0.25,
        max_position_embeddings=64, torch_dtype="float16", tie_word_embeddings=False)
def _(t):
    h = t.hidden_size
    t("gpt_neox.embed_in.weight", t.vocab_size, h, dtype="F16")
    t("embed_out.weight", t.vocab_size, h, dtype="F16")
    t("gpt_neox.final_layer_norm.weight", h, dtype="F16")
    t("gpt_neox.final_layer_norm.bias", h, dtype="F16")
    for l in range(2):
        big_layers(t, "gpt_neox.layers.%d." % l, h, 3 * h, True)


@config("falcon-7b", architectures=["FalconForCausalLM"], model_type="falcon", hidden_size=64, alibi=False,
        num_hidden_layers=2, num_attention_heads=8, vocab_size=104, multi_query=True, parallel_attn=True,
        bias=False, new_decoder_architecture=False, torch_dtype="bfloat16")
def _(t):
    h = t.hidden_size
    t.at = "transformer."
    t("word_embeddings.weight", t.vocab_size, h)
    t("ln_f.weight", h)
    t("ln_f.bias", h)
    for l in range(2):
        big_layers(t, "h.%d." % l, h, h + 2 * h // 8, False, "self_attention", ["input_layernorm"])


@config("bloom-7b1", architectures=["BloomForCausalLM"], model_type="bloom", n_embed=64, n_layer=2,
        num_attention_heads=8, vocab_size=104, torch_dtype="bfloat16")
def _(t):
    h = t.n_embed
    t.at = "transformer."
    t("word_embeddings.weight", t.vocab_size, h)
    for name in ("ln_f", "word_embeddings_layernorm"):
        t(name + ".weight", h)
        t(name + ".bias", h)
    for l in range(t.n_layer):
        big_layers(t, "h.%d." % l, h, 3 * h, True, "self_attention")


# ---- experts ----


@config("mixtral-8x7b", **small("mixtral", "MixtralForCausalLM", num_local_experts=8, head_dim=None))
def _(t):
    ends(at(t, "model."))
    for l in range(t.num_hidden_layers):
        norms(t, l)
        attention(t, l)
        t("layers.%d.block_sparse_moe.gate.weight" % l, t.num_local_experts, t.hidden_size)
        experts(t, "layers.%d.block_sparse_moe." % l, t.num_local_experts, t.intermediate_size, W123)


@config("minimax-m2", **small("minimax_m2", "MiniMaxM2ForCausalLM", num_local_experts=8,
                              scoring_func="sigmoid",
                              num_experts_per_tok=2))
def _(t):
    ends(at(t, "model."))
    for l in range(t.num_hidden_layers):
        norms(t, l)
        attention(t, l, norm="all")
        p = "layers.%d.block_sparse_moe." % l
        t(p + "gate.weight", t.num_local_experts, t.hidden_size)
        t(p + "e_score_correction_bias", t.num_local_experts)
        experts(t, p, t.num_local_experts, t.intermediate_size, W123)


@config("phi-3.5-moe", **small("phimoe", "PhimoeForCausalLM", num_local_experts=8, head_dim=None))
def _(t):
    ends(at(t, "model."), norm_bias=True)
    for l in range(t.num_hidden_layers):
        norms(t, l)
        for name in ("input_layernorm", "post_attention_layernorm"):
            t("layers.%d.%s.bias" % (l, name), t.hidden_size)
        attention(t, l)
        p = "layers.%d.block_sparse_moe." % l
        t(p + "gate.weight", t.num_local_experts, t.hidden_size)
        experts(t, p, t.num_local_experts, t.intermediate_size, W123)


def qwen_layers(t, form, shared="", norm="", gate=1, **how):
    for l in range(t.num_hidden_layers):
        norms(t, l)
        if t.c.get("layer_types", ["full_attention"] * 9)[l] == "full_attention":
            attention(t, l, norm=norm, gate=gate, **how)
        else:
            delta(t, "layers.%d.linear_attn." % l)
        qwen_experts(t, "layers.%d.mlp." % l, form, shared)


def qwen_experts(t, p, form, shared):
    t(p + "gate.weight", t.num_experts, t.hidden_size)
    if form == "each":
        experts(t, p, t.num_experts, t.moe_intermediate_size)
    else:
        fused(t, p, t.num_experts, t.moe_intermediate_size, form == "turned")
    if shared:
        gated(t, p + "shared_expert.", t.shared_expert_intermediate_size)
        t(p + "shared_expert_gate.weight", 1, t.hidden_size)


def delta(t, p, qkvz=False):
    h, nk, nv = t.hidden_size, t.linear_num_key_heads, t.linear_num_value_heads
    k, v = nk * t.linear_key_head_dim, nv * t.linear_value_head_dim
    if t.model_type == "qwen3_next":
        t(p + "in_proj_qkvz.weight", 2 * k + 2 * v, h)
        t(p + "in_proj_ba.weight", 2 * nv, h)
    else:
        t(p + "in_proj_qkv.weight", 2 * k + v, h)
        t(p + "in_proj_z.weight", v, h)
        t(p + "in_proj_b.weight", nv, h)
        t(p + "in_proj_a.weight", nv, h)
    t(p + "conv1d.weight", 2 * k + v, 1, t.linear_conv_kernel_dim)
    t(p + "A_log", nv, dtype="F32")
    t(p + "dt_bias", nv)
    t(p + "norm.weight", t.linear_value_head_dim, dtype="F32")
    t(p + "out_proj.weight", h, v)


MOE = dict(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=16, norm_topk_prob=True,
           decoder_sparse_step=1, mlp_only_layers=[], shared_expert_intermediate_size=24)
DELTA = dict(linear_num_key_heads=8, linear_key_head_dim=4, linear_num_value_heads=16,
             linear_value_head_dim=8,
             linear_conv_kernel_dim=4, full_attention_interval=2,
             layer_types=["linear_attention", "full_attention"], partial_rotary_factor=0.25)


@config("qwen1.5-moe-a2.7b", **small("qwen2_moe", "Qwen2MoeForCausalLM", **{**MOE, "head_dim": None}))
def _(t):
    ends(at(t, "model."))
    qwen_layers(t, "each", shared="yes", bias=True)


@config("qwen3-30b-a3b", **small("qwen3_moe", "Qwen3MoeForCausalLM", **MOE))
def _(t):
    ends(at(t, "model."))
    qwen_layers(t, "each", norm="head")


@config("qwen3-next-80b-a3b", **small("qwen3_next", "Qwen3NextForCausalLM", **MOE, **DELTA))
def _(t):
    ends(at(t, "model."))
    qwen_layers(t, "each", shared="yes", norm="head", gate=2)
    mtp(t, "each")


def mtp(t, form, dense=False):
    """One more layer with full attention."""
    p, h = "mtp.", t.hidden_size
    t.at = ""
    t(p + "fc.weight", h, 2 * h)
    for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
        t(p + name + ".weight", h)
    t.at = p
    norms(t, 0)
    attention(t, 0, norm="head", gate=2)
    if dense:
        gated(t, "layers.0.mlp.", t.intermediate_size)
    else:
        qwen_experts(t, "layers.0.mlp.", form, "yes")


def nested(name, model_type, architecture, text_type, vision=None, top=None, drop=(), **keys):
    """A multimodal config: the language model in text_config."""
    text = without(small(text_type, "", **keys), "architectures", *drop)
    return config(name, architectures=[architecture], model_type=model_type, torch_dtype="bfloat16",
                  text_config=text, vision_config=vision or {"hidden_size": 24}, **(top or {}))


class Inner(Tensors):
    """The tensors of the language model of a nested config; they go into the list of the whole."""

    def __init__(self, t, prefix):
        super().__init__(t.c["text_config"], prefix)
        self.list = t.list


def tower(t, p, depth=2, h=24, conv=(3, 2, 4, 4)):
    """Some of a vision tower, a convolution of five dims among it."""
    t(p + "patch_embed.proj.weight", h, *conv)
    t(p + "patch_embed.proj.bias", h)
    for l in range(depth):
        t(p + "blocks.%d.attn.qkv.weight" % l, 3 * h, h)
        t(p + "blocks.%d.attn.qkv.bias" % l, 3 * h)
        t(p + "blocks.%d.attn.proj.weight" % l, h, h)
        t(p + "blocks.%d.norm1.weight" % l, h)
    t(p + "merger.mlp.0.weight", h, h)


@nested("qwen3.5-35b-a3b", "qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe_text", **MOE,
        **DELTA)
def _(t):
    i = Inner(t, "model.language_model.")
    ends(i)
    qwen_layers(i, "fused", shared="yes", norm="head", gate=2)
    mtp(i, "fused")
    tower(t, "model.visual.")


@nested("qwen3.5-9b", "qwen3_5", "Qwen3_5ForConditionalGeneration", "qwen3_5_text", **DELTA)
def _(t):
    i = Inner(t, "model.language_model.")
    ends(i)
    for l in range(i.num_hidden_layers):
        norms(i, l)
        if i.layer_types[l] == "full_attention":
            attention(i, l, norm="head", gate=2)
        else:
            delta(i, "layers.%d.linear_attn." % l)
        gated(i, "layers.%d.mlp." % l, i.intermediate_size)
    mtp(i, "", dense=True)
    tower(t, "model.visual.")


@nested("qwen3-vl-30b-a3b", "qwen3_vl_moe", "Qwen3VLMoeForConditionalGeneration", "qwen3_vl_moe_text", **MOE)
def _(t):
    i = Inner(t, "model.language_model.")
    ends(i)
    qwen_layers(i, "turned", norm="head")
    tower(t, "model.visual.")


@nested("qwen3-vl-8b", "qwen3_vl", "Qwen3VLForConditionalGeneration", "qwen3_vl_text")
def _(t):
    i = Inner(t, "model.language_model.")
    llama(i, norm="head")
    tower(t, "model.visual.")


def qwen_vl(t):
    llama(at(t, "model."), bias=True)
    tower(at(t, ""), "visual.")


config("qwen2-vl-7b", **small("qwen2_vl", "Qwen2VLForConditionalGeneration", head_dim=None,
                              vision_config={"depth": 2, "embed_dim": 24}))(qwen_vl)
config("qwen2.5-vl-7b", **small("qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration", head_dim=None,
                                vision_config={"depth": 2, "hidden_size": 24}))(qwen_vl)


@config("gpt-oss-20b", **small("gpt_oss", "GptOssForCausalLM", intermediate_size=32, num_local_experts=8,
        num_experts_per_tok=2, attention_bias=True, sliding_window=16, swiglu_limit=7.0,
        layer_types=["sliding_attention", "full_attention"]))
def _(t):
    h, n, i = t.hidden_size, t.num_local_experts, t.intermediate_size
    ends(at(t, "model."))
    for l in range(t.num_hidden_layers):
        norms(t, l)
        attention(t, l, bias=True, o_bias=True)
        t("layers.%d.self_attn.sinks" % l, t.num_attention_heads)
        p = "layers.%d.mlp." % l
        t(p + "router.weight", n, h)
        t(p + "router.bias", n)
        fused(t, p, n, i, turned=True)
        t(p + "experts.gate_up_proj_bias", n, 2 * i)
        t(p + "experts.down_proj_bias", n, h)


@config("olmoe-1b-7b", **small("olmoe", "OlmoeForCausalLM", num_experts=8, head_dim=None,
                               num_experts_per_tok=2))
def _(t):
    ends(at(t, "model."))
    for l in range(t.num_hidden_layers):
        norms(t, l)
        attention(t, l, norm="all")
        t("layers.%d.mlp.gate.weight" % l, t.num_experts, t.hidden_size)
        experts(t, "layers.%d.mlp." % l, t.num_experts, t.intermediate_size)


@config("flexolmo-7x7b", **small("flex_olmo", "FlexOlmoForCausalLM", num_experts=8, head_dim=None,
                                 num_experts_per_tok=2, pad_token_id=0))
def _(t):
    ends(at(t, "model."))
    for l in range(t.num_hidden_layers):
        norms(t, l, "post_attention_layernorm", "post_feedforward_layernorm")
        attention(t, l, norm="all")
        t("layers.%d.mlp.gate.weight" % l, t.num_experts, t.hidden_size)
        experts(t, "layers.%d.mlp." % l, t.num_experts, t.intermediate_size)


@config("ernie-4.5-21b-a3b", **small("ernie4_5_moe", "Ernie4_5_MoeForCausalLM", moe_num_experts=8,
        moe_k=2, moe_intermediate_size=16, moe_num_shared_experts=2, head_dim=None,
        moe_layer_start_index=1, moe_layer_end_index=1, tie_word_embeddings=True))
def _(t):
    ends(at(t, "model."), tied=True)
    for l in range(t.num_hidden_layers):
        norms(t, l)
        attention(t, l)
        p = "layers.%d.mlp." % l
        if l < t.moe_layer_start_index:
            gated(t, p, t.intermediate_size)
            continue
        t(p + "gate.weight", t.moe_num_experts, t.hidden_size, dtype="F32")
        t(p + "moe_statics.e_score_correction_bias", 1, t.moe_num_experts, dtype="F32")
        experts(t, p, t.moe_num_experts, t.moe_intermediate_size)
        gated(t, p + "shared_experts.", t.moe_intermediate_size * t.moe_num_shared_experts)


@config("hunyuan-a13b", **small("hunyuan_v1_moe", "HunYuanMoEV1ForCausalLM", num_experts=8, moe_topk=2,
                                num_shared_expert=1, pad_token_id=0))
def _(t):
    ends(at(t, "model."))
    for l in range(t.num_hidden_layers):
        norms(t, l)
        attention(t, l)
        p = "layers.%d." % l
        t(p + "self_attn.query_layernorm.weight", t.head_dim)
        t(p + "self_attn.key_layernorm.weight", t.head_dim)
        t(p + "mlp.gate.wg.weight", t.num_experts, t.hidden_size, dtype="F32")
        experts(t, p + "mlp.", t.num_experts, t.intermediate_size)
        gated(t, p + "mlp.shared_mlp.", t.intermediate_size)


def deepseek_experts(t, l, dtype="F32"):
    p = "layers.%d.mlp." % l
    if l < t.first_k_dense_replace:
        return gated(t, p, t.intermediate_size)
    t(p + "gate.weight", t.n_routed_experts, t.hidden_size)
    if dtype:
        t(p + "gate.e_score_correction_bias", t.n_routed_experts, dtype=dtype)
    experts(t, p, t.n_routed_experts, t.moe_intermediate_size)
    gated(t, p + "shared_experts.", t.moe_intermediate_size * t.n_shared_experts)


DEEPSEEK = dict(n_routed_experts=8, num_experts_per_tok=2, moe_intermediate_size=16, n_shared_experts=1,
                first_k_dense_replace=1, n_group=1, topk_group=1, routed_scaling_factor=1.0)
LATENT = dict(q_lora_rank=24, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=8,
              num_key_value_heads=8)


def mla(t, dtype="F32", q_rank=True, mtp_layers=0, indexer=False, more=(), **how):
    ends(t, **how)
    for l in range(t.num_hidden_layers + mtp_layers):
        norms(t, l)
        latent(t, l, q_rank)
        deepseek_experts(t, l, dtype)
        p = "layers.%d." % l
        if indexer:
            i = p + "self_attn.indexer."
            t(i + "wq_b.weight", t.index_n_heads * t.index_head_dim, t.q_lora_rank)
            t(i + "wk.weight", t.index_head_dim, t.hidden_size)
            t(i + "k_norm.weight", t.index_head_dim)
            t(i + "k_norm.bias", t.index_head_dim)
            t(i + "weights_proj.weight", t.index_n_heads, t.hidden_size)
        if l >= t.num_hidden_layers:
            mtp_layer(t, p)


def mtp_layer(t, p):
    """What DeepSeek's further layer has beside those of a layer."""
    h = t.hidden_size
    t(p + "eh_proj.weight", h, 2 * h)
    for name in ("enorm", "hnorm", "shared_head.norm"):
        t(p + name + ".weight", h)
    t(p + "embed_tokens.weight", t.vocab_size, h)
    t(p + "shared_head.head.weight", t.vocab_size, h)


@config("deepseek-v2-lite", **without(small("deepseek_v2", "DeepseekV2ForCausalLM",
                                            **{**DEEPSEEK, **LATENT, "q_lora_rank": None}), "head_dim"))
def _(t):
    mla(at(t, "model."), dtype=None, q_rank=False)


@config("deepseek-v3", **without(small("deepseek_v3", "DeepseekV3ForCausalLM", num_nextn_predict_layers=1,
                                       **{**DEEPSEEK, **LATENT}), "head_dim"))
def _(t):
    mla(at(t, "model."), mtp_layers=1)


@config("kimi-k2", **without(small("kimi_k2", "DeepseekV3ForCausalLM", num_nextn_predict_layers=0,
                                   **{**DEEPSEEK, **LATENT}), "head_dim"))
def _(t):
    mla(at(t, "model."))


@nested("kimi-k2.5", "kimi_k25", "KimiK25ForConditionalGeneration", "kimi_k2", drop=["head_dim"],
        **{**DEEPSEEK, **LATENT})
def _(t):
    mla(Inner(t, "language_model.model."), head="language_model.lm_head.weight")
    tower(t, "vision_tower.", conv=(3, 4, 4))
    t("mm_projector.linear_1.weight", 24, 24)


@config("glm-5", **without(small("glm_moe_dsa", "GlmMoeDsaForCausalLM", index_n_heads=2, index_head_dim=8,
                                 index_topk=4,
                                 num_nextn_predict_layers=1, **{**DEEPSEEK, **LATENT}), "head_dim"))
def _(t):
    mla(at(t, "model."), mtp_layers=1, indexer=True)


@nested("mistral-small-4", "mistral3", "Mistral3ForConditionalGeneration", "mistral4", **{**DEEPSEEK,
                                                            **LATENT})
def _(t):
    i = Inner(t, "language_model.model.")
    ends(i, head="language_model.lm_head.weight")
    for l in range(i.num_hidden_layers):
        norms(i, l)
        latent(i, l)
        p = "layers.%d.mlp." % l
        if l < i.first_k_dense_replace:
            gated(i, p, i.intermediate_size)
            continue
        i(p + "gate.weight", i.n_routed_experts, i.hidden_size)
        fused(i, p, i.n_routed_experts, i.moe_intermediate_size)
        gated(i, p + "shared_experts.", i.moe_intermediate_size)


@config("glm-4.5-air", **small("glm4_moe", "Glm4MoeForCausalLM", num_nextn_predict_layers=1,
                               attention_bias=True,
                               use_qk_norm=True, pad_token_id=0, **DEEPSEEK))
def _(t):
    ends(at(t, "model."))
    for l in range(t.num_hidden_layers + 1):
        norms(t, l)
        attention(t, l, bias=True, norm="head")
        deepseek_experts(t, l)
        if l == t.num_hidden_layers:
            mtp_layer(t, "layers.%d." % l)


@nested("glm-4.5v", "glm4v_moe", "Glm4vMoeForConditionalGeneration", "glm4v_moe_text", attention_bias=True,
        pad_token_id=0, **DEEPSEEK)
def _(t):
    i = Inner(t, "model.language_model.")
    ends(i)
    for l in range(i.num_hidden_layers):
        norms(i, l)
        attention(i, l, bias=True)
        deepseek_experts(i, l)
    tower(t, "model.visual.")


@config("dots.llm1", **small("dots1", "Dots1ForCausalLM", **DEEPSEEK))
def _(t):
    ends(at(t, "model."))
    for l in range(t.num_hidden_layers):
        norms(t, l)
        attention(t, l, norm="head")
        deepseek_experts(t, l)


@config("deepseek-v4", **without(small("deepseek_v4", "DeepseekV4ForCausalLM", n_routed_experts=8,
        q_lora_rank=24, num_experts_per_tok=2, moe_intermediate_size=16, n_shared_experts=1,
        num_hash_layers=1, o_groups=8, o_lora_rank=4, index_n_heads=2, index_head_dim=8, hc_mult=4),
        "intermediate_size"))
def _(t):
    h, d, n = t.hidden_size, t.head_dim, t.num_attention_heads
    t("embed.weight", t.vocab_size, h)
    t("head.weight", t.vocab_size, h)
    t("norm.weight", h)
    for name, *shape in (("base", 4), ("fn", 4, 4 * h), ("scale", 1)):
        t("hc_head_" + name, *shape, dtype="F32")
    for l in range(t.num_hidden_layers):
        p = "layers.%d." % l
        for name, *shape in (("wq_a.weight", t.q_lora_rank, h), ("q_norm.weight", t.q_lora_rank),
                             ("wq_b.weight", n * d, t.q_lora_rank), ("wkv.weight", d, h), ("kv_norm.weight",
                                                            d),
                             ("wo_a.weight", t.o_groups * t.o_lora_rank, n * d // t.o_groups),
                             ("wo_b.weight", h, t.o_groups * t.o_lora_rank), ("compressor.ape", 4, 2 * d),
                             ("compressor.wkv.weight", 2 * d, h), ("compressor.wgate.weight", 2 * d, h),
                             ("compressor.norm.weight", d), ("indexer.wq_b.weight", 16, t.q_lora_rank),
                             ("indexer.weights_proj.weight", 2, h), ("indexer.compressor.ape", 4, 16)):
            t(p + "attn." + name, *shape)
        t(p + "attn.attn_sink", n, dtype="F32")
        for part in ("attn", "ffn"):
            t(p + part + "_norm.weight", h)
            for name, *shape in (("base", 24), ("fn", 24, 4 * h), ("scale", 3)):
                t(p + "hc_%s_%s" % (part, name), *shape, dtype="F32")
        t(p + "ffn.gate.weight", t.n_routed_experts, h)
        if l < t.num_hash_layers:
            t(p + "ffn.gate.tid2eid", t.vocab_size, 2, dtype="I64")
        else:
            t(p + "ffn.gate.bias", t.n_routed_experts, dtype="F32")
        experts(t, p + "ffn.", t.n_routed_experts, t.moe_intermediate_size, W123)
        gated(t, p + "ffn.shared_experts.", t.moe_intermediate_size, W123)


@config("kimi-linear-48b-a3b", **small("kimi_linear", "KimiLinearForCausalLM", num_experts=8,
        num_experts_per_token=2, moe_intermediate_size=16, num_shared_experts=1, first_k_dense_replace=1,
        pad_token_id=0, linear_attn_config=dict(full_attn_layers=[2], kda_layers=[1], head_dim=8,
        num_heads=8, short_conv_kernel_size=4), **without(LATENT, "q_lora_rank")))
def _(t):
    h, w, d = t.hidden_size, 64, 8
    ends(at(t, "model."))
    for l in range(t.num_hidden_layers):
        norms(t, l)
        p = "layers.%d.self_attn." % l
        if l == 1:
            latent(t, l, q_rank=False)
        else:
            for name, *shape in (("q_proj.weight", w, h), ("k_proj.weight", w, h), ("v_proj.weight", w, h),
                                 ("q_conv1d.weight", w, 1, 4), ("k_conv1d.weight", w, 1,
                                                            4), ("v_conv1d.weight", w, 1, 4),
                                 ("A_log", 1, 1, 8, 1), ("dt_bias", w), ("f_a_proj.weight", d,
                                                            h), ("f_b_proj.weight", w, d),
                                 ("b_proj.weight", 8, h), ("g_a_proj.weight", d, h), ("g_b_proj.weight", w,
                                                            d),
                                 ("o_norm.weight", d), ("o_proj.weight", h, w)):
                t(p + name, *shape, dtype="F32" if name in ("A_log", "dt_bias") else "BF16")
        p = "layers.%d.block_sparse_moe." % l
        if l < t.first_k_dense_replace:
            gated(t, "layers.%d.mlp." % l, t.intermediate_size)
            continue
        t(p + "gate.weight", t.num_experts, h)
        t(p + "gate.e_score_correction_bias", t.num_experts, dtype="F32")
        experts(t, p, t.num_experts, t.moe_intermediate_size, W123)
        gated(t, p + "shared_experts.", t.moe_intermediate_size)


@config("minimax-01", **small("minimax", "MiniMaxForCausalLM", num_local_experts=8, num_experts_per_tok=2,
                              layer_types=["linear_attention", "full_attention"]))
def _(t):
    h, n, d = t.hidden_size, t.num_attention_heads, t.head_dim
    ends(at(t, "model."))
    for l in range(t.num_hidden_layers):
        norms(t, l)
        p = "layers.%d." % l
        if l == 1:
            attention(t, l)
        else:
            t(p + "self_attn.qkv_proj.weight", 3 * n * d, h)
            t(p + "self_attn.out_proj.weight", h, n * d)
            t(p + "self_attn.output_gate.weight", n * d, h)
            t(p + "self_attn.norm.weight", n * d)
        t(p + "block_sparse_moe.gate.weight", t.num_local_experts, h)
        experts(t, p + "block_sparse_moe.", t.num_local_experts, t.intermediate_size, W123)


@config("longcat-flash", **without(small("longcat_flash", "LongcatFlashForCausalLM", ffn_hidden_size=48,
        num_layers=2, expert_ffn_hidden_size=16, n_routed_experts=8, zero_expert_num=4, moe_topk=2,
        **LATENT), "head_dim", "intermediate_size", "num_hidden_layers"), num_hidden_layers=2)
def _(t):
    ends(at(t, "model."))
    for l in range(t.num_layers):
        p = "layers.%d." % l
        for k in range(2):
            t(p + "input_layernorm.%d.weight" % k, t.hidden_size)
            t(p + "post_attention_layernorm.%d.weight" % k, t.hidden_size)
            latent(t, (l, k), at="layers.%d.self_attn.%d.")
            gated(t, p + "mlps.%d." % k, t.ffn_hidden_size)
        t(p + "mlp.router.classifier.weight", t.n_routed_experts + t.zero_expert_num, t.hidden_size,
          dtype="F32")
        t(p + "mlp.router.e_score_correction_bias", t.n_routed_experts + t.zero_expert_num, dtype="F32")
        experts(t, p + "mlp.", t.n_routed_experts, t.expert_ffn_hidden_size)


# ---- Gemma, Llama 4, Mistral 3 ----


def gemma_layer(t, l, **how):
    norms(t, l, "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
          "post_feedforward_layernorm")
    attention(t, l, **how)
    gated(t, "layers.%d.mlp." % l, t.c.get("intermediate_size", 0))


def gemma(t, **how):
    ends(t, tied=True)
    for l in range(t.num_hidden_layers):
        gemma_layer(t, l, **how)


config("gemma-2-2b", **small("gemma2", "Gemma2ForCausalLM", tie_word_embeddings=True,
                             hidden_activation="gelu_pytorch_tanh"))(
    lambda t: gemma(at(t, "model.")))
config("gemma-3-1b", **small("gemma3_text", "Gemma3ForCausalLM", tie_word_embeddings=True,
                             hidden_activation="gelu_pytorch_tanh",
                             num_key_value_heads=1))(lambda t: gemma(at(t, "model."), norm="head"))


# only what differs from the defaults of the class stands in text_config: 8 heads of 256, 4 kv heads
@config("gemma-3-4b", architectures=["Gemma3ForConditionalGeneration"], model_type="gemma3",
        torch_dtype="bfloat16",
        text_config=dict(hidden_size=32, intermediate_size=48, model_type="gemma3_text",
                         num_hidden_layers=2, sliding_window=16,
                         vocab_size=104), vision_config=dict(hidden_size=24, num_hidden_layers=1))
def _(t):
    i = Inner(t, "language_model.model.")
    ends(i, tied=True)
    for l in range(2):
        i.c = dict(t.text_config, num_attention_heads=8, num_key_value_heads=4)
        gemma_layer(i, l, d=256, norm="head")
    t("multi_modal_projector.mm_input_projection_weight", 24, 32)
    t("vision_tower.vision_model.embeddings.patch_embedding.weight", 24, 3, 4, 4)
    t("vision_tower.vision_model.encoder.layers.0.self_attn.q_proj.weight", 24, 24)


GEMMA4 = dict(global_head_dim=16, num_global_key_value_heads=1, layer_types=["sliding_attention",
        "full_attention"], tie_word_embeddings=True, hidden_activation="gelu_pytorch_tanh",
        num_key_value_heads=4, attention_k_eq_v=True)


def gemma4(t, moe):
    i = Inner(t, "model.language_model.")
    ends(i, tied=True)
    h, n, m = i.hidden_size, i.c.get("num_experts", 0), i.c.get("moe_intermediate_size", 0)
    for l in range(i.num_hidden_layers):
        full = i.layer_types[l] == "full_attention"
        d, kv, p = (16, 1 if moe else 4, "layers.%d." % l) if full else (8, 4, "layers.%d." % l)
        names = ["input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
                 "post_feedforward_layernorm"]
        if moe:
            names += ["post_feedforward_layernorm_1", "post_feedforward_layernorm_2",
                      "pre_feedforward_layernorm_2"]
        norms(i, l, *names)
        i(p + "self_attn.q_proj.weight", 8 * d, h)
        i(p + "self_attn.k_proj.weight", kv * d, h)
        if not (full and moe):
            i(p + "self_attn.v_proj.weight", kv * d, h)
        i(p + "self_attn.o_proj.weight", h, 8 * d)
        i(p + "self_attn.q_norm.weight", d)
        i(p + "self_attn.k_norm.weight", d)
        i(p + "layer_scalar", 1)
        gated(i, p + "mlp.", i.intermediate_size)
        if moe:
            i(p + "router.proj.weight", n, h)
            i(p + "router.scale", h)
            i(p + "router.per_expert_scale", n)
            i(p + "experts.gate_up_proj", n, 2 * m, h)
            i(p + "experts.down_proj", n, h, m)
        else:
            w = i.hidden_size_per_layer_input
            i(p + "per_layer_input_gate.weight", w, h)
            i(p + "per_layer_projection.weight", h, w)
            i(p + "post_per_layer_input_norm.weight", h)
    if not moe:
        w = i.hidden_size_per_layer_input * i.num_hidden_layers
        i("embed_tokens_per_layer.weight", i.vocab_size, w)
        i("per_layer_model_projection.weight", w, h)
        i("per_layer_projection_norm.weight", i.hidden_size_per_layer_input)
    t("model.embed_vision.embedding_projection.weight", h, 24)


nested("gemma-4-26b-a4b", "gemma4", "Gemma4ForConditionalGeneration", "gemma4_text", **GEMMA4,
       enable_moe_block=True, num_experts=8,
       top_k_experts=2, moe_intermediate_size=16, hidden_size_per_layer_input=0)(lambda t: gemma4(t, True))
nested("gemma-4-e2b", "gemma4", "Gemma4ForConditionalGeneration", "gemma4_text", **{**GEMMA4,
        "attention_k_eq_v": False, "num_global_key_value_heads": None}, vocab_size_per_layer_input=104,
        hidden_size_per_layer_input=8)(lambda t: gemma4(t, False))


@nested("llama-4-scout", "llama4", "Llama4ForConditionalGeneration", "llama4_text", num_local_experts=8,
        num_experts_per_tok=1,
        intermediate_size_mlp=96, interleave_moe_layer_step=2)
def _(t):
    i = Inner(t, "language_model.model.")
    ends(i, head="language_model.lm_head.weight")
    for l in range(i.num_hidden_layers):
        norms(i, l)
        attention(i, l)
        p = "layers.%d.feed_forward." % l
        if l % 2 == 0:
            gated(i, p, i.intermediate_size_mlp)
            continue
        i(p + "router.weight", i.num_local_experts, i.hidden_size)
        fused(i, p, i.num_local_experts, i.intermediate_size, turned=True)
        gated(i, p + "shared_expert.", i.intermediate_size)
    t("multi_modal_projector.linear_1.weight", 32, 24)
    t("vision_model.class_embedding", 24)
    t("vision_model.model.layers.0.self_attn.q_proj.weight", 24, 24)


@nested("mistral-small-3.1-24b", "mistral3", "Mistral3ForConditionalGeneration", "mistral",
        sliding_window=None)
def _(t):
    i = Inner(t, "language_model.model.")
    llama_head(i)
    t("multi_modal_projector.linear_1.weight", 32, 24)
    t("vision_tower.transformer.layers.0.attention.q_proj.weight", 24, 24)


def llama_head(i):
    ends(i, head="language_model.lm_head.weight")
    for l in range(i.num_hidden_layers):
        norms(i, l)
        attention(i, l)
        gated(i, "layers.%d.mlp." % l, i.intermediate_size)


# ---- state spaces ----


def mamba2(t, p, heads, d, state, groups):
    inner, conv = heads * d, heads * d + 2 * groups * state
    t(p + "in_proj.weight", inner + conv + heads, t.hidden_size)
    t(p + "conv1d.weight", conv, 1, 4)
    t(p + "conv1d.bias", conv)
    for name in ("A_log", "D", "dt_bias"):
        t(p + name, heads)
    t(p + "norm.weight", inner)
    t(p + "out_proj.weight", t.hidden_size, inner)


@config("granite-4.0-h-tiny", **small("granitemoehybrid", "GraniteMoeHybridForCausalLM", head_dim=None,
        num_local_experts=8, num_experts_per_tok=2, shared_intermediate_size=24, mamba_n_heads=8,
        mamba_d_head=8, mamba_d_state=16, mamba_n_groups=1, mamba_d_conv=4, mamba_expand=2,
        layer_types=["mamba", "attention"],
        tie_word_embeddings=False, pad_token_id=0))
def _(t):
    h, n, w, s = t.hidden_size, t.num_local_experts, t.intermediate_size, t.shared_intermediate_size
    ends(at(t, "model."))
    for l in range(t.num_hidden_layers):
        p = "layers.%d." % l
        norms(t, l)
        if l:
            attention(t, l)
        else:
            mamba2(t, p + "mamba.", 8, 8, 16, 1)
        t(p + "block_sparse_moe.input_linear.weight", n, 2 * w, h)
        t(p + "block_sparse_moe.output_linear.weight", n, h, w)
        t(p + "block_sparse_moe.router.layer.weight", n, h)
        t(p + "shared_mlp.input_linear.weight", 2 * s, h)
        t(p + "shared_mlp.output_linear.weight", h, s)


@config("nemotron-nano-3-30b-a3b", **small("nemotron_h", "NemotronHForCausalLM", mamba_num_heads=8,
        mamba_head_dim=8, ssm_state_size=16, n_groups=8, num_hidden_layers=3,
        hybrid_override_pattern="M*E", n_routed_experts=8, num_experts_per_tok=2,
        moe_intermediate_size=16, moe_shared_expert_intermediate_size=24, layers_block_type=["mamba",
        "attention", "moe"]))
def _(t):
    h = t.hidden_size
    t.at = "backbone."
    t("embeddings.weight", t.vocab_size, h)
    t("norm_f.weight", h)
    t.list.append(("lm_head.weight", [t.vocab_size, h], "BF16"))
    for l in range(3):
        t("layers.%d.norm.weight" % l, h)
    mamba2(t, "layers.0.mixer.", 8, 8, 16, 8)
    attention(t, 1, at="layers.%d.mixer.")
    p = "layers.2.mixer."
    t(p + "gate.weight", t.n_routed_experts, h)
    t(p + "gate.e_score_correction_bias", t.n_routed_experts, dtype="F32")
    for x in range(t.n_routed_experts):
        t(p + "experts.%d.up_proj.weight" % x, 16, h)
        t(p + "experts.%d.down_proj.weight" % x, h, 16)
    t(p + "shared_experts.up_proj.weight", 24, h)
    t(p + "shared_experts.down_proj.weight", h, 24)


@config("apertus-8b", **small("apertus", "ApertusForCausalLM", hidden_act="xielu"))
def _(t):
    ends(at(t, "model."))
    for l in range(t.num_hidden_layers):
        norms(t, l, "attention_layernorm", "feedforward_layernorm")
        attention(t, l, norm="head")
        p = "layers.%d.mlp." % l
        t(p + "up_proj.weight", t.intermediate_size, t.hidden_size)
        t(p + "down_proj.weight", t.hidden_size, t.intermediate_size)
        for name, *shape in (("alpha_n", 1), ("alpha_p", 1), ("beta",), ("eps",)):  # some without a dim
            t(p + "act_fn." + name, *shape)
