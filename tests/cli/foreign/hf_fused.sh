#!/usr/bin/env bash
# quick
# hf_fused.sh - a model whose experts lie in two tensors a layer, as transformers 5 holds them, is the model
# whose experts have tensors of their own: one digest, the same bits trained, evaluated and served; written
# so, and back. What does not fit together is refused in one line.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../lib/train_lib.bash"
python=${PYTHON:-python3}
command -v "$python" >/dev/null || { skip "no python3"; finish; }
export no_proxy=127.0.0.1,localhost SHARDLINE_CACHE=$TMP/cache
cd "$TMP" || exit 1
text 11 6000 >text
head -c 700 text >held-out
digest() { "$BIN/reshard" digest "$1" | sed -n 's/^weights_digest //p'; }
forms() { "$python" -B "$here/hf_fused.py" "$@"; }

# The fused folder is made by the test's own writer.
for f in mixtral/fp32 qwen2_moe/bf16 qwen3_moe/fp32 deepseek_v3/bf16; do
    m=${f%/*} dtype=${f#*/}
    family $m.json $m
    run ptrain --data text --model $m.json --out made-$m --steps 1 --lr 1e-2 --dtype $dtype --seq-len 31 \
        --global-batch 2
    run reshard --format hf made-$m/step-1 $m
    claim "$m is made" [ $rc = 0 ] || continue
    forms fuse $m $m-fused
    one=$(digest $m)
    claim "$m: both forms have one digest" [ "$(digest $m-fused)" = "$one" ]

    run reshard --format hf --experts fused --shard-size 150kB $m $m-ours
    claim "$m: what reshard fuses" [ $rc = 0 ]
    claim "$m: has the bytes of what the test fuses" forms same $m-fused $m-ours
    claim "$m: and several files" [ -e $m-ours/model.safetensors.index.json ]
    run reshard --tp 2 --dp 2 --zero 3 $m-ours $m-cut
    claim "$m: fused experts are cut" [ $rc = 0 ]
    run reshard --format hf $m-cut $m-back
    claim "$m: and come back as tensors of their own" forms same $m $m-back

    run ptrain --eval-only --init $m --eval-data held-out --seq-len 65 --eval-logprobs $m.jsonl
    claim "$m is evaluated" [ $rc = 0 ]
    run ptrain --eval-only --init $m-fused --eval-data held-out --seq-len 65 --eval-logprobs $m-fused.jsonl \
        --tp 2
    claim "$m: fused experts give the same log-probs" cmp $m.jsonl $m-fused.jsonl
done

WEIGHTS=contract1-fp32-$(digest mixtral) "$python" -B "$here/../serve/serve_families.py" mixtral-fused \
    mixtral.jsonl "--tp 2" >served 2>&1
claim "fused experts are served with the trainer's bits: $(tail -n 3 served)" grep -q \
    '^[1-9][0-9]* passed, 0 failed' served
file_server mixtral-fused requests
claim "fused experts behind a URL have the digest" [ "$(digest "http://127.0.0.1:$port/ok/")" = \
    "$(digest mixtral)" ]

run reshard --experts fused mixtral x
claim "--experts fused is for --format hf" [ "$rc/$(wc -l <<<"$err")" = 2/1 ]
config llama.json
run ptrain --data text --model llama.json --out llama --steps 1 --seq-len 31 --global-batch 1
run reshard --format hf --experts fused llama/step-1 x
claim "and for families that have that form" [ "$rc/$(wc -l <<<"$err")" = 2/1 ]
claim "and says so" has "$err" "names no family"

# refused WHAT FOLDER CODE MESSAGE...: by the programs of $by
all=("reshard --tp 2 edited x" \
    "ptrain --init edited --data text --steps 1 --seq-len 31 --global-batch 1 --out y" \
        "pserve edited --port 0")
by=("${all[0]}")
refused() {
    local what=$1 from=$2 code=$3 how words
    shift 3
    rm -rf edited && forms edit "$from" edited "$code"
    for how in "${by[@]}"; do
        # shellcheck disable=SC2086
        run $how
        claim "$what is refused in one line ($how)" [ "$((rc == 1 || rc == 2))/$(wc -l <<<"$err")" = 1/1 ]
        for words; do claim "$what ($how): says $words" has "$err" "$words"; done
    done
    claim "$what: nothing appears" [ ! -e x ]
}
E=model.layers.0.mlp.experts
by=("${all[@]}")
refused "a layer without down_proj" mixtral-fused "del t['$E.down_proj']" \
    "has $E.gate_up_proj but not the layer's down_proj"
by=("${all[0]}")
refused "an expert that is there twice" mixtral-fused \
    "t['model.layers.0.block_sparse_moe.experts.3.w2.weight'] = ['F32', [72, 104], bytes(72 * 104 * 4)]" \
    "experts.3.w2.weight is there by itself and in a fused tensor"
refused "another number of experts" mixtral-fused \
    "t['$E.down_proj'] = ['F32', [7, 72, 104], t['$E.down_proj'][2][:7 * 72 * 104 * 4]]" \
        "[8,208,72] and down_proj [7,72,104]"
refused "the config of another model" mixtral-fused \
    "t.update({k: [d, [s[0], s[1] // 2, s[2]], b[:len(b) // 2]] for k, (d, s, b) in t.items() if k.endswith('gate_up_proj')}); \
t.update({k: [d, [s[0], s[1], s[2] // 2], b[:len(b) // 2]] for k, (d, s, b) in t.items() if k.endswith('down_proj')})" "experts.0.w1.weight is [52,72], config.json says [104,72]"

# The wrong way round: with 2 I = H gate_up_proj alone shows nothing, with I = H down_proj; the other one
# does.
sizes='"hidden_size":24,"num_hidden_layers":1,"num_attention_heads":2,"num_key_value_heads":2,"head_dim":8,"num_local_experts":3,"num_experts_per_tok":2,"vocab_size":256,"max_position_embeddings":64'
for n in 12 24 40; do
    echo "{\"model_type\":\"mixtral\",\"intermediate_size\":$n,$sizes}" >$n.json
    run ptrain --data text --model $n.json --steps 1 --seq-len 8 --global-batch 1 --out run-$n
    run reshard --format hf --experts fused run-$n/step-1 wide-$n
    claim "a model of width $n is made" [ $rc = 0 ]
    [ $n != 24 ] || by=("${all[@]}")
    refused "every expert turned round, width $n" wide-$n "turn('gate_up_proj', 'down_proj')" \
        "$E.gate_up_proj is [3,24,$((2 * n))] and down_proj [3,$n,24]" "their matrices are [in][out]"
    [ $n = 12 ] ||
        refused "gate_up_proj turned round, width $n" wide-$n "turn('gate_up_proj')" \
            "$([ $n = 24 ] && echo "are [in][out]" || echo "one of them turned")"
    [ $n = 24 ] ||
        refused "down_proj turned round, width $n" wide-$n "turn('down_proj')" \
            "$([ $n = 12 ] && echo "are [in][out]" || echo "one of them turned")"
done
finish
