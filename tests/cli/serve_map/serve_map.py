"""serve_map.py FOLDER NAME DTYPE [answers] - answers from a checkpoint in the serve format, whose file is mapped, have the
bits of the native checkpoint and of the Hugging Face folder: at every tp, in every CPU class, with copied
weights, after a reload, and when the file is replaced. A damaged file ends the server with one line (not
tried with "answers")."""
import json
import os
import shutil
import subprocess
import sys
import time
from serve_server import Server, claim, finish

tmp, name, dtype = sys.argv[1:4]
every = os.environ.get("SERVE_MAP") == "all"
model = f"{tmp}/{name}"
serve, native = f"{model}.serve", f"{model}/step-2"
other_model = f"{tmp}/other-{name}"
DATA = "weights-00000.safetensors"
prompts = [[(7 * i + k * k) % 256 for k in range(1 + 19 * i)] for i in range(5)]


def essence(server):
    a = server.complete(prompt=prompts, max_tokens=10, temperature=0, logprobs=2, echo=True, ignore_eos=True)
    return [(c["index"], c["text"], c["logprobs"]["token_logprobs"], c["logprobs"]["top_logprobs"])
            for c in sorted(a["choices"], key=lambda c: c["index"])]


def text_of(server):
    return b"".join(server.err).decode()


def served(name, checkpoint, *args, **env):
    """Answers of a server that is started and stopped; *env: its environment."""
    before = {k: os.environ.get(k) for k in env}
    os.environ.update(env)
    s = Server(checkpoint, "--verbose", *args)
    for k, v in before.items():
        os.environ.pop(k) if v is None else os.environ.update({k: v})
    if not claim(f"{name}: starts", s.port is not None, text_of(s)):
        return None, ""
    got = [essence(s), essence(s)]               # packs may be switched between the two
    claim(f"{name}: the second answer is the first", got[0] == got[1])
    rc, err = s.stop()
    claim(f"{name}: ends well", rc == 0, f"{rc} {err}")
    return got[0], err


def weights(err):
    return [int(line.split("weights ")[1].split()[0]) for line in err.splitlines() if ": weights " in line]


want, _ = served("native", native)
if every:
    got, _ = served("Hugging Face", f"{model}.hf", "--dtype", dtype)
    claim("the Hugging Face folder answers the same", got == want)
isas = ["", "portable", "avx2", "avx512", "avx512bf16"] if every else [""]
for isa in isas:
    for tp in [1, 2, 4, 8] if every else [2]:
        env = {"SHARDLINE_ISA": isa} if isa else {}
        program = os.path.join(os.environ["BIN"], "pserve")
        probe = subprocess.run([program, serve, "--once", "a", "--max-tokens", "1"],
                               env=dict(os.environ, **env), capture_output=True)
        if probe.returncode and b"SHARDLINE_ISA" in probe.stderr:
            continue
        name = f"mapped, tp {tp}, {isa or 'best'}"
        got, err = served(name, serve, "--tp", tp, **env)
        claim(f"{name}: the same bits", got == want, str(got)[:300])
        if isa in ("", "portable", "avx512") and "are made anew" not in err:
            claim(f"{name}: no rank has weights of its own", max(weights(err)) == 0, err)
        if isa == "avx2":
            claim(f"{name}: packs are made anew, and a line says so", "are made anew" in err, err)
got, err = served("small pages", serve, SHARDLINE_LARGE_FOLIOS="off")
claim("small pages: the same bits", got == want)
if every:
    got, err = served("another dtype", serve, "--dtype", "bf16" if dtype == "fp32" else "fp32")
    ref, _ = served("another dtype, native", native, "--dtype", "bf16" if dtype == "fp32" else "fp32")
    claim("another dtype: the bits of the native checkpoint", got == ref)

if sys.argv[4:] == ["answers"]:
    finish()
# ---- faults ----
copy = f"{tmp}/copy"


def fresh_copy():
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(serve, copy)
    return f"{copy}/{DATA}"


def flip(path):
    with open(path, "r+b") as f:
        at = os.path.getsize(path) - 4096        # in the last block, which is checked last
        f.seek(at)
        byte = f.read(1)
        f.seek(at)
        f.write(bytes([byte[0] ^ 4]))


def lines(err):
    return [x for x in err.splitlines() if DATA in x]


for tp in (1, 2) if every else (1,):
    path = fresh_copy()
    flip(path)
    s = Server(copy, "--verify", "first", "--tp", tp)
    s.p.wait(60)
    claim(f"flipped, first, tp {tp}: refuses to start", s.port is None and s.p.returncode == 1, text_of(s))
    claim(f"flipped, first, tp {tp}: one line names the file", len(lines(text_of(s))) == 1, text_of(s))
    s = Server(copy, "--tp", tp)
    try:                                         # a stream meanwhile does not end as if all were well
        events = s.stream(prompt=prompts[3], max_tokens=1500, ignore_eos=True)[1]
    except Exception:
        events = []
    claim(f"flipped, behind, tp {tp}: no stream is whole", not events or events[-1][0] != "[DONE]" or
          "error" in events[-2][0], str(events[-2:])[:300])
    try:
        s.p.wait(60)
    except subprocess.TimeoutExpired:
        pass
    s.reader.join(5)
    claim(f"flipped, behind, tp {tp}: ends", s.p.returncode == 1, f"{s.p.returncode} {text_of(s)}")
    claim(f"flipped, behind, tp {tp}: one line names the file", len(lines(text_of(s))) == 1, text_of(s))

path = fresh_copy()
s = Server(copy)
begin = time.monotonic()
while time.monotonic() - begin < 30:
    status, body, _ = s.request("GET", "/health")
    if json.loads(body)["verified"] == 1:
        break
    time.sleep(0.02)
claim("health: all is verified", status == 200 and json.loads(body)["verified"] == 1, body)
os.rename(path, path + ".old")                   # another file takes its place
shutil.copyfile(f"{other_model}.serve/{DATA}", path)
claim("replaced: the answers are those of the file that was there", essence(s) == want)
os.unlink(path + ".old")
claim("removed: likewise", essence(s) == want)
s.stop()

for tp in 1, 2:
    path = fresh_copy()
    s = Server(copy, "--tp", tp)
    first = essence(s)
    claim(f"cut while mapped, tp {tp}: answers before", first == want)
    os.truncate(path, 4096)
    try:
        essence(s)
    except Exception:
        pass
    try:
        s.p.wait(60)
    except subprocess.TimeoutExpired:
        pass
    s.reader.join(5)
    claim(f"cut while mapped, tp {tp}: ends", s.p.returncode == 1, f"{s.p.returncode} {text_of(s)}")
    claim(f"cut while mapped, tp {tp}: one line in all, which names the file", len(lines(text_of(s))) == 1 and
          len(text_of(s).splitlines()) == 1, text_of(s))

if not every:
    finish()
# ---- reload, to a mapped checkpoint and back ----
with open(f"{tmp}/admin-keys", "w") as f:
    f.write("admin-key\n")
s = Server(serve, "--admin-key-file", f"{tmp}/admin-keys", "--tp", 2)
other, _ = served("the other model", f"{other_model}/step-2")
for name, checkpoint, answers in (("other", f"{other_model}.serve", other), ("native", native, want),
                                  ("back", serve, want)):
    status, body, _ = s.request("POST", "/admin/reload", {"checkpoint": checkpoint},
                                {"Authorization": "Bearer admin-key"})
    claim(f"reload, {name}: done", status == 200, body)
    claim(f"reload, {name}: its answers", essence(s) == answers)
rc, err = s.stop()
claim("reloads: ends well", rc == 0, err)
finish()
