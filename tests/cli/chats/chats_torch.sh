#!/usr/bin/env bash
# all
# chats_torch.sh - losses with weights against torch's cross entropy, at one rank and at other layouts; tokens and
# masks of conversations against transformers (PEER_PYTHON has both).
. "$(dirname "$0")/../lib/train_lib.bash"
here=$(cd "$(dirname "$0")" && pwd)
python=${PEER_PYTHON:-}
[ -n "$python" ] || { skip "PEER_PYTHON is not set: no torch to compare with"; finish; }
"$python" -c 'import torch, transformers' 2>/dev/null || { skip "no transformers in $python"; finish; }

config "$TMP/c.json" vocab_size=256
text 3 4000 >"$TMP/words"
run ptrain --data "$TMP/words" --model "$TMP/c.json" --steps 1 --lr 0 --seq-len 32 --out "$TMP/init" --threads 1
run reshard --format hf --weights-only "$TMP/init/step-1" "$TMP/hf"
claim "a model to begin with" [ $rc = 0 ]
"$python" - "$TMP" <<'PY'
import sys, numpy
d = sys.argv[1]
r = numpy.random.default_rng(5)
ids = numpy.frombuffer(open(f"{d}/words", "rb").read(), "u1").astype("<u2")
ids.tofile(f"{d}/t.u16")
mask = numpy.repeat(r.integers(0, 2, len(ids) // 9 + 1), 9)[:len(ids)]
mask.astype("<f4").tofile(f"{d}/mask.f32")
(mask * r.standard_normal(len(ids))).astype("<f4").tofile(f"{d}/signed.f32")
PY
args=(--init "$TMP/hf" --data "$TMP/t.u16" --steps 6 --seq-len 48 --global-batch 8 --data-order stride:7 --threads 1
    --lr 1e-3 --lr-schedule constant)
while read -r what weights divisor layout; do
    run timeout 200 "$BIN/ptrain" "${args[@]}" --loss-weights "$TMP/$weights.f32" --loss-divisor "$divisor" $layout \
        --log "$TMP/$what.jsonl" --out "$TMP/$what"
    claim "$what: the run ends well" [ $rc = 0 ]
    run "$python" -B "$here/chats_torch.py" "$TMP/$what.jsonl" "$TMP/hf" "$TMP/t.u16" "$TMP/$weights.f32" 6 8 48 7 \
        "$divisor"
    sed 's/^/    /' <<<"$out"
    claim "$what: losses and norms are torch's" [ $rc = 0 ]
done <<'CASES'
mask mask 0
mask-cut mask 0 --ranks 2 --tp 2 --micro-batch 2
signed signed 0
signed-cut signed 0 --ranks 2 --zero 3 --micro-batch 1
divided signed 100
CASES

run "$python" -B "$here/chats_masks.py" "$BIN/ptok" "$TMP" "${TEMPLATES:-}"
sed 's/^/    /' <<<"$out"
claim "tokens and masks are those of transformers" [ $rc = 0 ]
finish
