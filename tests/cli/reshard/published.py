#!/usr/bin/env python3
"""The published configurations of published_models.py as checkpoints. Every tensor holds random bytes of its
own.

    published.py list                        the names, one a line
    published.py make NAME DIR               a Hugging Face folder
    published.py check RESHARD [NAME...]     each is cut and joined by the program; no names: all
    published.py judge [NAME...]             names and shapes against models that transformers makes

Quantised ones are made of these by published_quant.py.
"""

import json, os, random, re, shutil, struct, subprocess, sys, tempfile
from published_models import Tensors, W123, configs
import published_quant

BITS = {"F32": 32, "BF16": 16, "F16": 16, "I64": 64, "F8_E4M3": 8, "F8_E8M0": 8, "U8": 8, "I8": 8, "I32": 32}
# ---- the same models with a layer's experts in one tensor ----


def fuse(listed, data, rename):
    """The form of transformers 5 of tensors whose experts have tensors of their own: what it lists, and the
    bytes of each. rename: words of other names in both forms."""
    out, filled = {}, {}
    for name, shape, dtype in listed:
        head, dot, rest = name.partition(".experts.")
        number, _, part = rest.partition(".")
        if not (dot and number.isdigit()):
            was = name
            for old, new in rename:
                name = name.replace(old, new)
            out[name], filled[name] = (name, shape, dtype), data[was]
            continue
        down = part in ("w2.weight", "down_proj.weight")
        one = head.replace("block_sparse_moe", "mlp") + (
            ".experts.down_proj" if down else ".experts.gate_up_proj"
        )
        out.setdefault(one, (one, [0, *(shape if down else [2 * shape[0], shape[1]])], dtype))
        out[one][1][0] = max(out[one][1][0], int(number) + 1)
        filled.setdefault(one, {})[int(number), part in ("w3.weight", "up_proj.weight")] = data[name]
    joined = {n: b"".join(v[k] for k in sorted(v)) if isinstance(v, dict) else v for n, v in filled.items()}
    return sorted(out.values(), key=lambda x: x[0].encode()), joined


FUSED = {
    "mixtral-8x7b": [("block_sparse_moe.", "mlp.")],
    "minimax-01": [("block_sparse_moe.", "mlp.")],
    "minimax-m2": [("block_sparse_moe.", "mlp.")],
    "phi-3.5-moe": [("block_sparse_moe.gate.", "mlp.router.")],
    "kimi-linear-48b-a3b": [("block_sparse_moe.", "mlp.")],
    "kimi-k2.5": [],
    "glm-4.5v": [],
    "glm-5": [],
    "longcat-flash": [],
    "qwen1.5-moe-a2.7b": [],
    "qwen3-30b-a3b": [],
    "qwen3-next-80b-a3b": [],
    "deepseek-v2-lite": [],
    "deepseek-v3": [],
    "kimi-k2": [],
    "glm-4.5-air": [],
    "ernie-4.5-21b-a3b": [("mlp.moe_statics.", "mlp.gate.moe_statics.")],
    "olmoe-1b-7b": [],
    "flexolmo-7x7b": [],
    "hunyuan-a13b": [],
    "dots.llm1": [],
}


# ---- bytes and files ----


def tensors_of(name):
    """[(name, shape, dtype)] of a row, sorted."""
    return filled(name).list


def filled(name):
    keys, function = configs[name]
    t = Tensors(keys)
    function(t)
    t.list.sort(key=lambda x: x[0].encode())
    return t


def n_bytes(shape, dtype):
    n = BITS[dtype] // 8
    for size in shape:
        n *= size
    return n


def values(name, shape, dtype):
    """Random bytes, another sequence for each name."""
    return random.Random(name).randbytes(n_bytes(shape, dtype))


