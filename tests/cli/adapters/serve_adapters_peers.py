"""serve_adapters_peers.py make DIR    models of every family with an adapter of PEFT, and the log-probs that
                                    PEFT and transformers find; with PEER_PYTHON
serve_adapters_peers.py check DIR   serves them, several adapters in a batch, in several layouts: the same bits
                                    in all, near those log-probs"""
import json
import os
import sys

SIZES = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=8,
             num_key_value_heads=4,
             vocab_size=128, max_position_embeddings=128, tie_word_embeddings=False, pad_token_id=None,
             bos_token_id=None, eos_token_id=None)
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
MOE = dict(SIZES, moe_intermediate_size=32, num_experts=4, num_experts_per_tok=2, head_dim=8)
HEADS = ["q_proj", "k_proj", "v_proj", "o_proj"]
GPT2 = dict(n_embd=64, n_layer=2, n_head=8, n_positions=128, vocab_size=128, n_inner=96, bos_token_id=None,
            eos_token_id=None)
NEOX = dict({k: v for k, v in SIZES.items() if k != "num_key_value_heads"}, rotary_pct=0.5)
PARAMS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
LATENT = dict(SIZES, num_key_value_heads=8, q_lora_rank=24, kv_lora_rank=16, qk_nope_head_dim=8,
              qk_rope_head_dim=8,
              v_head_dim=8, n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1,
              n_shared_experts=1,
              first_k_dense_replace=1, moe_intermediate_size=32)
# name: config class, its members, members of LoraConfig, layouts
CASES = {
    "llama": ("LlamaConfig", SIZES, dict(r=4, target_modules=LINEAR),
              ["--tp 2", "--tp 4", "--tp 8", "--pp 2"]),
    "bin": ("LlamaConfig", SIZES, dict(r=4, target_modules=LINEAR), ["--tp 2"]),
    "patterns": ("LlamaConfig", dict(SIZES, tie_word_embeddings=True, attention_bias=True, mlp_bias=True),
                 dict(r=5, lora_alpha=16, use_rslora=True, target_modules=LINEAR,
                      rank_pattern={"k_proj": 2, r"layers\.1\.mlp\.up_proj": 7},
                      alpha_pattern={"layers.0.self_attn.q_proj": 3}), ["--tp 4"]),
    "one_layer": ("MistralConfig", dict(SIZES, sliding_window=16),
                  dict(r=3, target_modules=["o_proj", "down_proj"], layers_to_transform=[1]), ["--tp 2"]),
    "qwen2": ("Qwen2Config", dict(SIZES, tie_word_embeddings=True), dict(r=4, target_modules=LINEAR),
              ["--tp 8"]),
    "qwen3": ("Qwen3Config", dict(SIZES, head_dim=16), dict(r=4, target_modules=LINEAR),
              ["--tp 2", "--cp 2"]),
    "gpt2": ("GPT2Config", GPT2, dict(r=4, target_modules=["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True),
             ["--tp 2", "--tp 8"]),
    "neox": ("GPTNeoXConfig", NEOX, dict(r=6, target_modules=["query_key_value", "dense", "dense_h_to_4h",
                                                              "dense_4h_to_h"]), ["--tp 2", "--tp 4"]),
    "gemma2": ("Gemma2Config", dict(SIZES, head_dim=8, sliding_window=16, query_pre_attn_scalar=8),
               dict(r=4, target_modules=LINEAR), ["--tp 4"]),
    "gemma3": ("Gemma3TextConfig", dict(SIZES, head_dim=8, sliding_window=16, query_pre_attn_scalar=8),
               dict(r=4, target_modules=LINEAR), ["--tp 2"]),
    "qwen3moe": ("Qwen3MoeConfig", MOE, dict(r=4, target_modules=HEADS),
                 ["--tp 2", "--tp 2 --ep 2", "--tp 2 --cp 2 --ep 4"]),
    "mixtral": ("MixtralConfig", dict(SIZES, num_local_experts=4), dict(r=4, target_modules=HEADS),
                ["--tp 4", "--tp 2 --ep 2"]),
    "experts": ("Qwen3MoeConfig", MOE, dict(r=3, target_modules=["q_proj"], target_parameters=PARAMS),
                ["--tp 2", "--tp 4", "--tp 2 --cp 2", "--tp 2 --ep 2", "--tp 4 --ep 4",
                 "--tp 2 --cp 2 --ep 2", "--tp 2 --cp 2 --ep 4", "--cp 2 --ep 2"]),
    "downs": ("MixtralConfig", dict(SIZES, num_local_experts=4), dict(r=2, target_modules=["v_proj"],
                                                                     target_parameters=PARAMS[1:]),
              ["--tp 2", "--tp 2 --ep 2"]),
    "gptoss": ("GptOssConfig", dict(SIZES, num_local_experts=4, head_dim=8, intermediate_size=64,
                                    layer_types=["sliding_attention", "full_attention"], sliding_window=16),
               dict(r=3, target_modules=["q_proj", "o_proj"], target_parameters=PARAMS),
               ["--tp 4", "--tp 4 --ep 4", "--tp 2 --cp 2 --ep 4"]),
    "shared": ("Qwen2MoeConfig",
               dict({k: v for k, v in MOE.items() if k != "head_dim"}, shared_expert_intermediate_size=48),
               dict(r=2, target_modules=r".*\.(q_proj|shared_expert\.(gate|up|down)_proj)"), ["--tp 2"]),
    "latent": ("DeepseekV3Config", LATENT,
               dict(r=3, target_modules=["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa",
                                                                     "o_proj"]), ["--tp 2"]),
}
N, LENGTH = 5, 70


def sequences(seed):
    import random
    draw = random.Random(seed)
    return [[draw.randrange(128) for _ in range(LENGTH)] for _ in range(N)]


def make(where):
    import torch
    import transformers
    from peft import LoraConfig, get_peft_model
    torch.manual_seed(7)

    def randomise(module, scale, only=None):
        with torch.no_grad():
            for name, p in module.named_parameters():
                if only is None or only in name:
                    p.copy_(torch.randn(p.shape).to(p.dtype) * scale)

    def score(model, ids):
        with torch.no_grad():
            logits = model(torch.tensor(ids)).logits.double()
        lp = torch.log_softmax(logits[:, :-1], -1)
        return lp.gather(-1, torch.tensor(ids)[:, 1:, None])[..., 0].tolist()

    for name, (kind, members, lora, _) in CASES.items():
        config = getattr(transformers, kind)(**members)
        folder = os.path.join(where, name)
        model = transformers.AutoModelForCausalLM.from_config(config,
            attn_implementation="eager").float().eval()
        randomise(model, 0.12)
        model.save_pretrained(folder + "/base")
        want = {"m": score(model, sequences(0))}
        p = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **lora)).eval()
        for k, adapter in enumerate("ab"):
            randomise(p, 0.12, "lora_")
            p.save_pretrained(f"{folder}/{adapter}", safe_serialization=name != "bin")
            want[adapter] = score(p, sequences(0))
        json.dump(want, open(folder + "/want.json", "w"))


