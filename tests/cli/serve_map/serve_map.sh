#!/usr/bin/env bash
# quick waits
# serve_map.sh - weights that are computed from where their file is mapped: see serve_map.py. SERVE_MAP=all:
# at every tp, in every CPU class and dtype, and with serve_bits.py.
. "$(dirname "$0")/../lib/serve_lib.bash"
# NAME DTYPE [RESHARD OPTION…]: two models, in the serve format and as Hugging Face folders
made() {
    local name seed=1
    for name in "$1" "other-$1"; do
        trained "$name" --steps 2 --dtype "$2" --seed $((seed++))
        run reshard "$TMP/$name/step-2" "$TMP/$name.serve" --format serve "${@:3}"
        claim "$name in the serve format" [ $rc = 0 ]
        run reshard "$TMP/$name/step-2" "$TMP/$name.hf" --format hf
        claim "$name as a Hugging Face folder" [ $rc = 0 ]
    done
}
for dtype in fp32 ${SERVE_MAP:+bf16}; do
    made "$dtype" "$dtype"
    what=$dtype asked serve_map.py "$TMP" "$dtype" "$dtype"
done
made twelve bf16 --quantize b12
run reshard inspect --json "$TMP/twelve.serve"
claim "packs are in 12 bits" has "$out" '"packs":{"b12"'
what="12 bits" asked serve_map.py "$TMP" twelve bf16 ${SERVE_MAP:-answers}
if [ -n "${SERVE_MAP:-}" ]; then
    head -c 3000 "$TMP/text" >"$TMP/held-out"
    here=$here/../serve
    for dtype in fp32 bf16; do
        run ptrain --eval-only --init "$TMP/$dtype/step-2" --eval-data "$TMP/held-out" --seq-len 64 \
            --eval-logprobs "$TMP/$dtype.jsonl"
        claim "$dtype is evaluated" [ $rc = 0 ]
        what="$dtype, mapped" asked serve_bits.py "$TMP/$dtype.serve" "$TMP/$dtype.jsonl" few
    done
fi
finish
