#!/usr/bin/env bash
# all
# documents_families.sh - what documents.sh is to Llama, for the other families: a sliding window that ends
# with its document, positions that are learned and begin anew, norms of heads, biases with YaRN. The same
# bits at every layout, and the loss of a packed sequence is that of its documents alone. (Beside
# transformers, with its positions and masks: parity_families.sh.)
. "$(dirname "$0")/../lib/train_lib.bash"
text 5 12000 >"$TMP/words"
fold -w 150 "$TMP/words" |
    awk 'BEGIN { srand(3) } { print "{\"text\":\"" substr($0, 1, 1 + int(rand() * 60)) "\"}" }' |
        tr -d '\r' >"$TMP/docs.jsonl"
run "$BIN/ptok" prepare --tokenizer bytes "$TMP/docs.jsonl" --out "$TMP/docs.bin"
claim "ptok knows the documents" [ $rc = 0 ]

# documents of 20, 13 and 31 bytes in a sequence of 64; each alone behind the same first bytes, so that the
# last token has its target
head -c 65 "$TMP/words" | tr '\n' ' ' >"$TMP/long"
piece() { tail -c +$(($1 + 1)) "$TMP/long" | head -c "$2"; }
at=(0 20 33) len=(20 13 31)
for i in 0 1 2; do
    printf '{"text":"%s"}\n' "$(piece ${at[i]} ${len[i]})"
    piece ${at[i]} $((len[i] + 1)) >"$TMP/part$i"
done >"$TMP/three.jsonl"
printf '{"text":"%s"}\n' "$(piece 64 1)" >>"$TMP/three.jsonl"
run "$BIN/ptok" prepare --tokenizer bytes "$TMP/three.jsonl" --out "$TMP/three.bin"
claim "three documents and the token behind them" has "$out" '"tokens":65,"documents":4'

loss_of() { sed -n 's/.*"loss":\([0-9.]*\),.*/\1/p' "$TMP/$1.jsonl" | head -1; }
for name in llama-biases mistral qwen2 qwen3 gpt2; do
    family "$TMP/model.json" $name
    common=(--data "$TMP/docs.bin" --model "$TMP/model.json" --steps 5 --seq-len 63 --global-batch 8 \
        --threads 1 --documents 63)
    reference
    packed=$ref_state
    same "$name: kv heads replicated" --tp 8
    same "$name: one sequence at a time, weights gathered" --ranks 4 --zero 3 --micro-batch 1
    same "$name: pipeline, layers computed again" --pp 2 --tp 2 --ranks 4 --micro-batch 2 --recompute full
    same "$name: norms and activations computed again, two threads" --recompute selective --threads 2
    of_class avx2 same "$name: kernels of the AVX2 class" --tp 2
    SHARDLINE_ISA=portable same "$name: portable C" --micro-batch 2
    common+=(--dtype bf16)
    reference
    same "$name in bf16: tp 4 x dp 2" --tp 4 --ranks 8 --zero 1 --micro-batch 1
    common=(--data "$TMP/docs.bin" --model "$TMP/model.json" --steps 5 --seq-len 63 --global-batch 8 \
        --threads 1)
    train joined
    claim "$name: it is another model than one that reads across" [ "$state" != "$packed" ]

    common=(--model "$TMP/model.json" --steps 1 --threads 1 --data-order stride:1 --global-batch 1)
    train whole --data "$TMP/three.bin" --seq-len 64 --documents 4
    whole=$(loss_of whole)
    sum=0
    for i in 0 1 2; do
        train alone$i --data "$TMP/part$i" --seq-len ${len[i]}
        sum="$sum + ${len[i]} * $(loss_of alone$i)"
    done
    claim "$name: the loss of a packed sequence ($whole) is that of its documents ($sum, by 64)" \
        awk "BEGIN { d = $whole - ($sum) / 64; exit !(\"$whole\" != \"\" && d < 1e-6 && d > -1e-6) }"
done
finish
