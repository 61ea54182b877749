#!/usr/bin/env bash
# quick
# bench_run.sh - tests/bench/run: a bench without its hardware is passed over, and the line of rows still
# comes; one that was asked for by name, or that fails, ends it.
. "$(dirname "$0")/../lib/lib.bash"
benches=$TMP/build/tests/bench
mkdir -p "$benches" "$TMP/build/bin" "$TMP/tests/bench"
cp "$(dirname "$0")/../../bench/run" "$TMP/tests/bench/run"
bench() { printf '#!/bin/sh\n%s\n' "$2" >"$1"; chmod +x "$1"; }
bench "$benches/a_bench" "echo first; echo '{\"rows\":[{\"name\":\"a\"}]}'"
bench "$benches/gpu_bench" "echo 'gpu_bench: no GPU here: use --device cpu' >&2; exit 77"
bench "$benches/z_bench" "echo figure z; echo last line"
bench "$TMP/tests/bench/ranks.sh" "echo '{\"rows\":[{\"name\":\"r\"}]}'"

run "$TMP/tests/bench/run" --bin "$TMP/build"
claim "no GPU: it ends well" [ $rc = 0 ]
claim "no GPU: the rows of the others" [ "$(tail -n 1 <<<"$out")" = '{"rows":[{"name":"a"},{"name":"r"}]}' ]
claim "no GPU: it is said" has "$err" "gpu is passed over"
claim "a table without rows is printed whole" has "$out" "last line"
run "$TMP/tests/bench/run" --bin "$TMP/build" gpu
claim "asked for by name: an error" [ $rc = 1 ]
bench "$benches/z_bench" "exit 3"
run "$TMP/tests/bench/run" --bin "$TMP/build"
claim "a bench that fails ends it" [ $rc = 1 ]
claim "and is named" has "$err" "z failed with status 3"
finish
