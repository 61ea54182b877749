"""seeds.py OUT [FIXTURES] - first inputs for every fuzz target, small and good, into OUT/TARGET/: what
tests/fuzz/corpus began with.

Then `TARGET_fuzz -merge=1 -max_len=8192 tests/fuzz/corpus/TARGET OUT/TARGET` takes those that reach something
new. BIN: the programs."""
import ast, glob, json, os, pickle, re, shutil, struct, subprocess, sys, tempfile, zipfile
here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
out, fixtures = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
sys.path.insert(0, here + "/..")
from native_reader import xxh128

made = {}
def seed(target, data):
    os.makedirs(f"{out}/{target}", exist_ok=True)
    made[target] = made.get(target, -1) + 1
    with open(f"{out}/{target}/seed{made[target]:03d}", "wb") as f:
        f.write(data if isinstance(data, bytes) else data.encode())

def read(path):
    with open(path, "rb") as f: return f.read()

def unwrap(path):                       # a torch file as fuzz_wrap takes it
    with zipfile.ZipFile(path) as z:
        names = {n.split("/", 1)[1]: n for n in z.namelist()}
        sizes = []
        while f"data/{len(sizes)}" in names: sizes.append(z.getinfo(names[f"data/{len(sizes)}"]).file_size)
        assert len(sizes) <= 64, path
        return bytes([len(sizes)]) + b"".join(struct.pack("<H", min(s, 65535))
                                              for s in sizes) + z.read(names["data.pkl"])

def parts(target, dir, limit=200000):   # a folder as fuzz_write_parts takes it
    text = read(f"{here}/{target}_fuzz.c").decode()
    names = re.findall(r'"([^"]+)"', text[text.index("names[] = {"):text.index("};")])
    data = b""
    for i, n in enumerate(names):
        if os.path.exists(f"{dir}/{n}"):
            content = unwrap(f"{dir}/{n}") if n.endswith(".pt") else read(f"{dir}/{n}")
            data += bytes([i]) + struct.pack("<I", len(content))[:3] + content
    if data and len(data) < limit: seed(target, data)

# ---- other frameworks: foreign_make.py's writers with a very small model
sys.path.insert(0, here + "/../cli/lib")
import foreign_make as maker
tmp = tempfile.mkdtemp()
for bias in (False, True):
    m = dict(layers=1, hidden=4, heads=2, groups=1, hd=2, ffn=4, vocab=8)
    shapes = maker.llama(**m, bias=bias, qk_norm=bias)
    state = maker.state_of(shapes)
    def case(name, write, target, *args):
        d = f"{tmp}/{name}{bias}"
        write(d, shapes, state, *args)
        with open(d + "/config.json", "w") as f:
            json.dump(dict(model_type="llama", hidden_size=4, num_attention_heads=2, num_key_value_heads=1,
                           num_hidden_layers=1, vocab_size=8, tie_word_embeddings=False), f)
        parts(target, d)
        return d
    for ranks in (1, 2):
        case(f"z3{ranks}", maker.zero3, "deepspeed", ranks)
        case(f"z2{ranks}", maker.zero2, "deepspeed", ranks)
        keep, shapes = shapes, {n: shapes[n] for n in ("lm_head.weight", "model.norm.weight")}
        d = case(f"dcp{ranks}", maker.dcp_save, "dcp", ranks)
        shapes = keep
        seed("pickle", read(d + "/.metadata"))
        seed("torch", read(d + "/__0_0.distcp")[:700])
    for fused in (False, True):
        own = {n: s for n, s in maker.llama(**m).items() if n[-13:-7] in ("q_proj", "k_proj", "v_proj", "tokens")}
        theirs = maker.titan(own, state, m, fused)
        case(f"titan{fused}", lambda d, *_: maker.dcp_save(d, *theirs, 1), "dcp")
    case("uni", maker.universal, "deepspeed")
    for tp, pp, dist in ((1, 1, False), (1, 1, True), (2, 1, False)):
        d = case(f"mg{tp}{pp}{dist}", maker.megatron, "megatron", tp, pp, 1, dist, m)
        for f in glob.glob(d + "/*/*/*.pt"):
            seed("tensor", unwrap(f)); seed("torch", read(f)); seed("zip", read(f))
            with zipfile.ZipFile(f) as z: seed("pickle", z.read("archive/data.pkl"))
    case("mgd", maker.megatron_dist, "megatron", 1, 1, 1, m)
