#!/usr/bin/env python3
"""kv_quality.py CKPT TEXT [--windows N] [--length N] - what keys and values in 8 bits cost: pserve scores
windows of a text (bytes) with --kv-dtype bf16, fp8 and int8, and its log-probs are compared.

Printed are the perplexity of the text, and against bf16: the mean KL divergence over positions (the 20
likeliest tokens of bf16, and one bucket for all others), how often the likeliest token is the same, and the
mean absolute difference of a token's log-prob."""

import argparse
import json
import math
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../../cli/lib"))
os.environ.setdefault("BIN", os.path.join(HERE, "../../../build/bin"))

from serve_server import Server  # noqa: E402


def score(checkpoint, kind, windows):
    """A list a position: {token: log-prob} of the likeliest, and the log-prob of the token that is there."""
    s = Server(checkpoint, "--kv-dtype", kind)
    if s.port is None:
        sys.exit(f"pserve --kv-dtype {kind}: {b''.join(s.err).decode()}")
    rows = []
    for w in windows:
        body = dict(
            prompt=w, max_tokens=0, echo=True, logprobs=20, temperature=0, return_tokens_as_token_ids=True
        )
        status, data, _ = s.request("POST", "/v1/completions", body)
        if status != 200:
            sys.exit(data.decode())
        got = json.loads(data)["choices"][0]["logprobs"]
        rows += list(zip(got["top_logprobs"][1:], got["token_logprobs"][1:]))
    s.stop()
    return rows


def divergence(p, q):
    """KL of two tables of log-probs, over the tokens of p and one bucket for the rest."""
    kl, left_p, left_q = 0.0, 1.0, 1.0
    least = min(q.values())
    for token, lp in p.items():
        lq = q.get(token, least)
        kl += math.exp(lp) * (lp - lq)
        left_p -= math.exp(lp)
        left_q -= math.exp(lq)
    if left_p > 1e-6 and left_q > 1e-6:
        kl += left_p * math.log(left_p / left_q)
    return kl


def best(table):
    return max(table, key=table.get)


def main():
    a = argparse.ArgumentParser(description=__doc__)
    a.add_argument("checkpoint")
    a.add_argument("text")
    a.add_argument("--windows", type=int, default=32)
    a.add_argument("--length", type=int, default=512)
    a = a.parse_args()
    text = open(a.text, "rb").read()
    step = max(1, (len(text) - a.length) // a.windows)
    windows = [list(text[i * step : i * step + a.length]) for i in range(a.windows)]
    rows = {kind: score(a.checkpoint, kind, windows) for kind in ("bf16", "fp8", "int8")}
    print("| pages | perplexity | mean KL | same likeliest token | mean difference of a log-prob |")
    print("|---|---|---|---|---|")
    for kind, got in rows.items():
        pairs = list(zip(rows["bf16"], got))
        n = len(pairs)
        print(
            f"| {kind} | {math.exp(-sum(x[1] for x in got) / n):.5f} "
            f"| {sum(divergence(p[0], q[0]) for p, q in pairs) / n:.2e} "
            f"| {100 * sum(best(p[0]) == best(q[0]) for p, q in pairs) / n:.2f} % "
            f"| {sum(abs(p[1] - q[1]) for p, q in pairs) / n:.2e} |"
        )
    print(f"{len(rows['bf16'])} positions of {len(windows)} windows")


if __name__ == "__main__":
    main()
