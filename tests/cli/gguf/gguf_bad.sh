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
    claim "$name is refused in one line: $message" [ $rc = 1 -a "$(wc -l <"$TMP/.err")" = 1 ]
    claim "$name: the reason" has "$err" "$message"
done <bad.list
claim "all of them were tried" [ "$(wc -l <bad.list)" -ge 45 ]
finish
