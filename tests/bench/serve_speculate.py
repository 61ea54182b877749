#!/usr/bin/env python3
"""serve_speculate.py - tokens a second with --speculate against those without, one request at a time and
several, on texts that repeat themselves (edits, JSON) and on prose (greedy, which repeats itself too, and drawn
at temperature 1, which does not).

usage: serve_speculate.py [--bin DIR] [--model CKPT | --train STEPS] [--into DIR] [--speculate ngram:5,…]
                          [--rounds N] [--concurrency 1,16]
Without --model a model of the preset 10m is trained on such texts (300 steps: half an hour of two idle cores).
A round asks every server in turn for the same answers; the ratios are medians over rounds."""
import argparse
import glob
import json
import os
import random
import signal
import statistics
import subprocess

TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
WORDS = """river stone light garden winter paper machine signal village mountain letter window silver bridge
market engine forest teacher captain island morning answer picture basket candle doctor farmer guitar hammer
kitchen ladder mirror needle orange pencil rabbit saddle ticket valley wagon yellow zebra anchor bottle""".split()
VERBS = "sees finds keeps moves opens paints carries follows watches mends sells builds".split()


class Texts:
    def __init__(self, seed):
        self.r = random.Random(seed)
        files = sorted(glob.glob(os.path.join(TOP, "*", "README.md")) + glob.glob(os.path.join(TOP, "docs",
            "*.md")))
        self.read = "".join(open(f, encoding="utf-8").read() for f in files).replace("|", " ")

    def sentences(self, n):
        word = lambda: self.r.choice(WORDS)
        return " ".join(f"The {word()} {self.r.choice(VERBS)} the {word()} near the {word()}." for _ in range(n))

    def edit(self, n):
        """A text, a word to replace, and (the second value) the text with the other word."""
        text, new = self.sentences(n), self.r.choice(WORDS)
        old = self.r.choice([w for w in text.replace(".", "").split() if w in WORDS])
        return f"### text\n{text}\n### {old} becomes {new}\n", text.replace(old, new) + "\n\n"

    def record(self, i):
        word = lambda: self.r.choice(WORDS).title()
        return json.dumps(dict(id=i, name=word(), city=word(), kind=self.r.choice(VERBS),
                               score=self.r.randint(10, 99), active=self.r.random() < 0.5))

    def records(self, n):
        first = self.r.randint(1, 900)
        return "[" + ",\n ".join(self.record(first + k) for k in range(n))

    def prose(self, n):
        at = self.r.randrange(len(self.read) - n)
        return self.read[at:at + n]

    def document(self):
        kind = self.r.randrange(4)
        if kind < 2:
            return "".join(self.edit(self.r.randint(3, 5)))
        return self.records(self.r.randint(4, 8)) + "]\n\n" if kind == 2 else self.prose(500) + "\n\n"

    def prompts(self, kind, n):
        make = dict(edit=lambda: self.edit(5)[0], json=lambda: self.records(3) + ",\n ",
                    prose=lambda: self.prose(300))[kind.split()[0]]
        return [make() for _ in range(n)]


def train(a):
    text, run = os.path.join(a.into, "text"), os.path.join(a.into, "run")
    if not os.path.isdir(os.path.join(run, f"step-{a.train}")):
        texts = Texts(1)
        with open(text, "w", encoding="utf-8") as f:
            while f.tell() < 4_000_000:
                f.write(texts.document())
        subprocess.run([os.path.join(a.bin, "ptrain"), "--data", text, "--model", "10m", "--out", run,
                        "--steps",
                        str(a.train), "--seq-len", "512", "--global-batch", "8", "--micro-batch", "4", "--lr",
                        "1e-3", "--dtype", "bf16", "--threads", "2"], check=True, stdout=subprocess.DEVNULL)
    return os.path.join(run, f"step-{a.train}")


def serve(a, how):
    p = subprocess.Popen([os.path.join(a.bin, "pserve"), a.model, "--port", "0", "--threads", str(a.threads),
                          *(["--speculate", how] if how else [])],
                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return p, p.stdout.readline().split("ready on ")[1].split()[0]


def cpu_seconds(p):
    """Time of all its threads: other programs on the machine do not change it much."""
    fields = open(f"/proc/{p.pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def bench(a, server, prompts, concurrency, temperature):
    process, url = server
    before = cpu_seconds(process)
    n = concurrency
    out = subprocess.run([os.path.join(a.bin, "pbench"), "--url", url, "--requests", str(n), "--concurrency",
                          str(concurrency), "--output-tokens", str(a.tokens), "--prompts", prompts,
                          "--temperature",
                          str(temperature), "--json"],
                         stdout=subprocess.PIPE, check=True, text=True).stdout
    return dict(json.loads(out), cpu_s=cpu_seconds(process) - before)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--bin", default=os.path.join(TOP, "build", "release", "bin"))
    p.add_argument("--model")
    p.add_argument("--train", type=int, default=300)
    p.add_argument("--into", default="/tmp/serve-speculate")
    p.add_argument("--speculate", default="ngram:5,suffix")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--rounds", type=int, default=8)
    p.add_argument("--tokens", type=int, default=200)
    p.add_argument("--concurrency", default="1,16")
    a = p.parse_args()
    os.makedirs(a.into, exist_ok=True)
    a.model = a.model or train(a)
    hows = ["", *a.speculate.split(",")]
    servers = [serve(a, how) for how in hows]
    texts, prompts = Texts(2), os.path.join(a.into, "prompts")
    print("| text | at a time | drafts | tokens/s | without | ratio | of CPU time, prompts too | right | tokens a step |\n|---|---|---|---|---|---|---|---|---|")
    for kind in ("edit", "json", "prose", "prose drawn"):
        for concurrency in map(int, a.concurrency.split(",")):
            runs = []
            for i in range(a.rounds):
                with open(prompts, "w", encoding="utf-8") as f:
                    f.writelines(json.dumps(t) + "\n" for t in texts.prompts(kind, concurrency))
                order = range(len(hows)) if i % 2 else reversed(range(len(hows)))
                runs.append({k: bench(a, servers[k], prompts, concurrency,
                                      int("drawn" in kind)) for k in order})
            # one at a time: behind the first token, so that the prompt does not count
            speed = lambda r, k: (1000 / r[k]["mean_tpot_ms"] if concurrency == 1 else
                                  r[k]["total_output_tokens"] / r[k]["duration"])
            for k, how in enumerate(hows):
                if how:
                    drafts = sum(r[k].get("spec_decode_draft_tokens", 0) for r in runs)
                    right = sum(r[k].get("spec_decode_accepted_tokens", 0) for r in runs)
                    n = sum(r[k].get("spec_decode_num_drafts", 0) for r in runs)
                    print(f"| {kind} | {concurrency} | {how} | {statistics.median(speed(r, k) for r in runs):.0f} "
                          f"| {statistics.median(speed(r, 0) for r in runs):.0f} "
                          f"| {statistics.median(speed(r, k) / speed(r, 0) for r in runs):.2f} "
                          f"| {statistics.median(r[0]['cpu_s'] / r[k]['cpu_s'] for r in runs):.2f} "
                          f"| {100 * right / max(drafts, 1):.0f} % | {1 + right / max(n, 1):.2f} |",
                          flush=True)
    for process, _ in servers:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


main()
