#!/usr/bin/env bash
# quick sanitize
# reshard_cuts.sh - a model without a family goes through tp, pp and ZeRO by a cut table; without one it is cut
# by element.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../lib/lib.bash"
cd "$TMP" || exit 1
export SHARDLINE_CACHE=$TMP/cache no_proxy=127.0.0.1,localhost
command -v python3 >/dev/null || { skip "no python3 here"; finish; }

python3 "$here/../lib/reshard_make.py" hf          # a byte model
run reshard digest hf
digest=$out
run reshard inspect --cuts hf
claim "inspect --cuts prints the table of a family" [ "$rc/${out%%$'\n'*}" = "0/cuts 1" ]
echo "$out" >table.txt
run reshard --tp 2 hf family
cp -r hf nova
sed -i 's/"model_type": *"[a-z0-9_]*"/"model_type": "nova"/' nova/config.json

run reshard --tp 2 nova refused
claim "an unknown model is not cut by tp without a table" [ $rc = 2 ]
claim "and the remedy is named" has "$err" "give a cut table with --cuts FILE"
claim "nothing appears" [ ! -e refused ]
run reshard --dp 4 --zero 3 nova z3
claim "ZeRO needs no table" [ $rc = 0 ]
run reshard digest z3
claim "cut by element: the same digest" [ "$out" = "$digest" ]
claim "every rank has weights" [ -s z3/weights-00003.safetensors ]
run reshard inspect --cuts nova
claim "inspect --cuts refuses what has no table" [ $rc != 0 ]

run reshard --cuts table.txt nova n1
claim "native, tp 1" [ $rc = 0 ]
run reshard --tp 2 n1 n2
claim "tp 2, by the table in the checkpoint" [ $rc = 0 ]
for file in weights-00000.safetensors weights-00001.safetensors; do
    claim "$file: as the family cuts it" cmp -s n2/$file family/$file
done
run reshard n2 back
claim "tp 1 again" diff -r n1 back
run reshard --tp 2 --pp 2 --dp 2 --zero 3 n2 n3
claim "stages and slices" [ $rc = 0 ]
run reshard digest n3
claim "the same digest" [ "$out" = "$digest" ]
run reshard n3 back2
claim "back to the first bytes" diff -r n1 back2
run reshard inspect --cuts n2
claim "the table travels with the checkpoint" [ "$out" = "$(cat table.txt)" ]

sed 's/self_attn.q_proj.weight dim 0/self_attn.q_proj.wieght dim 0/' table.txt >typo.txt
run reshard --tp 2 --cuts typo.txt nova refused
claim "a row without a tensor is refused" has "$err" "no tensor fits model.layers.{layer}.self_attn.q_proj.wieght"
sed '/mlp.down_proj/d' table.txt >gap.txt
run reshard --tp 2 --cuts gap.txt nova gap
claim "a tensor in no row is carried" [ $rc = 0 ]
claim "and reported" has "$err" "tensors are in no row (model.layers.0.mlp.down_proj.weight, ...)"
run reshard digest gap
claim "with the same digest" [ "$out" = "$digest" ]

run reshard --tp 2 --cuts "file://$PWD/table.txt" nova n4
claim "a table by URL" cmp -s n4/weights-00001.safetensors n2/weights-00001.safetensors
mkdir served
cp -r nova served/nova
cp table.txt served/nova/cuts.txt
file_server served requests
run reshard --tp 2 "http://127.0.0.1:$port/ok/nova" n5
claim "cuts.txt behind a URL" cmp -s n5/weights-00001.safetensors n2/weights-00001.safetensors
run reshard --format dcp --cuts table.txt nova n6
run reshard --tp 2 n6 n7
claim "cuts.txt in a DCP folder" cmp -s n7/weights-00001.safetensors n2/weights-00001.safetensors

# 4 bits an element: 6 columns of a row are 3 bytes, 3 columns are none
python3 - <<'PY'
import json, os, struct
os.mkdir("narrow")
head = json.dumps({"w": {"dtype": "F4", "shape": [6, 6], "data_offsets": [0, 18]},
                   "s": {"dtype": "F8_E8M0", "shape": [], "data_offsets": [18, 19]}}).encode()
