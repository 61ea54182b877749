#!/usr/bin/env python3
"""A second reader of native checkpoints, written from format/FORMAT.md alone: Python, standard library only,
no speed.

    native_reader.py CKPT...              checks every checksum, cover and digest, prints both digests of each
    native_reader.py CKPT --tensor NAME   writes one tensor's bytes (row-major) to stdout
    native_reader.py --self               test vectors of the hashes

Compressed files need python's compression.zstd, the package zstandard, or the program zstd: without any of
them the status is 77. """
import functools, json, operator, os, shutil, struct, subprocess, sys

M32, M64 = (1 << 32) - 1, (1 << 64) - 1
BLOCK = 1 << 20
SIZES = {"F64": 8, "I64": 8, "U64": 8, "C64": 8, "F32": 4, "I32": 4, "U32": 4, "BF16": 2, "F16": 2, "I16": 2,
         "U16": 2, "I8": 1, "U8": 1, "BOOL": 1,
         "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1}
# bits of an element; here each has a byte of its own once it is read
PACKED = {"F6_E2M3": 6, "F6_E3M2": 6, "F4": 4}
SIZES.update((dtype, 1) for dtype in PACKED)
ROLES = {"weight": "", "master": "master.", "exp_avg": "exp_avg.", "exp_avg_sq": "exp_avg_sq."}


class Bad(Exception):
    pass


class Skip(Exception):
    pass


def need(ok, text):
    if not ok:
        raise Bad(text)


# ---- hashes: XXH64 and XXH3-128, seed 0 ----

P32 = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)
P1, P2, P3, P4, P5 = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63,
                      0x27D4EB2F165667C5)
SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e")


def u64(b, i):
    return int.from_bytes(b[i:i + 8], "little")


def u32(b, i):
    return int.from_bytes(b[i:i + 4], "little")


def rotl(x, r):
    return ((x << r) | (x >> (64 - r))) & M64


def mix64(h):
    h = ((h ^ h >> 33) * P2) & M64
    h = ((h ^ h >> 29) * P3) & M64
    return h ^ h >> 32


def xxh64(data):
    n, at = len(data), 0
    if n >= 32:
        a, b, c, d = (P1 + P2) & M64, P2, 0, -P1 & M64
        for w, x, y, z in struct.iter_unpack("<4Q", data[:n - n % 32]):
            a = (a + w * P2) & M64
            a = (((a << 31) | (a >> 33)) * P1) & M64
            b = (b + x * P2) & M64
            b = (((b << 31) | (b >> 33)) * P1) & M64
            c = (c + y * P2) & M64
            c = (((c << 31) | (c >> 33)) * P1) & M64
            d = (d + z * P2) & M64
            d = (((d << 31) | (d >> 33)) * P1) & M64
        at = n - n % 32
        h = (rotl(a, 1) + rotl(b, 7) + rotl(c, 12) + rotl(d, 18)) & M64
        for v in (a, b, c, d):
            h = ((h ^ rotl(v * P2 & M64, 31) * P1 & M64) * P1 + P4) & M64
    else:
        h = P5
    h = (h + n) & M64
    while at + 8 <= n:
        h = (rotl(h ^ rotl(u64(data, at) * P2 & M64, 31) * P1 & M64, 27) * P1 + P4) & M64
        at += 8
    if at + 4 <= n:
        h = (rotl(h ^ u32(data, at) * P1 & M64, 23) * P2 + P3) & M64
        at += 4
    for c in data[at:]:
        h = rotl(h ^ c * P5 & M64, 11) * P1 & M64
    return mix64(h)


def avalanche(h):
    h = ((h ^ h >> 37) * 0x165667919E3779F9) & M64
    return h ^ h >> 32


def fold(a, b):
    p = a * b
    return (p & M64) ^ (p >> 64)


def mix16(data, i, s):
    return fold(u64(data, i) ^ u64(SECRET, s), u64(data, i + 8) ^ u64(SECRET, s + 8))


def mix32(acc, data, i, j, s):
    lo, hi = acc
    lo = (lo + mix16(data, i, s)) & M64 ^ (u64(data, j) + u64(data, j + 8)) & M64
    hi = (hi + mix16(data, j, s + 16)) & M64 ^ (u64(data, i) + u64(data, i + 8)) & M64
    return lo, hi


