#!/usr/bin/env bash
# all
# gguf_back.sh - models and tokenizers through a GGUF file and back: the weights, the log-probabilities (and so
# the settings), the token ids are the same; pserve and ptrain open the file. With llama.cpp's packages: blocks of
# its quantiser become the values that the gguf package gives. PEER_PYTHON=python that has gguf. Needs $FIXTURES.
here=$(cd "$(dirname "$0")" && pwd)
python=${PEER_PYTHON:-python3}
. "$here/../lib/lib.bash"
[ -n "${FIXTURES:-}" ] || { skip "FIXTURES is not set"; finish; }
cd "$TMP" || exit 1
hf=$FIXTURES/hf/hf experts=$FIXTURES/experts/hf
python3 -c 'import random, struct
random.seed(6)
open("ids.u16", "wb").write(struct.pack("<97H", *(random.randrange(300) for _ in range(97))))'

# ---- models; Gemma's norms in fp32 lose their last bits in the file ----
for model in llama2-mha-f32 llama3-gqa-f32 llama3-tied-bf16-sharded mixtral-f32-sharded qwen2-bias-tied-f32 \
    qwen2-yarn-f32 qwen3-qknorm-bf16 gpt2-f32 neox-f32 qwen2moe-f32 gptoss-f32 deepseek3-f32; do
    src=$hf/$model/model
    [ -d "$src" ] || src=$experts/$model/model
    run reshard --format gguf "$src" $model.gguf
    claim "$model is written" [ $rc = 0 ]
    run reshard diff "$src" $model.gguf
    claim "$model: the file is the folder" [ $rc = 0 ]
    for from in "$src" $model.gguf; do
        run ptrain --eval-only --init "$from" --eval-data ids.u16 --seq-len 48 --eval-logprobs "$(basename "$from").jsonl" \
            --threads 1
        claim "$model: $from is evaluated" [ $rc = 0 ]
    done
    claim "$model: the same log-probabilities, bit for bit" cmp "$(basename "$src").jsonl" $model.gguf.jsonl
    rm -f ./*.jsonl
done
run pserve --once "a b" --max-tokens 8 "$FIXTURES/../data/models/stories260K"
[ -d "$FIXTURES/../data/models/stories260K" ] && {
    want=$out
    run reshard --format gguf "$FIXTURES/../data/models/stories260K" stories.gguf
    run pserve --once "a b" --max-tokens 8 stories.gguf
    claim "pserve opens the file and its vocabulary" [ $rc = 0 -a "$out" = "$want" ]
}

# ---- tokenizers ----
for name in gpt2 llama3 qwen2 deepseek gemma llama2; do
    python3 -B "$here/gguf_back.py" model "$FIXTURES/hf/tok/$name" "tok-$name"
    run reshard --format gguf "tok-$name" "tok-$name.gguf"
    run reshard --format hf "tok-$name.gguf" "back-$name"
    claim "$name: back as a folder" [ $rc = 0 -a -s "back-$name/tokenizer.json" ]
    python3 -B "$here/gguf_back.py" texts "$FIXTURES/hf/tok/$name" >texts.jsonl
    for dir in "$FIXTURES/hf/tok/$name" "back-$name"; do
        "$BIN/ptok" encode --tokenizer "$dir" <texts.jsonl >"$(basename "$dir").ids"
    done
    claim "$name: the same ids for $(wc -l <texts.jsonl) texts" cmp "$name.ids" "back-$name.ids"
done

# ---- blocks ----
if "$python" -c 'import gguf, numpy' >/dev/null 2>&1; then
    for kind in Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4; do
        run "$python" -B "$here/gguf_back.py" blocks $kind $kind.gguf
        claim "$kind: a file of random blocks" [ $rc = 0 ]
        run reshard --tp 2 $kind.gguf none
        claim "$kind: is refused without --dequantize" has "$err" "has tensors in blocks of GGUF ($kind)"
        run reshard --format hf --dequantize fp32 $kind.gguf $kind-fp32
        run reshard --format hf --dequantize bf16 $kind.gguf $kind-bf16
        claim "$kind: numbers of blocks" [ $rc = 0 ]
        run "$python" -B "$here/gguf_back.py" values $kind.gguf $kind-fp32 $kind-bf16
        claim "$kind: those of the gguf package" has "$out" "ok "
    done
else
    skip "no gguf package here: set PEER_PYTHON"
fi
finish
