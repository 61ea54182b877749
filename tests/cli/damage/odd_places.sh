#!/usr/bin/env bash
# quick
# odd_places.sh - pipes, links, full disks and other places where files should not be: refused in one line, at once, and nothing of the
# user's is lost.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../lib/lib.bash"
cd "$TMP" || exit 1
for i in $(seq 200); do echo "line $i: $((i * i)) is the square of $i"; done >text
train="--data text --seq-len 32 --global-batch 4"
run ptrain $train --out run --steps 2 --stop-after 1
claim "a model is trained" [ $rc = 0 ] || finish

# pipes that nobody writes or reads: an open would wait for ever
mkfifo pipe pipe.safetensors
mkdir piped piped-hf
mkfifo piped/manifest.json piped-hf/model.safetensors
cp run/step-1/config.json piped-hf
while IFS='|' read -r at command; do
    run timeout -k 5 30 bash -c "PATH=$BIN:\$PATH; $command"
    claim "$command: status 1" [ $rc = 1 ]
    claim "$command: names $at" has "$err" "$at is a pipe"
done <<'TABLE'
pipe|ptrain --data pipe --seq-len 32 --out other
pipe|reshard inspect pipe
pipe.safetensors|reshard inspect pipe.safetensors
piped/manifest.json|reshard inspect piped
piped/manifest.json|pserve piped --port 0
piped-hf/model.safetensors|reshard --tp 2 piped-hf other
pipe|ptok prepare --tokenizer bytes pipe --out tokens.bin
pipe|pserve run/step-1 --port 0 --api-key-file pipe
pipe|pserve run/step-1 --port 0 --access-log pipe
pipe|ptrain --data text --seq-len 32 --out other --steps 1 --trace pipe
TABLE
finish