def xxh3_short(d, n):
    if n == 0:
        return mix64(u64(SECRET, 64) ^ u64(SECRET, 72)), mix64(u64(SECRET, 80) ^ u64(SECRET, 88))
    if n < 4:
        lo = d[0] << 16 | d[n >> 1] << 24 | d[n - 1] | n << 8
        hi = int.from_bytes(lo.to_bytes(4, "little"), "big")
        hi = (hi << 13 | hi >> 19) & M32
        return mix64(lo ^ u32(SECRET, 0) ^ u32(SECRET, 4)), mix64(hi ^ u32(SECRET, 8) ^ u32(SECRET, 12))
    if n <= 8:
        p = (u32(d, 0) + (u32(d, n - 4) << 32) ^ u64(SECRET, 16) ^ u64(SECRET, 24)) * (P1 + (n << 2))
        lo, hi = p & M64, p >> 64
        hi = (hi + (lo << 1)) & M64
        lo ^= hi >> 3
        lo = ((lo ^ lo >> 35) * 0x9FB21C651E98DF25) & M64
        return lo ^ lo >> 28, avalanche(hi)
    a, b = u64(d, 0), u64(d, n - 8)
    p = (a ^ b ^ u64(SECRET, 32) ^ u64(SECRET, 40)) * P1
    lo, hi = (p + ((n - 1) << 54)) & M64, p >> 64
    b ^= u64(SECRET, 48) ^ u64(SECRET, 56)
    hi = (hi + b + (b & M32) * (P32[1] - 1)) & M64
    lo ^= int.from_bytes(hi.to_bytes(8, "little"), "big")
    p = lo * P2
    return avalanche(p & M64), avalanche(((p >> 64) + hi * P2) & M64)


