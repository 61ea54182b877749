#!/usr/bin/env python3
"""mask_bench.py BENCH SCHEMAS [--tokenizer DIR]: times of masks on MaskBench's schemas, ours and llguidance's in turn.

BENCH is the program mask_bench; SCHEMAS a folder of MaskBench's files. Both read the valid instances as the same tokens of a
vocabulary of 128,000 (made here), or of DIR. Both compile each schema anew, so that first masks count.
"""

import argparse
import glob
import json
import random
import struct
import subprocess
import tempfile
import time

END = b"<|end|>"


def made_vocabulary(n):
    """Bytes, words with and without a space, names, numbers, signs, indents, other scripts, parts of characters."""
    rnd = random.Random(1)
    onset = "b c d f g h j k l m n p r s t v w st tr pl ch".split()
    nucleus = "a e i o u ea ou ai er on in".split()
    scripts = [
        (0x3B1, 25),
        (0x430, 32),
        (0x4E00, 6000),
        (0x3042, 80),
        (0xAC00, 4000),
        (0x627, 30),
        (0x1F600, 60),
        (0xE0, 30),
    ]
    signs = "{ } [ ] \" : , . - _ / \\ \n \t = ( ) < > ; ' !".split(" ") + ["\n"]
    tokens = {bytes([b]): None for b in range(256)}
    while len(tokens) < n - 1:
        kind = rnd.random()
        word = "".join(rnd.choice(onset) + rnd.choice(nucleus) for _ in range(rnd.choice([1, 1, 2, 2, 3, 4])))
        if kind < 0.55:
            word = rnd.choice(["", " ", " "]) + rnd.choice([word, word, word.capitalize(), word.upper()])
        elif kind < 0.62:
            word = (
                rnd.choice(["", " ", "_", "."]) + word + rnd.choice(["", "_" + word[:3], word.capitalize()])
            )
        elif kind < 0.66:
            word = str(rnd.randrange(1000))
        elif kind < 0.74:
            word = "".join(rnd.choice(signs) for _ in range(rnd.randrange(2, 5))) + rnd.choice(
                ["", "", word[:3]]
            )
        elif kind < 0.75:
            word = rnd.choice([" ", "\n", "\t"]) + " " * rnd.randrange(1, 40)
        else:
            first, count = rnd.choice(scripts)
            word = rnd.choice(["", "", " "]) + "".join(
                chr(first + rnd.randrange(count)) for _ in range(rnd.randrange(1, 4))
            )
        raw = word.encode()
        if kind > 0.985 and len(raw) > 2:
            raw = raw[:-1]
        tokens[raw] = None
    return list(tokens) + [END]


def vocabulary_of(folder):
    with open(f"{folder}/tokenizer.json", encoding="utf-8") as f:
        vocab = json.load(f)["model"]["vocab"]
    visible = [b for b in range(256) if chr(b).isprintable() and b not in (0x20, 0xA0, 0xAD)]
    char_byte = {chr(b): b for b in visible}
    char_byte |= {chr(256 + i): b for i, b in enumerate(b for b in range(256) if b not in visible)}
    tokens = [b""] * len(vocab)
    for text, i in vocab.items():
        tokens[i] = bytes(char_byte[c] for c in text) if all(c in char_byte for c in text) else END
    return [t for t in tokens if t != END] + [END]


class Cut:
    """Longest tokens first, as a list of ids; and what llguidance wants of a tokenizer."""

    def __init__(self, tokens):
        self.tokens = tokens
        self.id_of = {t: i for i, t in enumerate(tokens[:-1])}
        self.longest = max(len(t) for t in tokens)
        self.eos_token_id = len(tokens) - 1
        self.bos_token_id = None
        self.special_token_ids = [self.eos_token_id]

    def __call__(self, text):
        raw = text if isinstance(text, bytes) else text.encode()
        ids, at = [], 0
        while at < len(raw):
            for n in range(min(self.longest, len(raw) - at), 0, -1):
                i = self.id_of.get(raw[at : at + n])
                if i is not None:
                    ids.append(i)
                    at += n
                    break
        return ids


