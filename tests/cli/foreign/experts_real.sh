#!/usr/bin/env bash
# all
# experts_real.sh - folders with experts that DeepSpeed, Megatron and PyTorch write here and now: the full state is that of the live
# objects, bit for bit, also over another layout, and has the digest of the same model as Hugging Face's files.
# PEER_PYTHON=python that has the libraries; CASES='moe-4-2-2 …': these.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../lib/lib.bash"
py=${PEER_PYTHON:-python3}
deepspeed=$("$py" "$here/foreign_experts.py" list 2>/dev/null | tail -1)
mcore="dpresh-1-1-2-2 dpresh-2-1-2-2 dpresh-1-2-2-2-bf16-shared full-1-1-2-2 full-2-1-2-2-bf16-single-dense-mla full-1-2-4-4-noprefix-shared plain-1-2-2-2-shared plain-2-1-2-2-bf16-mla legacy-2-1-2-2-bf16
legacy-1-2-2-2-mla-dense legacydist-1-2-2-2-bf16 legacydist-2-1-2-4 dpresh-2-1-2-2-etp1-bf16 full-1-2-2-4-etp2 plain-2-1-4-4-etp1 legacydist-4-1-2-4-etp2 legacy-2-1-4-4-etp1
dpresh-2-1-2-2-old-bf16 dpresh-1-1-4-4-old full-2-1-2-2-old-bf16 plain-1-2-2-2-old legacydist-2-1-4-4-etp1-old-bf16 legacy-1-1-2-2-old
legacy-2-1-2-2-mla legacydist-2-1-2-2-mla-dense-bf16 dpresh-2-1-2-2-mla"
"$py" -c 'import megatron.core' 2>/dev/null || mcore=
titan=$("$py" "$here/foreign_titan.py" list 2>/dev/null)
[ -n "$deepspeed$mcore$titan" ] || { skip "$py has neither deepspeed nor megatron-core: set PEER_PYTHON"; finish; }
export PYTHONDONTWRITEBYTECODE=1
cd "$TMP" || exit 1

for case in $deepspeed $mcore $titan; do
    [[ -z ${CASES:-} || " $CASES " == *" $case "* ]] || continue
    mkdir "$case"
    case $case in
    moe-* | auto-*) script=foreign_experts.py ;;
    titan-*) script=foreign_titan.py ;;
    *) script=foreign_mcore_experts.py ;;
    esac
    "$py" "$here/$script" "$case" "$TMP/$case" >"$TMP/log" 2>&1 ||
        { skip "this machine cannot make $case: $(grep Error "$TMP/log" | tail -1 | cut -c1-120)"; continue; }
    run reshard --tp 2 --ep 2 --dp 2 --zero 1 "$case/ckpt" "$case/cut"
    claim "$case is written at tp 2, ep 2, dp 2, zero 1" [ $rc = 0 ] || continue
    run reshard "$case/cut" "$case/whole"
    run "$py" "$here/foreign_real.py" compare "$case/ref.safetensors" "$case/whole"
    claim "$case: every tensor is the live one" [ $rc = 0 ]
    run reshard --format hf "$case/ckpt" "$case/hf"
    run reshard digest "$case/hf"
    want=$(head -1 <<<"$out")
    run reshard digest "$case/ckpt"
    claim "$case has the digest of Hugging Face's form" [ "$(head -1 <<<"$out")" = "$want" ]
    rm -rf "${TMP:?}/$case"
done
finish
