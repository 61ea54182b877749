"""serve_kv_disk.py CHECKPOINT FOLDER few|all [ARGS...] - pages of keys and values that are kept in a folder
(--kv-disk): found after a restart, at another tp, by two servers; whatever is wrong with the folder, answers
are those without it, and the log has one line at most. ARGS: what every server has, too."""
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from serve_server import Server, claim, finish, together

checkpoint, folder, part = sys.argv[1:4]
more = sys.argv[4:]
base = [(7 * k * k + 3 * k) % 256 for k in range(400)]
ASK = dict(max_tokens=8, temperature=0, logprobs=2, ignore_eos=True, return_token_ids=True)
prompts = [base[i:] + base[:i] for i in range(0, 60, 6)]          # ten beginnings of six pages
requests = [dict(prompt=p, **ASK) for p in prompts]
SMALL = ("--ctx", 448, "--max-batch", 16)


def essence(answer):
    return [(c["token_ids"], c["logprobs"]["token_logprobs"], c["logprobs"]["top_logprobs"])
            for c in answer["choices"]]


def ask(server, request):
    return lambda: essence(server.complete(**request))


def metric(server, name):
    text = server.request("GET", "/metrics")[1].decode()
    return sum(float(x) for x in re.findall(rf"^{name}\{{.*\}} (\S+)", text, re.M))


def hits(server):
    return metric(server, "vllm:external_prefix_cache_hits_total")


def damaged(server):
    return metric(server, "shardline:kv_disk_damaged_total")


def start(name, *args, disk=f"{folder}:1GB"):
    s = Server(checkpoint, *more, *SMALL, *args, *(["--kv-disk", disk] if disk else []))
    if not claim(f"{name}: starts", s.port is not None, b"".join(s.err)):
        finish()
    return s


def same(name, server, which=None):
    for i, got in enumerate(together([ask(server, r) for r in requests])):
        claim(f"{name}: request {i} has the same floats", got == want[i],
              f"{str(got)[:300]} expected {str(want[i])[:300]}")


def end(name, server, lines=0):
    rc, err = server.stop()
    said = [line for line in err.splitlines() if "--kv-disk" in line]
    claim(f"{name}: ends well", rc == 0, f"{rc}: {err}")
    claim(f"{name}: the log has {lines} lines about the folder at most", len(said) <= lines, said)


def segments():
    return sorted(glob.glob(folder + "/*.seg"))


s = start("without a folder", disk=None)
want = [ask(s, r)() for r in requests]
end("without a folder", s)

s = start("tp 4", "--tp", 4)
same("tp 4", s)
claim("nothing was found in an empty folder", hits(s) == 0, hits(s))
end("tp 4", s)
claim("pages are written at the end", sum(map(os.path.getsize, segments())) > 0, segments())

s = start("tp 1, after a restart")
same("tp 1, after a restart", s)
claim("whole beginnings are found: six pages each", hits(s) >= 60 * 64, hits(s))
before = metric(s, "shardline:kv_disk_read_bytes_total")
same("now they are in memory", s)
claim("and are not read again", metric(s, "shardline:kv_disk_read_bytes_total") == before, before)
end("tp 1, after a restart", s)

s = start("few pages", "--kv-memory", 2500000)
same("few pages", s)
claim("found, too", hits(s) > 0, hits(s))
same("few pages, again", s)
end("few pages", s)

# ---- what can be wrong with the folder ----
shutil.copytree(folder, folder + ".good")


def restored():
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(folder + ".good", folder)


for path in segments():                       # one bit of every record's payload, and more
    with open(path, "r+b") as f:
        data = bytearray(f.read())
        for at in range(300, len(data), 1000):
            data[at] ^= 1 << at % 8
        f.seek(0)
        f.write(data)
s = start("flipped bits")
same("flipped bits", s)
claim("damaged pages are not used", hits(s) == 0 and (damaged(s) > 0 or more), (damaged(s), hits(s)))
end("flipped bits", s, 1)

restored()
for path in segments():
    os.truncate(path, os.path.getsize(path) * 2 // 3)
s = start("cut segments")
same("cut segments", s)
claim("what is whole is used", hits(s) > 0, hits(s))
for path in segments():                       # while the server runs
    os.truncate(path, 1000)
same("cut while it runs", s)
end("cut segments", s, 1)

restored()
s = start("removed", "--kv-memory", 2500000)
shutil.rmtree(folder)
same("removed", s)
end("removed", s, 1)

if part == "all":
    restored()
    s = start("of other bytes", disk=f"{folder}:1GB")
    for path in segments():
        open(path, "wb").write(os.urandom(100000))
    same("of other bytes", s)
    end("of other bytes", s, 1)

# writes that the disk refuses
shutil.rmtree(folder, ignore_errors=True)
os.environ["SHARDLINE_IO_FAULT"] = "write:9:ENOSPC"
s = start("full", "--kv-memory", 2500000)
del os.environ["SHARDLINE_IO_FAULT"]
same("full", s)
claim("some pages were written before", segments() != [] or more or part == "all", segments())
end("full", s, 1)

# two servers on one folder that holds half of what they want, one killed while it writes
shutil.rmtree(folder, ignore_errors=True)
limit = 6000000
two = [start(f"server {i} of two", "--kv-memory", 2500000, *args, disk=f"{folder}:{limit}")
       for i, args in enumerate([(), ("--tp", 2)])]
for turn in range(2):
    for i, s in enumerate(two):
        same(f"server {i} of two, turn {turn}", s)
used = sum(map(os.path.getsize, segments()))
claim("the folder keeps its size", used <= limit * 1.2, used)
two[0].p.send_signal(signal.SIGKILL)
two[0].p.wait()
same("the other one was killed", two[1])
end("server 1 of two", two[1])
s = start("after a kill", disk=f"{folder}:{limit}")
same("after a kill", s)
end("after a kill", s)
finish()
