#!/usr/bin/env bash
# quick sanitize
# reshard_quant.sh - checkpoints of every quantised format go through tp, pp, ep and ZeRO and come back byte for
# byte, with their quantization_config; what does not fit is named, what is not known is carried.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../lib/lib.bash"
cd "$TMP" || exit 1
python=${PYTHON:-python3}
command -v "$python" >/dev/null || { skip "no python3"; finish; }
make() { "$python" -B "$here/../lib/quant_make.py" "$@"; }

# QUANT_SEEDS, QUANT_LAYOUTS and QUANT_SCHEMES: reshard_quant_all.sh has more of them
few="fp8-block fp8-experts fp8-tensor int4-pack mxfp4 gptq gptq-3bit awq unknown"
read -ra layouts <<<"${QUANT_LAYOUTS:-tp=4 tp=2,pp=2,dp=2,zero=3 dp=2,ep=2}"
for seed in ${QUANT_SEEDS:-7}; do
    # shellcheck disable=SC2086
    make "$seed" "$seed" ${QUANT_SCHEMES-$few} >names
    : >pairs
    while read -r scheme; do
        src=$seed/$scheme
        run reshard digest "$src"
        digest=$out
        for layout in "${layouts[@]}"; do
            case $layout in *ep=*) grep -q _experts "$src/config.json" || continue ;; esac
            # shellcheck disable=SC2046
            run reshard --$(sed 's/=/ /g; s/,/ --/g' <<<"$layout") "$src" "$src.cut"
            claim "$src: $layout" [ $rc = 0 ] || continue
            [ "$scheme" = unknown ] || claim "$src: $layout: every tensor is in a row" [ "${err/in no row/}" = "$err" ]
            run reshard digest "$src.cut"
            claim "$src: $layout: one digest" [ "$out" = "$digest" ]
            run reshard --format hf "$src.cut" "$src.$layout"
            echo "$src $src.$layout" >>pairs
            rm -r "$src.cut"
        done
    done <names
    claim "seed $seed: joined again, every byte is the source's" make same_all pairs
    [ "$seed" = 7 ] || rm -r "$seed"
done
[ "${QUANT_SEEDS:-7}" = 7 ] || finish

run reshard verify 7/gptq
claim "verify reads a quantised file" [ $rc = 0 ]
run reshard 7/unknown carried
claim "an unknown quant_method is carried" [ $rc = 0 ]
claim "and named" has "$err" "quant_method novel is not known"
run timeout 20 "$BIN"/ptrain --init 7/gptq --data names --steps 1 --out trained
claim "training it is refused, with what to do" [ $rc != 0 -a "${err/reshard with --dequantize bf16/}" != "$err" ]
run reshard --tp 3 7/awq refused
claim "tp that the heads refuse stays refused" [ $rc = 2 ]

# one scale too few, or a truncated block: named with both shapes; a plain copy carries it all the same
damage() { make damage 7/"$1" "$2" "$3"; }
damage fp8-block bad1 'model.layers.0.mlp.up_proj.weight_scale_inv rows'
run reshard --tp 2 bad1 refused
claim "scales of the wrong shape" has "$err" "up_proj.weight_scale_inv: is ["
claim "with what is needed" has "$err" "in blocks of 16 x 16"
run reshard bad1 bad1.copy
claim "are carried by a plain copy" [ $rc = 0 ]
claim "which says so" has "$err" "carried unchecked"
damage mxfp4 bad2 'model.layers.1.mlp.experts.down_proj_blocks last'
run reshard --tp 2 bad2 refused
claim "truncated blocks" has "$err" "need blocks of 16 bytes"
damage gptq bad3 'model.layers.0.self_attn.o_proj.qzeros columns'
run reshard --tp 2 bad3 refused
claim "zero points of the wrong shape" has "$err" "o_proj.qzeros: is ["
damage int4-pack bad4 'model.layers.0.mlp.experts.3.up_proj.weight_scale gone'
run reshard --tp 2 bad4 refused
claim "codes without scales" has "$err" "up_proj.weight_packed: has no scales beside it"
claim "nothing appears" [ ! -e refused ]

# experts fused with their scales, and the names in modules_to_not_convert
make experts each fused mixed
run reshard digest each
digest=$out
run reshard digest fused
claim "fused FP8 experts have the digest of those by themselves" [ "$out" = "$digest" ]
run reshard --format hf --experts fused each fused.ours
run reshard --format hf fused each.ours
printf 'fused fused.ours\neach each.ours\n' >pairs
claim "both ways, byte for byte, names in lists included" make same_all pairs
run reshard --tp 4 fused cut
claim "fused FP8 experts are cut" [ $rc = 0 ]
run reshard --format hf --experts fused mixed refused
claim "blocks that would hold gate and up rows are refused" has "$err" "one scale would be of gate and up rows"
run reshard --format hf --experts fused 7/int4-pack refused
claim "packed experts have no fused form" has "$err" "is part of a quantised weight"
run reshard --dtype fp32 7/fp8-block wide
run reshard inspect --json wide
claim "--dtype leaves scales and codes as they are" [ $rc = 0 ]
finish
