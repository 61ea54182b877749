#!/usr/bin/env bash
# quick sanitize
# reshard_cuts.sh - a model without a family goes through tp, pp and ZeRO by a cut table; without one it is cut
# by element.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../lib/lib.bash"
cd "$TMP" || exit 1
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
finish
