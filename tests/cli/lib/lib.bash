# lib.bash - for the scripts in tests/cli: claims that are counted, the last line that tests/run adds up. Used by `. lib.bash`.
#
#   . "$(dirname "$0")/../lib/lib.bash"
#   run ptrain --stepz 5                       # $BIN/ptrain when there is one; fills $rc, $out (stdout), $err (stderr)
#   claim "an unknown option is refused" [ $rc = 2 ]
#   claim "and the nearest is suggested" has "$err" "did you mean --steps"
#   finish
#
# $TMP is a fresh folder, removed afterwards. Under $BIN every program can be meant by its name alone.
set -u
: "${BIN:?set by tests/run}" "${TMP:?set by tests/run}"
trap 'kill $(jobs -p) 2>/dev/null' EXIT           # what a script leaves running when it ends half-way, too
export PYTHONPATH=$(cd "${BASH_SOURCE[0]%/*}" && pwd)${PYTHONPATH:+:$PYTHONPATH}          # modules that the scripts share
fake_device=$BIN/../tests/devices/fake_device.so       # a device for tests; SHARDLINE_DEVICE=$fake_device makes it what --device cuda is
n_passed=0 n_failed=0 n_skipped=0 rc=0 out= err=

run() {
    local program=$1
    shift
    [ -x "$BIN/$program" ] && program=$BIN/$program
    "$program" "$@" >"$TMP/.out" 2>"$TMP/.err" </dev/null
    rc=$?
    out=$(cat "$TMP/.out") err=$(cat "$TMP/.err")
}

has() { [[ $1 == *"$2"* ]]; }

claim() {
    local what=$1
    shift
    if "$@"; then
        n_passed=$((n_passed + 1))
        return 0
    fi
    n_failed=$((n_failed + 1))
    echo "FAIL $what: $*"
    echo "  last command: status $rc"
    head -c 2000 "$TMP/.out" 2>/dev/null | sed 's/^/  stdout: /'
    head -c 2000 "$TMP/.err" 2>/dev/null | sed 's/^/  stderr: /'
    return 1
}

skip() { n_skipped=$((n_skipped + 1)); echo "skip: $*"; }

# The second reader (from FORMAT.md alone, no other code of ours) sees every checkpoint that a script made, whole or damaged: it must agree with
# `reshard verify` about each. Small ones only, and the first few: it is written in plain Python.
agree_on_checkpoints() {
    local reader=${BASH_SOURCE[0]%/*}/../../native_reader.py dir seen=0 ours theirs
    command -v python3 >/dev/null && [ -x "$BIN/reshard" ] || return 0
    while IFS= read -r dir; do
        dir=${dir%/manifest.json}
        [ $seen -lt 12 ] && [ "$(du -sk "$dir" | cut -f1)" -le 2000 ] && [[ $dir != *.tmp-* ]] || continue
        run reshard verify "$dir"
        ours=$rc
        run python3 -B "$reader" "$dir"
        theirs=$rc
        [ $theirs != 77 ] || continue
        seen=$((seen + 1))
        claim "the second reader agrees with verify about $dir ($ours, $theirs)" [ $((ours != 0)) = $((theirs != 0)) ]
    done < <(find "$TMP" -name manifest.json 2>/dev/null | sort)
}

finish() {
    agree_on_checkpoints
    echo "$n_passed passed, $n_failed failed, $n_skipped skipped"
    [ $n_failed -eq 0 ]
    exit
}
