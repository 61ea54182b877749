#!/usr/bin/env bash
# all
# url_apart.sh - ranks on several machines (here: with caches of their own) that serve from one URL: together
# they pull the weights once, rows of matrices that are cut by columns included, and serve the same as one
# rank from the folder.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../lib/lib.bash"
python=${PYTHON:-python3}
command -v "$python" >/dev/null || { skip "no python3 here"; finish; }
cd "$TMP" || exit 1
export no_proxy=127.0.0.1,localhost OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
mkdir served served/m
"$python" - <<'PY'
import array, json, struct
hidden, inter, vocab, layers = 2048, 5632, 256, 1
shapes = {"model.embed_tokens.weight": [vocab, hidden], "lm_head.weight": [vocab, hidden], "model.norm.weight": [hidden]}
for l in range(layers):
    p = "model.layers.%d." % l
    for n in ("q", "k", "v", "o"):
        shapes[p + "self_attn.%s_proj.weight" % n] = [hidden, hidden]
    for n in ("gate", "up"):
        shapes[p + "mlp.%s_proj.weight" % n] = [inter, hidden]
    shapes[p + "mlp.down_proj.weight"] = [hidden, inter]
    for n in ("input", "post_attention"):
        shapes[p + n + "_layernorm.weight"] = [hidden]
head, at = {}, 0
for k, s in sorted(shapes.items()):
    n = 2 * s[0] * (s[1] if len(s) == 2 else 1)
    head[k] = {"dtype": "BF16", "shape": s, "data_offsets": [at, at + n]}
    at += n
h = json.dumps(head).encode()
x, block = 12345, array.array("H")
for i in range(1 << 16):                        # small values of both signs, in an order that no cut repeats
    x = (x * 1103515245 + 12345) & 0x7fffffff
    block.append(0x3c00 | (x >> 8 & 0x1ff) | (x >> 4 & 0x8000))
block = block.tobytes()[:-34]
with open("served/m/model.safetensors", "wb") as f:
    f.write(struct.pack("<Q", len(h)) + h + (block * (at // len(block) + 1))[:at])
json.dump({"model_type": "llama", "hidden_size": hidden, "intermediate_size": inter, "num_hidden_layers": layers, "num_attention_heads": 8,
           "vocab_size": vocab, "max_position_embeddings": 128, "torch_dtype": "bfloat16", "tie_word_embeddings": False, "eos_token_id": None},
          open("served/m/config.json", "w"))
PY
file_server served "$TMP/log"
at=http://127.0.0.1:$port
weights=$(wc -c <served/m/model.safetensors)
ask() { "$@" --once "some words" --max-tokens 8 --temperature 1 --seed 3 >said 2>.err; rc=$?; }

ask "$BIN/pserve" served/m && cp said want
claim "one rank serves the folder" [ $rc = 0 ]
: >log
ask mpirun -q --oversubscribe --bind-to none -n 4 bash -c \
    'SHARDLINE_CACHE=$TMP/cache-$OMPI_COMM_WORLD_RANK exec "$@"' - "$BIN/pserve" "$at/ok/m" --tp 4
claim "four ranks with caches of their own serve the URL" [ $rc = 0 ] || cat .err
claim "and say the same" cmp -s said want
sent=$(sed -n 's|^ok m/.*sent=\([0-9]*\).*|\1|p' log | awk '{ s += $1 } END { print s + 0 }')
claim "all of them together pulled the weights once: $sent of $weights" [ $((sent * 100)) -le \
    $((weights * 105)) ]
: >log
mkdir one
SHARDLINE_CACHE=$TMP/one ask "$BIN/pserve" "$at/ok/m" --tp 4
claim "ranks of one machine too, through one cache" cmp -s said want
sent=$(sed -n 's|^ok m/.*sent=\([0-9]*\).*|\1|p' log | awk '{ s += $1 } END { print s + 0 }')
claim "which pulls them once: $sent" [ $((sent * 100)) -le $((weights * 105)) ]
finish
