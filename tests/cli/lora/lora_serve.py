"""lora_serve.py BASE EVAL.jsonl CKPT PEFT [ARGUMENTS]… - pserve's log-probs of the trainer's windows with an
adapter, from a checkpoint of ptrain and from PEFT's folder, have the trainer's bits; the model's own differ."""
import json
import sys
from serve_server import Server, bits, claim, finish

base, eval_file, ckpt, peft = sys.argv[1:5]
windows = [json.loads(line) for line in open(eval_file)][:4]
WISH = dict(max_tokens=1, temperature=0, logprobs=0, echo=True, ignore_eos=True)

for spec in sys.argv[5:]:
    s = Server(base, *spec.split(), "--lora", f"a={ckpt}", "--lora", f"b={peft}")
    if not claim(f"{spec}: starts", s.port is not None, b"".join(s.err)):
        continue
    for i, w in enumerate(windows):
        want = [None if x is None else bits(x) for x in w["logprobs"]]
        for name in ("a", "b", "m"):
            c = s.complete(model=name, prompt=w["ids"], **WISH)["choices"][0]
            got = [None if x is None else bits(x) for x in c["logprobs"]["token_logprobs"][:len(w["ids"])]]
            if name == "m":
                claim(f"{spec}: the model without it says otherwise", got != want)
            else:
                claim(f"{spec}: window {i}, {name}: the trainer's bits", got == want,
                      f"{got[:4]} expected {want[:4]}")
    rc, err = s.stop()
    claim(f"{spec}: ends well", rc == 0, f"{rc}: {err}")
finish()
