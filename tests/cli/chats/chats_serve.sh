#!/usr/bin/env bash
# quick
# chats_serve.sh - a model that was trained on conversations is served: chats_serve.py. The template of
# --chat-template goes with token files and checkpoints; the tokens that were trained on are those of a request.
. "$(dirname "$0")/../lib/serve_lib.bash"
. "$(dirname "$0")/../lib/train_lib.bash"
"$python" -B "$here/chats_serve.py" make "$TMP" || finish
config "$TMP/c.json" vocab_size=304
common=(--model "$TMP/c.json" --steps 4 --seq-len 128 --global-batch 4 --threads 1 --documents 2)
talks=(--data "$TMP/talks.jsonl" --tokenizer "$TMP/tok" --chat-template "$TMP/form.jinja")
kept() { claim "$1" cmp -s "$TMP/form.jinja" "$2/chat_template.jinja"; }

train run "${talks[@]}"
claim "a model is trained on conversations" [ $rc = 0 ] || finish
ref_state=$state ref_bits=$bits
kept "the checkpoint carries the template" "$TMP/run/step-4"
same "in another layout" "${talks[@]}" --ranks 2 --zero 2
kept "which carries it too" "$TMP/layout/step-4"

run ptok prepare --tokenizer "$TMP/tok" --chat-template "$TMP/form.jinja" "$TMP/talks.jsonl" --out "$TMP/talks.bin"
train half --data "$TMP/talks.bin" --stop-after 2
claim "a token file carries tokenizer and template" [ $rc = 0 ]
kept "so does the checkpoint that comes of it" "$TMP/half/step-2"
run timeout 100 "$BIN/ptrain" --resume "$TMP/half/step-2" --data "$TMP/talks.jsonl" --threads 1 --out "$TMP/rest"
claim "a resumed run takes them from its checkpoint" [ "$(state_of "$out")" = "$ref_state" ]

run ptrain --init "$TMP/run/step-4" --data "$TMP/talks.jsonl" --steps 1 --out "$TMP/bytes"
claim "conversations as bytes are refused where the model has a tokenizer" \
    [ $rc = 2 -a "$err" = "ptrain: $TMP/talks.jsonl has conversations, and $TMP/run/step-4 a tokenizer of its own: give \
--tokenizer $TMP/run/step-4 (or --tokenizer bytes)" ]
echo '{{ 1 +' >"$TMP/broken"
run ptrain "${common[@]}" "${talks[@]}" --chat-template "$TMP/broken" --out "$TMP/bad"
claim "a template that does not parse is named" has "$err" "broken, line 1: a tag of line 1 is not closed"

run reshard --format hf "$TMP/run/step-4" "$TMP/hf"
kept "a Hugging Face folder of it carries the template" "$TMP/hf"
asked chats_serve.py serve "$TMP" "$TMP/run/step-4"
asked chats_serve.py serve "$TMP" "$TMP/hf"
finish
