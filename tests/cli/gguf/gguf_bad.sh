#!/usr/bin/env bash
# all
# gguf_bad.sh - GGUF files that lie are refused in one line that says why.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../lib/lib.bash"
command -v python3 >/dev/null || { skip "no python3 here"; finish; }
cd "$TMP" || exit 1

python3 -B "$lib_dir/gguf_bad.py" bad >bad.list
while IFS=$'\t' read -r name message; do
    run timeout 10 "$BIN/reshard" digest "bad/$name.gguf"
    status=1
    [[ $name != rope-* ]] || status=2 # --config FILE may say what the file means
    claim "$name is refused in one line: $message" [ $rc = $status -a "$(wc -l <"$TMP/.err")" = 1 ]
    claim "$name: the reason" has "$err" "$message"
done <bad.list
claim "all of them were tried" [ "$(wc -l <bad.list)" -ge 45 ]

# its halves are all looked up: half a megabyte would take minutes
python3 -B "$lib_dir/gguf_bad.py" --long-token long.gguf
run timeout 10 "$BIN/reshard" --format hf long.gguf long
claim "a token of 500000 bytes is refused" [ $rc = 1 ]
claim "long token: the reason" has "$err" "token 2 has 500000 bytes"
finish
