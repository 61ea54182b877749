#!/usr/bin/env bash
# quick sanitize
# golden.sh - every tests/cli/*/*.golden: commands with what they must print and how they must end.
#
#   # a comment
#   $ ptrain --stepz 5
#   ! ptrain: unknown option --stepz: did you mean --steps
#   = 2
#
# Behind "$ command" (run by bash in a fresh folder, $BIN first in PATH): "> line" of stdout, "! line" of
# stderr, "= status" (0 when not said). A line that ends in "..." may go on; "...": any lines from here on.
# `golden.sh -u FILE` rewrites a file from what happens.
here=$(cd "$(dirname "$0")" && pwd)
[ "${1:-}" = -u ] && { update=$2 BIN=${BIN:-$here/../../../build/bin} TMP=${TMP:-$(mktemp -d)}; }
. "$here/../lib/lib.bash"
PATH=$BIN:$PATH

same() {                    # same WANTED GOT: line by line, with "..."
    local -a want got
    local i
    mapfile -t want <<<"$1"
    mapfile -t got <<<"$2"
    for i in "${!want[@]}"; do
        [ "${want[i]}" = "..." ] && return 0
        [ "$i" -lt ${#got[@]} ] || return 1
        case ${want[i]} in
        *...) [[ ${got[i]} == "${want[i]%...}"* ]] || return 1 ;;
        *) [ "${want[i]}" = "${got[i]}" ] || return 1 ;;
        esac
    done
    [ ${#got[@]} -le ${#want[@]} ]
}

command= want_out= want_err= want_rc=0
check() {
    [ -n "$command" ] || return 0
    ( cd "$dir" && bash -c "$command" ) >"$TMP/.out" 2>"$TMP/.err" </dev/null
    rc=$?
    out=$(cat "$TMP/.out") err=$(cat "$TMP/.err")
    if [ -n "${update:-}" ]; then
        echo "\$ $command"
        [ -s "$TMP/.out" ] && sed 's/^/> /' "$TMP/.out"
        [ -s "$TMP/.err" ] && sed 's/^/! /' "$TMP/.err"
        [ $rc -eq 0 ] || echo "= $rc"
    elif [ "$rc" != "$want_rc" ]; then
        claim "$file: $command: ends with $want_rc" false
    elif ! same "${want_out%$'\n'}" "$out"; then
        claim "$file: $command: stdout is"$'\n'"$want_out" false
    else
        claim "$file: $command: stderr is"$'\n'"$want_err" same "${want_err%$'\n'}" "$err"
    fi
    command= want_out= want_err= want_rc=0
}

run_file() {
    local line
    file=$(basename "$1") dir=$(mktemp -d "$TMP/golden-XXXXXX")
    while IFS= read -r line <&3 || [ -n "$line" ]; do
        case $line in
        '$ '*) check; command=${line#??} ;;
        '>'*) line=${line#>}; want_out+=${line# }$'\n' ;;
        '!'*) line=${line#!}; want_err+=${line# }$'\n' ;;
        '= '*) want_rc=${line#= } ;;
        '#'* | '') check; [ -z "${update:-}" ] || echo "$line" ;;
        *) claim "$file: a line begins with \$ > ! = or #: $line" false ;;
        esac
    done 3<"$1"
    check
}

if [ -n "${update:-}" ]; then
    text=$(run_file "$update") && printf '%s\n' "$text" >"$update"
    exit
fi
shopt -s nullglob
[ -n "${GOLDEN:-}" ] && files=("$GOLDEN"/*.golden) || files=("$here"/../*/*.golden)
for f in "${files[@]}"; do
    [ "${f##*/}" = train_refusals.golden ] && [ "${ALL:-0}" = 0 ] && continue          # many: golden_all.sh
    run_file "$f"
done
finish
