"""bad_checkpoints.py DIR - broken checkpoints, one folder or file each, and DIR/cases: name, refused or read,
a part of the message.

The number in front of a name is the line of tests/BAD_INPUTS.md that it is for. Good ones are among them:
what is odd but legal is read."""
import io, json, os, pickle, shutil, struct, sys, zipfile
from collections import OrderedDict
import foreign_make as make
from foreign_make import Storage, Tensor, obj, Size

out = sys.argv[1]
cases = open(f"{out}/cases", "w")

def case(name, answer, says=""):
    print(name, answer, says, sep="\t", file=cases)
    return f"{out}/{name}"

def put(path, data):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f: f.write(data if isinstance(data, bytes) else data.encode())

# ---- A: safetensors

def st(name, answer, says, header, data=bytes(8)):
    header = header if isinstance(header, bytes) else header.encode()
    put(case(name + ".safetensors", answer, says), struct.pack("<Q", len(header)) + header + data)

def entry(name="w", dtype="F32", shape="[2]", at="[0,8]"):
    return f'"{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{at}}}'
st("A5-bom", "refused", "does not begin with {", b"\xef\xbb\xbf{" + entry().encode() + b"}")
st("A5-overlong", "refused", "A5-overlong", b"{" + entry("w\xc0\xaf").encode("latin1") + b"}")
st("A6-nul-behind", "refused", "A6-nul-behind", b"{" + entry().encode() + b"}\0\0")
st("A6-spaces-behind", "read", "", "{" + entry() + "}     ")
st("A9-metadata-twice", "refused", "duplicate",
   '{"__metadata__":{"a":"b"},"__metadata__":{"c":"d"},' + entry() + "}")
st("A10-deep", "refused", "nested", '{"w":' + "[" * 10000 + "]" * 10000 + "}")
st("A18-long-name", "refused", "limit", "{" + entry("x" * (1 << 20)) + "}")
st("A22-bool-of-2", "read", "", "{" + entry("w", "BOOL", "[3]", "[0,3]") + "}", b"\0\1\2")
st("A21-nan", "read", "", "{" + entry() + "}", struct.pack("<II", 0x7fc00001, 0xff800000))
st("A2-header-length", "refused", "the format allows", "{" + entry() + "}")
with open(f"{out}/A2-header-length.safetensors", "r+b") as f: f.write(struct.pack("<Q", 100000001))

# ---- B: folders of Hugging Face

def hf(name, answer, says, weight_map, total=8, files=("a",)):
    d = case(name, answer, says)
    for x in files:
        h = ("{" + entry(x) + "}").encode()
        put(f"{d}/{x}.safetensors", struct.pack("<Q", len(h)) + h + bytes(8))
    put(f"{d}/model.safetensors.index.json",
        json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}))
    put(f"{d}/config.json", "{}")

hf("B25-shard-missing", "refused", "b.safetensors", {"a": "a.safetensors", "b": "b.safetensors"})
hf("B26-not-in-the-file", "refused", "no such tensor", {"a": "a.safetensors", "c": "a.safetensors"})
hf("B28-elsewhere", "refused", "folder", {"a": "../B25-shard-missing/a.safetensors"})
hf("B29-total-size", "read", "", {"a": "a.safetensors"}, total=12345)
put(case("B30-lfs.safetensors", "refused", "git lfs pull"),
    "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n")
put(case("B31-html.safetensors", "refused", "HTML"), "<!DOCTYPE html><html><body>404</body></html>")

# ---- C: torch.save (the directory of a zip: tests/unit/format/format_zip_test.c; opcodes:
# format_pickle_test.c)

four = bytes(range(16))
def pt(name, answer, says, o, protocol=2, extra=(), prefix=b""):
    b = io.BytesIO()
    make.save(o, b)
    data = prefix + b.getvalue()
    put(case(name + ".pt", answer, says), data)
    with zipfile.ZipFile(f"{out}/{name}.pt", "a") as z:
        for n, text in extra: z.writestr("archive/" + n, text)

def call(module, name, *args):          # an object whose pickle calls module.name
    def f(*a): pass
    f.__module__, f.__qualname__, f.__name__ = module, name, name
    m = sys.modules.setdefault(module, type(sys)(module))
    setattr(m, name, f)
    class C:
        def __reduce__(self): return f, args
    return C()

