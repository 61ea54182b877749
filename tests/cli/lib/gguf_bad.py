#!/usr/bin/env python3
"""gguf_bad.py - GGUF files that must be refused, each with a part of the message.

usage: gguf_bad.py OUT      writes OUT/NAME.gguf and prints a line "NAME<tab>PART OF THE MESSAGE" a file
       gguf_bad.py --long-token FILE      writes a vocabulary with one token of 500000 bytes"""

import os
import struct
import sys

from gguf_make import BF16, F32, gguf_bytes, make, metadata, text

META = {"general.architecture": "llama", "llama.block_count": 1}
ROW = struct.pack("<16f", *range(16))
TWO = [("a", [2, 8], F32, ROW), ("b", [16], F32, ROW)]


def good(tensors=TWO, meta=None, **how):
    return gguf_bytes(META if meta is None else meta, tensors, **how)


def entry(name, dims, kind, offset):
    """The entry of a tensor."""
    return (
        text(name)
        + struct.pack("<I", len(dims))
        + struct.pack(f"<{len(dims)}Q", *dims)
        + struct.pack("<IQ", kind, offset)
    )


def raw(entries, data=b"\0" * 256, count=None, keys=b"", n_keys=0):
    """A file of entries as they are."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(entries) if count is None else count, n_keys) + keys
    head += b"".join(entries)
    return head + b"\0" * (-len(head) % 32) + data


def key(name, kind, rest):
    return text(name) + struct.pack("<I", kind) + rest


def without(family, name):
    m = make(family)
    return gguf_bytes(metadata(m), [t for t in m.file if t[0] != name])


def of_heads(n):
    m = make("llama")
    return gguf_bytes({**metadata(m), "llama.attention.head_count": n}, m.file)


def with_factors(value):
    m = make("llama")
    return gguf_bytes(metadata(m), m.file + [("rope_freqs.weight", [2], F32, struct.pack("<2f", 1, value))])


def long_token():
    m = make("llama")
    tokens = ["<unk>", "a", "a" * 500000] + [f"t{i}" for i in range(3, 16)]
    meta = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": tokens}
    return gguf_bytes({**metadata(m), **meta}, m.file)


def cases():
    whole = good()
    yield "empty", b"", "needs 4 bytes at 0"
    yield "magic", b"GGML" + whole[4:], "does not begin with GGUF"
    yield "version-1", b"GGUF" + struct.pack("<I", 1) + whole[8:], "has version 1 of GGUF"
    yield "big-endian", b"GGUF" + struct.pack(">I", 3) + whole[8:], "is a big-endian GGUF file"
    for n in (3, 7, 20, 30, 60, 100, 150):
        yield f"cut-{n}", whole[:n], "cut short" if n < 24 else ""
    yield "cut-data", whole[:-40], "tensor b ends at"
    yield "tensors-2^60", raw([], count=1 << 60), "says that it has 1152921504606846976 tensors"
    yield "keys-2^60", raw([], n_keys=1 << 60), "and 1152921504606846976 keys"
    yield "no-tensors", raw([]), "holds no tensors"
    yield "long-text", raw(
        [], keys=struct.pack("<Q", 1 << 62) + b"x" * 64, n_keys=1
    ), "needs 4611686018427387904"
    yield "long-value", raw([], keys=key("k", 8, struct.pack("<Q", 1 << 62)), n_keys=1), "key k needs"
    yield "array-2^61", raw([], keys=key("k", 9, struct.pack("<IQ", 10, 1 << 61)), n_keys=1), "key k needs"
    yield "array-texts", raw([], keys=key("k", 9, struct.pack("<IQ", 8, 1 << 61)), n_keys=1), "key k needs"
    nested = b"".join(struct.pack("<IQ", 9, 1) for _ in range(20))
    yield "array-deep", raw([], keys=key("k", 9, nested), n_keys=1), "nested deeper than 4"
    yield "value-type", raw([], keys=key("k", 13, b"\0" * 16), n_keys=1), "key k has the type 13"
    yield "array-type", raw(
        [], keys=key("k", 9, struct.pack("<IQ", 77, 1)), n_keys=1
    ), "key k has the type 77"
    twice = key("k", 4, struct.pack("<I", 1)) * 2
    yield "key-twice", raw([entry("a", [4], 0, 0)], keys=twice, n_keys=2), "has the key k twice"
    for n in (0, 3, 24):
        yield f"align-{n}", good(
            meta={**META, "general.alignment": n}
        ), f"general.alignment is {n}, a power of two"
    yield "align-type", raw(
        [entry("a", [4], 0, 0)], keys=key("general.alignment", 10, struct.pack("<Q", 32)), n_keys=1
    ), "a power of two as u32"
    yield "twice", raw([entry("a", [4], 0, 0), entry("a", [4], 0, 32)]), "has the tensor a twice"
    yield "overlap", raw([entry("a", [16], 0, 0), entry("b", [4], 0, 32)]), "they overlap"
    yield "misaligned", raw([entry("a", [4], 0, 4)]), "at 4 of the data, no multiple of 32"
    yield "behind-end", raw([entry("a", [4], 0, 256)]), "tensor a ends at 272 of the data"
    yield "far", raw([entry("a", [4], 0, (1 << 64) - 32)]), "tensor a"
    yield "dims-0", raw([entry("a", [], 0, 0)]), "tensor a has 0 dims"
    yield "dims-5", raw([entry("a", [1] * 5, 0, 0)]), "tensor a has 5 dims"
    yield "dims-2^31", raw([entry("a", [1], 0, 0)[:9] + struct.pack("<I", 1 << 31)]), "has 2147483648 dims"
    yield "dim-0", raw([entry("a", [4, 0], 0, 0)]), "has a dim of 0"
    yield "overflow", raw([entry("a", [1 << 32, 1 << 32], 0, 0)]), "more than 2^57 elements"
    yield "overflow-1", raw([entry("a", [1 << 63], 0, 0)]), "more than 2^57 elements"
    yield "type", raw([entry("a", [4], 99, 0)]), "tensor a has the type 99"
    yield "type-old", raw([entry("a", [32], 4, 0)]), "tensor a has the type 4"
    yield "block-rows", raw([entry("a", [40], 12, 0)]), "rows of 40 values, blocks of Q4_K have 256"
    yield "name-empty", raw([entry("", [4], 0, 0)]), "a tensor's name has 0 bytes"
    yield "name-long", raw([entry("a" * 300, [4], 0, 0)]), "a tensor's name has 300 bytes"
    yield "name-nul", raw([entry("a\0b", [4], 0, 0)]), "a tensor's name has 3 bytes"
    yield "half-missing", without(
        "gpt-oss", "blk.1.ffn_up_exps.weight"
    ), "has blk.1.ffn_gate_exps.weight and not blk.1.ffn_up_exps.weight"
    yield "half-alone", without(
        "deepseek", "blk.0.attn_k_b.weight"
    ), "has blk.0.attn_v_b.weight and not blk.0.attn_k_b.weight"
    yield "heads", of_heads(3), "which 3 heads of the metadata do not divide"
    yield "heads-0", of_heads(0), "0 heads"
    yield "layers-2^24", good(
        [("token_embd.weight", [2, 8], BF16, ROW[:32])],
        {"general.architecture": "llama", "llama.block_count": 1 << 24},
    ), "has no number llama.block_count from 1 to 65536"
    for name, value in (("half", 0.5), ("nan", float("nan"))):
        yield f"rope-{name}", with_factors(value), "are not those of Llama 3's scaling"
    yield "no-layers", good(
        [("token_embd.weight", [2, 8], BF16, ROW[:32])], {"general.architecture": "llama"}
    ), "has no number llama.block_count"


def main():
    if sys.argv[1] == "--long-token":
        with open(sys.argv[2], "wb") as f:
            f.write(long_token())
        return
    os.makedirs(sys.argv[1], exist_ok=True)
    for name, data, message in cases():
        with open(os.path.join(sys.argv[1], name + ".gguf"), "wb") as f:
            f.write(data)
        print(f"{name}\t{message}")


if __name__ == "__main__":
    main()
