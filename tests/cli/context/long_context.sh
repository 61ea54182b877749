#!/usr/bin/env bash
# all long
# long_context.sh - one sequence of 16,384 tokens: the same losses, norms and state at cp 1 and cp 2. With PEER_PYTHON, a python3 that
# has torch and transformers, torch trains the same model beside it, and its speed is shown.
. "$(dirname "$0")/../lib/lib.bash"
command -v python3 >/dev/null || { skip "no python3"; finish; }
bench=$(cd "$lib_dir/../../bench" && pwd)/context_bench.py

[ -n "${PEER_PYTHON:-}" ] && torch=() || { torch=(--no-torch) && skip "PEER_PYTHON is not set: torch does not train beside it"; }
run timeout -k 10 850 python3 -B "$bench" --bin "$BIN" --seq 16384 --steps 1 --rounds 1 "${torch[@]}"
sed '$!s/^/    /; $d' <<<"$out"
claim "16,384 tokens: the bits of cp 1 at cp 2" [ $rc = 0 ] && claim "it says so" has "$out" "the bits are the same at cp 1 and cp 2"
finish
