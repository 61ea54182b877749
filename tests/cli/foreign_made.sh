#!/usr/bin/env bash
# quick
# foreign_made.sh - folders of other frameworks at degrees and shapes that the reference files do not have: twelve ranks, sub-groups that cut
# parameters, gaps between them, wrapped names, virtual stages, biases. Each is written twice, the second time every tensor whole.
. "$(dirname "$0")/lib.bash"
make=$(dirname "$0")/foreign_make.py
command -v python3 >/dev/null || { skip "python3 is not there"; finish; }

for case in zero3-12 zero3-5 zero2-12 zero2-3 dcp-12 dcp-3-wrapped legacy-1-1-1 legacy-2-2-1 legacy-2-2-2 legacy-1-4-2-bias legacy-2-1-1-bias \
    legacy-2-2-1-gpt2 legacy-2-1-1-distopt-gpt2 legacy-2-2-2-distopt legacy-1-2-1-distopt-bias dist-1-1-1 dist-2-2-3 dist-2-4-2-bias; do
    mkdir "$TMP/$case"
    python3 "$make" $case "$TMP/$case" || { claim "$case is made" false; continue; }
    run reshard diff "$TMP/$case/ckpt" "$TMP/$case/universal"
    claim "$case holds the tensors, moments and step that were put in" [ $rc = 0 -a -z "$out" ]
    run reshard verify "$TMP/$case/ckpt"
    claim "$case is right to the last checksum" [ $rc = 0 ]
    rm -rf "${TMP:?}/$case"
done

# a folder of Hugging Face whose names lack the base model's first word
mkdir "$TMP/m" && python3 "$make" dcp-3 "$TMP/m"
run reshard --weights-only --format hf "$TMP/m/ckpt" "$TMP/hf"
run reshard digest "$TMP/hf"
want=$out
python3 - "$TMP/hf/model.safetensors" <<'PY'
import struct, sys
data = open(sys.argv[1], "rb").read()
n = struct.unpack("<Q", data[:8])[0]
open(sys.argv[1], "wb").write(data[:8] + data[8:8 + n].replace(b'"model.', b'"').ljust(n) + data[8 + n:])
PY
run reshard inspect --tensors "$TMP/hf"
claim "names without model. in front get it" has "$out" model.layers.0.mlp.up_proj.weight
run reshard digest "$TMP/hf"
claim "and are the same model" [ "$out" = "$want" ]
finish