with open("narrow/model.safetensors", "wb") as f:
    f.write(struct.pack("<Q", len(head)) + head + bytes(range(100, 119)))
PY
printf 'cuts 1\ns whole\nw dim 1\n' >columns.txt
printf 'cuts 1\nw dim 0\n' >rows.txt
run reshard --tp 2 --cuts columns.txt narrow refused
claim "half bytes are refused" [ "$rc/$(wc -l <<<"$err")" = 2/1 ]
claim "with the remedy" has "$err" "cut it at a multiple of 2 elements"
run reshard plan --tp 2 --cuts columns.txt narrow
claim "before anything is written" [ $rc = 2 ]
run reshard --tp 2 --cuts rows.txt narrow n8
claim "whole rows are cut" [ $rc = 0 ]
run reshard --dp 4 --zero 3 narrow n9
claim "and ZeRO carries them" [ $rc = 0 ]
run reshard --format hf n9 n10
run reshard diff narrow n10
claim "to the same tensors" [ $rc = 0 ]

# tensors of many dims and of none, cut in a dim behind the seventh, too
python3 - <<'PY'
import json, os, random, struct
os.mkdir("deep")
shapes = {"a.none": [], "a.running_var": [5], "b.nine": [2, 1, 1, 2, 1, 3, 1, 2, 2], "c.twelve": [3, 1, 2, 1, 1, 2, 1, 1, 2, 2, 1, 2], "d.eight": [1, 2, 1, 2, 1, 2, 1, 4]}
head, at = {"__metadata__": {"format": "pt"}}, 0
for name, shape in shapes.items():
    n = 4
    for size in shape:
        n *= size
    head[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + n]}
    at += n
text = json.dumps(head, separators=(",", ":")).encode()
text += b" " * (-(8 + len(text)) % 4096)
with open("deep/model.safetensors", "wb") as f:
    f.write(struct.pack("<Q", len(text)) + text + random.Random(9).randbytes(at))
PY
printf 'cuts 1\na.* whole\nb.nine dim 7 unit 2\nc.twelve dim 7\nd.eight dim 7\n' >deep.txt
for how in "" "--dp 3 --zero 3" "--tp 2 --cuts deep.txt" "--compress zstd"; do
    rm -rf d1 d2
    # shellcheck disable=SC2086
    run reshard $how deep d1
    claim "dims by ${how:-a copy}" [ $rc = 0 ]
    run reshard --format hf d1 d2
    claim "come back" cmp -s deep/model.safetensors d2/model.safetensors
done
run reshard inspect --tensors d1
claim "are printed" has "$out" "[3,1,2,1,1,2,1,1,2,2,1,2]"
run reshard --dtype bf16 deep d4
run reshard inspect --tensors d4
claim "statistics stay fp32" grep -q 'a.running_var  *F32' <<<"$out"
claim "what is rounded is not" grep -q 'b.nine  *BF16' <<<"$out"
run reshard --format dcp deep d3
claim "and refused where the format has not so many" has "$err" "b.nine has more than 8 dims"

# tables are read and written an entry at a time; a sanitizer's own memory is not counted
[[ $BIN == */sanitize/* ]] && finish
python3 - <<'PY'
import json, os, struct
os.mkdir("many")
head = {"layer.%d.%s.weight" % (i, "long" * 8): {"dtype": "BF16", "shape": [2, 4], "data_offsets": [16 * i, 16 * i + 16]} for i in range(30000)}
text = json.dumps(head).encode()
with open("many/model.safetensors", "wb") as f:
    f.write(struct.pack("<Q", len(text)) + text + os.urandom(16 * len(head)))
PY
peak=$(python3 -c 'import resource, subprocess, sys
subprocess.check_call(sys.argv[1:], stderr=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10)' "$BIN/reshard" --dp 2 --zero 3 --threads 2 many m2)
claim "30,000 tensors in $peak MiB, not in 4 kB each" [ "$peak" -lt 120 ]
finish