def write(folder, config, listed, data=values):
    """The file as reshard --format hf lays it out: sorted by name, header padded to 4096 bytes."""
    os.makedirs(folder)
    head, at = {"__metadata__": {"format": "pt"}}, 0
    for name, shape, dtype in listed:
        end = at + n_bytes(shape, dtype)
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGN)
    with open(folder + "/model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for name, shape, dtype in listed:
            f.write(data(name, shape, dtype))
    with open(folder + "/config.json", "w") as f:
        json.dump(config, f, indent=2)
        f.write("\n")


ALIGN = 4096


def make(name, folder):
    t = filled(name)
    write(folder, t.c, t.list, lambda n, shape, dtype: t.bytes.get(n) or values(n, shape, dtype))


# ---- the check ----


class Failed(Exception):
    pass


def run(reshard, *words):
    """stdout and stderr of the program; raises where it fails."""
    r = subprocess.run([reshard, *words], capture_output=True, text=True, timeout=120)
    if r.returncode:
        raise Failed("%s: status %d: %s" % (" ".join(words), r.returncode, r.stderr.strip()))
    return r


def read(path):
    with open(path, "rb") as f:
        return f.read()


def has_experts(name):
    return any(".experts." in x or ".block_sparse_moe.input_linear" in x for x, _, _ in tensors_of(name))


def layouts(name):
    """One after the other: each is made of the one before."""
    yield "--tp 2"
    yield "--tp 4 --pp 2"
    yield "--tp 8 --dp 2 --zero 3"
    if has_experts(name):
        yield "--tp 2 --ep 2"
        yield "--tp 2 --dp 2 --ep 4"
        yield "--dp 2 --ep 2"
        yield "--tp 4 --ep 4 --pp 2"


def check_printed(reshard, source, layout, tmp):
    """The printed table, given back, cuts as the program did."""
    with open(tmp + "/cuts", "w") as f:
        f.write(run(reshard, "inspect", "--cuts", source).stdout)
    run(reshard, *layout.split(), "--cuts", tmp + "/cuts", source, tmp + "/printed")
    for file in ("weights-00000.safetensors", "weights-00001.safetensors"):
        if read(tmp + "/1/" + file) != read(tmp + "/printed/" + file):
            raise Failed("the printed cut table cuts %s in another way" % file)
    shutil.rmtree(tmp + "/printed")


def check(reshard, name, tmp):
    source, last, n = tmp + "/source", tmp + "/source", 0
    make(name, source)
    digest = run(reshard, "digest", source).stdout
    for layout in layouts(name):
        n += 1
        run(reshard, *layout.split(), last, tmp + "/%d" % n)
        if n == 1:
            check_printed(reshard, source, layout, tmp)
        if last != source:
            shutil.rmtree(last)
        last = tmp + "/%d" % n
        if n == 3 and name in published_quant.ROWS:
            check_values(reshard, source, last, tmp + "/values")
        if not os.path.getsize(last + "/weights-00001.safetensors"):
            raise Failed(layout + ": rank 1 has no weights")
    run(reshard, "--format", "hf", *BACK.get(name, []), last, tmp + "/back")
    for file in ("model.safetensors", "config.json"):
        if read(source + "/" + file) != read(tmp + "/back/" + file):
            raise Failed("%s is not what it was before %d layouts" % (file, n))
    if run(reshard, "digest", tmp + "/back").stdout != digest:
        raise Failed("the digest changed")
    shutil.rmtree(tmp)


def check_values(reshard, source, cut, folder):
    """The numbers that the codes stand for are those of the source, also where tp cuts inside blocks."""
    digests = set()
    for c in (source, cut):
        run(reshard, "--dequantize", "bf16", c, folder)
        digests.add(run(reshard, "digest", folder).stdout)
        shutil.rmtree(folder)
    if len(digests) > 1:
        raise Failed("other values after the cut")


# how the published form of experts comes back
BACK = {}


def table(folder):
    """{name: (dtype, shape, bytes)} of a folder."""
    data = read(folder + "/model.safetensors")
    n = struct.unpack("<Q", data[:8])[0]
    head = json.loads(data[8 : 8 + n])
    head.pop("__metadata__", None)
    return {
        name: (v["dtype"], v["shape"], data[8 + n + v["data_offsets"][0] : 8 + n + v["data_offsets"][1]])
        for name, v in head.items()
    }


def check_fused(reshard, name, tmp):
    """Both forms of a layer's experts have one digest, and each becomes the other."""
    each = tensors_of(name)
    data = {x: values(x, s, d) for x, s, d in each}
    listed, filled = fuse(each, data, FUSED[name])
    write(tmp + "/each", configs[name][0], each)
    write(tmp + "/fused", configs[name][0], listed, lambda tensor, shape, dtype: filled[tensor])
    if run(reshard, "digest", tmp + "/each").stdout != run(reshard, "digest", tmp + "/fused").stdout:
        raise Failed("both forms of experts have not one digest")
    run(reshard, "--tp", "2", tmp + "/fused", tmp + "/n")
    for form in ("each", "fused"):
        run(reshard, "--format", "hf", "--experts", form, tmp + "/n", tmp + "/back-" + form)
        if table(tmp + "/" + form) != table(tmp + "/back-" + form):
            raise Failed("the form with experts %s is not what it was" % form)
    shutil.rmtree(tmp)


# both orientations of fused experts are legal: the published files and those that transformers 5 writes
EITHER = ("qwen3-vl-30b-a3b",)


def check_refused(reshard, name, tmp, listed, words):
    write(tmp + "/turned", configs[name][0], listed)
    r = subprocess.run([reshard, "--tp", "2", tmp + "/turned", tmp + "/n"], capture_output=True, text=True)
    if r.returncode == 0 or not any(w in r.stderr for w in words) or r.stderr.count("\n") != 1:
        raise Failed("turned %s: status %d: %s" % (words[0], r.returncode, r.stderr.strip()))
    shutil.rmtree(tmp)


def turned(shape):
    """N and K change places; gpt-oss's blocks are [E, N, K/32, 16]."""
    at = len(shape) - (3 if len(shape) == 4 else 2)
    return shape[:at] + [shape[at + 1], shape[at]] + shape[at + 2 :]


MATRIX = re.compile(
    r"(down_proj|w2|o_proj|out_proj|wo|dense|dense_4h_to_h|fc2)(_blocks|_scales?|_scale_inv|[.]|$)"
)


def check_turned(reshard, name, tmp):
    """A matrix, with its scales, in the other orientation is refused, unless it is square."""
    listed, found = tensors_of(name), {}
    for n, s, d in listed:
        m = MATRIX.search(n)
        if m and len(s) > 1 and not n.endswith("bias"):
            found.setdefault(n[: m.end(1)], []).append((n, s, d))
    flat = [m for m in sorted(found) if all(len(s) == 2 for _, s, _ in found[m])]
    square = [m for m in flat if any(s[0] == s[1] and d not in SCALES for _, s, d in found[m])]
    module = [m for m in flat if m not in square][-1:]
    if module:
        names = [n for n, _, _ in found[module[0]]]
        out = [(n, turned(s) if n in names else s, d) for n, s, d in listed]
        check_refused(reshard, name, tmp, out, module)


SCALES = ("F32", "F16", "I64")
FUSED_ENDS = ("experts.gate_up_proj", "experts.down_proj", "_proj_blocks", "_proj_scales", "_proj_scale_inv")


def check_turned_experts(reshard, name, tmp):
    """The same of fused experts, also where one of the two is square."""
    out = [(n, turned(s) if n.endswith(FUSED_ENDS) else s, d) for n, s, d in tensors_of(name)]
    check_refused(reshard, name, tmp, out, ["_proj"])


def check_all(reshard, names):
    failed = n = 0
    for name in names or sorted(configs):
        tmp = tempfile.mkdtemp()
        jobs = [("", check)] + [("fused: ", check_fused)] * (name in FUSED)
        jobs += [("turned: ", check_turned)]
        is_fused = any(x.endswith(("experts.gate_up_proj", "_proj_blocks")) for x, _, _ in tensors_of(name))
        jobs += [("turned: ", check_turned_experts)] * (is_fused and name not in EITHER)
        for what, job in jobs:
            n += 1
            try:
                job(reshard, name, tmp + "/" + job.__name__)
            except Failed as e:
                failed += 1
                print("%s: %s%s" % (name, what, str(e).replace(tmp, "TMP")))
        shutil.rmtree(tmp)
    print("%d checks of %d configurations, %d failed" % (n, len(names or configs), failed))
    return failed > 0


# ---- transformers as the judge of names and shapes ----

# what it does not have, or writes in another way than the published files
JUDGED_APART = {
    "internlm2-7b": "not in transformers",
    "kimi-k2": "not in transformers by this model_type",
    "kimi-k2.5": "its text model is not in transformers by this model_type",
    "deepseek-v4": "writes model. in front of names",
    "minimax-01": "writes tables of decay besides",
    "qwen3.5-35b-a3b": "writes a tensor an expert",
    "kimi-linear-48b-a3b": "writes block_sparse_moe for dense layers, too",
    "qwen3-vl-30b-a3b": "writes experts in the other orientation, too",
    "nemotron-nano-3-30b-a3b": "reads other words for the kinds of layers",
    "longcat-flash": "gives identity experts gate and up",
}
TOWERS = ("visual", "vision", "multi_modal", "mm_projector", "embed_vision", "audio", "mtp.")


def language(listed, layers):
    """Names and shapes of the language model alone, without layers that predict further tokens."""
    kept = {}
    for name, shape, dtype in listed:
        words = name.split(".")
        number = next((int(w) for w in words if w.isdigit()), 0)
        if not any(t in name for t in TOWERS) and number < layers:
            kept[name] = shape
    return kept


def judge(names):
    import warnings

    warnings.filterwarnings("ignore")
    import torch
    import transformers
    from transformers.models.auto import modeling_auto as auto

    transformers.logging.set_verbosity_error()
    failed = 0
    for name in names or sorted(set(configs) - set(JUDGED_APART) - set(published_quant.ROWS)):
        tmp = tempfile.mkdtemp()
        keys = configs[name][0]
        try:
            make(name, tmp + "/m")
            c = transformers.AutoConfig.from_pretrained(tmp + "/m")
            t = keys["model_type"]
            cls = (
                auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.get(t)
                or auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[t]
            )
            model = getattr(transformers, cls)._from_config(c, torch_dtype=torch.bfloat16)
            model.save_pretrained(tmp + "/o")
            inner = keys.get("text_config", keys)
            layers = inner.get("num_hidden_layers") or inner["n_layer"]
            theirs = language([(n, s, d) for n, (d, s, _) in table(tmp + "/o").items()], layers)
            ours = language(tensors_of(name), layers)
            ours = {n: s for n, s in ours.items() if n in theirs or not n.endswith("lm_head.weight")}
            for n in sorted(set(ours) | set(theirs)):
                if ours.get(n) != theirs.get(n):
                    failed += 1
                    print("%s: %s is %s here, %s in transformers" % (name, n, ours.get(n), theirs.get(n)))
        except Exception as e:
            failed += 1
            print("%s: %s: %s" % (name, type(e).__name__, " ".join(str(e).split())[:300]))
        shutil.rmtree(tmp)
    print("%d differences" % failed)
    return failed > 0


if __name__ == "__main__":
    word, *rest = sys.argv[1:]
    if word == "list":
        print("\n".join(sorted(configs)))
    elif word == "make":
        make(*rest)
    elif word == "check":
        sys.exit(check_all(rest[0], rest[1:]))
    elif word == "judge":
        sys.exit(judge(rest))
