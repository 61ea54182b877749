#!/usr/bin/env bash
# quick
# chats.sh - conversations and weights: the same bits at every layout, by ptok or directly; a target without
# weight has no effect on any bit; what the loss is divided by; resume; log-probs of each conversation.
. "$(dirname "$0")/../lib/chats_lib.bash"
config "$TMP/c.json" vocab_size=256
talks 1 60 >"$TMP/talks.jsonl"
chats=(--data "$TMP/talks.jsonl" --chat-template "$TMP/form")

common=("${chats[@]}" --model "$TMP/c.json" --steps 3 --seq-len 128 --global-batch 8 --threads 1 --documents 5)
reference
claim "the log has the targets that count" grep -q '"targets":[1-9]' "$TMP/reference.jsonl"
packed=$ref_state
same "targets counted over dp, ZeRO-3" --ranks 2 --zero 3 --micro-batch 2
same "the vocabulary split, the last stage alone has losses" --tp 2 --pp 2 --micro-batch 1 --recompute full
train part --stop-after 2
claim "it stops half-way" [ $rc = 0 ]
run timeout 100 "$BIN/ptrain" "${common[@]}" --ranks 2 --zero 2 --resume "$TMP/part/step-2" --out "$TMP/rest"
claim "and goes on in another layout to the same state" [ "$(state_of "$out")" = "$ref_state" ]
run ptok prepare --tokenizer bytes --chat-template "$TMP/form" "$TMP/talks.jsonl" --out "$TMP/talks.bin" --threads 2
claim "ptok makes a token file of them" [ $rc = 0 ]
common[1]=$TMP/talks.bin
same "a token file has their weights" --micro-batch 4
common[1]=$TMP/talks.jsonl
train alone --documents 0
claim "a conversation in each sequence is another order of data" [ "$state" != "$packed" ]
claim "how full sequences are is said" has "$err" "conversations: 60, in sequences: 60"
train last --chat-turns last
claim "the last answers alone are another loss" [ "$rc" = 0 -a "$state" != "$packed" ]

# weights of raw tokens: a file of floats beside the ids, 4 windows of 8
ids() { for i in $(seq 0 "$1"); do printf '%b' "\\x$(printf %02x $((i * 37 % 251)))\\x00"; done; }
floats() { for w in "$@"; do # 0, 1, -2
    case $w in 0) printf '\0\0\0\0' ;; 1) printf '\0\0\200\077' ;; -2) printf '\0\0\0\300' ;; nan) printf '\0\0\300\177' ;; esac
done; }
ids 32 >"$TMP/a.u16"
floats $(printf '1 %.0s' {0..32}) >"$TMP/ones.f32"
floats $(printf '1 0 -2 %.0s' {0..10}) >"$TMP/mix.f32"
floats $(printf '1 %.0s' {0..31}) 0 >"$TMP/end.f32"
common=(--data "$TMP/a.u16" --model "$TMP/c.json" --steps 2 --seq-len 8 --global-batch 4 --threads 1)
reference
same "weights of 1 change nothing" --loss-weights "$TMP/ones.f32"
same "nor does the divisor that is meant" --loss-divisor 32
common+=(--loss-weights "$TMP/mix.f32")
reference
same "weights of both signs" --tp 4 --micro-batch 1
# token i has weight 1, 0, -2 in turn; the first is no target: 11 of 0, 10 + 11 others
same "D is the number of the others" --loss-divisor 21
common=(--model "$TMP/c.json" --steps 3 --seq-len 8 --global-batch 4 --threads 1)
(head -c 64 "$TMP/a.u16"; printf '\5\0') >"$TMP/b.u16" # another last token, which is only a target
for w in end ones; do
    train $w.a --data "$TMP/a.u16" --loss-weights "$TMP/$w.f32"
    one=$state
    train $w.b --data "$TMP/b.u16" --loss-weights "$TMP/$w.f32"
    if [ $w = end ]; then
        claim "a target of weight 0 has no effect on any bit" [ -n "$one" -a "$one" = "$state" ]
    else
        claim "one of weight 1 has" [ "$one" != "$state" ]
    fi
done
floats $(printf '0 %.0s' {0..32}) >"$TMP/none.f32"
train none --data "$TMP/a.u16" --loss-weights "$TMP/none.f32"
claim "steps without weights are skipped" [ "$(grep -c '"event":"skip".*"targets":0' "$TMP/none.jsonl")" = 3 ]
floats $(printf '1 %.0s' {0..31}) nan >"$TMP/nan.f32"
train nan --data "$TMP/a.u16" --loss-weights "$TMP/nan.f32"
claim "a weight that is no number ends the run" [ $rc = 1 ]
claim "with its place" has "$err" "nan.f32: the weight of token 32 is nan: weights are finite"

# log-probs of whole conversations, a line each
run "$BIN/ptrain" --eval-only --init "$TMP/last/step-3" --eval-data "$TMP/talks.jsonl" --chat-template "$TMP/form" \
    --seq-len 127 --threads 1 --eval-logprobs "$TMP/whole.jsonl"
claim "an evaluation of conversations" [ $rc = 0 ]
claim "a line for each" [ "$(wc -l <"$TMP/whole.jsonl")" = 60 ]
loss=$out
run "$BIN/ptrain" --eval-only --init "$TMP/last/step-3" --eval-data "$TMP/talks.bin" --seq-len 127 --threads 1 \
    --micro-batch 3 --ranks 2 --tp 2 --eval-logprobs "$TMP/other.jsonl"
claim "in another layout the same loss" [ -n "$loss" -a "$out" = "$loss" ]
claim "and the same log-probs" cmp -s "$TMP/whole.jsonl" "$TMP/other.jsonl"
finish
