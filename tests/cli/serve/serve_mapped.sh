#!/usr/bin/env bash
# quick
# serve_mapped.sh - weights that are used where their files are mapped: see serve_mapped.py.
. "$(dirname "$0")/../lib/serve_lib.bash"
head -c 3000 "$TMP/text" >"$TMP/held-out"
trained --steps 4 --dtype bf16
run reshard "$TMP/run/step-4" "$TMP/hf" --format hf
claim "a Hugging Face folder is written" [ $rc = 0 ] || finish
asked serve_mapped.py "$TMP/hf" "$(digest "$TMP/run/step-4")"
what=native asked serve_mapped.py "$TMP/run/step-4" "$(digest "$TMP/run/step-4")"

# a changed byte in a native file ends the server with the file's name, before or after it is ready
cp -r "$TMP/run/step-4" "$TMP/bad"
file=$(find "$TMP/bad" -name 'weights*.safetensors' | sort | head -1)
size=$(stat -c %s "$file")
printf '\xff\xfe\xfd' | dd of="$file" bs=1 seek=$((size / 2)) conv=notrunc status=none
SHARDLINE_MAP=1 run pserve "$TMP/bad" --port 0
claim "a bad block ends the server" [ $rc != 0 ]
claim "and is named" grep -q "$(basename "$file")" "$TMP/.err"
finish
