#!/usr/bin/env bash
# quick
# foreign_fixtures.sh - checkpoints that PyTorch, DeepSpeed and Megatron wrote, through reshard: to other
# layouts and back to the same digests; broken and hostile ones: a status that is not 0, one line on stderr,
# nothing written, nothing run.
. "$(dirname "$0")/../lib/lib.bash"
[ -n "${FIXTURES:-}" ] && [ -d "$FIXTURES/foreign" ] || { skip "FIXTURES is not set"; finish; }
fx=$FIXTURES/foreign

convert() {                 # convert SRC OPTIONS...: the target has the source's digests
    local src=$1 want
    shift
    rm -rf "$TMP/out"
    run reshard digest "$src"
    want=$out
    run reshard "$@" "$src" "$TMP/out"
    claim "${src#"$fx"/} is written with $*" [ $rc = 0 ]
    run reshard digest "$TMP/out"
    claim "${src#"$fx"/} with $* has the digests of its source" [ "$out" = "$want" -a $rc = 0 ]
}
for src in "$fx"/{dcp_fsdp,dcp_raw,dcp_tp2,ds_zero,mcore}*/ckpt "$fx"/ds_zero{1,3}_w2*/universal; do
    convert "$src" --tp 2
done
convert "$fx/ds_zero3_w3_fp32/ckpt" --tp 2 --pp 2 --dp 2 --zero 3
convert "$fx/dcp_tp2_fsdp2_fp32/ckpt" --dp 3 --zero 1
convert "$fx/mcore_dist_tp2_dp2_bf16_dpresh/ckpt" --pp 4
convert "$fx/dcp_hf_sharded_fsdp2_w2/hf_sharded" --tp 2
convert "$fx/plain/hf_fp32_bin" --tp 2
convert "$fx/plain/llama2l_fp32_legacy.bin" --tp 2 --config "$fx/plain/llama2l_fp32.config.json"

# the same run saved in different ways is the same state
same() { [ "$("$BIN/reshard" digest "$1" 2>&1)" = "$("$BIN/reshard" digest "$2" 2>&1)" ]; }
claim "ZeRO-3 and its universal form are the same state" same "$fx/ds_zero3_w2_bf16/ckpt" \
    "$fx/ds_zero3_w2_bf16/universal"
claim "three ways of Megatron to save one run are the same state" same \
    "$fx/mcore_dist_tp2_dp2_bf16_dpresh/ckpt" "$fx/mcore_legacy_tp2_dp2_bf16_distopt/ckpt"
claim "three ways of Megatron to save one run are the same state" same \
    "$fx/mcore_dist_tp2_dp2_bf16_dpresh/ckpt" "$fx/mcore_dist_tp2_dp2_bf16_fullyresh/ckpt"
claim "FSDP1 and FSDP2 trained the same" same "$fx/dcp_fsdp1_w2_fp32/ckpt" "$fx/dcp_fsdp2_w2_fp32/ckpt"

run reshard inspect "$fx/mcore_legacy_tp2_pp2_bf16/ckpt"
claim "inspect says what wrote it" has "$out" megatron-legacy
claim "and at which degrees" has "$out" "tp 2, pp 2"
claim "and the step" has "$out" "step 10"
run reshard inspect "$fx/dcp_hf_sharded_fsdp2_w2/hf_sharded"
claim "inspect says that there is no optimizer state" has "$out" "none (weights only)"

accept=" traversal_record.pt "
for file in "$fx"/bad/*.pt; do
    rm -rf "$TMP/out"
    run reshard "$file" "$TMP/out"
    if [[ $accept == *" $(basename "$file") "* ]]; then
        claim "$(basename "$file") is read" [ $rc = 0 ]
    else
        claim "$(basename "$file") is refused" [ $rc = 1 -o $rc = 2 ]
        claim "$(basename "$file"): one line" [ "$(wc -l <"$TMP/.err")" = 1 ]
        claim "$(basename "$file"): nothing appears" [ ! -e "$TMP/out" ]
    fi
done
if command -v python3 >/dev/null; then
    for dir in "$fx"/bad/{ds,dcp,mg}_*/; do
        name=$(basename "$dir")
        rm -rf "$TMP/out" "$TMP/case"
        python3 - "$fx" "$name" "$TMP/case" <<'PY'
import json, os, shutil, sys
fx, name, to = sys.argv[1:]
r = json.load(open(f"{fx}/bad/{name}/recipe.json"))
shutil.copytree(f"{fx}/{r['base']}", to)
for d, _, files in os.walk(to):
    os.chmod(d, 0o755)
    for f in files: os.chmod(f"{d}/{f}", 0o644)
for f in r["delete"]: os.unlink(f"{to}/{f}")
for dst, src in r["copy"].items(): shutil.copyfile(f"{to}/{src}", f"{to}/{dst}")
for f, n in r["truncate"].items(): os.truncate(f"{to}/{f}", n)
if r["overlay"]: shutil.copytree(f"{fx}/bad/{name}/{r['overlay']}", to, dirs_exist_ok=True, copy_function=shutil.copyfile)
PY
        run reshard --tp 2 "$TMP/case/ckpt" "$TMP/out"
        if [ "$name" = ds_nan ]; then
            claim "$name keeps its bits" [ $rc = 0 ]
            continue
        fi
        claim "$name is refused" [ $rc = 1 -o $rc = 2 ]
        claim "$name: one line" [ "$(wc -l <"$TMP/.err")" = 1 ]
        claim "$name: nothing appears" [ ! -e "$TMP/out" ]
    done
fi
claim "no pickle was run" [ -z "$(ls /tmp/FX_PWNED_* 2>/dev/null)" ]
finish
