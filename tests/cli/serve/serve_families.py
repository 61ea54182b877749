"""serve_families.py CHECKPOINT EVAL.jsonl [ARGUMENTS]… - pserve's log-probs of the trainer's own windows have the trainer's bits: alone, all at once,
in chunks, with a cached prefix, in every server that is named by its arguments. $WEIGHTS: the fingerprint of all their answers."""
import json
import os
import sys
from serve_server import Server, bits, claim, finish, together

checkpoint, eval_file = sys.argv[1:3]
windows = [json.loads(line) for line in open(eval_file)][:6]
WISH = dict(max_tokens=6, temperature=0, logprobs=2, echo=True, ignore_eos=True, return_token_ids=True)


def essence(answer):
    return [(c["index"], c["token_ids"], c["logprobs"]["token_logprobs"], c["logprobs"]["top_logprobs"]) for c in answer["choices"]]


def trainers(window):
    return [None if x is None else bits(x) for x in window["logprobs"]]


first = None
for spec in sys.argv[3:]:
    s = Server(checkpoint, *spec.split())
    if not claim(f"{spec}: starts", s.port is not None, b"".join(s.err)):
        continue
    asks = [lambda w=w: essence(s.complete(prompt=w["ids"], **WISH)) for w in windows] * 3
    alone = [ask() for ask in asks[:len(windows)]]
    for i, (w, a) in enumerate(zip(windows, alone)):
        got = [None if x is None else bits(x) for x in a[0][2][:len(w["ids"])]]
        claim(f"{spec}: window {i} has the trainer's log-probs, bit for bit", got == trainers(w), f"{got[:4]} expected {trainers(w)[:4]}")
    claim(f"{spec}: all at once, three times each, as alone", together(asks) == alone * 3)
    first = first or alone
    claim(f"{spec}: the answers of the first server", alone == first)
    mark = s.complete(prompt=[1], max_tokens=1)["system_fingerprint"]
    claim(f"{spec}: an answer names the weights", mark == os.environ["WEIGHTS"], f"{mark} expected {os.environ['WEIGHTS']}")
    rc, err = s.stop()
    claim(f"{spec}: ends well", rc == 0, f"{rc}: {err}")
finish()
