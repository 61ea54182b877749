#!/usr/bin/env bash
# quick
# trace.sh - --trace FILE: one file of all ranks and threads that parses, with kernels, collectives and waits;
# and the same bits.
. "$(dirname "$0")/../lib/train_lib.bash"
text 1 60000 >"$TMP/text"
config "$TMP/model.json" vocab_size=256
common=(--data "$TMP/text" --model "$TMP/model.json" --steps 3 --seq-len 64 --global-batch 4 --threads 2)
python3 -c 'import json' 2>/dev/null || { skip "no python3 to read the trace with"; finish; }

# count FILE EXPRESSION: events e for which it holds; -1 when the file does not parse
count() {
    python3 - "$1" "$2" <<'PY'
import json, sys
try:
    events = json.load(open(sys.argv[1]))["traceEvents"]
except Exception:
    events = None
want = compile(sys.argv[2], "expression", "eval")
print(-1 if events is None else sum(bool(eval(want, {"e": e, "a": e.get("args", {})})) for e in events))
PY
}
some() { [ "$(count "$1" "$2")" -gt 0 ]; }

train plain --tp 2 --ranks 4
plain="$state$bits"
train traced --tp 2 --ranks 4 --trace "$TMP/t.json"
claim "the trace changes no bit" [ "$state$bits" = "$plain" ]
for r in 0 1 2 3; do
    claim "rank $r: products with their shapes" some "$TMP/t.json" \
        "e['pid'] == $r and e['name'] == 'linear' and e['cat'] == 'kernel' and a['shape'].count('x') == 2"
    claim "rank $r: attention" some "$TMP/t.json" \
        "e['pid'] == $r and e['name'] == 'attn' and e['cat'] == 'kernel'"
    claim "rank $r: the optimizer's element counts" some "$TMP/t.json" \
        "e['pid'] == $r and e['name'] == 'adamw' and e['cat'] == 'kernel' and int(a['shape']) > 0"
    claim "rank $r: sums of tp with bytes" some "$TMP/t.json" \
        "e['pid'] == $r and e['name'] == 'all_reduce' and a['group'] == 'tp' and a['bytes'] > 0 and a['ranks'] == 2"
    claim "rank $r: sums of gradients over dp" some "$TMP/t.json" \
        "e['pid'] == $r and e.get('cat') == 'comm' and a.get('group') == 'dp' and a.get('bytes', 0) > 0"
    claim "rank $r: three steps" [ "$(count "$TMP/t.json" "e['pid'] == $r and e['name'] == 'step'")" = 3 ]
done
claim "waits" some "$TMP/t.json" "e.get('cat') == 'wait' and e['dur'] > 0"
claim "the second thread works too" some "$TMP/t.json" "e['tid'] == 1 and e.get('cat') == 'work'"
claim "no event ends before it begins" [ \
    "$(count "$TMP/t.json" "e['ph'] == 'X' and (e['dur'] < 0 or e['ts'] < 0)")" = 0 ]

run pserve "$TMP/traced/step-3" --tp 2 --once "the" --max-tokens 3 --trace "$TMP/s.json"
claim "pserve: both ranks' products" some "$TMP/s.json" "e['name'] == 'linear' and e['pid'] == 1"
run reshard --trace "$TMP/r.json" "$TMP/traced/step-3" "$TMP/whole"
claim "reshard: which thread worked on which tensor" some "$TMP/r.json" "e['name'] == 'model.norm.weight'"
train nowhere --ranks 2 --trace "$TMP/no/t.json"
claim "a trace that cannot be written is an error that names it" has "$err" "no/t.json: No such file"
claim "in one line, before any step" [ "$(grep -c . <<<"$err")" = 1 ]

# ---- several machines: sums inside first, the same bits ----
train nodes --tp 2 --ranks 4 --ranks-per-node 2
claim "two machines of two ranks, tp inside: the same bits" [ "$state$bits" = "$plain" ]
train nodes --tp 4 --ranks 4 --ranks-per-node 2 --zero 0
claim "tp over two machines" [ "$state$bits" = "$plain" ]
train nodes --ranks 4 --zero 3 --ranks-per-node 2
claim "ZeRO-3 over two machines" [ "$state$bits" = "$plain" ]
finish