def peer_times(guide, filled, tokenizer, bits, case):
    """(compile and first mask in us, all masks in us), or None: llguidance refuses the schema."""
    begin = time.thread_time()
    try:
        grammar = guide.LLMatcher.grammar_from_json_schema(case["schema"])
        m = guide.LLMatcher(tokenizer, grammar)
    except ValueError:
        return None
    if m.is_error():
        return None
    compiled = (time.thread_time() - begin) * 1e6
    masks = []
    for ids in case["ids"]:
        one = m.deep_copy()
        for i in ids + [None]:
            begin = time.thread_time()
            filled(one, bits, 0)
            masks.append((time.thread_time() - begin) * 1e6)
            if i is None or not one.try_consume_tokens([i]):
                break
    return compiled, masks


def figures(times):
    times = sorted(times)
    at = lambda q: times[min(len(times) - 1, int(q * len(times)))]
    return {
        "masks": len(times),
        "mean": sum(times) / len(times),
        "p50": at(0.5),
        "p99": at(0.99),
        "max": times[-1],
    }


def main():
    args = argparse.ArgumentParser(description=__doc__)
    args.add_argument("bench")
    args.add_argument("schemas")
    args.add_argument("--tokenizer")
    args.add_argument("--most", type=int, default=10**9, help="schemas")
    o = args.parse_args()
    tokens = vocabulary_of(o.tokenizer) if o.tokenizer else made_vocabulary(128000)
    cut = Cut(tokens)
    try:
        import llguidance as guide
        import llguidance.numpy as arrays

        tokenizer = guide.LLTokenizer(guide.TokenizerWrapper(cut))
        bits = arrays.allocate_token_bitmask(1, len(tokens))
    except ImportError:
        guide = None
    with tempfile.NamedTemporaryFile() as f:
        for t in tokens:
            f.write(struct.pack("<I", len(t)) + t)
        f.flush()
        ours = subprocess.Popen([o.bench, f.name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        mine, theirs, compile_mine, compile_theirs = [], [], [], []
        for path in sorted(glob.glob(f"{o.schemas}/**/*.json", recursive=True))[: o.most]:
            with open(path, encoding="utf-8") as g:
                d = json.load(g)
            texts = [json.dumps(t["data"], ensure_ascii=False) for t in d["tests"] if t["valid"]]
            case = {"schema": d["schema"], "ids": [cut(t) for t in texts]}
            ours.stdin.write(json.dumps(case) + "\n")
            ours.stdin.flush()
            said = json.loads(ours.stdout.readline())
            if "error" in said:
                continue
            peer = peer_times(guide, arrays.fill_next_token_bitmask, tokenizer, bits, case) if guide else None
            if guide and not peer:
                continue
            mine += said["masks_us"]
            compile_mine.append(said["compile_us"])
            if peer:
                compile_theirs.append(peer[0])
                theirs += peer[1]
        ours.stdin.close()
        ours.wait()
    for name, times, compiles in (("ours", mine, compile_mine), ("llguidance", theirs, compile_theirs)):
        if times:
            f = figures(times)
            c = figures(compiles)
            print(
                f"{name:10} {f['masks']} masks of {len(tokens)} ids: mean {f['mean']:.1f} us, p50 {f['p50']:.1f}, p99 {f['p99']:.1f}, "
                f"max {f['max']:.0f}; compiling: mean {c['mean']:.0f} us, p99 {c['p99']:.0f}"
            )
    if mine:
        row = {"name": f"mask, {len(tokens)} ids, mean", "ours": figures(mine)["mean"], "unit": "us"}
        if theirs:
            row |= {
                "peer": figures(theirs)["mean"],
                "peer_name": "llguidance",
                "ratio": figures(theirs)["mean"] / row["ours"],
            }
        print(json.dumps({"rows": [row]}))


if __name__ == "__main__":
    main()
