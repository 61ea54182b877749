"""follow_here.py TMP - a server that follows a pshare of this machine: by the files themselves, over HTTP without a
copy, and over HTTP shared by ranks. Each way has the same answers, moves the bytes that its ranks need once, and reads
every version into memory that it has."""
import json
import os
import re
import shutil
import subprocess
import sys
import time
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from serve_server import Server, claim, die_with_parent, finish, started  # noqa: E402

tmp = sys.argv[1]
os.environ["SHARDLINE_CACHE"] = f"{tmp}/cache"
ASK = dict(prompt="line 7: ", max_tokens=12, temperature=1, seed=5, ignore_eos=True, logprobs=0, return_token_ids=True)
FILES = f"{tmp}/shared"


def publish(v, step):
    """Version v with the weights of a step."""
    shutil.copytree(f"{tmp}/run/step-{step}", f"{FILES}/.next")
    os.rename(f"{FILES}/.next", f"{FILES}/step-{v}")


def share(*args):
    shutil.rmtree(FILES, ignore_errors=True)
    os.makedirs(FILES)
    publish(1, 1)
    p = subprocess.Popen([f"{os.environ['BIN']}/pshare", FILES, "--port", "0", *args], stdout=subprocess.PIPE,
                         text=True, preexec_fn=die_with_parent)
    started.append(p)
    return p, re.search(r"http://\S+", p.stdout.readline()).group(0)


def served(s):
    return json.loads(s.request("GET", "/v1/models")[1])["data"][0]["weight_version"]


def figures(s):
    found = {}
    for line in s.request("GET", "/metrics")[1].decode().splitlines():
        m = re.match(r'shardline:(weights_kept_bytes|reload_bytes_total)\{.*?(?:way="(\w+)")?\} (\d+)', line)
        if m:
            found[m.group(2) or "kept"] = int(m.group(3))
    return found


def answers(share_args, *layout):
    """The answers of versions 1 to 4, and the figures after each."""
    p, url = share(*share_args)
    s = Server(url, "--follow", "--threads", 2, *layout)
    got, seen = [s.complete(**ASK)], [figures(s)]
    for v, step in ((2, 2), (3, 3), (4, 2)):
        publish(v, step)
        end = time.monotonic() + 60
        while served(s) != v and time.monotonic() < end:
            time.sleep(0.01)
        got.append(s.complete(**ASK))
        seen.append(figures(s))
    rc, err = s.stop()
    claim(f"{share_args}: it ends well", rc == 0, (rc, err))
    p.terminate()
    p.wait()
    return [(a["weight_version"], a["system_fingerprint"], a["choices"][0]["token_ids"],
             a["choices"][0]["logprobs"]["token_logprobs"]) for a in got], seen


text = open(f"{tmp}/run/step-1/manifest.json").read()
weights = sum({"F32": 4, "BF16": 2}[t["dtype"]] * (t["shape"] + [1])[0] * (t["shape"] + [1])[1]
              for t in json.loads(text)["tensors"] if t["role"] == "weight")
want = None
for name, how, layout, way in (
        ("files", (), (), "same_machine"), ("files of two ranks", (), ("--tp", 2), "same_machine"),
        ("HTTP", ("--http-only",), (), "network"), ("HTTP to two ranks", ("--http-only",), ("--tp", 2), "network")):
    got, seen = answers(how, *layout)
    want = want or got
    claim(f"{name}: every version is served, and its answers are those of the other ways", got == want
          and [g[0] for g in got] == [1, 2, 3, 4], (got, want))
    other = {"same_machine": "network", "network": "same_machine"}[way]
    moved = [b[way] - a[way] for a, b in zip(seen, seen[1:])]
    # of files, rows that are cut short are read whole, and copies of vectors in whole blocks of checksums
    more = 8e6 if name == "files of two ranks" else 65536
    claim(f"{name}: what is moved is what the ranks need", all(weights <= m < 1.3 * weights + more for m in moved),
          (moved, weights))
    claim(f"{name}: by one way", seen[-1][other] == 0, seen)
    kept = [f["kept"] for f in seen]
    claim(f"{name}: the memory kept for the next version is the same before and after each", kept[0] > 0
          and len(set(kept)) == 1, kept)
claim("nothing goes to the cache on disk", not os.path.exists(f"{tmp}/cache"), os.listdir(tmp))
finish()
