#!/usr/bin/env bash
# all
# foreign_real.sh - folders that PyTorch, DeepSpeed and Megatron write here and now, at shapes and degrees of
# their own: the full state is the live objects', bit for bit, also over another layout; ptrain's next losses
# are the framework's. PEER_PYTHON=python that has the libraries; CASES='fsdp2-3 dpresh-2-1-1 …': these.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../lib/lib.bash"
py=${PEER_PYTHON:-python3}
cases=$("$py" "$here/foreign_real.py" list 2>/dev/null)
[ -n "$cases" ] || { skip "$py has no torch: set PEER_PYTHON"; finish; }
export PYTHONDONTWRITEBYTECODE=1
cd "$TMP" || exit 1

check() {           # check CASE: $TMP/CASE is made
    local case=$1
    run reshard --tp 2 --dp 3 --zero 1 "$case/ckpt" "$case/cut"
    claim "$case is written at tp 2, dp 3, zero 1" [ $rc = 0 ] || return
    run reshard "$case/cut" "$case/whole"
    run "$py" "$here/foreign_real.py" compare "$case/ref.safetensors" "$case/whole"
    claim "$case: every tensor is the live one" [ $rc = 0 ]
}

mcore="dpresh-2-1-1 dpresh-1-2-2-bf16 dpresh-2-1-2-buckets dpresh-1-2-1-tied-bf16 full-1-2-2 full-4-1-1-bf16 plain-4-1-1 plain-1-4-1-tied plain-2-1-1-bf16 legacy-4-1-1
legacy-1-2-1-bf16 legacydist-1-2-2 legacydist-4-1-1-bf16 legacydist-1-2-1-tied-bf16 dpresh-2-2-1-tied plain-2-2-1-gpt2 full-2-1-2-gpt2-bf16 dpresh-2-1-3-gpt2 legacy-2-1-1-gpt2-bf16 legacydist-1-1-2-gpt2"
wanted() { [[ -z ${CASES:-} || " $CASES " == *" $1 "* ]]; }

for case in $cases; do
    wanted "$case" || continue
    "$py" "$here/foreign_real.py" "$case" "$TMP/$case" >"$TMP/log" 2>&1 ||
        { skip "this machine cannot make $case: $(grep Error "$TMP/log" | tail -1 | cut -c1-120)"; continue; }
    if [[ $case == *-ser ]]; then       # torch cannot load these either
        run reshard "$case/ckpt" "$case/out"
        claim "$case is refused with the reason" has "$err" SerializationFormat
        continue
    fi
    check "$case"
    case $case in fsdp2-3 | fsdp2-5 | zero3-3 | zero3-5-sub1000)
        run ptrain --resume "$case/ckpt" --data "$case/tokens.u16" --data-order stride:1 --seq-len 8 \
            --global-batch 30 --clip 0 --steps 6 --out "$case/run" --log "$case/log.jsonl"
        claim "$case is resumed" [ $rc = 0 ]
        run python3 -c 'import json, sys
have = [json.loads(l)["loss"] for l in open(sys.argv[1]) if "loss_bits" in l]
want = json.load(open(sys.argv[2]))
print(have, want)
sys.exit(len(have) != len(want) or max(abs(a - b) for a, b in zip(have, want)) > 2e-5)' "$case/log.jsonl" "$case/losses.json"
        claim "$case: the next losses are the framework's" [ $rc = 0 ] ;;
    esac
    rm -rf "${TMP:?}/$case"
done
for case in $("$py" "$here/foreign_titan_llama.py" list 2>/dev/null); do
    wanted "$case" || continue
    mkdir "$case"
    "$py" "$here/foreign_titan_llama.py" "$case" "$TMP/$case" >"$TMP/log" 2>&1 ||
        { skip "this machine cannot make $case"; continue; }
    check "$case"
done
if "$py" -c 'import megatron.core' 2>/dev/null; then
    for case in $mcore; do
        wanted "$case" || continue
        mkdir "$case"
        "$py" "$here/foreign_mcore.py" "$case" "$TMP/$case" >"$TMP/log" 2>&1 ||
            { skip "this machine cannot make $case"; continue; }
        check "$case"
        rm -rf "${TMP:?}/$case"
    done
fi
finish
