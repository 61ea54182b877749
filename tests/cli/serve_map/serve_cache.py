"""serve_cache.py FOLDER CHECKPOINT OTHER [all] - --cache keeps the weights of a folder in the form that servers map. A
later start takes them from there, at any tp, with the same answers and fingerprint. Damage, a folder that is gone, a
full disk and two servers at once cost a line at most, and never change an answer. OTHER has other weights of the same
shapes; all: what is not tried each time, too."""
import os
import re
import shutil
import subprocess
import sys
import time
from serve_server import Server, claim, finish

tmp, checkpoint, other = sys.argv[1:4]
cache = f"{tmp}/cache"
DATA = "weights-00000.safetensors"
prompts = [[(7 * i + k * k) % 256 for k in range(1 + 19 * i)] for i in range(4)]


def answers(server):
    a = server.complete(prompt=prompts, max_tokens=8, temperature=0, logprobs=2, ignore_eos=True)
    return a["system_fingerprint"], [(c["index"], c["text"], c["logprobs"]["token_logprobs"])
                                     for c in sorted(a["choices"], key=lambda c: c["index"])]


def kept():
    return sorted(x for x in os.listdir(cache) if re.fullmatch("[0-9a-f]{32}-(plain|b12)", x)) if os.path.isdir(cache) else []


def notes():
    return {x for x in os.listdir(cache) if x.startswith("source-") and "." not in x}


def until(event, seconds=200):
    begin = time.monotonic()
    while not event() and time.monotonic() - begin < seconds:
        time.sleep(0.02)
    return event()


def text_of(server):
    return b"".join(server.err).decode()


def is_mapped(server):
    """By the first process, where there is no launcher."""
    return cache in open(f"/proc/{server.p.pid}/maps").read()


def tried(name, source, want, *args, hit, lines=0, env=(), keeps=None):
    """A server with --cache: its answers, whether it maps what was kept, its lines. keeps: how many notes of sources
    there are when it has written, or what is true then."""
    env = dict(env)
    before = {k: os.environ.get(k) for k in env}
    os.environ.update(env)
    s = Server(source, "--cache", cache, *args)
    for k, v in before.items():
        os.environ.pop(k) if v is None else os.environ.update({k: v})
    if not claim(f"{name}: starts", s.port is not None, text_of(s)):
        return
    got = answers(s)
    claim(f"{name}: the answers and the fingerprint", got == want, f"{got} {want}"[:600])
    if "--tp" not in args:
        claim(f"{name}: maps what was kept: {hit}", is_mapped(s) == hit)
    if keeps is not None:
        claim(f"{name}: is kept", until(keeps if callable(keeps) else lambda: len(notes()) == keeps),
              f"{os.listdir(cache)} {text_of(s)}")
    rc, err = s.stop()
    claim(f"{name}: ends well", rc == 0, f"{rc} {err}")
    claim(f"{name}: {lines} lines", len(err.splitlines()) == lines, err)


def answers_of(*args):
    s = Server(*args)
    got = answers(s)
    s.stop()
    return got


want, want_other = answers_of(checkpoint), answers_of(other)
claim("the other weights answer otherwise", want[1] != want_other[1])

tried("first", checkpoint, want, hit=False, keeps=1)
claim("one is there", len(kept()) == 1 and kept()[0][:32] in want[0] + kept()[0], kept())
tried("second", checkpoint, want, hit=True)
tried("tp 2", checkpoint, want, "--tp", 2, hit=True)

# a bit of it flips: the server ends and names the file, the next one does without
path = f"{cache}/{kept()[0]}/{DATA}"
with open(path, "r+b") as f:
    f.seek(-4096, 2)
    byte = f.read(1)
    f.seek(-4096, 2)
    f.write(bytes([byte[0] ^ 4]))
s = Server(checkpoint, "--cache", cache)
s.p.wait(60)
s.reader.join(5)
claim("flipped: ends with one line that names the file", s.p.returncode == 1 and len(text_of(s).splitlines()) == 1 and
      path in text_of(s), f"{s.p.returncode} {text_of(s)}")
claim("flipped: is not there any more", kept() == [], kept())
tried("after it", checkpoint, want, hit=False, keeps=1)

