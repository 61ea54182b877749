# lib.bash - for the scripts in tests/cli: counts claims and prints the last line, which tests/run adds up.
#
#   . "$(dirname "$0")/../lib/lib.bash"
#   run ptrain --stepz 5                       # $BIN/ptrain when there is one; fills $rc, $out (stdout), $err
#   (stderr)
#   claim "an unknown option is refused" [ $rc = 2 ]
#   claim "and the nearest is suggested" has "$err" "did you mean --steps"
#   finish
#
# $TMP is a fresh folder, which tests/run removes. A program in $BIN is called by its name alone.
set -u
: "${BIN:?set by tests/run}" "${TMP:?set by tests/run}"
lib_dir=$(cd "${BASH_SOURCE[0]%/*}" && pwd)
# processes that a script started, also when it ends half-way
trap 'kill $(jobs -p) 2>/dev/null' EXIT
export PYTHONPATH=$lib_dir${PYTHONPATH:+:$PYTHONPATH}          # modules that the scripts share
# a device for tests; SHARDLINE_DEVICE=$fake_device makes it what --device cuda is
fake_device=$BIN/../tests/devices/fake_device.so
n_passed=0 n_failed=0 n_skipped=0 rc=0 out= err=

run() {
    local program=$1
    shift
    [ -x "$BIN/$program" ] && program=$BIN/$program
    "$program" "$@" >"$TMP/.out" 2>"$TMP/.err" </dev/null
    rc=$?
    out=$(cat "$TMP/.out") err=$(cat "$TMP/.err")
}

# what every run of ptrain says before and between its other lines: a pattern for grep
ptrain_usual='^ptrain: \(step [0-9]*/\|model .* parameters, \|[0-9]* ranks\{0,1\}[,;] \|steps [0-9]* to \)'

has() { [[ $1 == *"$2"* ]]; }

# claim WHAT COMMAND...: the claim holds when the command succeeds
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

# file_server FOLDER LOG: starts reshard_server.py, fills $server (process id) and $port. It ends with the
# script.
file_server() {
    rm -f "$TMP/.port"
    "${PYTHON:-python3}" -B "$lib_dir/reshard_server.py" "$1" "$2" >"$TMP/.port" 2>"$TMP/.server.err" &
    server=$!
    for _ in {1..200}; do [ -s "$TMP/.port" ] && break; sleep 0.05; done
    port=$(cat "$TMP/.port")
}

skip() { n_skipped=$((n_skipped + 1)); echo "skip: $*"; }

# The second reader, written from FORMAT.md alone, reads every checkpoint that a script made, whole or
# damaged, and must agree with `reshard verify` about each. It is written in plain Python, so it gets the
# first twelve small ones only.
agree_on_checkpoints() {
    local reader=$lib_dir/../../native_reader.py dir seen=0 ours theirs
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
        claim "the second reader agrees with verify about $dir ($ours, $theirs)" [ $((ours != 0)) = \
            $((theirs != 0)) ]
    done < <(find "$TMP" -name manifest.json -type f 2>/dev/null | sort)
}

finish() {
    agree_on_checkpoints
    echo "$n_passed passed, $n_failed failed, $n_skipped skipped"
    [ $n_failed -eq 0 ]
    exit
}