import foreign_make_experts as experts
experts.L, experts.E, experts.H, experts.I, experts.V, experts.HEADS, experts.KV, experts.HD = 1, 2, 4, 2, 5, 1, 1, 4
experts.PARTS = (("gate_proj", (2, 4)), ("up_proj", (2, 4)), ("down_proj", (4, 2)))
experts.Auto.W = (("w1", "gate_proj", (2, 4)), ("w2", "down_proj", (4, 2)), ("w3", "up_proj", (2, 4)))
for case in ("plain-2", "moe-2-2", "moe-2-1", "auto2-2-2", "auto3-2-2"):
    experts.main(case, f"{tmp}/{case}")
    shutil.copy(f"{tmp}/{case}/config.json", f"{tmp}/{case}/ckpt")
    parts("deepspeed", f"{tmp}/{case}/ckpt")
for case in ("legacy-1-1-2", "legacy-1-1-2-grouped-distopt", "legacy-1-1-1-old-distopt", "legacy-1-1-2-old", "legacy-2-1-2-etp1"):
    experts.main(case, f"{tmp}/{case}")
    shutil.copy(f"{tmp}/{case}/config.json", f"{tmp}/{case}/ckpt")
    parts("megatron", f"{tmp}/{case}/ckpt")
for p in range(2, 6):
    seed("pickle", pickle.dumps({"a": [1, 2.5, None, True, (1, 2, 3), {4}, b"x" * 3, 1 << 70, -5, "text" * 90,
                                       bytearray(b"12")], 7: {"b": ()}, (1, 2): frozenset([3])}, p))

