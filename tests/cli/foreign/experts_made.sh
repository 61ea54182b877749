#!/usr/bin/env bash
# quick
# experts_made.sh - experts that trainers divide over ranks, at degrees of their own: weights, moments and step
# as they were put in. Folders with an expert too few, twice, or of another run are refused.
. "$(dirname "$0")/../lib/lib.bash"
make=$(dirname "$0")/../lib/foreign_make_experts.py
command -v python3 >/dev/null || { skip "python3 is not there"; finish; }
export PYTHONDONTWRITEBYTECODE=1

cases="plain-2 moe-2-2 moe-6-3-many moe-4-2-before moe-2-1 plain-1 auto2-4-2 auto2-6-6 auto3-4-2 auto3-6-3 legacy-1-1-2
legacy-2-3-3-distopt legacy-2-1-2-grouped-distopt legacy-1-3-1-grouped legacy-2-1-3-etp1-distopt legacy-2-3-6-etp1-grouped
legacy-2-1-2-old-distopt legacy-1-1-3-old titan-2-3 titan-3-2-new"
# shellcheck disable=SC2086
python3 "$make" "$TMP" $cases legacy-2-1-1-etp1 legacy-1-1-2-etp2 || { claim "the folders are made" false; finish; }
for case in $cases; do
    run reshard diff "$TMP/$case/ckpt" "$TMP/$case/universal"
    claim "$case holds the tensors, moments and step that were put in" [ $rc = 0 -a -z "$out" ]
done
run reshard verify "$TMP/moe-6-3-many/ckpt"
claim "verify reads all of it" [ $rc = 0 ]
run reshard --tp 2 --ep 2 --dp 3 --zero 1 "$TMP/auto3-6-3/ckpt" "$TMP/cut"
claim "it is cut for another layout" [ $rc = 0 ]
run reshard diff "$TMP/cut" "$TMP/auto3-6-3/universal"
claim "and stays the same model" [ $rc = 0 -a -z "$out" ]

refused() {         # refused WHAT PART...: opening $TMP/bad is refused, and the message has every PART
    local what=$1
    run reshard digest "$TMP/bad"
    claim "$what is refused" [ $rc = 1 ]
    shift
    for part; do claim "and the message says so" has "$err" "$part"; done
}
bad() { rm -rf "$TMP/bad" && cp -r "$TMP/$1/ckpt" "$TMP/bad" && cp "$TMP/$1/config.json" "$TMP/bad" && cd "$TMP/bad/$2" || exit 1; }
step=global_step7

bad moe-2-2 $step && rm layer_1_expert_4_*
refused "an expert without its file" "layer_1_expert_4_mp_rank_00_model_states.pt is missing" "expert 4 of 6"
bad moe-2-2 $step && cp layer_0_expert_2_* layer_0_expert_3_mp_rank_00_model_states.pt
refused "a file with another expert" "layer_0_expert_3_mp_rank_00_model_states.pt: holds expert 2"
bad moe-2-2 $step && cp layer_0_expert_2_* layer_1_expert_2_mp_rank_00_model_states.pt
refused "a file of another layer" "is it the file of another expert or layer"
bad moe-2-2 $step && cp layer_0_expert_5_* layer_0_expert_6_mp_rank_00_model_states.pt
refused "an expert more" "layer_0_expert_6_mp_rank_00_model_states.pt: holds expert 5 of 6"
bad moe-2-2 $step && mv zero_pp_rank_0_* a && mv zero_pp_rank_1_* zero_pp_rank_0_mp_rank_00_optim_states.pt &&
    mv a zero_pp_rank_1_mp_rank_00_optim_states.pt
refused "an optimizer file of another rank" "holds other values for expert 0 of model.layers.0.mlp than"
bad moe-2-2 $step && cp "$TMP/moe-2-1/ckpt/$step/"zero_pp_rank_1_* .
refused "an optimizer file of another degree" "zero_pp_rank_1_mp_rank_00_optim_states.pt: says that 2 ranks share" \
    "another expert parallel degree"
bad plain-2 $step && rm expp_rank_0_*
refused "an expert-parallel rank too few without ZeRO" "expp_rank_0_mp_rank_00_optim_states.pt"
bad plain-2 $step && cp "$TMP/plain-1/ckpt/$step/"expp_rank_0_* expp_rank_1_mp_rank_00_optim_states.pt
refused "an optimizer of another degree without ZeRO" "optimizer of expert-parallel rank 1"
bad auto3-4-2 $step && cp zero_pp_rank_0_*model_states.pt zero_pp_rank_1_mp_rank_00_model_states.pt
refused "a model file of another rank" "no rank has part"
bad legacy-2-3-3-distopt iter_0000009 && rm -r mp_rank_01_002_001
refused "an expert-parallel rank too few" "17 folders of ranks, the highest numbers say 2 x 3 x 3"
bad legacy-2-3-3-distopt iter_0000009 && rm -r mp_rank_0?_00?_002
refused "an expert-parallel degree that is not that of the run" "with expert parallel 3, the folders say 2"
bad legacy-2-3-3-distopt iter_0000009 && rm mp_rank_01_001_002/distrib_optim.pt
refused "an optimizer file too few" "mp_rank_01_001_002/: has no distrib_optim.pt, other ranks have one"
bad legacy-2-3-6-etp1-grouped iter_0000009 && rm -r mp_rank_01_001_003
refused "a rank too few where experts are cut otherwise" "17 folders of ranks, the highest numbers say 1 x 3 x 6"
bad legacy-2-1-1-etp1 iter_0000009 && mkdir mp_rank_01
refused "a run of which Megatron saves only some ranks" "experts were cut over 1 x 1 ranks, the rest over 2"
bad legacy-1-1-2-etp2 .
refused "experts cut over more ranks than the rest" "experts were cut over 2 tensor-parallel ranks, the rest over 1"
bad moe-2-2 . && sed -i 's/"num_experts": 6/"num_experts": 4/' config.json
run reshard "$TMP/bad" "$TMP/never"
claim "another number of experts than config.json says is refused" [ $rc != 0 -a ! -e "$TMP/never" ]
claim "by name" has "$err" "experts.4"
finish
