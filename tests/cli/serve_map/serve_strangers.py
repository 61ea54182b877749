"""serve_strangers.py FOLDER PLAIN NARROW HF - folders that no program of ours wrote: checkpoints of the serve format whose
manifests (with a checksum that fits) say what is not so, packs in 12 bits whose bytes no writer writes, folders of
--kv-disk and --cache with other things in them. Each is refused with one line, or answers as the good one does; none
ends in a crash, a hang, or another answer. PLAIN, NARROW: good ones, panels of fp32 and in 12 bits; HF: a Hugging Face
folder."""
import copy
import json
import os
import random
import shutil
import subprocess
import sys
from serve_server import Server, claim, finish

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
from native_reader import BLOCK, xxh64, xxh128

tmp, plain, narrow, hf = sys.argv[1:5]
binaries = os.environ["BIN"]
DATA, MANIFEST = "weights-00000.safetensors", "manifest.json"
bad = f"{tmp}/bad"


def load(folder):
    m = json.load(open(f"{folder}/{MANIFEST}"))
    del m["manifest_checksum"]
    return m


def write_manifest(m):
    text = json.dumps(m, separators=(",", ":"))[:-1].encode() + b',"manifest_checksum":'
    os.path.lexists(f"{bad}/{MANIFEST}") and os.unlink(f"{bad}/{MANIFEST}")
    with open(f"{bad}/{MANIFEST}", "wb") as f:
        f.write(text + b'"' + xxh128(text).encode() + b'"}\n')


def fresh(good, data=False):
    """A copy; the file of the weights is a link to the good one unless data."""
    shutil.rmtree(bad, ignore_errors=True)
    os.mkdir(bad)
    for x in os.listdir(good):
        if x != DATA or data:
            shutil.copyfile(f"{good}/{x}", f"{bad}/{x}")
        else:
            os.symlink(f"{good}/{x}", f"{bad}/{x}")


def run(*args, **env):
    """Status, stdout, lines of stderr; a hang is status 124."""
    try:
        p = subprocess.run([os.path.join(binaries, args[0]), *map(str, args[1:])], capture_output=True, timeout=120,
                           stdin=subprocess.DEVNULL, env=dict(os.environ, **env))
    except subprocess.TimeoutExpired:
        return 124, b"", []
    return p.returncode, p.stdout, p.stderr.decode(errors="replace").splitlines()


def once(folder, *args):
    return run("pserve", folder, "--once", "The ", "--max-tokens", 4, *args)


good = {folder: once(folder)[1] for folder in (plain, narrow, hf)}
for folder, text in good.items():
    claim(f"{folder} answers", len(text) > 0)


def judged(name, folder, says_so=True):
    """One line, or the answer of the good one. says_so: it must be refused by one of the two."""
    verdicts = []
    for program, (rc, out, err) in (("pserve", once(bad)), ("verify", run("reshard", "verify", bad))):
        fine = rc in (1, 2) and len(err) == 1 and bad in err[0] or rc in (1, 2) and len(err) == 1 and \
            ("tensor" in err[0] or "config" in err[0]) or rc == 0 and (program == "verify" or out == good[folder])
        claim(f"{name}, {program}: a line, or the right answer", fine, f"status {rc} {out[:80]} {err[:4]}")
        verdicts.append(rc)
    if says_so:
        claim(f"{name}: is refused", any(verdicts), verdicts)


# ---- manifests ----

def pack(m, i=0):
    return m["files"][0]["packs"][i]


def run_of(m, i=0):
    return [p for p in m["files"][0]["pieces"] if "pack" in p][i]


def natural(m, i=0):
    return [p for p in m["files"][0]["pieces"] if "pack" not in p][i]


def put(place, **members):
    return lambda m: place(m).update(members)


def swap_packs(m):
    packs = m["files"][0]["packs"]
    packs[0], packs[1] = packs[1], packs[0]


def swap_runs(m):
    a, b = run_of(m, 0), run_of(m, 1)
    a["offset"], b["offset"] = b["offset"], a["offset"]