# ---- safetensors
def st(tensors, meta=True, values=lambda n: bytes(i % 251 for i in range(n))):
    size = {"F32": 4, "BF16": 2, "F16": 2, "F64": 8, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1,
            "BOOL": 1}
    head, at = {"__metadata__": {"format": "pt"}} if meta else {}, 0
    for name, dtype, shape in tensors:
        n = size[dtype]
        for s in shape: n *= s
        head[name] = dict(dtype=dtype, shape=shape, data_offsets=[at, at + n])
        at += n
    text = json.dumps(head, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text + values(at)
all_types = [(f"t.{d}", d, [2, 3])
             for d in ("F32", "BF16", "F16", "F64", "I64", "I32", "I16", "I8", "U8", "BOOL")]
for x in (st(all_types), st([("a", "F32", [])], False), st([("a", "F32", [0, 4]), ("b", "U8", [1, 1, 1, 1])]),
          st([])):
    seed("safetensors", x)
for bad in (b"", b"\0" * 8, b"version https://git-lfs.github.com/spec/v1\n", b"<html>",
            struct.pack("<Q", 1 << 63) + b"{}", struct.pack("<Q", 100000001) + b"{}"):
    seed("safetensors", bad)
d = tmp + "/hf"
os.makedirs(d)
def put(name, data):
    with open(f"{d}/{name}", "wb") as f:
        f.write(data if isinstance(data, bytes) else json.dumps(data).encode())
put("a.safetensors", st([("x.weight", "F32", [2, 2]), ("y", "BF16", [3])]))
put("b.safetensors", st([("z", "I64", [1])])); put("config.json", {"model_type": "llama"})
put("model.safetensors.index.json",
    {"metadata": {"total_size": 30},
     "weight_map": {"x.weight": "a.safetensors", "y": "a.safetensors", "z": "b.safetensors"}})
parts("index", d)
if fixtures:
    for x in glob.glob(f"{fixtures}/foreign/bad/*.pt"):
        if os.path.getsize(x) < 8000: seed("torch", read(x)); seed("zip", read(x))
        try: seed("tensor", unwrap(x)) if os.path.getsize(x) < 8000 else None
        except Exception: pass
    for x in glob.glob(f"{fixtures}/foreign/bad/*.safetensors") + glob.glob(f"{fixtures}/foreign/plain/*.safetensors"):
        if os.path.getsize(x) < 8000: seed("safetensors", read(x))
    for x in glob.glob(f"{fixtures}/foreign/plain/*.pt"):
        if os.path.getsize(x) < 30000: seed("torch", read(x))
    for sub in glob.glob(f"{fixtures}/foreign/*/hf_sharded") + glob.glob(f"{fixtures}/foreign/bad/hf_*"):
        parts("index", sub, 60000)

# ---- native: manifests of a small model at several layouts, compressed frames
bin = os.environ.get("BIN")
if bin:
    src = tmp + "/src"
    os.makedirs(src)
    cfg = dict(model_type="llama", architectures=["LlamaForCausalLM"], hidden_size=8, num_attention_heads=2,
               num_key_value_heads=2, num_hidden_layers=1, intermediate_size=8, vocab_size=16,
               max_position_embeddings=32, rms_norm_eps=1e-5, tie_word_embeddings=False,
               torch_dtype="float32")
    names = [("model.embed_tokens.weight", [16, 8]), ("model.norm.weight", [8]), ("lm_head.weight", [16, 8])]
    p = "model.layers.0."
    names += [(p + f"self_attn.{x}_proj.weight", [8, 8])
              for x in "qkvo"] + [(p + f"mlp.{x}_proj.weight", [8, 8])
                                  for x in ("gate", "up", "down")] + [(p + f"{x}_layernorm.weight", [8])
                                                                      for x in ("input", "post_attention")]
    with open(src + "/model.safetensors", "wb") as f: f.write(st([(n, "F32", s) for n, s in names]))
    with open(src + "/config.json", "w") as f: json.dump(cfg, f)
    small = {"config.json": b'{"model_type":"llama"}\n', "tokenizer.json": b'{"version":"1.0"}'}
    for i, args in enumerate(([], ["--tp", "2"], ["--tp", "2", "--compress", "zstd"],
                              ["--pp", "1", "--compress", "zstd:9"], ["--dtype", "bf16"], ["--format", "serve"],
                              ["--format", "serve", "--dtype", "bf16"],
                              ["--format", "serve", "--quantize", "b12"])):
        dst = f"{tmp}/n{i}"
        if "b12" in args:               # of bf16 with few exponents
            narrow = lambda n: bytes(63 if i % 2 else i // 2 % 251 for i in range(n - 1)) + b"\x10"
            with open(src + "/model.safetensors", "wb") as f:
                f.write(st([(n, "BF16", s) for n, s in names], values=narrow))
        subprocess.run([bin + "/reshard", *args, src, dst], check=True, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)
        o = json.loads(read(dst + "/manifest.json"))
        o.pop("manifest_checksum")
        for k, name in (("config", "config.json"),):
            if isinstance(o.get(k), dict):
                for key in o[k]:
                    if key in ("length", "bytes"): o[k][key] = len(small[name])
                    elif key != "name": o[k][key] = xxh128(small[name])
        text = json.dumps(o, sort_keys=True, separators=(",", ":"))
        seed("manifest", text[:-1])
        if "serve" in args:
            seed("panels", text[:-1].encode() + b"\0" + read(dst + "/weights-00000.safetensors").rstrip(b"\0"))
        for z in glob.glob(dst + "/*.zst"):
            data = read(z)
            n = struct.unpack("<I", data[-9:-5])[0]
            frames = [struct.unpack("<II", data[-9 - 8 * (n - k):][:8]) for k in range(n)]
            seed("zst", bytes([n - 1]) + b"".join(struct.pack("<H", a) for a, _ in frames) +
                 struct.pack("<H", (frames[-1][1] - 1) & 0xffff) + data)

# ---- servers' answers: offset, length, then answers: length of the body, pieces and ending, headers, body
def answer(status, headers, body=b"", ending=0):
    return bytes([len(body), 5 | ending << 4]) + f"HTTP/1.1 {status}\r\n".encode() + "".join(f"{h}\r\n"
        for h in headers).encode() + b"\r\n" + body
probe = answer("206 Partial Content", ["Content-Range: bytes 0-0/40", "ETag: \"abc\"", "Content-Length: 1"],
               b"x")
part = lambda a, b, e="abc", end=0, n=None: answer("206 Partial Content",
                                                   [f"Content-Range: bytes {a}-{b}/40", f'ETag: "{e}"'],
                                                   bytes(n if n is not None else b - a + 1), end)
h = bytes([3, 20])
for x in (probe + part(3, 22), probe + part(3, 9, end=2) + part(10, 22), probe + part(3, 22, "new"),
          probe + part(4, 22), probe + part(3, 22, n=40),
          probe + answer("503 Busy", ["Retry-After: 2"], b"busy") + part(3, 22),
          probe + answer("200 OK", ["Content-Length: 40"], bytes(40)),
          answer("200 OK", ["Content-Length: 40", "Last-Modified: Tue, 01 Jul 2025 00:00:00 GMT"],
                 bytes(40)) * 2,
          answer("302 Found", ["Location: http://other/", "X-Linked-Etag: \"" + "a" * 64 + "\"",
                               "X-Linked-Size: 40"]) + probe, answer("404 Not Found", []),
                               answer("416 Range Not Satisfiable", ["Content-Range: bytes */0"]),
          answer("429 Too Many", ["Retry-After: 1e300"]) * 8,
          answer("200 OK", ["Content-Encoding: gzip", "Content-Length: 9"]),
          probe + answer("206 Partial Content", ["Content-Range: bytes 99999999999999999999-1/2"], b"1"),
          answer("HTTP/1.1", []), answer("206 P", ["Content-Range: bytes 0-0/-5"]),
          answer("200 OK", ["Content-Length: 9223372036854775807"])): seed("http", h + x)

# ---- texts
for extra in ({}, dict(rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0,
                                         high_freq_factor=4.0, original_max_position_embeddings=8192),
                                         eos_token_id=[1, 2]), dict(rope_parameters=dict(rope_type="linear",
                                             factor=2, rope_theta=5e5), head_dim=8, dtype="bfloat16"),
                                             dict(shardline_grain=2, quantization_config={},
                                                  bos_token_id=None)):
    seed("config", json.dumps(dict(model_type="llama", hidden_size=32, num_attention_heads=4,
                                   num_key_value_heads=2, num_hidden_layers=2, intermediate_size=64,
                                   vocab_size=256, max_position_embeddings=128, rms_norm_eps=1e-5,
                                   rope_theta=1e4, hidden_act="silu", tie_word_embeddings=True,
                                   torch_dtype="float32", initializer_range=0.02, **extra)))
sys.path.insert(0, here + "/../cli/reshard")
import published
for name in ("qwen3.5-35b-a3b", "gemma-4-26b-a4b", "deepseek-v3", "nemotron-nano-3-30b-a3b", "falcon-7b",
             "minimax-01") if bin else ():
    listed = [x for x in published.tensors_of(name) if ".experts.2" not in x[0]][::2][:48]
    config = json.dumps(published.configs[name][0])
    with tempfile.TemporaryDirectory() as d:
        published.make(name, d + "/m")
        table = subprocess.run([f"{bin}/reshard", "inspect", "--cuts", d + "/m"], capture_output=True).stdout
    seed("cuts", config.encode() + b"\0" + table + b"\0" +
         "\n".join("%s %s" % (n, ",".join(map(str, s))) for n, s, _ in listed).encode())
if fixtures:
    for x in glob.glob(f"{fixtures}/hf/hf/*/model/config.json"): seed("config", read(x))
    for x in glob.glob(f"{fixtures}/hf/tok/*/tokenizer.json"):
        o = json.loads(read(x))
        model, added = o["model"], o.get("added_tokens", [])[:6]
        keep = [t for t, i in sorted(model["vocab"].items(), key=lambda v: v[1])][:300]
        model["vocab"] = {t: i for i, t in enumerate(keep)}
        model["merges"] = [p for p in model["merges"]
                           if all(t in model["vocab"]
                                  for t in (p if isinstance(p, list) else p.split(" ", 1)) +
                                  ["".join(p) if isinstance(p, list) else p.replace(" ", "", 1)])][:60]
        o["added_tokens"] = [dict(a, id=model["vocab"].get(a["content"], 300 + i)) for i,
                             a in enumerate(added)]
        seed("tokenizer", json.dumps(o, ensure_ascii=False))
    for x in glob.glob(f"{fixtures}/hf/chat/*.jinja"):
        one = next(l for l in open(f"{fixtures}/hf/chat/vectors.jsonl")
                   if f'"{os.path.basename(x)[:-6]}"' in l)
        seed("template", read(x) + b"\0" + one.encode())
small_tok = dict(version="1.0",
                 added_tokens=[dict(id=5, content="<s>", special=True, single_word=False, lstrip=True,
                                    rstrip=True, normalized=False)], normalizer=None, pre_tokenizer=None,
                                    post_processor=None, decoder=None,
                 model=dict(type="BPE", vocab={"a": 0, "b": 1, "ab": 2, "<unk>": 3, "<0x41>": 4},
                            merges=["a b"], unk_token="<unk>", fuse_unk=True, byte_fallback=True))
for extra in ({}, dict(normalizer=dict(type="Sequence",
                                       normalizers=[dict(type=t) for t in ("NFC", "NFD", "NFKC", "NFKD",
                                           "Lowercase", "StripAccents",
                                           "ByteLevel")] + [dict(type="Prepend", prepend="_"),
                                                            dict(type="Replace", pattern=dict(Regex=" +"),
                                                                 content="_"), dict(type="Strip",
                                                                     strip_left=True, strip_right=True)])),
              dict(pre_tokenizer=dict(type="Sequence",
                                      pretokenizers=[dict(type="ByteLevel", add_prefix_space=True,
                                                          trim_offsets=True, use_regex=True),
                                                          dict(type="Split", pattern=dict(Regex=r"\p{L}+|\s(?!x)"), behavior="Isolated", invert=False), dict(type="Metaspace", replacement="_", prepend_scheme="first", split=True), dict(type="Digits", individual_digits=True), dict(type="Punctuation", behavior="Removed"), dict(type="Whitespace"), dict(type="WhitespaceSplit"), dict(type="CharDelimiterSplit", delimiter="-")])),
              dict(post_processor=dict(type="TemplateProcessing",
                                       single=[dict(SpecialToken=dict(id="<s>", type_id=0)),
                                               dict(Sequence=dict(id="A", type_id=0))], pair=[],
                                               special_tokens={"<s>": dict(id="<s>", ids=[5],
                                                   tokens=["<s>"])})),
              dict(decoder=dict(type="Sequence",
                                decoders=[dict(type="Replace", pattern=dict(String="_"), content=" "),
                                          dict(type="ByteFallback"), dict(type="Fuse"),
                                          dict(type="Strip", content=" ", start=1, stop=0),
                                          dict(type="ByteLevel"), dict(type="Metaspace", replacement="_",
                                              prepend_scheme="always")]))):
    seed("tokenizer", json.dumps({**small_tok, **extra}))
cases = read(here + "/../unit/text/text_unigram_cases.inc").decode()
cases = cases[cases.index("tokenizers[] = {"):]
for t in re.findall(r'((?:\s*"(?:[^"\\]|\\.)*")+)\s*,', cases[:cases.index("};")]):
    seed("tokenizer", b"".join(ast.literal_eval("b" + x) for x in re.findall(r'"(?:[^"\\]|\\.)*"', t)))
pieces = [["<unk>", 0.0], ["<s>", 0.0], ["</s>", 0.0], ["\u2581", -2.0], ["\u2581the", -3.5], ["a", -4.0],
          ["b", -4.25], ["ab", -3.0], ["ing", -3.25], ["\u4e2d", -6.0]]
unigram = {**small_tok, "normalizer": dict(type="Precompiled", precompiled_charsmap=None),
           "pre_tokenizer": dict(type="Metaspace", replacement="\u2581", prepend_scheme="always", split=True),
           "decoder": dict(type="Metaspace", replacement="\u2581", prepend_scheme="always", split=True),
           "added_tokens": []}
for normalizer in (None, dict(type="Replace", pattern=dict(Regex=" {2,}"), content=" ")):
    seed("tokenizer", json.dumps({**unigram, "normalizer": normalizer,
                                  "model": dict(type="Unigram", unk_id=0, vocab=pieces,
                                                byte_fallback=False)}))
seed("tokenizer", json.dumps({**unigram, "normalizer": None,
                              "model": dict(type="Unigram", unk_id=0,
                                            vocab=pieces + [[f"<0x{i:02X}>", -9.0] for i in range(256)],
                                            byte_fallback=True)}))
seed("tokenizer", json.dumps({**unigram, "model": dict(type="Unigram", unk_id=None, vocab=pieces)}))
for t in re.findall(r'^\{ ("(?:[^"\\]|\\.)*")', read(here + "/../unit/text/text_template_cases.inc").decode(),
                    re.M):
    try: seed("template", ast.literal_eval("b" + t))
    except Exception: pass
seed("template", b"{% for m in messages %}{{ m.role }}{{ m['content'] | trim }}{% endfor %}\0" +
     json.dumps(dict(messages=[dict(role="user", content="x"),
                               dict(role="assistant", content=[dict(type="text", text="y")])],
                               tools=[dict(type="function", function=dict(name="f", parameters={}))],
                               documents=[dict(title="t")], extra=dict(k=1.5),
                               continue_final_message=True)).encode())
# ---- texts of models with tool calls: the number of the family, flags, where the text is cut
names = re.findall(r'^    \{ "(\w+)", \{', read(here + "/../../text/tools/families.c").decode(), re.M)
cases = read(here + "/../unit/text/text_tools_cases.inc").decode()
literal = r'"(?:[^"\\]|\\.)*"'
for i, m in enumerate(re.finditer(r'\{\s*"(\w+)",\s*(\d),\s*((?:' + literal + r'\s*)+),', cases)):
    text = "".join(ast.literal_eval("b" + s.encode("ascii", "backslashreplace").decode()).decode("latin1")
                   if s.isascii() else s[1:-1] for s in re.findall(literal, m[3]))
    seed("tools", bytes([names.index(m[1]), 1 | int(m[2]) << 1, i % 7]) + text.encode())

test = read(here + "/../unit/serve/serve_openai_test.c").decode()
for t in re.findall(r'"(\{(?:[^"\\]|\\.)*\})"', test):
    for first in (b"\0", b"\1", b"\4", b"\x08", b"\x09"):
        try: body = ast.literal_eval('b"' + t + '"')
        except Exception: continue
        if (b"messages" in body) == bool(first[0] & 1): seed("request", first + body)
full = dict(model="m", prompt=["a", "b"], max_tokens=3, temperature=.5, top_p=.9, top_k=4, min_p=.1, n=2,
            best_of=2, seed=1, logprobs=2, echo=True, stream=True, stream_options=dict(include_usage=True),
            stop=["x"], stop_token_ids=[1], logit_bias={"5": 1.5}, presence_penalty=1, frequency_penalty=.5,
            repetition_penalty=1.1, min_tokens=1, prompt_logprobs=1, ignore_eos=True,
            add_special_tokens=False, skip_special_tokens=False, return_token_ids=True, cache_salt="s",
            user="u", suffix=None)
seed("request", b"\0" + json.dumps(full).encode())
full.pop("prompt")
full.update(messages=[dict(role="system", content="a"),
                      dict(role="user", content=[dict(type="text", text="b")])], logprobs=True,
                      top_logprobs=3, max_completion_tokens=4, add_generation_prompt=True,
                      continue_final_message=False, chat_template_kwargs={"a": 1})
seed("request", b"\1" + json.dumps(full).encode())
for first in (2, 6):
    seed("request", bytes([first]) + b'{"prompt":"text","add_special_tokens":true,"return_token_strs":true}')
    seed("request", bytes([first + 1]) + b'{"tokens":[1,2,255]}')
    seed("request", bytes([first]) +
         b'{"messages":[{"role":"user","content":"x"}],"add_generation_prompt":true}')
for w in ("4k", "2MiB", "-1.5G", "1e5", "99999999999999999999T", "0.5Ki", ".",
          "--count=4k\n--kv-memory\n2GiB\n--lr\n3e-4\n--data\na\nb\n--no-on\nSRC", "--schedul=bc\n--cp\n2",
          "--on\n--\n--x"):
    seed("options", w)

# ---- token files, documents
if bin:
    text = tmp + "/text.jsonl"
    with open(text, "w") as f: f.write('{"text":"some words"}\n{"text":"more"}\n')
    for i, field in enumerate((["--jsonl-field", "text"], [])):
        subprocess.run([bin + "/ptok", "prepare", "--tokenizer", "bytes", text, "--out", f"{tmp}/t{i}.bin",
                        *field], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        seed("tokfile", b"\1" + read(f"{tmp}/t{i}.bin")); seed("tokfile", b"\0" + read(f"{tmp}/t{i}.bin"))
    # version 2: the file carries its tokenizer
    os.makedirs(tmp + "/tok")
    with open(tmp + "/tok/tokenizer.json", "w") as f:
        json.dump({**unigram, "normalizer": None, "model": dict(type="Unigram", unk_id=0, vocab=pieces)}, f)
    with open(tmp + "/tok/chat_template.jinja", "w") as f:
        f.write("{% for m in messages %}{{ m.content }}{% endfor %}")
    subprocess.run([bin + "/ptok", "prepare", "--tokenizer", tmp + "/tok", text, "--out", tmp + "/t2.bin",
                    "--jsonl-field", "text"], check=True, stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL)
    seed("tokfile", b"\1" + read(tmp + "/t2.bin")); seed("tokfile", b"\0" + read(tmp + "/t2.bin"))
lines = b'{"text":"a\\u00e9b"}\n\n{"n":1,"text":"c"}\r\n{"text":"d"}'
for i, x in ((0, b"plain text\n" * 30), (4, b"plain \xc3\xa9\xf0\x9f\xa6\x8a text" * 30), (1, lines),
             (5, lines)):
    seed("source", bytes([i]) + x)
if shutil.which("zstd"):
    for i in (2, 3):
        seed("source", bytes([i]) +
             subprocess.run(["zstd", "-q", "-c"], input=lines, stdout=subprocess.PIPE, check=True).stdout)
shutil.rmtree(tmp)
print(", ".join(f"{k} {v + 1}" for k, v in sorted(made.items())))
