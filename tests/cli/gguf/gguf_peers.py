"""What llama.cpp makes of GGUF files written by reshard.

gguf_peers.py logprobs FILE LINES BOUND   its log-probabilities of the windows in LINES (ptrain --eval-logprobs) differ by at most BOUND
gguf_peers.py tokens FILE DIR             its tokens of DIR/vectors.jsonl: prints how many of how many texts are the same
gguf_peers.py keys FILE                   the gguf package reads every key and tensor: prints their numbers
gguf_peers.py blocks PLAIN QUANTISED TYPE llama_model_quantize --pure of PLAIN has the blocks of QUANTISED
gguf_peers.py convert DIR FILE LLAMA_CPP  the converter convert_hf_to_gguf of that llama.cpp makes the same tensors and keys of DIR
Prints `ok …`, or what is wrong."""

import base64
import contextlib
import json
import os
import sys
import unicodedata

import numpy as np


def quiet(work):
    """Without what libraries print on standard error."""
    with open(os.devnull, "w") as null:
        saved = os.dup(2)
        os.dup2(null.fileno(), 2)
        try:
            with contextlib.redirect_stdout(null):
                return work()
        finally:
            os.dup2(saved, 2)


def load(path):
    from llama_cpp import Llama

    return quiet(
        lambda: Llama(
            path,
            n_ctx=512,
            n_batch=512,
            n_ubatch=512,
            logits_all=True,
            verbose=False,
            n_threads=1,
            flash_attn=False,
            type_k=0,
            type_v=0,
        )
    )


def logprobs(path, lines, bound):
    model, worst, n = load(path), 0.0, 0
    for line in open(lines):
        w = json.loads(line)
        model.reset()
        model.eval(w["ids"])
        x = np.asarray(model._scores[: len(w["ids"])], np.float64)
        x -= x.max(-1, keepdims=True)
        x -= np.log(np.exp(x).sum(-1, keepdims=True))
        for i in range(1, len(w["ids"])):
            worst, n = max(worst, abs(x[i - 1, w["ids"][i]] - w["logprobs"][i])), n + 1
    assert n > 50, "only %d log-probabilities" % n
    assert worst <= float(bound), "log-probabilities differ by %g" % worst
    return "%d log-probabilities within %.1e" % (n, worst)


def tokens(path, folder):
    model, same, n = load(path), 0, 0
    for line in open(folder + "/vectors.jsonl"):
        v = json.loads(line)
        text = v.get("text")
        if "b64" in v:
            text = base64.b64decode(v["b64"]).decode(errors="replace")
        if folder.endswith("qwen2") and text and unicodedata.normalize("NFC", text) != text:
            continue  # llama.cpp does not normalise
        if not text or "ids_plain" not in v or "\0" in text:
            continue
        same += model.tokenize(text.encode(), add_bos=False, special=True) == v["ids_plain"]
        n += 1
    return "%d of %d texts" % (same, n)


def read(path):
    import gguf

    r = gguf.GGUFReader(path)
    t = {x.name: (x.tensor_type.name, tuple(map(int, x.shape)), np.array(x.data).tobytes()) for x in r.tensors}
    k = {n: f.contents() for n, f in r.fields.items() if not n.startswith("GGUF.")}
    return t, k


def keys(path):
    t, k = read(path)
    assert k["general.architecture"] and t["token_embd.weight"]
    return "%d tensors %d keys" % (len(t), len(k))


def blocks(plain, quantised, kind):
    import llama_cpp

    p = llama_cpp.llama_model_quantize_default_params()
    p.ftype = {"q8_0": 7, "q4_0": 2, "q4_k": 14, "q5_k": 16, "q6_k": 18, "mxfp4": 38}[kind]
    p.pure, p.nthread, p.allow_requantize = True, 1, True
    made = quantised + ".theirs"
    assert quiet(lambda: llama_cpp.llama_model_quantize(plain.encode(), made.encode(), p)) == 0
    ours, theirs = read(quantised)[0], read(made)[0]
    n = sum(x[0].lower() == kind for x in ours.values())
    differ = [a for a in ours if theirs[a][0].lower() == kind and ours[a] != theirs[a]]
    assert set(ours) == set(theirs) and n and not differ, "other blocks: %s" % differ[:3]
    assert all(x[0] == theirs[a][0] for a, x in ours.items() if x[0].lower() == kind)
    return "%d tensors of %s" % (n, kind)


# Keys that only one of the two writes: sizes that llama.cpp also takes from others, and names that are made of the folder's.
ONE_SIDED = ("general.name", "general.size_label", "tokenizer.ggml.add_sep_token", "tokenizer.huggingface.json")
OPTIONAL = (
    "rope.dimension_count",
    "vocab_size",
    "attention.key_length",
    "attention.value_length",
    "attention.head_count_kv",
    "rope.freq_base",
    "rope.freq_base_swa",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "expert_group_count",
    "expert_group_used_count",
    "tokenizer.ggml.add_space_prefix",
)


def convert(folder, path, source):
    from pathlib import Path

    sys.path[:0] = [source, source + "/gguf-py"]
    import logging

    logging.disable(logging.CRITICAL)
    import gguf
    from conversion import ModelBase, ModelType, get_model_architecture, get_model_class
    from conversion.base import TextModel

    TextModel.get_vocab_base_pre = lambda self, tokenizer: "?"
    settings = ModelBase.load_hparams(Path(folder), False)
    kind = get_model_class(get_model_architecture(settings, ModelType.TEXT))
    form = gguf.LlamaFileType.MOSTLY_BF16 if "bf16" in folder else gguf.LlamaFileType.ALL_F32
    made = path + ".theirs"
    quiet(lambda: kind(Path(folder), form, Path(made)).write())
    (t, k), (tt, kk) = read(path), read(made)
    assert set(t) == set(tt), "other tensors: %s" % sorted(set(t) ^ set(tt))[:3]
    differ = [n for n in t if t[n] != tt[n] and n != "rope_freqs.weight"]
    assert not differ, "tensors differ: %s" % differ[:3]
    arch = k["general.architecture"] + "."
    for n in set(k) | set(kk):
        short = n[len(arch) :] if n.startswith(arch) else n
        if n in ONE_SIDED or n in ("tokenizer.ggml.pre", "tokenizer.ggml.scores", "tokenizer.ggml.token_type"):
            continue
        if short in OPTIONAL and (n in k) != (n in kk):
            continue
        a, b = k.get(n), kk.get(n)
        same = a == b or (isinstance(a, float) and isinstance(b, float) and abs(a - b) <= 1e-6 * abs(b))
        assert same, "key %s: %s, theirs %s" % (n, str(a)[:60], str(b)[:60])
    return "%d tensors %d keys" % (len(t), len(k))


try:
    print("ok", {f.__name__: f for f in (logprobs, tokens, keys, blocks, convert)}[sys.argv[1]](*sys.argv[2:]))
except Exception as problem:  # a library's too: the script's claim prints it
    print("%s: %s" % (type(problem).__name__, problem))
