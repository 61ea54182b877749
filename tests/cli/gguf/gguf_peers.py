"""What llama.cpp makes of GGUF files written by reshard.

gguf_peers.py logprobs FILE BOUND CKPT…   its log-probabilities of the ids in ids.u16 are by at most BOUND others than pserve's of each CKPT
gguf_peers.py tokens FILE DIR             its tokens of DIR/vectors.jsonl: prints how many of how many texts are the same
gguf_peers.py pre FILE DIR NAME…          with each NAME as the file's pre-tokenizer its tokens of DIR/vectors.jsonl are those of ptok behind reshard
gguf_peers.py keys FILE                   the gguf package reads every key and tensor: prints their numbers
gguf_peers.py numbers FILE OUT            OUT: the file with its blocks made fp32 by llama.cpp
gguf_peers.py blocks PLAIN QUANTISED TYPE llama_model_quantize --pure of PLAIN has the blocks of QUANTISED
gguf_peers.py split DIR FILE LLAMA_CPP    writes its set of files of 10 tensors each, as `convert_hf_to_gguf --split-max-tensors` does
gguf_peers.py convert DIR FILE LLAMA_CPP  the converter convert_hf_to_gguf of that llama.cpp makes the same tensors and keys of DIR
Prints `ok …`, or what is wrong."""

import base64
import contextlib
import json
import logging
import os
import struct
import subprocess
import sys
import unicodedata
import urllib.request
from pathlib import Path

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


