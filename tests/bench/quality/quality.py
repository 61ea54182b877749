#!/usr/bin/env python3
"""quality.py - what stored forms of weights, activations and keys cost a model: perplexity on a held-out
text, mean KL divergence from the reference and how often both find the same most likely token.

usage: quality.py [--bin DIR] --model FOLDER --text FILE [--tokens N] [--window N] [--drawn N] [--into DIR]
                  [--json] KIND …
A KIND is NAME, NAME=PSERVE OPTIONS or NAME=PSERVE OPTIONS@RESHARD OPTIONS: the reference folder goes through
`reshard --format hf RESHARD OPTIONS` first. NAME alone is a row of the table KINDS below.

The reference is pserve on FOLDER. It draws texts at temperature 1; for a token x drawn from p the mean of
q(x)/p(x) - 1 - log(q(x)/p(x)) is an unbiased estimate of KL(p, q) whose terms are never negative (Schulman
2020, "Approximating KL divergence", k3). pserve's log-probs of a prompt equal those of `ptrain --eval-only
--eval-logprobs` bit for bit, so the figures are those of both programs."""

import argparse
import json
import math
import os
import subprocess
import urllib.request

TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..")
# name: options of pserve, options of reshard
KINDS = {
    "int8-g128, values": ("", "--quantize int8-g128"),
    "int8-g128, codes (grp)": ("--quantized codes", "--quantize int8-g128"),
    "int8-g128, activations int8 (int)": ("--act int8", "--quantize int8-g128"),
    "fp8-b128 (deq)": ("", "--quantize fp8-b128"),
    "mxfp4 (deq)": ("", "--quantize mxfp4"),
    "keys and values fp8": ("--kv-dtype fp8", None),
    "keys and values int8": ("--kv-dtype int8", None),
}


class Server:
    """pserve on a folder; closed by `with`."""

    def __init__(self, a, folder, options):
        self.process = subprocess.Popen(
            [
                os.path.join(a.bin, "pserve"),
                folder,
                "--port",
                "0",
                "--threads",
                str(a.threads),
                "--prefix-cache",
                "off",
                *options.split(),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        line = self.process.stdout.readline()
        if "ready on " not in line:
            raise SystemExit(f"quality: pserve {options} did not start on {folder}")
        self.url = line.split("ready on ")[1].split()[0]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()

    def post(self, path, body):
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    def score(self, ids):
        """For every id but the first: its log-prob and the most likely id."""
        found = self.post("/v1/completions", dict(prompt=ids, max_tokens=1, temperature=0, prompt_logprobs=1))
        entries = found["choices"][0]["prompt_logprobs"][1:]
        best = [min(e, key=lambda k: e[k]["rank"]) for e in entries]
        return [(e[str(i)]["logprob"], int(b)) for e, b, i in zip(entries, best, ids[1:])]


def folder_of(a, name, how):
    if how is None:
        return a.model
    folder = os.path.join(a.into, "".join(c if c.isalnum() else "-" for c in name))
    if not os.path.isdir(folder):
        subprocess.run(
            [os.path.join(a.bin, "reshard"), "--format", "hf", *how.split(), a.model, folder],
            check=True,
            stdout=subprocess.DEVNULL,
        )
    return folder


def texts_of(a, reference):
    """Windows of the held-out text, and texts that the reference draws."""
    with open(a.text, encoding="utf-8") as f:
        pieces = iter(lambda: f.read(a.window), "")
        ids = []
        while len(ids) < a.tokens and (text := next(pieces, "")):
            ids += reference.post("/tokenize", dict(prompt=text, add_special_tokens=False))["tokens"]
    held = [ids[i : i + a.window] for i in range(0, min(len(ids), a.tokens) - a.window + 1, a.window)]
    drawn = []
    while sum(map(len, drawn)) < a.drawn:
        start = held[len(drawn) % len(held)][:8]
        found = reference.post(
            "/v1/completions",
            dict(
                prompt=start,
                max_tokens=a.window - 8,
                temperature=1,
                seed=len(drawn),
                ignore_eos=True,
                return_token_ids=True,
            ),
        )
        drawn.append(start + found["choices"][0]["token_ids"])
    return held, drawn


def measure(server, held, drawn):
    flat = lambda texts, skip: [t for ids in texts for t in server.score(ids)[skip:]]
    return flat(held, 0), flat(drawn, 7)


def compare(reference, found):
    (p_held, p_drawn), (q_held, q_drawn) = reference, found
    ratio = [q[0] - p[0] for p, q in zip(p_drawn, q_drawn)]
    terms = [math.expm1(r) - r for r in ratio]
    kl = sum(terms) / len(terms)
    spread = math.sqrt(sum((t - kl) ** 2 for t in terms)) / len(terms)
    return dict(
        perplexity=math.exp(-sum(q[0] for q in q_held) / len(q_held)),
        kl=kl,
        kl_error=spread,
        top1=sum(p[1] == q[1] for p, q in zip(p_held, q_held)) / len(p_held),
        tokens=len(p_held),
        drawn=len(terms),
    )


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--bin", default=os.path.join(TOP, "build", "release", "bin"))
    p.add_argument("--model", required=True)
    p.add_argument("--text", required=True)
    p.add_argument("--tokens", type=int, default=20000)
    p.add_argument("--window", type=int, default=256)
    p.add_argument("--drawn", type=int, default=20000)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--into", default="/tmp/shardline-quality")
    p.add_argument("--json", action="store_true")
    p.add_argument("kinds", nargs="*", metavar="KIND")
    a = p.parse_args()
    os.makedirs(a.into, exist_ok=True)
    with Server(a, a.model, "") as s:
        held, drawn = texts_of(a, s)
        reference = measure(s, held, drawn)
    if not a.json:
        print("| kind | perplexity | mean KL | top-1 agreement |\n|---|---|---|---|")
    for kind in ["reference="] + (a.kinds or list(KINDS)):
        name, _, how = kind.partition("=")
        options, at, change = how.partition("@")
        serve, change = (options, change if at else None) if "=" in kind else KINDS[name]
        with Server(a, folder_of(a, name, change), serve) as s:
            row = dict(kind=name, **compare(reference, measure(s, held, drawn)))
        kl = f"{row['kl']:.2e} ± {row['kl_error']:.0e}"
        line = f"| {name} | {row['perplexity']:.4f} | {kl} | {row['top1']:.4f} |"
        print(json.dumps(row) if a.json else line, flush=True)



if __name__ == "__main__":
    main()
