#!/usr/bin/env python3
"""serve_context.py - the time to the first token of a long prompt, divided among ranks (pserve --cp).

usage: serve_context.py [--bin DIR] [--size long] [--dtype bf16] [--tokens 32768] [--rounds 3]
                        [--servers "--threads 1;--threads 1 --cp 2"] [--models DIR]
All servers run at the same time, each idle but for its turn: a round asks one after the other. A figure is
the median of the rounds, a ratio the median of the rounds' ratios to the first server. Seconds are those of
/metrics (vllm:time_to_first_token_seconds); the first tokens must be the same. Weights are random; the model
is made in a folder of TMPDIR, or stays in --models DIR."""
import argparse
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import tempfile
import urllib.request

from contest import log
from serve_models import SIZES, make_model

SUM = re.compile(r"^vllm:time_to_first_token_seconds_sum\{.*\} (\S+)", re.M)


class Server:
    def __init__(self, a, model, args):
        self.args = args
        self.p = subprocess.Popen([os.path.join(a.bin, "pserve"), model, "--port", "0", "--prefix-cache",
                                   "off", "--max-batch", "1", "--ctx", str(a.tokens + 64), *args.split()],
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        line = self.p.stdout.readline()
        if "ready on " not in line:
            raise RuntimeError(f"pserve {args} did not start: {line}")
        self.url = line.split("ready on ")[1].split()[0]

    def waited(self):
        """Seconds to first tokens so far."""
        return float(SUM.search(urllib.request.urlopen(self.url + "/metrics").read().decode()).group(1))

    def first_token(self, ids):
        """(seconds, the token and its log-prob) of a prompt."""
        before = self.waited()
        body = {"prompt": ids, "max_tokens": 1, "ignore_eos": True, "temperature": 0, "logprobs": 1,
                "return_token_ids": True}
        ask = urllib.request.Request(self.url + "/v1/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
        with urllib.request.urlopen(ask) as answer:
            choice = json.load(answer)["choices"][0]
        return self.waited() - before, (choice["token_ids"], choice["logprobs"]["token_logprobs"])

    def close(self):
        self.p.terminate()
        self.p.wait(30)


def main():
    top = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    ap = argparse.ArgumentParser()
    ap.add_argument("--bin", default=os.path.join(top, "build", "bin"))
    ap.add_argument("--size", default="long")
    ap.add_argument("--dtype", default="bf16")
    ap.add_argument("--tokens", type=int, default=32768)
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--servers", default="--threads 1;--threads 1 --cp 2")
    ap.add_argument("--models")
    a = ap.parse_args()
    tmp = a.models or tempfile.mkdtemp()
    model, rng = os.path.join(tmp, f"{a.size}-{a.dtype}"), random.Random(3)
    servers, took = [], []
    try:
        if not os.path.exists(model):
            make_model(a.size, a.dtype, model)
        servers = [Server(a, model, args) for args in a.servers.split(";")]
        for _ in range(a.rounds):
            ids = [rng.randrange(3, SIZES[a.size].vocab) for _ in range(a.tokens)]
            got = [s.first_token(ids) for s in servers]
            if any(g[1] != got[0][1] for g in got):
                raise RuntimeError(f"first tokens differ: {[g[1] for g in got]}")
            took.append([g[0] for g in got])
            log(" ".join(f"{s:.2f} s" for s in took[-1]))
    finally:
        for s in servers:
            s.close()
        if not a.models:
            shutil.rmtree(tmp)
    rows = []
    for i, s in enumerate(servers):
        mine = statistics.median(t[i] for t in took)
        rows.append({"name": f"ttft {a.tokens} {a.dtype} {s.args}", "ours": mine, "unit": "s",
                     "peer": statistics.median(t[0] for t in took), "peer_name": servers[0].args,
                     "ratio": statistics.median(t[0] / t[i] for t in took)})
        print(f"{s.args:40} {mine:8.2f} s   {rows[-1]['ratio']:.2f} times as fast as {servers[0].args}")
    print(json.dumps({"rows": rows}))


main()