good = Tensor(Storage(four), (2, 2))
pt("C0-good", "read", "", {"w": good})
for name in ("_rebuild_sparse_tensor", "_rebuild_qtensor", "_rebuild_nested_tensor"):
    pt("C51-" + name[9:], "refused", name, {"w": call("torch._utils", name, 1)})
def two_dtypes():
    p = b"\x80\x02}(" + b"".join(
        b"X\x01\x00\x00\x00" + k + b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\n" +
        t + b"\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK" + bytes([n]) +
        b"tQK\x00K" + bytes([n]) + b"\x85K\x01\x85\x89ccollections\nOrderedDict\n)RtR" for k, t,
        n in ((b"a", b"FloatStorage", 4), (b"b", b"HalfStorage", 8))) + b"u."
    with zipfile.ZipFile(case("C49-two-dtypes.pt", "refused", "C49-two-dtypes.pt"), "w") as z:
        z.writestr("archive/data.pkl", p)
        z.writestr("archive/data/0", four)
two_dtypes()
pt("C53-jit", "refused", "torch.jit", {"w": good},
   extra=[("constants.pkl", b"\x80\x02)."), ("code/a.py", "def f(): pass")])
pt("C38-junk-before", "refused", "C38-junk-before.pt", {"w": good})
data = open(f"{out}/C38-junk-before.pt", "rb").read()
put(f"{out}/C38-junk-before.pt", b"junk!" + data)
stream = [pickle.dumps(x, 2)
          for x in (0x1950a86a20f9469cfc6c, 1001, {"protocol_version":
              1001, "little_endian": True, "type_sizes": {}})]
put(case("C52-magic.pt", "refused", "C52-magic.pt"),
    pickle.dumps(0x1950a86a20f9469cfc6d, 2) + b"".join(stream[1:]) + pickle.dumps({}, 2) +
    pickle.dumps([], 2))
put(case("C52-tar.pt", "refused", "tar"), b"sys_info" + bytes(249) + b"ustar\0" + bytes(600))

# ---- D: DCP

shapes = {"lm_head.weight": (8, 4), "model.norm.weight": (4,)}
state = make.state_of(shapes)
def dcp(name, answer, says, change=None, ranks=2):
    d = case(name, answer, says)
    make.dcp_save(d, shapes, state, ranks)
    if change:
        change(d)

keep = {}
# hands the metadata of the last dcp_save to `change` before it is written
class Spy(pickle.Pickler):
    def dump(self, o):
        if isinstance(o, make.Metadata):
            keep["change"](o)
        super().dump(o)
make.pickle.Pickler = Spy
def meta(name, answer, says, change, **kw):
    keep["change"] = change
    dcp(name, answer, says, **kw)

def first(o, key="lm_head.weight"): return o.state_dict_metadata[key]
def place(o, key="lm_head.weight", i=0): return [v for k, v in o.storage_data.items() if k.fqn == key][i]
def set_attr(x, **m): x.__dict__.update(m)
def add_chunk(o, offsets, sizes, like=0):
    first(o).chunks.append(obj(make.ChunkStorageMetadata, offsets=Size(offsets), sizes=Size(sizes)))
    o.storage_data[obj(make.MetadataIndex, fqn="lm_head.weight", offset=Size(offsets), index=9)] = place(o,
        i=like)

meta("D0-good", "read", "", lambda o: None)
meta("D55-other-length", "refused", "D55-other-length",
     lambda o: set_attr(place(o), length=place(o).length - 7))
meta("D55-other-place", "refused", "D55-other-place",
     lambda o: set_attr(place(o), offset=place(o).offset + 3))
meta("D56-path", "refused", "folder", lambda o: set_attr(place(o), relative_path="../D0-good/__0_0.distcp"))
meta("D56-absolute", "refused", "folder", lambda o: set_attr(place(o), relative_path="/etc/passwd"))
meta("D57-beyond", "refused", "is it whole", lambda o: set_attr(place(o), offset=1 << 62))
meta("D58-no-place", "refused", "stored nowhere",
     lambda o: o.storage_data.pop(next(k for k in o.storage_data if k.fqn == "lm_head.weight")))
