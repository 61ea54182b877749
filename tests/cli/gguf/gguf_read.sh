#!/usr/bin/env bash
# quick
# gguf_read.sh - GGUF files are read as the Hugging Face folders they were made of: every family, split sets.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../lib/lib.bash"
command -v python3 >/dev/null || { skip "no python3 here"; finish; }
cd "$TMP" || exit 1
export SHARDLINE_CACHE=$TMP/cache no_proxy=127.0.0.1,localhost

# ---- families ----
python3 -B "$lib_dir/gguf_make.py" made || claim "models are made" false
for dir in made/*/; do
    family=$(basename "$dir")
    run reshard diff "made/$family/hf" "made/$family/model.gguf"
    claim "$family: the file is the folder" [ $rc = 0 ]
    run reshard plan --tp 2 "made/$family/model.gguf"
    claim "$family: its settings are those of its tensors" [ $rc = 0 ]
done
for family in deepseek gemma3; do
    run reshard --tp 2 "made/$family/model.gguf" "cut-$family"
    claim "$family is cut" [ $rc = 0 ]
    run reshard diff "made/$family/hf" "cut-$family"
    claim "$family: cut to tp 2 it is the same model" [ $rc = 0 ]
done
run reshard verify made/mixtral/model.gguf
claim "verify reads it" [ $rc = 0 ]
run reshard inspect made/llama
claim "the folder of one file is a checkpoint" has "$out" "format       gguf"

# ---- MXFP4 of gpt-oss ----
fp4() { run python3 -B "$here/gguf_fp4.py" "$@"; }
fp4 make oss.gguf
run reshard --format hf oss.gguf oss
claim "gpt-oss in MXFP4 becomes a folder" [ $rc = 0 ]
fp4 check oss.gguf oss
claim "with the published blocks and scales" has "$out" "ok 768 rows"
run reshard --format gguf oss oss-back.gguf
fp4 same oss.gguf oss-back.gguf
claim "and a file with the same blocks again" has "$out" "ok 6 tensors"
run reshard diff oss.gguf oss-back.gguf
claim "which is the same model" [ $rc = 0 ]

# ---- split sets ----
python3 -B "$lib_dir/gguf_make.py" --split 3 split llama qwen3moe
run reshard diff made/qwen3moe/hf split/qwen3moe
claim "three files: the folder" [ $rc = 0 ]
run reshard diff made/llama/hf split/llama/model-00002-of-00003.gguf
claim "three files: any of them" [ $rc = 0 ]
mv split/llama/model-00002-of-00003.gguf aside
run reshard digest split/llama
claim "a missing file of a set is named" has "$err" "model-00002-of-00003.gguf"
cp split/llama/model-00001-of-00003.gguf split/llama/model-00002-of-00003.gguf
run reshard digest split/llama
claim "a file twice is found" has "$err" "is number 1 of its set by its metadata, 2 by its name"
mkdir two && cp made/llama/model.gguf two/a.gguf && cp made/llama/model.gguf two/b.gguf
run reshard digest two
claim "of two models in a folder none is guessed" has "$err" "has 2 models in GGUF files"

# ---- by URL ----
mkdir served && cp made/gemma3/model.gguf served/ && cp split/qwen3moe/*.gguf served/
python3 -B "$lib_dir/gguf_make.py" --wide served/wide llama
file_server served "$TMP/log"
at=http://127.0.0.1:$port/ok
run reshard diff made/gemma3/hf "$at/model.gguf"
claim "by URL" [ $rc = 0 ]
run reshard diff made/qwen3moe/hf "$at/model-00001-of-00003.gguf"
claim "a set by the URL of its first file" [ $rc = 0 ]
HF_ENDPOINT=http://127.0.0.1:$port/hub HF_TOKEN=secret run reshard diff made/gemma3/hf hf://owner/name/model.gguf
claim "of a repository on the hub" [ $rc = 0 ]
run reshard digest "$at/none.gguf"
claim "one that is not there is named" has "$err" "none.gguf is not there"
run reshard digest "$at/wide"
claim "a folder of .gguf files wants the URL of one" has "$err" "or of a .gguf file"
: >log
run reshard inspect "$at/wide/llama/model.gguf"
sent=$(sed -n 's|^ok wide/.*sent=\([0-9]*\).*|\1|p' log | awk '{ s += $1 } END { print s + 0 }')
size=$(stat -c %s served/wide/llama/model.gguf)
claim "inspect transfers two blocks of $size bytes: $sent" [ "$sent" -gt 0 -a "$sent" -lt 2200000 -a "$size" -gt 6000000 ]

finish
