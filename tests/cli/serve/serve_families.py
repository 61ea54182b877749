"""serve_families.py CHECKPOINT EVAL.jsonl [ARGUMENTS]… - pserve's log-probs of the trainer's own windows have
the trainer's bits: alone, all at once, in chunks, with a cached prefix, in every server that is named by its
arguments. "--kv-memory few": of so few pages that sequences are preempted. $WEIGHTS: the fingerprint of all
their answers."""
import json
import os
import re
import sys
from serve_server import Server, bits, claim, finish, together

checkpoint, eval_file = sys.argv[1:3]
windows = [json.loads(line) for line in open(eval_file)][:6]
WISH = dict(max_tokens=6, temperature=0, logprobs=2, echo=True, ignore_eos=True, return_token_ids=True)


def essence(answer):
    return [(c["index"], c["token_ids"], c["logprobs"]["token_logprobs"], c["logprobs"]["top_logprobs"])
            for c in answer["choices"]]


def trainers(window):
    return [None if x is None else bits(x) for x in window["logprobs"]]


def same(what, got, want):
    """got: answers, or the exceptions that came instead."""
    differ = [(i, g, w) for i, (g, w) in enumerate(zip(got, want)) if g != w]
    claim(what, not differ, f"{len(differ)} differ: {str(differ[:1])[:600]}")


def few_pages(args):
    """The arguments with memory for two sequences and a bit; the server says what one needs."""
    refused = Server(checkpoint, *["1" if a == "few" else a for a in args])
    refused.reader.join()
    says = b"".join(refused.err).decode()
    need = re.search(r"needs (\d+) bytes of keys and values", says)
    claim("a server says how much memory a sequence needs", need, says)
    return [str(int(need[1]) * 9 // 4) if a == "few" else a for a in args] + ["--verbose"]


first = first_long = None
for spec in sys.argv[3:]:
    few = "few" in spec.split()
    s = Server(checkpoint, *(few_pages(spec.split()) if few else spec.split()))
    if not claim(f"{spec}: starts", s.port is not None, b"".join(s.err)):
        continue
    asks = [lambda w=w: essence(s.complete(prompt=w["ids"], **WISH)) for w in windows] * 3
    alone = [ask() for ask in asks[:len(windows)]]
    for i, (w, a) in enumerate(zip(windows, alone)):
        got = [None if x is None else bits(x) for x in a[0][2][:len(w["ids"])]]
        claim(f"{spec}: window {i} has the trainer's log-probs, bit for bit", got == trainers(w),
              f"{got[:4]} expected {trainers(w)[:4]}")
    same(f"{spec}: all at once, three times each, as alone", together(asks), alone * 3)
    first = first or alone
    claim(f"{spec}: the answers of the first server", alone == first)
    longer = [lambda i=i, w=w: essence(s.complete(prompt=w["ids"][:50 + i], **dict(WISH, max_tokens=150)))
              for i, w in enumerate(windows)]
    if any("few" in other.split() for other in sys.argv[3:]) and not first_long:
        first_long = [ask() for ask in longer]
    elif few:
        same(f"{spec}: longer answers at once, of which some are preempted, as alone", together(longer),
             first_long)
    mark = s.complete(prompt=[1], max_tokens=1)["system_fingerprint"]
    claim(f"{spec}: an answer names the weights", mark == os.environ["WEIGHTS"],
          f"{mark} expected {os.environ['WEIGHTS']}")
    rc, err = s.stop()
    claim(f"{spec}: ends well", rc == 0, f"{rc}: {err}")
    claim(f"{spec}: pages ran out", not few or re.search(r" [1-9]\d* preempted", err), err)
finish()