meta("D59-overlap", "refused", "lm_head.weight", lambda o: add_chunk(o, (2, 0), (4, 4)))
meta("D66-twice-other-bytes", "refused", "lm_head.weight", lambda o: add_chunk(o, (0, 0), (4, 4), like=1))
meta("D60-outside", "refused", "lm_head.weight", lambda o: set_attr(first(o).chunks[1], offsets=Size((6, 0))))
meta("D60-shape", "refused", "lm_head.weight", lambda o: set_attr(first(o).chunks[0], sizes=Size((4, 3))))
meta("D63-transforms", "refused", "lm_head.weight", lambda o: set_attr(place(o), transform_descriptors=["x"]))
meta("D64-seven", "refused", "lm_head.weight",
     lambda o: set_attr(first(o).properties, state=(make.float32, None, False, None, False, None, 7)))
meta("D65-more-attributes", "read", "", lambda o: set_attr(o, all_local_plans=[], storage_meta=None))
keep["change"] = lambda o: None
def unfinished(d): os.rename(f"{d}/.metadata", f"{d}/.metadata.tmp")
dcp("D54-unfinished", "refused", ".metadata.tmp", unfinished)
def flipped(d):
    with open(f"{d}/__1_0.distcp", "r+b") as f:
        f.seek(330); b = f.read(1)[0]; f.seek(330); f.write(bytes([b ^ 1]))
dcp("D37-flipped", "refused", "__1_0.distcp", flipped)

# ---- E: DeepSpeed, Megatron, GGUF

def ds(name, answer, says, change, write=make.zero3, ranks=2):
    d = case(name, answer, says)
    write(d, shapes, state, ranks)
    change(d)

T = "global_step7/"
ds("E0-good", "read", "", lambda d: None)
ds("E0-good-2", "read", "", lambda d: None, make.zero2)
ds("E67-one-more", "refused", "E67-one-more",
   lambda d: shutil.copy(f"{d}/{T}zero_pp_rank_1_mp_rank_00_optim_states.pt",
                         f"{d}/{T}zero_pp_rank_2_mp_rank_00_optim_states.pt"))
ds("E67-one-less", "refused", "missing",
   lambda d: os.unlink(f"{d}/{T}zero_pp_rank_1_mp_rank_00_optim_states.pt"))
ds("E70-half-a-tag", "refused", "E70-half-a-tag",
   lambda d: (os.mkdir(f"{d}/global_step9"), put(f"{d}/latest", "global_step9")))
ds("E70-no-tag", "refused", "there is: global_step7", lambda d: put(f"{d}/latest", "global_step9"))
def model(d, **m):
    make.save_to(dict({"module": OrderedDict(),
                       "param_shapes": [OrderedDict((n, Size(s)) for n, s in shapes.items())],
                       "buffer_names": [], "shared_params": {}, "global_steps": 7}, **m),
                 f"{d}/{T}zero_pp_rank_0_mp_rank_00_model_states.pt")
ds("E72-too-much", "refused", "E72-too-much",
   lambda d: model(d, param_shapes=[OrderedDict([("lm_head.weight", Size((8000, 4)))])]))
ds("E72-too-little", "refused", "E72-too-little",
   lambda d: model(d, param_shapes=[OrderedDict([("lm_head.weight", Size((2, 4)))])]))
ds("E73-no-owner", "refused", "shared_params",
   lambda d: model(d, param_shapes=[OrderedDict((n, Size(shapes[n])) for n in list(shapes)[i::2])
                                    for i in range(2)], shared_params={"lm_head.weight": "nobody"}))
m = dict(layers=2, hidden=8, heads=2, groups=1, hd=4, ffn=8, vocab=16)
mshapes = make.llama(**m)
mstate = make.state_of(mshapes)
def mg(name, answer, says, change, tp=2, pp=1):
    d = case(name, answer, says)
    make.megatron(d, mshapes, mstate, tp, pp, 1, False, m)
    change(d)
mg("E0-megatron", "read", "", lambda d: None)
mg("E77-no-rank-1", "refused", "E77-no-rank-1", lambda d: shutil.rmtree(f"{d}/iter_0000009/mp_rank_01"))
mg("E77-tracker", "refused", "which is not there",
   lambda d: put(f"{d}/latest_checkpointed_iteration.txt", "10"))
def dist(name, answer, says, change):
    d = case(name, answer, says)
    make.megatron_dist(d, mshapes, mstate, 1, 1, 1, m)
    change(d)
dist("E0-megatron-dist", "read", "", lambda d: None)
dist("E79-no-metadata-json", "refused", "not finished",
     lambda d: os.unlink(f"{d}/iter_0000009/metadata.json"))
put(case("E81-x.gguf", "refused", "E81-x.gguf"), b"GGUF" + struct.pack("<IQQ", 3, 1 << 63, 1 << 63))
cases.close()