# cut while nobody uses it
path = f"{cache}/{kept()[0]}/{DATA}"
os.truncate(path, os.path.getsize(path) // 2)
tried("cut", checkpoint, want, hit=False, lines=1, keeps=1)

# other weights take the place of the files
moved = f"{tmp}/moved"
shutil.copytree(checkpoint, moved)
for file in os.listdir(other):
    if file.endswith(".safetensors") or file == "manifest.json":
        shutil.copyfile(f"{other}/{file}", f"{moved}/{file}")
tried("other weights", moved, want_other, hit=False, keeps=2)
tried("other weights again", moved, want_other, hit=True)

# the folder is removed while it is in use
s = Server(checkpoint, "--cache", cache)
shutil.rmtree(cache)
claim("removed: answers go on", answers(s) == want)
rc, err = s.stop()
claim("removed: ends without a line", rc == 0 and err == "", err)

# no space
s = Server(checkpoint, "--cache", cache, "--cache-size", "1M")
claim("no space: a line", until(lambda: "not kept: there is no space" in text_of(s)), text_of(s))
claim("no space: answers", answers(s) == want)
rc, err = s.stop()
claim("no space: nothing else", rc == 0 and len(err.splitlines()) == 1 and kept() == [], f"{err} {kept()}")
if sys.argv[4:] != ["all"]:
    finish()

# ---- what takes longer ----
os.environ["SHARDLINE_IO_FAULT"] = "write:2:ENOSPC"
s = Server(checkpoint, "--cache", cache)
del os.environ["SHARDLINE_IO_FAULT"]
claim("full disk: a line", until(lambda: "No space left" in text_of(s)), text_of(s))
claim("full disk: answers", answers(s) == want)
rc, err = s.stop()
claim("full disk: nothing else", rc == 0 and len(err.splitlines()) == 1 and os.listdir(cache) == [],
      f"{err} {os.listdir(cache)}")

# two servers write one folder
os.environ["SHARDLINE_IO_SLOW"] = "100"         # the first one is at it when the second one begins
two = [Server(checkpoint, "--cache", cache) for _ in range(2)]
del os.environ["SHARDLINE_IO_SLOW"]
claim("two: one is there", until(lambda: len(notes()) == 1 and len(kept()) == 1), os.listdir(cache))
for i, s in enumerate(two):
    claim(f"two: answers of {i}", answers(s) == want)
    rc, err = s.stop()
    claim(f"two: {i} ends well, with a line at most", rc == 0 and len(err.splitlines()) <= 1, err)
tried("two: a third one maps it", checkpoint, want, hit=True)

# the one that was used longest ago makes room, unless it is in use
size = sum(os.path.getsize(f"{cache}/{kept()[0]}/{x}") for x in os.listdir(f"{cache}/{kept()[0]}"))
first = kept()[0]
user = Server(checkpoint, "--cache", cache)
s = Server(moved, "--cache", cache, "--cache-size", size * 3 // 2)
claim("in use: stays", until(lambda: "there is no space" in text_of(s)) and kept() == [first], kept())
s.stop()
user.stop()
tried("room", moved, want_other, "--cache-size", size * 3 // 2, hit=False,
      keeps=lambda: len(kept()) == 1 and kept() != [first])
tried("both fit", checkpoint, want, "--cache-size", size * 5 // 2, hit=False,
      keeps=lambda: len(kept()) == 2)

# a server is killed while it writes: the next one takes in what its converter made, or makes it
shutil.rmtree(cache)
os.environ["SHARDLINE_IO_SLOW"] = "100"
s = Server(checkpoint, "--cache", cache)
del os.environ["SHARDLINE_IO_SLOW"]
claim("killed: it was writing", until(lambda: any(x.startswith("packing-") for x in os.listdir(cache))))
s.p.kill()
s.p.wait()
claim("killed: the converter ends", until(lambda: any(x.startswith("packing-") and "." not in x
                                                      for x in os.listdir(cache))), os.listdir(cache))
tried("killed: the next server", checkpoint, want, hit=False, keeps=1)
tried("killed: and the one behind it", checkpoint, want, hit=True)
claim("killed: nothing else is left", len(os.listdir(cache)) == 2, os.listdir(cache))

# what stays without it
tried("another dtype", checkpoint, answers_of(checkpoint, "--dtype", "bf16"), "--dtype", "bf16", hit=False, lines=1)
probe = subprocess.run([os.path.join(os.environ["BIN"], "pserve"), checkpoint, "--once", "a", "--max-tokens", "1"],
                       env=dict(os.environ, SHARDLINE_ISA="avx2"), capture_output=True)
if probe.returncode == 0:
    tried("avx2", checkpoint, want, hit=False, lines=1, env={"SHARDLINE_ISA": "avx2"})
for tp in 4, 8:
    tried(f"tp {tp}", checkpoint, want, "--tp", tp, hit=True)
tried("replicas", checkpoint, want, "--tp", 1, "--replicas", 2, hit=True)
tried("portable", checkpoint, want, hit=True, env={"SHARDLINE_ISA": "portable"})

# native folders are named by their own digest, quantised ones hold their values
native, quantised = f"{tmp}/one/step-2", f"{tmp}/quantised"
tried("native", native, answers_of(native), hit=True)
values = answers_of(quantised)
# (a line says how they are computed)
tried("quantised", quantised, values, hit=False, lines=1, keeps=2)
tried("quantised, again", quantised, values, hit=True, lines=1)
tried("quantised, tp 2", quantised, values, "--tp", 2, hit=True, lines=1)
# 12 bits: kept beside panels of the same weights
narrow = f"{tmp}/narrow.hf"
want = answers_of(narrow)
tried("plain bf16", narrow, want, hit=False, keeps=lambda: len(notes()) == 3)
before = len(kept())
tried("12 bits", narrow, want, "--cache-kind", "b12", hit=False, keeps=lambda: len(kept()) == before + 1)
tried("12 bits, again", narrow, want, "--cache-kind", "b12", hit=True)
tried("12 bits, tp 2", narrow, want, "--cache-kind", "b12", "--tp", 2, hit=True)
claim("12 bits are another file of the same weights", len({x[:32] for x in kept()}) == len(kept()) - 1, kept())
run = subprocess.run([os.path.join(os.environ["BIN"], "pserve"), checkpoint, "--cache", cache, "--cache-kind", "b12",
                      "--once", "a"], capture_output=True)
claim("12 bits of fp32 are refused", run.returncode == 2 and b"holds bf16, and these weights are fp32" in run.stderr,
      run.stderr)
run = subprocess.run([os.path.join(os.environ["BIN"], "pserve"), quantised, "--cache", cache, "--quantized", "codes",
                      "--dtype", "bf16", "--once", "a"], capture_output=True)
claim("codes: a line says that they have no use for it", run.returncode == 0 and
      b"--cache has no effect: quantised weights lie as codes" in run.stderr, run.stderr)
finish()
