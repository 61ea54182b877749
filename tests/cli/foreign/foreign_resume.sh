#!/usr/bin/env bash
# quick
# foreign_resume.sh - ptrain goes on from folders of DeepSpeed and PyTorch: the next losses are those of the
# framework that wrote the folder, which are recorded here (foreign_real.py continue FOLDER KIND RANKS
# split|one, torch 2.15, deepspeed 0.19.8), at any layout to the same bits.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../lib/lib.bash"
[ -n "${FIXTURES:-}" ] && [ -d "$FIXTURES/foreign" ] || { skip "FIXTURES is not set"; finish; }
command -v python3 >/dev/null || { skip "no python3 here"; finish; }
fx=$FIXTURES/foreign
cd "$TMP" || exit 1
python3 "$here/foreign_real.py" tokens tokens.u16

# near TOLERANCE A... : the losses of run.jsonl are these
near() { python3 -c 'import json, sys
have = [json.loads(l) for l in open("run.jsonl")]
have = [x["loss"] for x in have if "loss_bits" in x]
want = [float(x) for x in sys.argv[2:]]
bad = max((abs(a - b) for a, b in zip(have, want)), default=9)
print(bad, have) if len(have) != len(want) or bad > float(sys.argv[1]) else None
sys.exit(len(have) != len(want) or bad > float(sys.argv[1]))' "$@"; }
bits() { sed -n 's/.*"loss_bits":"\([0-9a-f]*\)".*/\1/p' run.jsonl | tr '\n' ' '; }

go() {              # go SOURCE STEPS OPTIONS...
    local src=$1 steps=$2
    shift 2
    rm -rf out run.jsonl
    run ptrain --resume "$src" --data tokens.u16 --data-order stride:1 --seq-len 8 --global-batch 30 --steps \
        "$steps" --out out --log run.jsonl "$@"
}

# folder, its step + 3, tolerance (larger where vectors were decayed, which ptrain does not), clipping where
# the folder does not say it (DeepSpeed's do: another value would show), the framework's losses
while read -r name steps tolerance clip losses; do
    [ "$clip" = said ] && clip= || clip="--clip $clip"
    go "$fx/$name/ckpt" "$steps" $clip
    claim "$name is resumed" [ $rc = 0 ] || continue
    claim "$name: the next losses are the framework's" near "$tolerance" $losses
    claim "$name: its learning rate is taken over" has "$err" '"lr":0.00'
    one=$(bits)
    case $name in ds_zero3* | dcp_fsdp2*)
        go "$fx/$name/ckpt" "$steps" $clip --ranks 4 --tp 2 --zero 3
        claim "$name at tp 2, dp 2, zero 3: the same bits" [ "$(bits)" = "$one" ] ;;
    esac
done <<'END'
ds_zero3_w3_fp32 7 2e-5 said 4.373054504394531 4.404886881510417 4.382818222045898
ds_zero2_w2_fp32 7 2e-5 said 4.446420669555664 4.407374382019043 4.327815055847168
dcp_raw_optim_fsdp2_w2 7 2e-5 0 4.444111347198486 4.420238018035889 4.339136123657227
dcp_fsdp2_w2_fp32 7 5e-4 0 4.443634033203125 4.4197845458984375 4.338716506958008
END
# weights alone: log-probs of the reference model (transformers, the live weights)
for name in dcp_fsdp1_w2_fp32 dcp_tp2_fsdp2_fp32 ds_zero1_w3_fp32 ds_zero2_w3_fp32_roundrobin \
    mcore_dist_tp2_pp2_fp32 mcore_legacy_tp1_pp2_fp32_tied; do
    python3 - "$fx/$name/eval.safetensors" eval.u16 want <<'PY'
import json, math, struct, sys
data = open(sys.argv[1], "rb").read()
n = struct.unpack("<Q", data[:8])[0]
head, data = json.loads(data[8:8 + n]), data[8 + n:]
def tensor(k, f, size): b, e = head[k]["data_offsets"]; return struct.unpack(f"<{(e - b) // size}{f}", data[b:e])
(_, t), v = head["input_ids"]["shape"], head["logits"]["shape"][2]
ids, logits = tensor("input_ids", "q", 8)[:t], tensor("logits", "f", 4)
open(sys.argv[2], "wb").write(struct.pack(f"<{t}H", *ids))
out = []
for i in range(t - 1):
    row = logits[i * v:(i + 1) * v]
    out.append(row[ids[i + 1]] - max(row) - math.log(sum(math.exp(x - max(row)) for x in row)))
json.dump(out, open(sys.argv[3], "w"))
PY
    run ptrain --eval-only --init "$fx/$name/ckpt" --eval-data eval.u16 --seq-len 11 --eval-logprobs have
    run python3 -c 'import json
have, want = json.loads(open("have").readline())["logprobs"][1:], json.load(open("want"))
print(have, want)
exit(len(have) != len(want) or max(abs(a - b) for a, b in zip(have, want)) > 2e-5)'
    claim "$name: the log-probs of the reference" [ $rc = 0 ]
done
run ptrain --resume "$fx/dcp_hf_sharded_fsdp2_w2/hf_sharded" --data tokens.u16 --out out2
claim "weights alone are not resumed" [ $rc = 2 -o $rc = 1 ]
claim "and said" has "$err" "--init"
run ptrain --init "$fx/dcp_hf_sharded_fsdp2_w2/hf_sharded" --data tokens.u16 --steps 1 --seq-len 8 --out out3
claim "but begun from" [ $rc = 0 ]
run ptrain --init "$fx/mcore_dist_tp2_pp2_fp32/ckpt" --data tokens.u16 --steps 1 --seq-len 8 --out out4
claim "so are Megatron's" [ $rc = 0 ]
claim "their settings are in a converted checkpoint too" has \
    "$("$BIN/reshard" --tp 2 "$fx/ds_zero3_w3_fp32/ckpt" native 2>&1; grep -o '"lr"' native/manifest.json)" \
        '"lr"'
finish