def served(checkpoint, windows):
    """pserve's log-probabilities of the windows of ids."""
    command = [os.environ["BIN"] + "/pserve", checkpoint, "--port", "0", "--dtype", "fp32", "--threads", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            at = next((x for x in server.stdout if "ready on http" in x), None)
            assert at, "pserve does not open " + checkpoint
            at = at.split("ready on ")[1].split()[0]
            for ids in windows:
                ask = {"prompt": ids, "max_tokens": 0, "echo": True, "logprobs": 1}
                ask = urllib.request.Request(
                    at + "/v1/completions", json.dumps(ask).encode(), {"Content-Type": "application/json"}
                )
                answer = json.load(urllib.request.urlopen(ask, timeout=60))
                yield np.array(answer["choices"][0]["logprobs"]["token_logprobs"][1:], np.float64)
        finally:
            server.terminate()


def logprobs(path, bound, *checkpoints):
    ids = np.fromfile("ids.u16", np.uint16)
    windows = [ids[i : i + 48].tolist() for i in range(0, ids.size - 47, 48)]
    model, theirs = load(path), []
    for w in windows:
        model.reset()
        model.eval(w)
        x = np.asarray(model._scores[: len(w)], np.float64)
        x -= x.max(-1, keepdims=True)
        x -= np.log(np.exp(x).sum(-1, keepdims=True))
        theirs.append(x[np.arange(len(w) - 1), w[1:]])
    said = []
    for checkpoint in checkpoints:
        differ = [np.abs(a - b) for a, b in zip(served(checkpoint, windows), theirs, strict=True)]
        worst = max(x.max() for x in differ)
        assert worst <= float(bound), "%s: log-probabilities differ by %g" % (checkpoint, worst)
        said.append("%.1e" % worst)
    return "%d log-probabilities within %s" % (sum(x.size for x in theirs), " ".join(said))


def texts(folder, composed):
    """Texts and their ids; composed: only those that are in NFC, because llama.cpp does not normalise."""
    for line in open(folder + "/vectors.jsonl"):
        v = json.loads(line)
        text = v.get("text")
        if "b64" in v:
            text = base64.b64decode(v["b64"]).decode(errors="replace")
        if not text or "ids_plain" not in v or "\0" in text:
            continue
        if not composed or unicodedata.normalize("NFC", text) == text:
            yield text, v["ids_plain"]


def tokens(path, folder):
    model, same, n = load(path), 0, 0
    for text, ids in texts(folder, folder.endswith("qwen2")):
        same += model.tokenize(text.encode(), add_bos=False, special=True) == ids
        n += 1
    return "%d of %d texts" % (same, n)


def renamed(path, name, made):
    """The file with that tokenizer.ggml.pre, and without the tokenizer.json that it carries."""
    import gguf

    r, raw = gguf.GGUFReader(path), open(path, "rb").read()
    keys = [f for n, f in r.fields.items() if not n.startswith("GGUF.")]
    tensor = r.tensors[-1].field
    infos = raw[r.tensors[0].field.offset : tensor.offset + sum(int(p.nbytes) for p in tensor.parts)]
    out, n = b"", 0
    for f in keys:
        if f.name == "tokenizer.huggingface.json":
            continue
        text = raw[f.offset : f.offset + sum(int(p.nbytes) for p in f.parts)]
        if f.name == "tokenizer.ggml.pre":
            text = text[: 8 + len(f.name) + 4] + struct.pack("<Q", len(name)) + name.encode()
        out, n = out + text, n + 1
    head = raw[:16] + struct.pack("<Q", n) + out + infos
    with open(made, "wb") as f:
        f.write(head + bytes(-len(head) % 32) + raw[r.data_offset :])


# Where llama.cpp does not do what the models' own tokenizers do: marks in words, and digits one by one (of which
# the vocabularies of deepseek-llm have no pairs).
OTHERWISE = {
    "tekken": lambda t: any(unicodedata.category(c)[0] == "M" for c in t),
    "gpt-4o": lambda t: any(unicodedata.category(c)[0] == "M" for c in t),
    "deepseek-llm": lambda t: any(a.isnumeric() and b.isnumeric() for a, b in zip(t, t[1:])),
}


def pre(path, folder, *names):
    n, bin = 0, os.environ["BIN"]
    from llama_cpp import Llama

    for name in names:
        said = [t for t, _ in texts(folder, True) if name not in OTHERWISE or not OTHERWISE[name](t)]
        coded = [base64.b64encode(t.encode()).decode() for t in said]
        lines = "".join(json.dumps({"n": i, "text_b64": t}) + "\n" for i, t in enumerate(coded))
        made = "%s.%s.gguf" % (path, name)
        renamed(path, name, made)
        subprocess.run(
            [bin + "/reshard", "--format", "hf", made, made + ".hf"], check=True, stderr=subprocess.DEVNULL
        )
        ours = subprocess.run(
            [bin + "/ptok", "encode", "--tokenizer", made + ".hf"],
            input=lines,
            text=True,
            check=True,
            stdout=subprocess.PIPE,
        )
        model = quiet(lambda: Llama(made, vocab_only=True, verbose=False))
        bos = [model.token_bos()] if model.metadata.get("tokenizer.ggml.add_bos_token") == "true" else []
        for text, line in zip(said, ours.stdout.splitlines(), strict=True):
            ids = bos + model.tokenize(text.encode(), add_bos=False, special=True)
            assert json.loads(line)["ids"] == ids, "%s: %r: %s, theirs %s" % (
                name,
                text,
                json.loads(line)["ids"],
                ids,
            )
            n += 1
    return "%d texts of %d names" % (n, len(names))


def read(path):
    import gguf

    r = gguf.GGUFReader(path)
    t = {
        x.name: (x.tensor_type.name, tuple(map(int, x.shape)), np.array(x.data).tobytes()) for x in r.tensors
    }
    k = {n: f.contents() for n, f in r.fields.items() if not n.startswith("GGUF.")}
    return t, k


def keys(path):
    t, k = read(path)
    assert k["general.architecture"] and t["token_embd.weight"]
    return "%d tensors %d keys" % (len(t), len(k))


def requantised(path, made, form):
    import llama_cpp

    p = llama_cpp.llama_model_quantize_default_params()
    p.ftype, p.pure, p.nthread, p.allow_requantize = form, True, 1, True
    assert quiet(lambda: llama_cpp.llama_model_quantize(path.encode(), made.encode(), p)) == 0


def numbers(path, made):
    requantised(path, made, 0)
    return "fp32"


def blocks(plain, quantised, kind):
    made = quantised + ".theirs"
    requantised(plain, made, {"q8_0": 7, "q4_0": 2, "q4_k": 14, "q5_k": 16, "q6_k": 18, "mxfp4": 38}[kind])
    ours, theirs = read(quantised)[0], read(made)[0]
    n = sum(x[0].lower() == kind for x in ours.values())
    differ = [a for a in ours if theirs[a][0].lower() == kind and ours[a] != theirs[a]]
    assert set(ours) == set(theirs) and n and not differ, "other blocks: %s" % differ[:3]
    assert all(x[0] == theirs[a][0] for a, x in ours.items() if x[0].lower() == kind)
    return "%d tensors of %s" % (n, kind)


# Keys that only one of the two writes: sizes that llama.cpp also takes from others, and names that are made of the folder's.
ONE_SIDED = (
    "general.name",
    "general.size_label",
    "tokenizer.ggml.add_sep_token",
    "tokenizer.huggingface.json",
)
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


def converted(folder, made, source, **how):
    """What convert_hf_to_gguf makes of a folder; pre-tokenizers have no name."""
    sys.path[:0] = [source, source + "/gguf-py"]
    logging.disable(logging.CRITICAL)
    import gguf
    from conversion import ModelBase, ModelType, get_model_architecture, get_model_class
    from conversion.base import TextModel

    TextModel.get_vocab_base_pre = lambda self, tokenizer: "?"
    settings = ModelBase.load_hparams(Path(folder), False)
    kind = get_model_class(get_model_architecture(settings, ModelType.TEXT))
    form = gguf.LlamaFileType.MOSTLY_BF16 if "bf16" in folder else gguf.LlamaFileType.ALL_F32
    quiet(lambda: kind(Path(folder), form, Path(made), **how).write())


def split(folder, made, source):
    converted(folder, made, source, split_max_tensors=10)
    return "split"


def convert(folder, path, source):
    made = path + ".theirs"
    converted(folder, made, source)
    (t, k), (tt, kk) = read(path), read(made)
    assert set(t) == set(tt), "other tensors: %s" % sorted(set(t) ^ set(tt))[:3]
    differ = [n for n in t if t[n] != tt[n] and n != "rope_freqs.weight"]
    assert not differ, "tensors differ: %s" % differ[:3]
    arch = k["general.architecture"] + "."
    for n in set(k) | set(kk):
        short = n[len(arch) :] if n.startswith(arch) else n
        if n in ONE_SIDED or n in (
            "tokenizer.ggml.pre",
            "tokenizer.ggml.scores",
            "tokenizer.ggml.token_type",
        ):
            continue
        if short in OPTIONAL and (n in k) != (n in kk):
            continue
        a, b = k.get(n), kk.get(n)
        same = a == b or (isinstance(a, float) and isinstance(b, float) and abs(a - b) <= 1e-6 * abs(b))
        assert same, "key %s: %s, theirs %s" % (n, str(a)[:60], str(b)[:60])
    return "%d tensors %d keys" % (len(t), len(k))


try:
    print(
        "ok",
        {f.__name__: f for f in (logprobs, tokens, pre, numbers, keys, blocks, split, convert)}[sys.argv[1]](
            *sys.argv[2:]
        ),
    )
except Exception as problem:  # a library's too: the script's claim prints it
    print("%s: %s" % (type(problem).__name__, problem))
