# lib.bash - for the scripts in tests/cli: claims that are counted, the last line that tests/run adds up. Used by `. lib.bash`.
#
#   . "$(dirname "$0")/lib.bash"
#   run ptrain --stepz 5                       # $BIN/ptrain when there is one; fills $rc, $out (stdout), $err (stderr)
#   claim "an unknown option is refused" [ $rc = 2 ]
#   claim "and the nearest is suggested" has "$err" "did you mean --steps"
#   finish
#
# $TMP is a fresh folder, removed afterwards. Under $BIN every program can be meant by its name alone.
set -u
: "${BIN:?set by tests/run}" "${TMP:?set by tests/run}"
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

finish() {
    echo "$n_passed passed, $n_failed failed, $n_skipped skipped"
    [ $n_failed -eq 0 ]
    exit
}
