#!/usr/bin/env bash
# quick
# experts_overlap.sh - rows that travel between the ranks of an expert group (--ep) are under way while the
# shared expert and gradients of experts are computed: a trace shows it, --overlap off ends it, and both have
# the bits of one rank. EXPERTS_OVERLAP=all: more families, layouts, both dtypes.
. "$(dirname "$0")/../lib/train_lib.bash"
command -v python3 >/dev/null || { skip "no python3"; finish; }
text 4 60000 >"$TMP/text"

# under_way TRACE: the kernels that rank 0 ran between the start of an exchange of rows and its end
under_way() {
    python3 - "$1" <<'PY'
import json, sys
events = [e for e in json.load(open(sys.argv[1]))["traceEvents"] if e.get("ph") == "X" and e["pid"] == 0 and e["tid"] == 0]
n, kernels = 0, set()
for e in sorted(events, key=lambda e: e["ts"]):
    of_experts = e.get("args", {}).get("group") == "group" and e["args"]["ranks"] == 2
    n += of_experts and e["name"] == "start"
    n -= of_experts and e["name"] == "all_to_all"
    if n and e["cat"] == "kernel":
        kernels.add(e["name"])
print(" ".join(sorted(kernels)))
PY
}
# model NAME ARGS...: a small model of the family, trained by one rank
model() {
    family "$TMP/model.json" "$1"
    common=(--data "$TMP/text" --model "$TMP/model.json" --steps 2 --seq-len 63 --global-batch 8 --threads 1 \
        "${@:2}")
    reference
}
both() { same "overlapped: $1" "${@:2}" --overlap on; same "not overlapped: $1" "${@:2}" --overlap off; }

model qwen2_moe
same "a shared expert with a gate, an expert group of tp ranks" --tp 2 --ep 2 --overlap on --trace \
    "$TMP/on.trace"
seen=" $(under_way "$TMP/on.trace") "
for kernel in linear swiglu linear_dx linear_dw linear_dw_experts; do
    claim "$kernel runs while rows travel" has "$seen" " $kernel "
done
same "the same, not overlapped" --tp 2 --ep 2 --overlap off --trace "$TMP/off.trace"
claim "--overlap off: nothing runs while rows travel" [ "$(under_way "$TMP/off.trace")" = "" ]
model deepseek_v3 --dtype bf16
both "shared experts in bf16, ZeRO-2" --ep 4 --ranks 4 --zero 2 --micro-batch 1
[ "${EXPERTS_OVERLAP:-sample}" = all ] || finish

for name in qwen2_moe deepseek_v3 mixtral gpt_oss; do
    for dtype in fp32 bf16; do
        model $name --dtype $dtype
        both "$name $dtype, ZeRO-3" --ep 2 --ranks 4 --zero 3 --micro-batch 2
        both "$name $dtype, layers computed again" --ep 4 --ranks 4 --recompute full --threads 2
        both "$name $dtype, late weight gradients" --pp 2 --ep 2 --ranks 4 --schedule zero-bubble \
            --micro-batch 2
        both "$name $dtype, rounds" --ep 4 --ranks 4 --zero 1 --expert-buffer 0.1
        common[7]=64
        reference
        both "$name $dtype, shares of every sequence" --tp 2 --sp --ep 4 --ranks 4 --zero 2
        both "$name $dtype, shares of every sequence, rounds, late weight gradients" --tp 2 --sp --ep 2 --pp \
            2 --ranks 4 --schedule zero-bubble --micro-batch 4 --expert-buffer 0.1
        SHARDLINE_TRANSPORT=mpi both "$name $dtype, messages" --tp 2 --ep 4 --ranks 4 --zero 3
        both "$name $dtype, two machines" --ranks 4 --ranks-per-node 2 --ep 4 --zero 1
    done
done
finish
