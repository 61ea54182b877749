"""experts_forced.py FOLDER CASE - changes the weights of a Hugging Face folder so that its routers choose
what CASE says."""
import array
import json
import struct
import sys

folder, case = sys.argv[1:3]
path = folder + "/model.safetensors"
data = open(path, "rb").read()
size = struct.unpack("<Q", data[:8])[0]
head, body = json.loads(data[8:8 + size]), bytearray(data[8 + size:])


def matrix(name):
    begin, end = head[name]["data_offsets"]
    assert head[name]["dtype"] == "F32"
    return array.array("f", body[begin:end]), head[name]["shape"]


def store(name, values):
    begin, end = head[name]["data_offsets"]
    body[begin:end] = values.tobytes()


def steady():
    """The first number of every token's vector is large, and stays: a router's first column is a bias
    then."""
    w, (rows, cols) = matrix("model.embed_tokens.weight")
    for i in range(rows):
        w[i * cols] = 8.0
    store("model.embed_tokens.weight", w)


def column(values):
    """The first column of every router."""
    steady()
    for name in routers:
        w, (rows, cols) = matrix(name)
        for expert, x in values.items():
            w[expert % rows * cols] = x
        store(name, w)


def equal_rows():
    for name in routers:
        w, (rows, cols) = matrix(name)
        store(name, w[:cols] * rows)


def zero():
    for name in routers:
        w, _ = matrix(name)
        store(name, array.array("f", [0.0] * len(w)))


def pairs():
    """Every expert's row is that of its neighbour: two candidates for every place."""
    for name in routers:
        w, (rows, cols) = matrix(name)
        for i in range(1, rows, 2):
            w[i * cols:(i + 1) * cols] = w[(i - 1) * cols:i * cols]
        store(name, w)


def bias(values):
    """What is added to the logits (gpt-oss) or to the scores that choose (DeepSeek)."""
    for name in biases:
        w, (rows,) = matrix(name)
        for expert, x in values.items():
            w[expert % rows] = x
        store(name, w)


routers = [k for k in head if k.endswith((".gate.weight", ".router.weight")) and head[k]["shape"][0] <= 16]
biases = [k for k in head if k.endswith((".router.bias", ".e_score_correction_bias"))]
assert routers
CASES = dict(equal_rows=equal_rows, zero=zero, pairs=pairs, first_absent=lambda: column({0: -50.0}),
             two_absent=lambda: column({2: -50.0, 3: -50.0}),
             two_take_all=lambda: column({1: 50.0, 4: 50.0}), last_takes_all=lambda: column({-1: 50.0}),
             first_takes_all=lambda: column({0: 50.0}), bias_takes_all=lambda: bias({-1: 50.0}))
CASES[case]()
open(path, "wb").write(data[:8 + size] + body)
