#!/usr/bin/env bash
# quick
# serve_reload.sh - weights that come slowly, damaged or not at all from a server, for all ranks or for one: see serve_reload.py.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/lib.bash"
command -v python3 >/dev/null || { skip "no python3"; finish; }
export no_proxy=127.0.0.1,localhost OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 SHARDLINE_STALL_S=1
for i in $(seq 700); do echo "line $i: $((i * i)) is the square of $i"; done >"$TMP/text"
mkdir "$TMP/m"
for name in a b; do                              # different seeds, other answers
    run ptrain --data "$TMP/text" --out "$TMP/run-$name" --steps 2 --seq-len 64 --global-batch 4 --seed $(printf %d "'$name")
    claim "model $name is trained" [ $rc = 0 ] || finish
    mv "$TMP/run-$name/step-2" "$TMP/m/$name"
done
A=$("$BIN/reshard" digest "$TMP/m/a" | sed -n 's/^weights_digest //p') B=$("$BIN/reshard" digest "$TMP/m/b" | sed -n 's/^weights_digest //p')
export A B
printf 'admin-key\n' >"$TMP/admin-keys"
python3 "$here/serve_reload.py" "$TMP" >"$TMP/reload" 2>&1
grep -v '^[0-9]* passed' "$TMP/reload"
read -r p f <<<"$(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed.*/\1 \2/p' "$TMP/reload")"
n_passed=$((n_passed + ${p:-0})) n_failed=$((n_failed + ${f:-1}))
finish