def xxh3_middle(d, n):
    acc = (n * P1 & M64, 0)
    if n <= 128:
        for k in reversed(range((n - 1) // 32)):
            acc = mix32(acc, d, 16 * (k + 1), n - 16 * (k + 2), 32 * (k + 1))
        acc = mix32(acc, d, 0, n - 16, 0)
    else:
        for i in range(4):
            acc = mix32(acc, d, 32 * i, 32 * i + 16, 32 * i)
        acc = avalanche(acc[0]), avalanche(acc[1])
        for i in range(4, n // 32):
            acc = mix32(acc, d, 32 * i, 32 * i + 16, 3 + 32 * (i - 4))
        acc = mix32(acc, d, n - 16, n - 32, 136 - 17 - 16)
    lo = (acc[0] + acc[1]) & M64
    hi = (acc[0] * P1 + acc[1] * P4 + n * P2) & M64
    return avalanche(lo), -avalanche(hi) & M64


def xxh3_long(d, n):
    acc = [P32[2], P1, P2, P3, P4, P32[1], P5, P32[0]]

    def stripe(i, s):
        v = struct.unpack_from("<8Q", d, i)
        k = struct.unpack_from("<8Q", SECRET, s)
        for j in range(8):
            x = v[j] ^ k[j]
            acc[j ^ 1] += v[j]
            acc[j] += (x & M32) * (x >> 32)

    blocks = (n - 1) // 1024
    for b in range(blocks):
        for s in range(16):
            stripe(1024 * b + 64 * s, 8 * s)
        for j in range(8):
            x = acc[j] & M64
            acc[j] = ((x ^ x >> 47 ^ u64(SECRET, 128 + 8 * j)) * P32[0]) & M64
    for s in range((n - 1 - 1024 * blocks) // 64):
        stripe(1024 * blocks + 64 * s, 8 * s)
    stripe(n - 64, 192 - 64 - 7)
    acc = [a & M64 for a in acc]

    def merge(s, h):
        for j in range(4):
            h += fold(acc[2 * j] ^ u64(SECRET, s + 16 * j), acc[2 * j + 1] ^ u64(SECRET, s + 16 * j + 8))
        return avalanche(h & M64)

    return merge(11, n * P1 & M64), merge(192 - 64 - 11, ~(n * P2) & M64)


def xxh128(d):
    n = len(d)
    lo, hi = xxh3_short(d, n) if n <= 16 else xxh3_middle(d, n) if n <= 240 else xxh3_long(d, n)
    return "%016x%016x" % (hi, lo)


# ---- digests ----

A = (0x73686172646C4130, 0x73686172646C4131)
B = (0x73686172646C4230, 0x73686172646C4231)


def key(seed, i):
    z = (seed + (i + 1) * 0x9E3779B97F4A7C15) & M64
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & M64
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & M64
    return (z ^ z >> 31) | 1


@functools.lru_cache(maxsize=64)
def keys(seed, n):
    return [key(seed, i) for i in range(n)]


def digest(t, data):
    size, cols = SIZES[t["dtype"]], t["shape"][-1]
    out = [0, 0]
    for r in range(len(data) // size // cols if cols else 0):
        row = struct.unpack_from("<%d%s" % (cols, {8: "Q", 4: "I", 2: "H", 1: "B"}[size]), data,
                                 r * cols * size)
        for k in (0, 1):
            out[k] += sum(map(operator.mul, row, keys(A[k], cols))) * key(B[k], r)
    out = [x & M64 for x in out]
    return "%016x%016x" % (out[1], out[0])


def digests(tensors, state):
    def lines(list_):
        order = sorted(list_, key=lambda t: (list(ROLES).index(t["role"]), t["name"].encode()))
        return "".join("%s%s\t%s\t%s\t%s\n" %
                       (ROLES[t["role"]], t["name"], t["dtype"], ",".join(map(str, t["shape"])), t["digest"])
                       for t in order)

    weights = xxh128(lines(t for t in tensors if t["role"] == "weight").encode())
    if state is None:
        return weights, None
    tail = "step %d\nseed %s\nepoch %d\nsample %d\n" % (state["step"], state["seed"], state["epoch"],
                                                        state["sample"])
    tail += "".join("counts %d %s\n" % (i, ",".join(map(str, layer))) for i,
                    layer in enumerate(state.get("expert_counts", [])))
    return weights, xxh128((lines(tensors) + tail).encode())


# ---- files ----

def no_twice(pairs):
    d = dict(pairs)
    need(len(d) == len(pairs), "a key stands twice")
    return d


def read_manifest(folder):
    raw = open(os.path.join(folder, "manifest.json"), "rb").read()
    mark = b',"manifest_checksum":'
    need(raw[-36 - len(mark):-36] == mark, "manifest.json does not end with its checksum")
    need(raw[-36:] == b'"' + xxh128(raw[:-36]).encode() + b'"}\n', "manifest.json: checksum differs")
    m = json.loads(raw, object_pairs_hook=no_twice)
    need(m["format"] == "shardline-checkpoint" and m["version"] == 1,
         "format %s version %s" % (m["format"], m["version"]))
    need(not set(m["must_understand"]) - {"expert_counts", "panels", "planes", "zstd"},
         "needs %s" % m["must_understand"])
    need(m["block_bytes"] == BLOCK, "block_bytes")
    return m


def zstd_decoder():
    """bytes of one frame -> its plain bytes"""
    try:
        from compression import zstd
        return zstd.decompress
    except ImportError:
        pass
    try:
        import zstandard
        return lambda frame: zstandard.ZstdDecompressor().decompress(frame)
    except ImportError:
        pass
    if shutil.which("zstd"):
        return lambda frame: subprocess.run(["zstd", "-dcq"], input=frame, stdout=subprocess.PIPE,
                                            check=True).stdout
    raise Skip("compressed, and neither compression.zstd, zstandard nor the program zstd is here")


def join_planes(data, width):
    m = len(data) // width
    out = bytearray(data)
    for k in range(width):
        out[k:m * width:width] = data[k * m:(k + 1) * m]
    return bytes(out)


def unpack(f, data):
    """the plain file of a compressed one; blocks are summed as stored, frame by frame"""
    decode, out, at, sums, table = zstd_decoder(), [], 0, [], b""
    n_blocks = (f["plain"] + BLOCK - 1) // BLOCK
    planes = f.get("planes", "1" * n_blocks)
    need(len(f["frames"]) == n_blocks == len(planes), "%s: frames" % f["name"])
    for i, n in enumerate(f["frames"]):
        frame = data[at:at + n]
        sums.append(xxh64(frame))
        plain = join_planes(decode(frame), int(planes[i]))
        need(len(plain) == min(BLOCK, f["plain"] - i * BLOCK), "%s: frame %d" % (f["name"], i))
        out.append(plain)
        table += struct.pack("<II", n, len(plain))
        at += n
    table += struct.pack("<IBI", n_blocks, 0, 0x8F92EAB1)
    need(data[at:] == struct.pack("<II", 0x184D2A5E, len(table)) + table, "%s: seek table" % f["name"])
    return b"".join(out), sums


def read_file(folder, f):
    need("/" not in f["name"], "a file outside of the folder")
    data = open(os.path.join(folder, f["name"]), "rb").read()
    need(len(data) == f["length"], "%s: length" % f["name"])
    if "blocks" not in f:
        need(xxh128(data) == f["xxh128"], "%s: checksum" % f["name"])
        return data
    if "frames" in f:
        data, sums = unpack(f, data)
    else:
        sums = [xxh64(data[i:i + BLOCK]) for i in range(0, len(data), BLOCK)]
    need("".join("%016x" % s for s in sums) == f["blocks"], "%s: a block's checksum" % f["name"])
    need(xxh128(b"".join(s.to_bytes(8, "little") for s in sums)) == f["checksum"], "%s: checksum" % f["name"])
    return data


def elements(box, lo, hi):
    """index in the whole tensor's coordinates of every element [lo, hi) of the box, row-major"""
    start, extent = box
    for i in range(lo, hi):
        idx = []
        for s, n in zip(reversed(start), reversed(extent)):
            idx.append(s + i % n)
            i //= n
        yield tuple(reversed(idx))


def widen(t, piece, data):
    """the piece and its data, with a byte for each element"""
    bits, n = PACKED[t["dtype"]], piece["range"][1] - piece["range"][0]
    need(n * bits % 8 == 0, "%s: a piece does not fall on bytes" % t["name"])
    v = int.from_bytes(data[piece["offset"]:piece["offset"] + n * bits // 8], "little")
    return {**piece, "offset": 0}, bytes(v >> i * bits & (1 << bits) - 1 for i in range(n))


def place(t, whole, seen, piece, data):
    """puts one piece into the whole tensor, run by run along the last dim; every element exactly once"""
    size, shape = SIZES[t["dtype"]], t["shape"]
    (lo, hi), at, width = piece["range"], piece["offset"], piece["extent"][-1]
    i = lo
    while i < hi:
        n = min(width - i % width, hi - i)
        idx = next(elements((piece["start"], piece["extent"]), i, i + 1))
        flat = 0
        for x, s in zip(idx, shape):
            need(0 <= x < s, "%s: a piece lies outside" % t["name"])
            flat = flat * s + x
        need(idx[-1] + n <= shape[-1], "%s: a piece lies outside" % t["name"])
        need(seen.find(1, flat, flat + n) < 0, "%s: stored twice" % t["name"])
        seen[flat:flat + n] = b"\1" * n
        whole[flat * size:(flat + n) * size] = data[at:at + n * size]
        at += n * size
        i += n


def leaf_units(pack):
    """of each leaf: its first element, its end, the bytes of its lines"""
    ends = pack["leaves"]
    need(ends == sorted(ends) and ends[-1] > 0, "leaves do not ascend")
    kinds = {("plain", "F32"): lambda n: 128 * n, ("plain", "BF16"): lambda n: 128 * ((n + 1) // 2),
             ("b12", "BF16"): lambda n: 64 * (1 + 32 * n // 4096) + 192 * ((n + 3) // 4)}
    need((pack["kind"], pack["dtype"]) in kinds, "a kind of panels")
    for begin, end in zip([0] + ends, ends):
        yield begin, end, kinds[pack["kind"], pack["dtype"]](end - begin)


def narrow_leaf(data, at, n, c):
    """the n values of output c of a leaf in 12 bits"""
    head, out = 64 * (1 + 32 * n // 4096), []
    for i in range(n):
        j = 16 * (c % 16 // 4) + 8 * (c // 16) + 2 * (c % 4) + (i % 2 == 0)
        body, odd = at + head + i // 4 * 192, i % 4 // 2
        code = data[body + j] >> 4 * odd & 15
        out.append(code >> 3 << 15 | data[at + (code & 7)] << 8 | data[body + 64 * (1 + odd) + j])
    for k in range(at + 16, at + head, 4):
        word = u32(data, k)
        if word == M32:
            break
        if (word >> 8) % 32 == c:
            out[word // 8192] = (word & 255) << 8 | out[word // 8192] & 255
    return out


def check_packs(f, data):
    """leaves make the stride, runs fill their packs"""
    at = {}
    for k, pack in enumerate(f.get("packs", [])):
        need(pack["stride"] == sum(n for _, _, n in leaf_units(pack)), "%s: stride" % f["name"])
        need(pack["offset"] % 64 == 0 and pack["offset"] + pack["bytes"] <= len(data),
             "%s: place of a pack" % f["name"])
        at[k] = pack["offset"]
    for p in f["pieces"]:
        if "pack" in p:
            k, pack = p["pack"], f["packs"][p["pack"]]
            need(p["offset"] == at[k] and p["extent"][p["inputs"]] == pack["leaves"][-1],
                 "%s: place of a run" % f["name"])
            at[k] += -(-p["extent"][p["outputs"]] // 32) * pack["stride"]
    for k, pack in enumerate(f.get("packs", [])):
        need(at[k] == pack["offset"] + pack["bytes"], "%s: runs do not fill their pack" % f["name"])


def unpanel(f, p, data):
    """a run of panels as a piece in natural order"""
    pack, size = f["packs"][p["pack"]], SIZES[f["packs"][p["pack"]]["dtype"]]
    n, k = p["extent"][p["outputs"]], pack["leaves"][-1]
    step = (k, 1) if p["outputs"] < p["inputs"] else (1, n)
    out, code = [0] * (n * k), {4: "<%dI", 2: "<%dH"}[size]
    for o in range(n):
        at = p["offset"] + o // 32 * pack["stride"]
        for begin, end, lines in leaf_units(pack):
            if pack["kind"] == "b12":
                for i, v in enumerate(narrow_leaf(data, at, end - begin, o % 32)):
                    out[o * step[0] + (begin + i) * step[1]] = v
                at += lines
                continue
            words = struct.unpack_from("<%dI" % (lines // 4), data, at)[o % 32::32]
            if size == 2:
                words = [half for w in words for half in (w >> 16, w & 0xffff)]
            for i in range(begin, end):
                out[o * step[0] + i * step[1]] = words[i - begin]
            at += lines
    return {**p, "offset": 0}, struct.pack(code % len(out), *out)


def check_panels_header(f, head, n):
    """what has a name in the header: natural tensors and packs, and gaps between them"""
    want = {p["offset"]: p["extent"] for p in f["pieces"] if "pack" not in p}
    want.update((k["offset"], k["bytes"]) for k in f["packs"])
    for name, h in head.items():
        at, shape = 8 + n + h["data_offsets"][0], want.pop(8 + n + h["data_offsets"][0], None)
        if shape is None:
            need(name.startswith("padding."), "%s: %s at %d" % (f["name"], name, at))
        elif isinstance(shape, int):
            need(name.startswith("panels.") and h["data_offsets"][1] - h["data_offsets"][0] == shape,
                 "%s: %s" % (f["name"], name))
        else:
            need(h["shape"] == shape, "%s: %s" % (f["name"], name))
    need(not want, "%s: its header lacks something" % f["name"])


def check_header(f, data, m):
    """the safetensors header says the same as the manifest's pieces"""
    n = u64(data, 0)
    head = json.loads(data[8:8 + n], object_pairs_hook=no_twice)
    head.pop("__metadata__", None)
    need((8 + n) % 4096 == 0, "%s: data not aligned" % f["name"])
    if "packs" in f:
        return check_panels_header(f, head, n)
    count, last, end = {}, None, 0
    for p, (name, h) in zip(f["pieces"], head.items()):
        t = m["tensors"][p["tensor"]]
        base = ROLES[t["role"]] + t["name"]
        k = count.get(base, 0)
        count[base] = k + 1
        need(name == base + ("@%d" % k if k else ""), "%s: %s is called %s" % (f["name"], base, name))
        total = 1
        for x in p["extent"]:
            total *= x
        shape = p["extent"] if p["range"] == [0, total] else [p["range"][1] - p["range"][0]]
        if "tail" in t and shape == p["extent"] and shape[-1] == t["shape"][-1]:
            shape = shape[:-1] + [int(x) for x in t["tail"].split(",")]
        need(h["dtype"] == t["dtype"] and h["shape"] == shape, "%s: %s" % (f["name"], name))
        need(h["data_offsets"][0] == end and 8 + n + end == p["offset"],
             "%s: offset of %s" % (f["name"], name))
        end = h["data_offsets"][1]
    need(len(head) == len(f["pieces"]) and 8 + n + end == len(data), "%s: tensors and pieces" % f["name"])


def read(folder):
    m = read_manifest(folder)
    whole, copies = [], []
    for t in m["tensors"]:
        n = 1
        for x in t["shape"]:
            n *= x
        whole.append((bytearray(n * SIZES[t["dtype"]]), bytearray(n)))
    for f in m["files"]:
        data = read_file(folder, f)
        check_header(f, data, m)
        check_packs(f, data)
        for p in f["pieces"]:
            t = m["tensors"][p["tensor"]]
            if "pack" in p:
                run = unpanel(f, p, data)
                (copies.append((t, *run)) if p.get("copy") else place(t, *whole[p["tensor"]], *run))
                continue
            place(t, *whole[p["tensor"]], *(widen(t, p, data) if t["dtype"] in PACKED else (p, data)))
    for f in ([m["config"]] if m["config"] else []) + m["extra"]:
        read_file(folder, f)
    for t, (data, seen) in zip(m["tensors"], whole):
        need(all(seen), "%s: not whole" % t["name"])
        need(digest(t, data) == t["digest"], "%s: digest" % t["name"])
    for t, p, data in copies:
        i = m["tensors"].index(t)
        again = bytearray(whole[i][0])
        place(t, again, bytearray(len(whole[i][1])), p, data)
        need(again == whole[i][0], "%s: its copy differs" % t["name"])
    weights, state = digests(m["tensors"], m["state"])
    need(weights == m["weights_digest"] and state == m["state_digest"], "weights_digest or state_digest")
    text = "%s %s\n" % (("state", state) if state else ("weights", weights))
    text += "".join("%s %d\n" % (k, m["layout"][k]) for k in ("cp", "dp", "ep", "pp", "tp", "vpp", "zero")
                    if m["layout"].get(k, 1) != 1 or k != "vpp") + "version 1\n"
    need(xxh128(text.encode()) == m["save_id"], "save_id")
    return m, {ROLES[t["role"]] + t["name"]: bytes(d) for t, (d, _) in zip(m["tensors"], whole)}


def self_test():
    ramp = bytes(i * 37 & 255 for i in range(5000))
    want = {0: "99aa06d3014798d86001c324468d497f", 1: None}
    need(xxh128(b"") == want[0], "xxh128 of nothing")
    need(xxh64(b"") == 0xEF46DB3751D8E999, "xxh64 of nothing")
    for line in sys.stdin if not sys.stdin.isatty() else ():
        n, h64, h128 = line.split()
        need("%016x" % xxh64(ramp[:int(n)]) == h64 and xxh128(ramp[:int(n)]) == h128,
             "hashes of %s bytes" % n)
    print("self test passed")


def main(argv):
    try:
        if argv == ["--self"]:
            self_test()
        elif len(argv) == 3 and argv[1] == "--tensor":
            sys.stdout.buffer.write(read(argv[0])[1][argv[2]])
        elif argv and not any(a.startswith("-") for a in argv):
            for argv[0] in list(argv):          # an error names the one it is in
                m, _ = read(argv[0])
                print("weights_digest %s\nstate_digest %s" % (m["weights_digest"], m["state_digest"] or "-"))
        else:
            print(__doc__.strip(), file=sys.stderr)
            return 2
    except Skip as e:
        print("native_reader: %s: skipped: %s" % (argv[0], e), file=sys.stderr)
        return 77
    except (Bad, OSError, KeyError, ValueError, subprocess.SubprocessError) as e:
        print("native_reader: %s: %s" % (argv[0], e), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
