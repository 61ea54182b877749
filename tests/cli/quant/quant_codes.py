"""quant_codes.py CHECKPOINT EVAL.jsonl CLASS SERVER... - servers that compute with codes as they lie answer alike,
bit for bit, near the values' log-probs of EVAL.jsonl, and name CLASS in the log and in the fingerprint."""
import json
import sys
from serve_server import Server, claim, finish, together

checkpoint, eval_file, kind = sys.argv[1:4]
windows = [json.loads(line) for line in open(eval_file)][:6]
WISH = dict(max_tokens=6, temperature=0, logprobs=1, echo=True, ignore_eos=True, return_token_ids=True)


def essence(answer):
    return [(c["token_ids"], c["logprobs"]["token_logprobs"]) for c in answer["choices"]]


first = None
for spec in sys.argv[4:]:
    s = Server(checkpoint, *spec.split(), "--verbose")
    if not claim(f"{spec}: starts", s.port is not None, b"".join(s.err)):
        continue
    asks = [lambda w=w: essence(s.complete(prompt=w["ids"], **WISH)) for w in windows]
    alone = [ask() for ask in asks]
    first = first or alone
    claim(f"{spec}: the answers of the first server", alone == first, f"{alone[0]} expected {first[0]}"[:400])
    claim(f"{spec}: all at once as alone", together(asks) == alone)
    mark = s.complete(prompt=[1], max_tokens=1)["system_fingerprint"]
    claim(f"{spec}: the fingerprint names the class", mark.endswith("-" + kind), mark)
    near = [abs(float(got) - float(want)) for w, a in zip(windows, alone)
            for got, want in zip(a[0][1], w["logprobs"]) if want is not None]
    claim(f"{spec}: near the values' log-probs", near and sum(near) / len(near) < 0.02, sum(near) / len(near))
    claim(f"{spec}: not the same bits", any(near))
    rc, err = s.stop()
    claim(f"{spec}: the log names the class", f"class {kind}" in err, err)
finish()
