#!/usr/bin/env bash
# all
# hf_transformers.sh - what we write is what transformers reads: its logits from our folders are the
# reference's, and from a model trained here the trainer's own log-probabilities. Of fused experts both are
# read: what we write by transformers, what transformers writes by us. Needs a python ($PYTHON, else python3)
# with torch, transformers and numpy; $FIXTURES.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../lib/lib.bash"
python=${PYTHON:-python3}
"$python" -c 'import torch, transformers, numpy' 2>/dev/null ||
    { skip "no torch and transformers here"; finish; }
cd "$TMP" || exit 1
export HF_HUB_OFFLINE=1 HF_HOME=$TMP/hub TRANSFORMERS_VERBOSITY=error OMP_NUM_THREADS=1

cat >logits.py <<'PY'
"""One line a folder: ok, or what is wrong. Arguments: FOLDER FIXTURE …, where FIXTURE is a folder of reference numbers; or FOLDER LINES TEXT: our
log-probabilities of windows of TEXT."""
import json, sys
import numpy, torch, transformers
torch.set_num_threads(1)
def load(folder):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    for k in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not info[k], "%s: %s" % (k, sorted(info[k])[:3])
    return model.eval()
def logits(model, ids):
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float()
def against_reference(folder, ref):
    f, model, worst = json.load(open(ref + "/fixture.json")), load(folder), 0.0
    want = numpy.fromfile(ref + "/logits.f32", "<f4").reshape(-1, f["vocab_size"])
    for p in f["prompts"]:
        (a, b), (lo, hi) = p["logits_rows"], p["logits_positions"]
        worst = max(worst, float(numpy.abs(logits(model, p["ids"]).numpy()[lo:hi] - want[a:b]).max()))
    assert worst < 1e-4, "logits differ by %g" % worst
    if folder.endswith("-fused"):
        model.save_pretrained(folder + "-theirs", save_original_format=False)
def against_trainer(folder, lines, text):
    model, worst, n = load(folder), 0.0, 0
    tokens = transformers.AutoTokenizer.from_pretrained(folder)
    for line in open(lines):
        w = json.loads(line)
        lp = torch.log_softmax(logits(model, w["ids"]).double(), -1)
        for i in range(1, len(w["ids"])):
            worst, n = max(worst, abs(float(lp[i - 1, w["ids"][i]]) - w["logprobs"][i])), n + 1
    assert n > 50, "only %d log-probabilities" % n
    assert worst < 1e-4, "log-probabilities differ by %g" % worst
    some = "caf\u00e9 \u4e2d\n" + open(text).read(40)
    assert tokens.encode(some) == list(some.encode()), "the tokenizer does not give bytes"
    assert tokens.decode(list(some.encode())) == some
args = sys.argv[1:]
while args:
    try:
        if args[1].endswith(".jsonl"):
            args, (folder, lines, text) = args[3:], args[:3]
            against_trainer(folder, lines, text)
        else:
            args, (folder, ref) = args[2:], args[:2]
            against_reference(folder, ref)
        print(folder, "ok")
    except Exception as e:
        print(folder, type(e).__name__, e)
PY

args=() names=()
for dir in "${FIXTURES:-}"/hf/hf/*/ "${FIXTURES:-}"/experts/hf/*/; do
    [ -d "$dir/model" ] || continue
    m=$(basename "$dir")
    case $m in mixtral* | qwen2moe* | qwen3moe* | deepseek*)
        run reshard --format hf --experts fused "$dir/model" "$m-fused"
        claim "$m is written with fused experts" [ $rc = 0 ]
        args+=("$m-fused" "$dir/ref") names+=("$m-fused") ;;
    esac
    run reshard --tp 4 "$dir/model" "$m-4"
    run reshard --format hf --shard-size 300kB "$m-4" "$m"
    claim "$m is written" [ $rc = 0 ]
    claim "$m: in several files with an index" [ -e "$m/model.safetensors.index.json" ]
    args+=("$m" "$dir/ref") names+=("$m")
done
[ ${#names[@]} -gt 0 ] || skip "FIXTURES is not set"
for i in $(seq 300); do echo "line $i: $((i * i)) is the square of $i"; done >text
for how in "--dtype fp32" "--dtype bf16"; do
    m=trained-${how#--dtype }
    run ptrain --data text --ranks 2 --tp 2 $how --out "$m-run" --steps 6 --seq-len 64 --global-batch 8 --lr \
        1e-3
    run reshard --format hf --dtype fp32 "$m-run/step-6" "$m"
    run ptrain --init "$m" --eval-only --eval-data text --seq-len 64 --global-batch 8 --eval-logprobs \
        "$m.jsonl"
    claim "$m: evaluated" [ $rc = 0 ]
    head -4 "$m.jsonl" >few && mv few "$m.jsonl"
    args+=("$m" "$m.jsonl" text) names+=("$m")
done
"$python" logits.py "${args[@]}" >said 2>python.err || cat python.err
for m in "${names[@]}"; do
    claim "transformers reads $m to the same numbers: $(grep "^$m " said)" grep -q "^$m ok$" said
    [[ $m = *-fused ]] || continue
    claim "$m: transformers writes fused experts, too" grep -q "experts.gate_up_proj" \
        "$m-theirs"/*.safetensors
    claim "$m: and they have our digest" [ "$("$BIN/reshard" digest "$m-theirs")" = \
        "$("$BIN/reshard" digest "$m")" ]
done
finish
