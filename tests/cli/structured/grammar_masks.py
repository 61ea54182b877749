"""grammar_masks.py PROGRAM SCHEMAS N: masks of N schemas of MaskBench beside llguidance's, token by token.

Both have compact JSON with keys in order. The shortest tokens that one of them allows alone must have a known reason."""
import collections
import glob
import importlib.util
import json
import os
import random
import re
import struct
import subprocess
import sys
import tempfile

import llguidance as guide
import llguidance.numpy as arrays
import numpy as np

program, schemas, n_schemas = sys.argv[1], sys.argv[2], int(sys.argv[3])
spec = importlib.util.spec_from_file_location(
    "mask_bench", os.path.join(os.path.dirname(__file__), "../../bench/grammar/mask_bench.py")
)
bench = importlib.util.module_from_spec(spec)
spec.loader.exec_module(bench)

tokens = bench.made_vocabulary(20000)
cut = bench.Cut(tokens)
tokenizer = guide.LLTokenizer(guide.TokenizerWrapper(cut))
bits = arrays.allocate_token_bitmask(1, len(tokens))
compiler = guide.JsonCompiler(
    separators=(",", ":"), whitespace_flexible=False, json_allow_general_unicode_escapes=True
)
count, unexplained = collections.Counter(), []


MERGED = ("oneOf", "anyOf", "allOf")


def another_order(text, schema):
    """A key of an object of several schemas: ours has an object's own keys before those of its alternatives."""
    return any(f'"{word}"' in schema for word in MERGED) and re.search(rb'[{,]"[^"]*$', text)


def why_ours(text, token, forced, schema):
    """Why llguidance does not allow a token that ours allows; None: no reason is known."""
    if forced and forced.startswith(token):
        return "it forces the longest token of a text that alone can follow"
    if b"\x7f" in token:
        return "U+007F needs no escape"
    if b"\\" in token or re.search(rb"(?<!\\)(\\\\)*\\(u[0-9A-Fa-f]{0,3})?$", text):
        return "any character may be an escape, in keys and words, too"
    if re.search(rb"^-|[:,\[]-", text[-1:] + token):
        return "-0 is not below 0"
    if re.search(rb"[:,\[]-?[0-9]+$", text) and token.startswith(b"."):
        return "a number that is a whole one may be written with a point"
    if "multipleOf" in schema and re.search(rb"\d\.\d*$", text) and re.fullmatch(rb"\d*0", token):
        return "a multiple may end in zeros"
    if another_order(text, schema):
        return "keys of several schemas in another order"
    return None


def why_peer(text, token, schema):
    """The same the other way."""
    if re.search(rb"\d[eE][-+]?\d*$", text) and token.isdigit():
        return "exponents have two digits"
    if b"\\" in token and '"pattern' in schema:
        return "it takes an escape that the pattern does not allow"
    if '"format"' in schema:
        if re.search(rb"@$", text) and token.startswith(b"["):
            return "formats: no address literals"
        if re.search(rb"\d$|:$", text) and token[:1] in b"tz6 ":
            return "formats: no leap seconds, T and Z are capitals"
    if another_order(text, schema):
        return "keys of several schemas in another order"
    return None


def only(mine, other):
    """The shortest tokens that the first mask allows alone: longer ones have the same reason."""
    alone = {tokens[i] for i in np.nonzero(mine & (1 - other))[0]}
    return [t for t in alone if not any(t[:n] in alone for n in range(1, len(t)))]


def compare(case, text, ids, masks):
    m = guide.LLMatcher(tokenizer, compiler.compile(case["schema"]))
    if m.is_error():
        raise ValueError
    seen = b""
    for i, mask in zip(ids + [None], masks):
        ours = np.unpackbits(np.frombuffer(bytes.fromhex(mask), dtype=np.uint8), bitorder="little")
        arrays.fill_next_token_bitmask(m, bits, 0)
        peer = np.unpackbits(bits.view(np.uint8).reshape(-1), bitorder="little")
        ours, peer = ours[: len(tokens)], peer[: len(tokens)]
        count["masks"] += 1
        count["the same"] += bool((ours == peer).all())
        forced = m.compute_ff_bytes() if (ours != peer).any() else b""
        for who, mine, other in (("ours", ours, peer), ("llguidance", peer, ours)):
            for t in only(mine, other):
                schema = case["schema"]
                reason = why_ours(seen, t, forced, schema) if who == "ours" else why_peer(seen, t, schema)
                if reason:
                    count[f"only {who}: {reason}"] += 1
                else:
                    unexplained.append((case["name"], who, seen[-60:], t))
        if i is None or not m.try_consume_tokens([i]):
            break
        seen += tokens[i]


paths = sorted(glob.glob(f"{schemas}/**/*.json", recursive=True))
random.Random(5).shuffle(paths)
with tempfile.NamedTemporaryFile() as f:
    for t in tokens:
        f.write(struct.pack("<I", len(t)) + t)
    f.flush()
    ask = subprocess.Popen([program, f.name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    for path in paths:
        with open(path, encoding="utf-8") as g:
            d = json.load(g)
        texts = [json.dumps(t["data"], ensure_ascii=False, separators=(",", ":")) for t in d["tests"] if t["valid"]]
        text = next((t for t in texts if len(t) < 600), None)
        if text is None:
            continue
        ids = cut(text)
        ask.stdin.write(json.dumps({"schema": d["schema"], "ids": [ids], "strict": True}) + "\n")
        ask.stdin.flush()
        said = json.loads(ask.stdout.readline())
        if "error" in said:
            continue
        case = {"name": os.path.basename(path), "schema": json.dumps(d["schema"])}
        try:
            compare(case, text, ids, said["masks"])
        except ValueError:
            continue
        count["schemas"] += 1
        if count["schemas"] == n_schemas:
            break
    ask.stdin.close()
    ask.wait()
for what, n in sorted(count.items()):
    print(f"{n:8} {what}")
for line in list({(one[0], one[1]): one for one in unexplained}.values())[:20]:
    print("no reason:", *line)
print(f"without a reason: {len(unexplained)}")