def check(where):
    from serve_server import Server, claim, finish, together

    for name, (_, _, _, layouts) in CASES.items():
        folder, first = os.path.join(where, name), None
        want = json.load(open(folder + "/want.json"))
        for layout in [""] + layouts:
            what = f"{name} {layout}"
            s = Server(folder + "/base", "--lora", f"a={folder}/a", "--lora", f"b={folder}/b",
                       *layout.split())
            if not claim(f"{what}: starts", s.port is not None, b"".join(s.err)):
                continue
            jobs = [lambda m=m,
                    ids=ids: s.complete(model=m, prompt=ids, max_tokens=3, echo=True, logprobs=1,
                                        temperature=0,
                                                    ignore_eos=True)["choices"][0]["logprobs"]["token_logprobs"][1:]
                    for ids in sequences(0) for m in "mab"]
            if first is None:
                alone = [job() for job in jobs]
            got = together(jobs)
            claim(f"{what}: a mixture has the bits of each alone", got == alone)
            first = first or got
            claim(f"{what}: the bits of one rank", got == first)
            far = [max(abs(float(x) - y) for i in range(N) for x, y in zip(got[3 * i + k], want[m][i]))
                   for k, m in enumerate("mab")]
            claim(f"{what}: near PEFT and transformers {['%.1e' % x for x in far]}", max(far) < 2e-4, far)
            apart = max(abs(x - y) for x, y in zip(want["a"][0], want["m"][0]))
            claim(f"{what}: adapters change much more", apart > 20 * max(far), (apart, far))
            rc, err = s.stop()
            claim(f"{what}: ends well", rc == 0, (rc, err))
    finish()


if sys.argv[1] == "make":
    make(sys.argv[2])
else:
    check(sys.argv[2])