changes = {
    "a pack begins later": lambda m: put(pack, offset=pack(m)["offset"] + 64)(m),
    "a pack begins at an odd byte": lambda m: put(pack, offset=pack(m)["offset"] + 1)(m),
    "a pack begins behind the file": put(pack, offset=1 << 62),
    "a pack begins before the file": put(pack, offset=-64),
    "a pack begins in the header": put(pack, offset=64),
    "a pack is longer": lambda m: put(pack, bytes=pack(m)["bytes"] + pack(m)["stride"])(m),
    "a pack is endless": put(pack, bytes=(1 << 63) - 1),
    "a pack has no bytes": put(pack, bytes=0),
    "a pack lies over the next one": lambda m: put(pack, offset=pack(m, 1)["offset"])(m),
    "two packs lie in one place": lambda m: pack(m, 1).update(copy.deepcopy(pack(m))),
    "packs change places": swap_packs,
    "a pack is missing": lambda m: m["files"][0]["packs"].pop(),
    "a pack is there twice": lambda m: m["files"][0]["packs"].append(copy.deepcopy(pack(m))),
    "packs are no list": lambda m: m["files"][0].update(packs={"a": 1}),
    "stride 0": put(pack, stride=0),
    "a stride of half": lambda m: put(pack, stride=pack(m)["stride"] // 2)(m),
    "a negative stride": put(pack, stride=-128),
    "a stride of 2^62": put(pack, stride=1 << 62),
    "a fractional stride": put(pack, stride=1.5),
    "another kind": lambda m: put(pack, kind="b12" if pack(m)["kind"] == "plain" else "plain")(m),
    "an unknown kind": put(pack, kind="b9"),
    "another dtype": lambda m: put(pack, dtype="F32" if pack(m)["dtype"] == "BF16" else "BF16")(m),
    "a dtype of 4 bits": put(pack, dtype="F4"),
    "unit -1": put(pack, unit=-1),
    "leaves that fall": lambda m: pack(m)["leaves"].reverse(),
    "no leaves": put(pack, leaves=[]),
    "too many leaves": put(pack, leaves=list(range(1, 200))),
    "a leaf of 2^61": lambda m: pack(m)["leaves"].append(1 << 61),
    "leaves are texts": put(pack, leaves=["8"] * 8),
    "one leaf": lambda m: put(pack, leaves=pack(m)["leaves"][-1:])(m),
    "a run of no pack": put(run_of, pack=10 ** 6),
    "a run of pack -1": put(run_of, pack=-1),
    "a run of another pack": put(run_of, pack=1),
    "outputs are inputs": put(run_of, outputs=1, inputs=1),
    "outputs and inputs change places": put(run_of, outputs=1, inputs=0),
    "a dim that is not there": put(run_of, outputs=7),
    "a run is a copy": put(run_of, copy=True),
    "a run begins elsewhere": lambda m: put(run_of, offset=run_of(m)["offset"] + 64)(m),
    "a run is higher": lambda m: run_of(m)["extent"].__setitem__(0, run_of(m)["extent"][0] + 32),
    "a run has a part of the contraction": lambda m: run_of(m)["extent"].__setitem__(1, 8),
    "a run is beside its tensor": lambda m: run_of(m)["start"].__setitem__(0, 1 << 40),
    "a run of another tensor": lambda m: put(run_of, tensor=natural(m)["tensor"])(m),
    "runs change places": swap_runs,
    "a run is missing": lambda m: m["files"][0]["pieces"].remove(run_of(m)),
    "a run is there twice": lambda m: m["files"][0]["pieces"].append(copy.deepcopy(run_of(m))),
    "a natural piece lies in a pack": lambda m: put(natural, offset=pack(m)["offset"])(m),
    "a run without its pack": lambda m: run_of(m).pop("pack"),
    "an unknown feature": lambda m: m["must_understand"].append("panels2"),
    "a longer file": lambda m: m["files"][0].update(length=m["files"][0]["length"] + 1),
    "a block too few": lambda m: m["files"][0].update(blocks=m["files"][0]["blocks"][:-16]),
    "another checksum": lambda m: m["files"][0].update(checksum="0" * 32),
    "another digest": lambda m: m["tensors"][0].update(digest="0" * 32),
}
for folder in (plain, narrow):
    for name, change in changes.items():
        m = load(folder)
        change(m)
        fresh(folder)
        write_manifest(m)
        # leaves of fp32 lie one behind the other: one leaf of all is another good file
        judged(f"{os.path.basename(folder)}: {name}", folder, says_so=(folder, name) != (plain, "one leaf"))

# ---- bytes that fit their checksums ----

def lie(change):
    """Changes the bytes of NARROW's file and writes checksums that fit."""
    fresh(narrow, data=True)
    m = load(narrow)
    with open(f"{bad}/{DATA}", "r+b") as f:
        data = bytearray(f.read())
        change(data, m)
        f.seek(0)
        f.write(data)
    sums = [xxh64(bytes(data[i:i + BLOCK])) for i in range(0, len(data), BLOCK)]
    m["files"][0]["blocks"] = "".join("%016x" % s for s in sums)
    m["files"][0]["checksum"] = xxh128(b"".join(s.to_bytes(8, "little") for s in sums))
    write_manifest(m)


def heads(m):
    """Where the heads of the leaves of all panels lie: offset, bytes."""
    for p in m["files"][0]["packs"]:
        for panel in range(p["offset"], p["offset"] + p["bytes"], p["stride"]):
            at, begin = panel, 0
            for end in p["leaves"]:
                lines = 1 + 32 * (end - begin) // 4096
                yield at, 64 * lines
                at, begin = at + 64 * lines + 192 * ((end - begin + 3) // 4), end


def fill(make):
    def change(data, m):
        for at, n in heads(m):
            data[at + 16:at + n] = make(n - 16)
    return change


rng = random.Random(5)
lies = {
    "no list of escapes ends": fill(bytes),
    "no list ends, nor do bodies": lambda d, m: [d.__setitem__(slice(p["offset"], p["offset"] + p["bytes"]),
                                                               bytes(p["bytes"])) for p in m["files"][0]["packs"]],
    "escapes behind their leaf": fill(lambda n: b"\xfe\xff\xff\xff" * (n // 4)),
    "escapes anywhere": fill(rng.randbytes),
    "escapes that fall": fill(lambda n: b"".join(((n - i) << 8 | 0x3f).to_bytes(4, "little") for i in range(n // 4))),
    "the header is cut": lambda d, m: d.__setitem__(slice(8, 200), b"\0" * 192),
    "the header is longer than the file": lambda d, m: d.__setitem__(slice(0, 8), b"\xff" * 7 + b"\x7f"),
}
for name, change in lies.items():
    lie(change)
    claim(f"{name}: verify finds it in a line",
          (lambda r: r[0] == 1 and len(r[2]) == 1)(run("reshard", "verify", bad)), run("reshard", "verify", bad)[::2])
    for isa in "", "portable", "avx2", "avx512":
        env = {"SHARDLINE_ISA": isa} if isa else {}
        rc, out, err = run("pserve", bad, "--once", "The quick brown", "--max-tokens", 4, **env)
        if any("SHARDLINE_ISA" in x for x in err):
            continue
        claim(f"{name}, {isa or 'best'}: ends, with a line at most",
              rc in (0, 1) and len([x for x in err if "made anew" not in x]) <= 1, f"{rc} {err[:3]}")

# ---- folders of pages and of packed weights ----

strange = {
    "kv-0123456789abcdef.seg": rng.randbytes(100000),
    "kv-0000000000000001.seg": b"",
    "kv-0000000000000002.seg": b"\0" * 4096,
    "kv-zz.seg": b"x", "notes.txt": b"hello", "source-" + "0" * 32: b"../../etc/passwd\n",
    "source-" + "1" * 32: rng.randbytes(300), "source-" + "2" * 32: b"",
}


def strangers(folder):
    shutil.rmtree(folder, ignore_errors=True)
    os.mkdir(folder)
    for name, data in strange.items():
        with open(f"{folder}/{name}", "wb") as f:
            f.write(data)
    os.mkfifo(f"{folder}/kv-0000000000000003.seg")
    os.symlink("/dev/zero", f"{folder}/kv-0000000000000004.seg")
    os.symlink("kv-0000000000000005.seg", f"{folder}/kv-0000000000000005.seg")
    os.mkdir(f"{folder}/kv-0000000000000006.seg")
    for name in ("0" * 32 + "-plain", "packing-" + "3" * 32, "packing-" + "4" * 32 + ".tmp-save", "f" * 32 + "-other"):
        os.mkdir(f"{folder}/{name}")
        with open(f"{folder}/{name}/{MANIFEST}", "wb") as f:
            f.write(b"{}")
    os.mkfifo(f"{folder}/source-" + "5" * 32)
    return folder


def answer(server):
    a = server.complete(prompt=[(7 * k) % 256 for k in range(200)], max_tokens=6, temperature=0, logprobs=1)
    return a["choices"][0]["text"], a["choices"][0]["logprobs"]["token_logprobs"]


def served(*args):
    s = Server(hf, *args)
    if not claim(f"{args}: starts", s.port is not None, b"".join(s.err)):
        return None, ""
    got = answer(s)
    rc, err = s.stop()
    claim(f"{args}: ends well", rc == 0, f"{rc} {err}")
    return got, err


want, _ = served()
for args in ("--kv-disk", strangers(f"{tmp}/strange") + ":64MiB"), ("--cache", f"{tmp}/strange"):
    for turn in range(2):
        got, err = served(*args)
        claim(f"{args}, turn {turn}: the answer", got == want, err)
        claim(f"{args}, turn {turn}: a line at most", len(err.splitlines()) <= 1, err)
claim("what is not ours is there yet", os.path.exists(f"{tmp}/strange/notes.txt") and
      os.path.isdir(f"{tmp}/strange/" + "f" * 32 + "-other"))

# a kept checkpoint of other weights under this one's name
cache = f"{tmp}/cache"
digest = run("reshard", "digest", hf)[1].split()[1].decode()
shutil.rmtree(cache, ignore_errors=True)
shutil.copytree(narrow, f"{cache}/{digest}-plain")
native = f"{tmp}/one/step-2"
s = Server(native, "--cache", cache)
claim("other weights under the name: not taken", answer(s) == want, b"".join(s.err))
rc, err = s.stop()
claim("other weights under the name: a line", rc == 0 and len(err.splitlines()) == 1 and "name says" in err, err)
finish()
