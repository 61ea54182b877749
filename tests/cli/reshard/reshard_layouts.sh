#!/usr/bin/env bash
# quick sanitize
# reshard_layouts.sh - reshard from the command line: layouts and formats and back, the second reader, one
# changed byte, a full disk.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../lib/lib.bash"
cd "$TMP" || exit 1
command -v python3 >/dev/null || { skip "no python3 here"; finish; }

python3 "$here/../lib/reshard_make.py" hf          # a byte model

run reshard digest hf
claim "the digest of a Hugging Face folder is two lines" [ "$rc/$(wc -l <<<"$out")" = 0/2 ]
digest=$out
claim "state_digest is - without optimizer state" has "$digest" "state_digest -"
for layout in "--tp 2" "--tp 8" "--pp 2" "--tp 4 --pp 2 --dp 3 --zero 3" "--dp 4 --zero 3" \
    "--dp 2 --zero 1"; do
    rm -rf n n2 back
    run reshard $layout hf n
    claim "hf to native $layout" [ $rc = 0 ]
    claim "stdout has results only" [ -z "$out" ]
    run reshard digest n
    claim "$layout: the same digest" [ "$out" = "$digest" ]
    run reshard verify n
    claim "$layout: verifies" [ $rc = 0 ]
    run python3 "$here/../../native_reader.py" n
    claim "$layout: a reader made from FORMAT.md finds the same digests" [ "$out" = "$digest" ]
    run reshard --tp 2 --dp 3 --zero 3 n n2
    run reshard --format=hf n2 back
    claim "$layout: back to hf" [ $rc = 0 ]
    run reshard diff hf back
    claim "$layout: no tensor differs" [ "$rc$out" = 0 ]
    cp -r n again
    rm -rf n
    run reshard $layout back n
    # back has a byte tokenizer, hf had none
    rm n/generation_config.json n/tokenizer*.json n/manifest.json again/manifest.json
    claim "$layout: the same bytes again" diff -r n again
    rm -rf again
done
claim "a byte model gets a tokenizer" [ -s back/tokenizer.json ]
claim "config.json is carried as it was" cmp -s hf/config.json back/config.json

# ---- what cannot be cut, and what can ----
while IFS='|' read -r options says; do
    run reshard $options hf x
    claim "$options is refused" [ $rc = 2 ]
    claim "$options: with the reason" has "$err" "$says"
    claim "$options: nothing appears" [ ! -e x ]
done <<'TABLE'
--tp 3|--tp 3 does not divide the 8 attention heads: use a divisor of 8
--tp 16|--tp 16 does not divide the 8 attention heads
--pp 3|--pp 3 stages for 2 layers
--ep 2|--ep
TABLE
rm -rf u
python3 "$here/../lib/reshard_make.py" u hidden_size=24 num_attention_heads=6 num_key_value_heads=3 \
    intermediate_size=37 vocab_size=101 num_hidden_layers=3
for layout in "--tp 3" "--tp 6" "--tp 2 --pp 2" "--dp 7 --zero 3" "--tp 3 --pp 3 --dp 5 --zero 2"; do
    rm -rf x back
    run reshard $layout u x
    [ "$layout" = "--tp 2 --pp 2" ] &&
        { claim "3 kv heads over tp 2 are refused" has "$err" "3 kv heads"; continue; }
    run reshard --format hf x back
    run reshard diff u back
    claim "$layout of sizes that nothing divides: no tensor differs" [ "$rc$out" = 0 ]
done
rm -rf x back

# ---- dtypes ----
run reshard --dtype bf16 --tp 2 hf b
run reshard --dtype fp32 b f
run reshard --dtype bf16 f b2
run reshard digest b && b=$out && run reshard digest b2
claim "bf16 to fp32 to bf16 keeps the digest" [ "$out" = "$b" ]
run reshard diff hf f
claim "fp32 to bf16 is a difference" [ $rc = 1 ]
claim "that diff measures" has "$out" "lm_head.weight: "
run reshard inspect b
claim "inspect says the dtype" has "$out" "weight       BF16         21"
ln -s b $'odd\xff'                # a name that is no UTF-8, as JSON must be
run reshard inspect --json $'odd\xff'
claim "a path that is no UTF-8 is shown as far as it goes" [ $rc = 0 ] &&
    claim "with all the rest" has "$out" '{"path":"odd?","format":"native"'
