#!/usr/bin/env bash
# quick
# foreign_made.sh - folders of other frameworks at degrees and shapes that the reference files do not have:
# twelve ranks, sub-groups that cut parameters, gaps between them, wrapped names, virtual stages, biases. Each
# is written twice, the second time every tensor whole.
. "$(dirname "$0")/../lib/lib.bash"
make=$(dirname "$0")/../lib/foreign_make.py
command -v python3 >/dev/null || { skip "python3 is not there"; finish; }

for case in zero3-12 zero3-5 zero2-12 zero2-3 dcp-12 dcp-3-wrapped dcp-5-titan dcp-7-titan-fused \
    legacy-1-1-1 legacy-2-2-1 legacy-2-2-2 legacy-1-4-2-bias legacy-2-1-1-bias legacy-2-1-1-mla \
    legacy-2-2-1-mla-distopt legacy-2-1-2-mla-whole-distopt legacy-2-2-1-gpt2 legacy-2-1-1-distopt-gpt2 \
    legacy-2-2-2-distopt legacy-1-2-1-distopt-bias dist-1-1-1 dist-2-2-3 dist-2-4-2-bias dist-2-2-1-mla \
    dist-2-1-2-mla-whole; do
    mkdir "$TMP/$case"
    python3 "$make" $case "$TMP/$case" || { claim "$case is made" false; continue; }
    run reshard diff "$TMP/$case/ckpt" "$TMP/$case/universal"
    claim "$case holds the tensors, moments and step that were put in" [ $rc = 0 -a -z "$out" ]
    run reshard verify "$TMP/$case/ckpt"
    claim "$case is right to the last checksum" [ $rc = 0 ]
    case $case in zero* | dcp*) claim "and verify says which" has "$out" "every CRC-32 is right" ;; esac
    rm -rf "${TMP:?}/$case"
done

# torchtitan's Llama needs the heads of the model
mkdir "$TMP/m" && python3 "$make" dcp-2-titan "$TMP/m"
sed 's/"head_dim": 6/"head_dim": 4/' "$TMP/m/config.json" >"$TMP/other.json"
run reshard --config "$TMP/other.json" "$TMP/m/ckpt" "$TMP/never"
claim "the config of another model is refused" [ $rc = 2 -a ! -e "$TMP/never" ]
claim "with both numbers" has "$err" "config.json says 6 heads in 2 groups of 4: is it the config of another model"
sed 's/"num_attention_heads": 6, //' "$TMP/m/config.json" >"$TMP/other.json"
run reshard --config "$TMP/other.json" "$TMP/m/ckpt" "$TMP/never"
claim "and one without heads" has "$err" "wk.weight needs the heads of the model"
rm -r "$TMP/m"

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

# a record is summed from the parts that tensors need, whoever reads them, and what lies between: a byte of
# either is noticed
mkdir "$TMP/z" && python3 "$make" zero3-5 "$TMP/z"
file=$(ls "$TMP"/z/ckpt/*/*_rank_3_*optim_states.pt)
run reshard verify "$TMP/z/ckpt"
read_once=$(python3 - "$TMP/z/ckpt" "${out% read:*}" <<'PY'
import os, sys
n = sum(os.path.getsize(os.path.join(d, f)) for d, _, files in os.walk(sys.argv[1]) for f in files)
number, unit = sys.argv[2].split()[-2:]
print(int(float(number) * {"B": 1, "KB": 1e3, "kB": 1e3, "MB": 1e6, "KiB": 2**10, "MiB": 2**20}[unit] < 1.3 * n))
PY
)
claim "verify reads every byte about once" [ "$read_once" = 1 ]
cp "$file" "$TMP/whole"
for at in 0 0.1 0.37 0.5 0.77 0.93 -1; do
    python3 - "$TMP/whole" "$file" $at <<'PY'
import struct, sys, zipfile
data, at = bytearray(open(sys.argv[1], "rb").read()), float(sys.argv[3])
x = max((i for i in zipfile.ZipFile(sys.argv[1]).infolist() if "/data/" in i.filename), key=lambda i: i.file_size)
begin = x.header_offset + 30 + sum(struct.unpack_from("<HH", data, x.header_offset + 26))
data[begin + (x.file_size - 1 if at < 0 else int(at * x.file_size))] ^= 1
open(sys.argv[2], "wb").write(data)
PY
    run reshard --tp 1 "$TMP/z/ckpt" "$TMP/z/out"
    claim "a flipped bit at $at of a record is noticed, nothing published" [ $rc != 0 -a ! -e "$TMP/z/out" ]
    claim "and named" has "$err" "$(basename "$file"): bytes"
    run reshard verify "$TMP/z/ckpt"
    claim "by verify too" has "$err" "have CRC-32"
done
finish
