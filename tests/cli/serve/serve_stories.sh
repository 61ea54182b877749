#!/usr/bin/env bash
# all
# serve_stories.sh - a real pretrained model, stories260K as a Hugging Face folder with reference.json
# ($STORIES): its greedy continuations are the reference's at tp 1, 2 and 4, its log-probs within 1e-4.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../lib/lib.bash"
command -v python3 >/dev/null || { skip "no python3"; finish; }
[ -e "${STORIES:-}/reference.json" ] || { skip "STORIES is not set: no pretrained model"; finish; }
for tp in 1 2 4; do
    python3 -B - "$STORIES" $tp "$here" >"$TMP/said" 2>&1 <<'PY'
import json, sys
sys.path.insert(0, sys.argv[3])
from serve_server import Server, claim, finish
ref = json.load(open(sys.argv[1] + "/reference.json"))
s = Server(sys.argv[1], "--tp", sys.argv[2], "--dtype", "fp32")
def near(got, want): return len(got) == len(want) and all(abs(float(a) - b) < 1e-4 for a, b in zip(got, want))
for g in ref["greedy"]:
    for prompt in (g["prompt_ids"], g["prompt"]):
        c = s.complete(prompt=prompt, max_tokens=len(g["out_ids"]), temperature=0, ignore_eos=True, logprobs=1, return_token_ids=True)["choices"][0]
        claim("the reference's continuation", c["token_ids"] == g["out_ids"], (c["token_ids"][:8], g["out_ids"][:8]))
        claim("with its log-probs", near(c["logprobs"]["token_logprobs"], [x["logprob"] for x in g["steps"]]))
for t in ref["teacher"]:
    c = s.complete(prompt=t["ids"], max_tokens=0, echo=True, logprobs=1)["choices"][0]
    claim("a text's log-probs", near(c["logprobs"]["token_logprobs"][1:], t["logprobs_fp64"]))
s.stop()
finish()
PY
    grep '^FAIL\|Error' "$TMP/said"
    read -r p f <<<"$(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed.*/\1 \2/p' "$TMP/said")"
    n_passed=$((n_passed + ${p:-0})) n_failed=$((n_failed + ${f:-1}))
done
finish