run reshard diff --json b $'odd\xff'
claim "likewise by diff" has "$out" '"b":"odd?","equal":true'
run reshard inspect --json b
claim "and JSON on request" has "$out" '"layout":{"tp":2'
run reshard inspect --stats b
claim "statistics of every tensor" [ "$(grep -c ' BF16 .* 0        0$' <<<"$out")" = 21 ]
python3 - <<'PY'
import json, subprocess, os
def ask(*words):
    return json.loads(subprocess.run([os.environ["BIN"] + "/reshard", *words], stdout=subprocess.PIPE).stdout)
s = ask("inspect", "--stats", "--json", "b")["tensors"][0]["stats"]
assert -0.5 <= s["min"] < s["mean"] < s["max"] <= 0.5 and s["nan"] == s["inf"] == 0, s
d = ask("diff", "--json", "hf", "f")
assert not d["equal"] and len(d["tensors"]) == 21 and 0 < d["tensors"][0]["largest"]["difference"] < 0.01, d
assert ask("diff", "--json", "f", "f")["equal"]
assert len(ask("digest", "--json", "--tensors", "b")["tensors"]) == 21 and ask("digest", "--json", "b")["state_digest"] is None
assert ask("plan", "--json", "--tp", "8", "hf")["tensors"] == 21
PY
claim "inspect, diff, digest and plan answer in JSON too" [ $? = 0 ]
run reshard plan --tp 8 hf
claim "plan says the pieces" has "$out" "pieces"
claim "and writes nothing" [ ! -e plan ]

# ---- damage ----
rm -rf n && run reshard --tp 2 hf n
for f in n/*; do
    cp "$f" save
    python3 - "$f" <<'PY'
import sys
d = bytearray(open(sys.argv[1], "rb").read())
d[len(d) * 2 // 3] ^= 1
open(sys.argv[1], "wb").write(d)
PY
    run reshard verify n
    claim "one changed bit in $f fails verify" [ $rc = 1 ]
    claim "and the file is named" has "$err" "${f##*/}"
    run reshard n x
    claim "and reshard" [ $rc = 1 ]
    claim "and leaves nothing" [ ! -e x ]
    run python3 "$here/../../native_reader.py" n
    claim "and the second reader" [ $rc = 1 ]
    rm "$f"
    run reshard digest n
    claim "$f missing fails" [ $rc = 1 ]
    mv save "$f"
done
claim "no temporary folder is left" [ -z "$(ls -d ./*.tmp-* 2>/dev/null)" ]
SHARDLINE_IO_FAULT=write:9:ENOSPC run reshard n x
claim "a full disk is said" has "$err" "No space left"
claim "and leaves nothing" [ -z "$(ls -d x* 2>/dev/null)" ]

# ---- the reference checkpoints ----
if [ -n "${FIXTURES:-}" ]; then
    rm -rf n && run reshard "$FIXTURES/hf/hf/gpt2-f32/model" n
    python3 - "$FIXTURES/hf/hf/gpt2-f32/model" n <<'PY'
import json, struct, sys
def tensors(path):
    b = open(path, "rb").read()
    n = struct.unpack("<Q", b[:8])[0]
    h = json.loads(b[8:8 + n])
    return {k: (v["shape"], b[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]]) for k, v in h.items() if k != "__metadata__"}
sys.exit(tensors(sys.argv[1] + "/model.safetensors") != tensors(sys.argv[2] + "/weights-00000.safetensors"))
PY
    rc=$?
    claim "on one rank q, k and v stay one tensor, whole, in its logical shape" [ $rc = 0 ]
    cp -r "$FIXTURES/foreign/plain/hf_fp32_safetensors" cooked && chmod -R u+w cooked
    cp "$FIXTURES/foreign/bad/hf_config_mismatch/files/config.json" cooked/
    run reshard cooked x
    claim "a config of another model is refused" has "$err" "config.json says"
    cp -r "$FIXTURES/hf/hf/gemma2-f32/model" other && chmod -R u+w other
    sed -i 's/"model_type": *"gemma2"/"model_type": "other"/' other/config.json
    rm -rf n back
    run reshard other n
    claim "a family that nobody knows is carried whole" [ $rc = 0 ]
    claim "and that is said" has "$err" "carried whole"
    run reshard --format hf n back
    run reshard diff other back
    claim "it comes back" [ "$rc$out" = 0 ]
    run reshard --tp 2 other x
    claim "it cannot be cut" [ $rc = 2 ]
    claim "and why" has "$err" "model_type other is not known yet"
else
    skip "FIXTURES is not set"
fi
finish
