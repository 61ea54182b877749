#!/usr/bin/env bash
# quick
# published.sh - checkpoints of published configurations, scaled down, are cut to tp 2, 4, 8, stages, ep 2 and
# 4, and joined byte for byte, by the cut tables that ship. published_all.sh runs all of them.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../lib/lib.bash"
command -v python3 >/dev/null || { skip "no python3 here"; finish; }
python3 -B "$here/published.py" check "$BIN/reshard" qwen3.5-35b-a3b gemma-4-26b-a4b gpt-oss-20b-mxfp4 \
    >"$TMP/said" 2>&1
rc=$?
claim "$(cat "$TMP/said")" [ $rc = 0 ]
claim "at least 40 configurations" [ "$(python3 -B "$here/published.py" list | wc -l)" -ge 40 ]

python3 -B "$here/published.py" make gemma-3-4b "$TMP/gemma"
run reshard --tp 2 "$TMP/gemma" "$TMP/cut"
claim "towers are counted" has "$err" "3 tensors are in no row (multi_modal_projector.mm_input_projection_weight"
run reshard inspect --cuts "$TMP/gemma"
claim "the table of a nested config has its prefix" has "$out" \
    "language_model.model.layers.{layer}.self_attn.k_proj.weight dim 0 unit 256 copies"
echo "$out" >"$TMP/table"
run reshard --tp 2 --cuts "$TMP/table" "$TMP/gemma" "$TMP/cut2"
claim "the printed table cuts alike" cmp -s "$TMP/cut/weights-00001.safetensors" "$TMP/cut2/weights-00001.safetensors"
sed -i 's/"hidden_size": 32/"hidden_size": 33/' "$TMP/gemma/config.json"
sed -i 's/"model_type": "gemma3_text"/"model_type": "olmo2"/' "$TMP/gemma/config.json"
run reshard --tp 2 "$TMP/gemma" "$TMP/x"
claim "a damaged config is refused where tp needs it" [ "$rc/$(wc -l <<<"$err")" = 2/1 ]
claim "with the key" has "$err" "config.json: has no num_attention_heads"
run reshard --dp 2 --zero 3 "$TMP/gemma" "$TMP/x"
claim "and said where it does not" has "$err" "has no num_attention_heads"
claim "dp needs no table" [ $rc = 0 ]

python3 -B "$here/published.py" make llama-3.2-tied-and-stored "$TMP/tied"
run reshard --tp 2 "$TMP/tied" "$TMP/tied-cut"
claim "a head that is not the embedding it is tied to is carried" [ $rc = 0 ]
claim "and said" has "$err" "lm_head.weight differs from model.embed_tokens.weight, and config.json ties them"
python3 -B "$here/published.py" make qwen3-next-80b-a3b "$TMP/next"
run reshard --ep 4 "$TMP/next" "$TMP/next-cut"
claim "ep without dp takes as many ranks as it needs" [ -s "$TMP/next-cut/weights-00003.safetensors" ]
run reshard --dtype bf16 "$TMP/next" "$TMP/next-bf16"
run reshard inspect --tensors "$TMP/next-bf16"
claim "A_log stays fp32" grep -q 'layers.0.linear_attn.A_log .*F32' <<<"$out"
claim "what is rounded is not" grep -q 'layers.0.linear_attn.norm.weight .*BF16' <<<"$out"
finish
