#!/usr/bin/env bash
# quick
# resume.sh - a run that stops half way and goes on elsewhere, resharded or not, ends in the same state as one
# that never stopped.
. "$(dirname "$0")/../lib/train_lib.bash"
text 2 40000 >"$TMP/text"
config "$TMP/model.json"

for dtype in fp32 bf16; do
    common=(--data "$TMP/text" --model "$TMP/model.json" --steps 8 --seq-len 31 --global-batch 8 --lr 0.01 \
        --warmup 2 --dtype $dtype)
    reference
    train half --tp 2 --ranks 4 --zero 3 --stop-after 4
    claim "$dtype: stopped at step 4" [ -d "$TMP/half/step-4" ]
    cp "$TMP/half.jsonl" "$TMP/before.jsonl"
    common=(--data "$TMP/text" --threads 1)

    resume() {              # resume WHAT CKPT ARGS...
        local what=$1 ckpt=$2
        shift 2
        cp "$TMP/before.jsonl" "$TMP/on.jsonl"
        rm -rf "$TMP/on"
        run timeout -k 10 200 "$BIN/ptrain" "${common[@]}" --resume "$ckpt" --out "$TMP/on" --log \
            "$TMP/on.jsonl" "$@"
        claim "$dtype: $what: ends well" [ $rc = 0 ]
        claim "$dtype: $what: the same final state" [ "$(state_of "$out")" = "$ref_state" ]
        claim "$dtype: $what: the log has every step once, with the reference's bits" [ \
            "$(bits_of "$TMP/on.jsonl")" = "$ref_bits" ]
    }
    resume "tp 2 dp 2 zero 3 -> one rank" "$TMP/half/step-4"
    resume "-> tp 8" "$TMP/half/step-4" --tp 8
    resume "-> dp 4 zero 1" "$TMP/half/step-4" --ranks 4 --zero 1 --micro-batch 1
    run reshard --tp 4 "$TMP/half/step-4" "$TMP/half/moved"
    claim "$dtype: the stopped run reshards to tp 4" [ $rc = 0 ]
    resume "resharded to tp 4 -> dp 2 zero 2" "$TMP/half/moved" --ranks 2 --zero 2
    run "$BIN/ptrain" "${common[@]}" --resume auto --out "$TMP/half" --tp 4
    claim "$dtype: --resume auto finds step 4" has "$err" "half/step-4 at step 4"
    claim "$dtype: --resume auto ends in the same state" [ "$(state_of "$out")" = "$ref_state" ]
done

# the checkpoint of a state is the same bytes wherever it was trained, when the layout is the same
common=(--data "$TMP/text" --model "$TMP/model.json" --steps 2 --seq-len 31 --global-batch 4)
train one --tp 2
mv "$TMP/one/step-2" "$TMP/first"
train one --tp 2 --threads 2 --micro-batch 1
claim "the same state and layout give the same bytes" diff -r "$TMP/first" "$TMP/one/step-2"
claim "a run's numbers do not depend on what resuming would need" [ "$rc" = 0 ]

# tables that follow from the config, which older folders carry, are no part of the model
here=$(dirname "$0")
if command -v python3 >/dev/null; then
    common=(--data "$TMP/text" --steps 1 --seq-len 16 --global-batch 2 --threads 1)
    python3 -B "$here/../lib/reshard_make.py" "$TMP/plain"
    python3 -B "$here/../lib/reshard_make.py" "$TMP/tables" derived=1
    train plain-run --init "$TMP/plain"
    plain=$state
    train tables-run --init "$TMP/tables"
    claim "weights with rotary tables beside them give the state of those without" [ "$state" = \
        "${plain:-none}" ]
    sed -i 's/"tie_word_embeddings": false/"tie_word_embeddings": true, "attention_dropout": 0.1/' \
        "$TMP/plain/config.json"
    train untied --init "$TMP/plain"
    claim "a head beside the embedding that it is tied to, and another one, is refused" has "$err" \
        "set tie_word_embeddings to false"
    run pserve "$TMP/plain" --once x
    claim "by pserve too" has "$err" "set tie_word_embeddings to false"
    train dropout --model "$TMP/plain/config.json"
    claim "dropout that is not applied is said" has "$err" "dropout of up to 0.1: none is applied"
else
    skip "no python3 to make a folder with rotary tables"
fi

# ---- what a run that died left: its folder goes at the next start, one that a process still works on stays;
# the log is cut beside itself ----
common=(--data "$TMP/text" --model "$TMP/model.json" --seq-len 31 --global-batch 4 --threads 1)
train left --steps 4 --save-every 2
cp "$TMP/left.jsonl" "$TMP/true.jsonl"
rm -rf "$TMP/left/step-4"
mkdir "$TMP/left/step-7.tmp-save" "$TMP/left/step-9.tmp-save" "$TMP/left/mine.tmp-save"
echo part >"$TMP/left/step-7.tmp-save/weights-00000.safetensors"
touch "$TMP/left/step-7.tmp-save/.shardline-tmp" "$TMP/left/step-9.tmp-save/.shardline-tmp"
echo "half a line" >"$TMP/left.jsonl.tmp-cut"
ln -s left.jsonl "$TMP/link.jsonl"
flock -F "$TMP/left/step-9.tmp-save/.shardline-tmp" sleep 30 &
holder=$!
sleep 0.2
run "$BIN/ptrain" "${common[@]}" --steps 4 --out "$TMP/left" --resume auto --log "$TMP/link.jsonl"
kill $holder
claim "what a run that died left is removed, and said" has "$err" \
    "left/step-7.tmp-save, left by an interrupted process, is removed"
claim "a folder that is locked, and one that is no save, stay" [ "$(cd "$TMP/left" && echo *)" = \
    "mine.tmp-save step-2 step-4 step-9.tmp-save" ]
claim "the log that a link leads to is cut, and goes on" [ "$rc/$(bits_of "$TMP/left.jsonl")" = \
    "0/$(bits_of "$TMP/true.jsonl")" ]
claim "the link is one still, and nothing lies beside it" eval \
    '[ -L "$TMP/link.jsonl" ] && [ ! -e "$TMP/left.jsonl.tmp-cut" ]'

# ---- a tokenizer travels with the checkpoint: the folder that it came from may be gone, and is not named
# ----
if command -v python3 >/dev/null; then
    mkdir -p "$TMP/words"
    python3 - "$TMP/words/tokenizer.json" <<'EOF'
import json, sys
vocab = {chr(c): i for i, c in enumerate([*range(33, 127), 0x120, 0x10a])}
json.dump({"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
           "post_processor": None, "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
           "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                     "vocab": vocab, "merges": []}}, open(sys.argv[1], "w"))
EOF
    common=(--data "$TMP/text" --model "$TMP/model.json" --seq-len 31 --global-batch 4 --threads 1 \
        --tokenizer "$TMP/words")
    train worded --steps 3
    whole=$state
    train words_half --steps 3 --stop-after 1
    claim "the checkpoint names no folder" eval \
        '! grep -q "$TMP/words" "$TMP/words_half/step-1/manifest.json"'
    mv "$TMP/words" "$TMP/gone"
    run "$BIN/ptrain" --data "$TMP/text" --threads 1 --out "$TMP/words_half" --resume \
        "$TMP/words_half/step-1" --save-every 1 --keep 1 --sample-every 1
    claim "it goes on without that folder, to the same state, though the checkpoint it came from is removed" \
        [ "$rc/$(state_of "$out")" = "0/$whole" ]
    claim "and samples with the tokenizer it brought" has "$err" "sample at step 3"
else
    skip "no python3 to make a tokenizer"
fi
finish
