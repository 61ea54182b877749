#!/usr/bin/env bash
# quick
# serve_speculate.sh - answers with --speculate are those without: see serve_speculate.py. SERVE_SPECULATE=all:
# more layouts, bf16, and a mixture of experts.
. "$(dirname "$0")/../lib/serve_lib.bash"

# speculated NAME PART TRAINING...: trains a model; a copy of it has a token whose embedding is NaN
speculated() {
    local name=$1 part=$2
    shift 2
    trained "$name" --steps 40 --save-every 20 "$@"
    run reshard --format hf "$TMP/$name/step-40" "$TMP/$name-nan"
    claim "and becomes a Hugging Face folder" [ $rc = 0 ] || finish
    "$python" - "$TMP/$name-nan/model.safetensors" <<'END'
import json, struct, sys
with open(sys.argv[1], "r+b") as f:
    n = struct.unpack("<Q", f.read(8))[0]
    at = json.loads(f.read(n))["model.embed_tokens.weight"]
    width = (at["data_offsets"][1] - at["data_offsets"][0]) // at["shape"][0]
    f.seek(8 + n + at["data_offsets"][0] + 250 * width)
    f.write(b"\xff" * width)
END
    what=$name asked serve_speculate.py "$TMP/$name/step-40" "$TMP/$name/step-20" \
        "$TMP/$name-nan" "$part"
}

speculated fp32 "${SERVE_SPECULATE:-few}"
if [ "${SERVE_SPECULATE:-}" = all ]; then
    speculated bf16 usual --dtype bf16
    speculated experts experts --model tiny-moe
fi

run pserve "$TMP/fp32/step-40" --speculate ngram:99
claim "too many tokens ahead are refused" [ $rc = 2 -a "$(wc -l <"$TMP/.err")" = 1 ]
claim "with the number and the limit" has "$err" "99 tokens ahead, must be 1 to 16"
run pserve "$TMP/fp32/step-40" --speculate ngram --tp 2 --speculate-tp 2
claim "a tp of a draft model needs one" [ $rc = 2 -a "$(wc -l <"$TMP/.err")" = 1 ]
claim "and says so" has "$err" "divides a draft model, and --speculate names none"
run pserve "$TMP/fp32/step-40" --speculate "$TMP/fp32/step-20" --tp 2 --speculate-tp 4
claim "one that does not divide the ranks is refused with both numbers" has "$err" "--speculate-tp 4 does not divide the 2 ranks"
run pserve "$TMP/fp32/step-40" --speculate "$TMP/none"
claim "a draft model that is not there is one line" [ $rc != 0 -a "$(wc -l <"$TMP/.err")" = 1 ]
echo '{"model":{"type":"BPE","vocab":{"a":0},"merges":[]},"added_tokens":[]}' >"$TMP/fp32-nan/tokenizer.json"
run pserve "$TMP/fp32/step-40" --speculate "$TMP/fp32-nan"
claim "one of other tokens is refused" [ $rc = 2 -a "$(wc -l <"$TMP/.err")" = 1 ]
claim "with both digests" has "$err" "that of the model is bytes: give a model of the same tokenizer"
finish
