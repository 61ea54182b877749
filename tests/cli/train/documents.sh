#!/usr/bin/env bash
# quick
# documents.sh - --documents: attention stops where a document ends, to the same bits at every layout; the
# loss of a sequence of two documents is that of both alone.
. "$(dirname "$0")/../lib/train_lib.bash"
config "$TMP/c.json" vocab_size=256
text 5 6000 >"$TMP/words"
# documents of 1 to 150 bytes, a JSON line each
fold -w 150 "$TMP/words" |
    awk 'BEGIN { srand(3) } { print "{\"text\":\"" substr($0, 1, 1 + int(rand() * 149)) "\"}" }' |
        tr -d '\r' >"$TMP/docs.jsonl"
run "$BIN/ptok" prepare --tokenizer bytes "$TMP/docs.jsonl" --out "$TMP/docs.bin"
claim "ptok knows the documents" [ $rc = 0 ]

common=(--data "$TMP/docs.bin" --model "$TMP/c.json" --steps 6 --seq-len 63 --global-batch 8 --threads 1 \
    --documents 16)
reference
packed=$ref_state
same "a stale page behind a document's end is as good as none" --micro-batch 1
same "kv heads split" --tp 2
same "documents on every pipeline stage" --pp 2 --micro-batch 2
same "layers computed again" --recompute full --ranks 2 --zero 3
of_class avx2 same "kernels of the AVX2 class"
common=(--data "$TMP/docs.bin" --model "$TMP/c.json" --steps 6 --seq-len 63 --global-batch 8 --threads 1)
train joined
claim "it is another model than one that reads across" [ "$state" != "$packed" ]

# two documents of 32 in a sequence of 64, and the same two as sequences: the same mean loss
head -c 32 "$TMP/words" >"$TMP/a"
tail -c 33 "$TMP/words" | head -c 32 >"$TMP/b"
mkdir "$TMP/pair"
for f in a b; do printf '{"text":"%s"}\n' "$(tr '\n' ' ' <"$TMP/$f")"; done >"$TMP/pair.jsonl"
printf '{"text":"%s"}\n' "$(head -c 1 "$TMP/a" | tr '\n' ' ')" >>"$TMP/pair.jsonl"
"$BIN/ptok" prepare --tokenizer bytes "$TMP/pair.jsonl" --out "$TMP/pair.bin" 2>/dev/null
common=(--data "$TMP/pair.bin" --model "$TMP/c.json" --steps 1 --threads 1 --data-order stride:1)
train one --seq-len 64 --global-batch 1 --documents 3
one=$(cut -d' ' -f1 <<<"$bits")
train two --seq-len 32 --global-batch 2
claim "the loss of a sequence is that of its documents" [ -n "$one" -a "$one" = \
    "$(cut -d' ' -f1 <<<"$bits")" ]

run "$BIN/ptrain" --data "$TMP/docs.bin" --model "$TMP/c.json" --steps 6 --seq-len 63 --global-batch 8 \
    --threads 1 --documents 1 --out "$TMP/few"
claim "more documents than the option says" [ $rc = 2 ]
claim "are refused with what to change" has "$err" "raise --documents"
run "$BIN/ptrain" --data "$TMP/words" --model "$TMP/c.json" --documents 4 --out "$TMP/none"
claim "data without documents" [ $rc = 2 ]
claim "are refused too" has "$err" "make one with ptok prepare"
finish
