"""megatron_walk.py CKPT [HF] - reads a Megatron torch_dist folder without any framework: prints every array
(key, shape, dtype, chunks, with = the key whose bytes it shares) and object, then common.pt. With HF, a folder
of one safetensors file with the same weights (fp32), it rebuilds Megatron's arrays from the Hugging Face names
and compares every element."""
import io, json, os, pickle, struct, sys, zipfile


class Thing:
    """Any class: the name, what it was made with, its state."""

    def __init__(self, *args):
        self.args, self.state = args, {}

    def __setstate__(self, state):
        self.state = state

    def __hash__(self):
        return id(self)


class Walk(pickle.Unpickler):

    def find_class(self, module, name):
        if (module, name) == ("collections", "OrderedDict"): return dict
        if module == "torch" and name == "Size": return tuple
        if module == "torch" and name[0].islower(): return name
        return type(name, (Thing, ), {})

    def persistent_load(self, what):
        return what


def read_zip(data):
    z = zipfile.ZipFile(io.BytesIO(data))
    root = z.namelist()[0].split("/")[0]
    value = Walk(io.BytesIO(z.read(root + "/data.pkl"))).load()
    assert z.testzip() is None, "a record has another CRC-32"
    return value, lambda key: z.read(f"{root}/data/{key}")


def walk(folder):
    """Key -> (shape, dtype, {start: (extent, file, offset, length)}), or None for an object."""
    m = Walk(open(folder + "/.metadata", "rb")).load().state
    place = {}
    for index, at in m["storage_data"].items():
        place.setdefault(index.state["fqn"], {})[index.state.get("offset")] = at.state
    out = {}
    for key, x in m["state_dict_metadata"].items():
        at = place.pop(key)
        if type(x).__name__ == "BytesStorageMetadata":
            out[key] = None
            continue
        parts = {}
        for c in x.state["chunks"]:
            p = at.pop(c.state["offsets"])
            parts[c.state["offsets"]] = (c.state["sizes"], p["relative_path"], p["offset"], p["length"])
        assert not at, f"{key} has places that are no chunks: {at}"
        out[key] = (x.state["size"], x.state["properties"].state[0], parts)
    assert not place, f"places without a key: {list(place)}"
    return out


def floats(folder, x):
    """The elements of an array, row-major, as a list."""
    shape, dtype, parts = x
    stride = [1]
    for n in reversed(shape[1:]): stride.insert(0, stride[0] * n)
    flat = [None] * (stride[0] * shape[0])
    for start, (extent, file, offset, length) in parts.items():
        with open(folder + "/" + file, "rb") as f:
            f.seek(offset)
            tensor, data = read_zip(f.read(length))
        count, numbers = 1, data(tensor.args[0][2])
        for n in extent: count *= n
        numbers = struct.unpack(f"<{count}f", numbers)
        row = extent[-1]
        for i in range(count // row):
            at, rest = start[-1], i
            for d in range(len(extent) - 2, -1, -1):
                at += (start[d] + rest % extent[d]) * stride[d]
                rest //= extent[d]
            flat[at:at + row] = numbers[i * row:(i + 1) * row]
    assert None not in flat, "an element is in no chunk"
    return flat


def read_hf(folder):
    out = {}
    with open(folder + "/model.safetensors", "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        head, data = json.loads(f.read(n)), f.read()
    for k, v in head.items():
        if k != "__metadata__":
            b = data[v["data_offsets"][0]:v["data_offsets"][1]]
            out[k] = (v["shape"], list(struct.unpack(f"<{len(b) // 4}f", b)))
    return out


def rows(t, first, n):
    width = t[0][1] if len(t[0]) > 1 else 1
    return t[1][first * width:(first + n) * width]


def expect(c, hf, key, shape):
    """The elements that a key must have; None: not one that is built here."""
    layers = range(shape[0])

    def one(layer):
        p = f"model.layers.{layer}."
        if ".linear_qkv.weight" in key or ".linear_qkv.bias" in key:
            q, k, v = (hf[p + f"self_attn.{x}_proj.{key.rsplit('.', 1)[1]}"] for x in "qkv")
            n, g = c["num_attention_heads"], c["num_key_value_heads"]
            d = q[0][0] // n
            return sum((rows(q, i * n // g * d, n // g * d) + rows(k, i * d, d) + rows(v, i * d, d)
                        for i in range(g)), [])
        if key.endswith("mlp.linear_fc1.weight"):
            return hf[p + "mlp.gate_proj.weight"][1] + hf[p + "mlp.up_proj.weight"][1]
        if "experts.experts" in key and c["model_type"] == "mixtral":
            names = ("w1", "w3") if "fc1" in key else ("w2", )
            return sum((hf[p + f"block_sparse_moe.experts.{e}.{w}.weight"][1] for e in range(shape[1])
                        for w in names), [])
        names = {"self_attention.linear_proj.weight": "self_attn.o_proj.weight",
                 "mlp.linear_fc2.weight": "mlp.down_proj.weight",
                 "mlp.router.weight": "block_sparse_moe.gate.weight",
                 "self_attention.linear_qkv.layer_norm_weight": "input_layernorm.weight",
                 "mlp.linear_fc1.layer_norm_weight": "post_attention_layernorm.weight"}
        name = names.get(key.split("decoder.layers.")[-1])
        return hf[p + name][1] if name else None

    top = {"embedding.word_embeddings.weight": "model.embed_tokens.weight",
           "decoder.final_layernorm.weight": "model.norm.weight", "output_layer.weight": "lm_head.weight"}
    if key in top: return hf[top[key]][1]
    if not key.startswith("decoder.layers.self") and not key.startswith("decoder.layers.mlp"): return None
    parts = [one(l) for l in layers]
    return None if None in parts else sum(parts, [])


def plain(v):
    """common.pt without classes."""
    if isinstance(v, Thing): return {type(v).__name__: plain(v.state)}
    if isinstance(v, dict): return {str(k): plain(x) for k, x in v.items()}
    if isinstance(v, (list, tuple)): return [plain(x) for x in v]
    return v


def main():
    folder = sys.argv[1]
    all_ = walk(folder)
    first = {}
    for key, x in sorted(all_.items()):
        if x is None:
            print("object", key)
            continue
        at = sorted((f, o) for _, f, o, _ in x[2].values())[0]
        print(key, list(x[0]), x[1], len(x[2]), *(["=", first[at]] if at in first else []))
        first.setdefault(at, key)
    common, _ = read_zip(open(folder + "/common.pt", "rb").read())
    common = plain(common)
    if "shardline_state" in common:  # the options of the run that wrote it are not Megatron's business
        state = json.loads(common["shardline_state"])
        state["state"].pop("run", None)
        common["shardline_state"] = json.dumps(state, sort_keys=True)
    print(json.dumps(common, indent=1, sort_keys=True))
    print(json.dumps(json.load(open(folder + "/metadata.json")), sort_keys=True))
    if len(sys.argv) < 3: return
    c, hf, seen = json.load(open(folder + "/config.json")), read_hf(sys.argv[2]), 0
    for key, x in all_.items():
        want = expect(c, hf, key, x[0]) if x and not key.startswith("optimizer.") else None
        if want is None: continue
        assert floats(folder, x) == want, f"{key} has other elements"
        seen += 1
    print(seen, "arrays have the right elements")


main()
