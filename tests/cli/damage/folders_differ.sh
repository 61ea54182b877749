#!/usr/bin/env bash
# quick
# folders_differ.sh - ranks that read folders of their own, as on several machines, where these have other tensors, or
# tensors of other values: refused in one line, and no rank waits for ever.
. "$(dirname "$0")/../lib/train_lib.bash"
text 3 60000 >"$TMP/text"
config "$TMP/model.json" vocab_size=256
run ptrain --data "$TMP/text" --model "$TMP/model.json" --steps 1 --seq-len 16 --global-batch 1 --threads 1 --out "$TMP/run"
claim "a model" [ $rc = 0 ] || finish
mkdir "$TMP/0" "$TMP/1"
run reshard --format hf "$TMP/run/step-1" "$TMP/0/model"
cp -r "$TMP/0/model" "$TMP/1/model"

# Adds a tensor that the model does not use.
"${PYTHON:-python3}" -B - "$TMP/1/model/model.safetensors" <<'PYTHON'
import json, sys
data = open(sys.argv[1], "rb").read()
n = int.from_bytes(data[:8], "little")
head = json.loads(data[8 : 8 + n])
end = len(data) - 8 - n
head["more.weight"] = {"dtype": "F32", "shape": [2], "data_offsets": [end, end + 8]}
text = json.dumps(head).encode()
text += b" " * (-len(text) % 8)
open(sys.argv[1], "wb").write(len(text).to_bytes(8, "little") + text + data[8 + n :] + bytes(8))
PYTHON

# apart COMMAND...: two ranks, each in a folder of its own
apart() {
    run timeout -k 5 60 mpirun -q --oversubscribe --bind-to none -n 2 bash -c "cd $TMP/"'$OMPI_COMM_WORLD_RANK && exec "$@"' - "$@"
}
refused() {
    claim "$1: refused in one line" [ $rc = 2 -a "$(grep -c 'is it the same on all machines' <<<"$err")" = 1 ] &&
        claim "$1: it names the folder" has "$err" "model: rank 1: its tensors are not those that the first rank has read"
}
apart "$BIN/pserve" model --tp 2 --threads 1 --once "the model" --max-tokens 2
refused pserve
apart "$BIN/ptrain" --data "$TMP/text" --init model --lora r=2,alpha=2,targets=q_proj --steps 1 --seq-len 16 --global-batch 2 \
    --threads 1 --out "$TMP/adapter"
refused ptrain
rm -r "$TMP/1/model"
cp -r "$TMP/0/model" "$TMP/1/model"
apart "$BIN/pserve" model --tp 2 --threads 1 --once "the model" --max-tokens 2
claim "equal folders are served" [ $rc = 0 ]

# the same tensors of other values, where the files store digests
run ptrain --data "$TMP/text" --model "$TMP/model.json" --steps 1 --seed 5 --seq-len 16 --global-batch 1 --threads 1 --out "$TMP/other"
rm -r "$TMP"/[01]/model
cp -r "$TMP/run/step-1" "$TMP/0/model"
cp -r "$TMP/other/step-1" "$TMP/1/model"
apart "$BIN/pserve" model --tp 2 --threads 1 --once "the model" --max-tokens 2
refused "pserve, other values"
finish
