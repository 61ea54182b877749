#!/usr/bin/env python3
"""kv_speed.py [--size 110m] [--dtype bf16] [--context N] [--rounds N] [--tokens N] [--threads N]
[--models DIR] - decoding one sequence behind a long prompt with keys and values in bf16, fp8 and int8, and
how many pages the same memory holds.

All servers are started first and have the prompt in their prefix cache; in every round each answers once, so
that they meet the same machine. A token's time is the median of a turn; printed are the medians of the rounds
and of the rounds' ratios to bf16. Weights are random (serve_models.py)."""

import argparse
import os
import re
import statistics
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
sys.path.insert(0, os.path.join(HERE, "../../cli/lib"))
os.environ.setdefault("BIN", os.path.join(HERE, "../../../build/bin"))

from serve_models import make_model  # noqa: E402
from serve_server import Server  # noqa: E402


def turn(server, prompt, tokens):
    """Median seconds a token of one answer."""
    status, events = server.stream(prompt=prompt, max_tokens=tokens, temperature=0, ignore_eos=True)
    if status != 200:
        sys.exit(f"{status}: {events[:1]}")
    times = [at for data, at in events if data.startswith("{")]
    return statistics.median(b - a for a, b in zip(times, times[1:]))


def main():
    a = argparse.ArgumentParser(description=__doc__)
    a.add_argument("--size", default="110m")
    a.add_argument("--dtype", default="bf16")
    a.add_argument("--context", type=int, default=3800)
    a.add_argument("--rounds", type=int, default=7)
    a.add_argument("--tokens", type=int, default=24)
    a.add_argument("--threads", type=int, default=2)
    a.add_argument("--models", help="folder of models, kept")
    a = a.parse_args()
    with tempfile.TemporaryDirectory() as tmp:
        model = os.path.join(a.models or tmp, f"{a.size}-{a.dtype}")
        if not os.path.exists(model):
            make_model(a.size, a.dtype, model)
        prompt = [(37 * i * i + 11 * i) % 1000 for i in range(a.context)]
        options = ("--threads", a.threads, "--ctx", a.context + 512, "--max-batch", 64, "--kv-memory", "1GB")
        servers = {kind: Server(model, "--kv-dtype", kind, *options) for kind in ("bf16", "fp8", "int8")}
        pages, times = {}, {kind: [] for kind in servers}
        for kind, s in servers.items():
            if s.port is None:
                sys.exit(b"".join(s.err).decode())
            s.complete(prompt=prompt, max_tokens=1, temperature=0)
            text = s.request("GET", "/metrics")[1].decode()
            pages[kind] = int(re.search(r"^shardline:kv_pages\{.*\} (\d+)", text, re.M).group(1))
        for _ in range(a.rounds):
            for kind, s in servers.items():
                times[kind].append(turn(s, prompt, a.tokens))
        print(f"{a.size} {a.dtype}, {a.context} tokens before, {a.threads} threads")
        print("| pages | ms a token | bf16's / this |")
        print("|---|---|---|")
        for kind, t in times.items():
            ratio = statistics.median(x / y for x, y in zip(times["bf16"], t))
            print(f"| {kind} | {1000 * statistics.median(t):.2f} | {ratio:.2f} |")
        print({kind: n for kind, n in pages.items()})
        for s in servers.values():
            s.stop()


if __name__ == "__main__":
    main()
