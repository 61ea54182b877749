#!/usr/bin/env bash
# quick sanitize
# bad_checkpoints.sh - the broken checkpoints of bad_checkpoints.py (tests/BAD_INPUTS.md): refused with status 1, in one line that names the place,
# by verify and by a conversion, of which nothing appears; and those that are only odd are read.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/lib.bash"
command -v python3 >/dev/null || { skip "no python3 here"; finish; }
cd "$TMP" || exit 1
python3 -B "$here/bad_checkpoints.py" . || { claim "the checkpoints are made" false; finish; }
while IFS=$'\t' read -r name answer says; do
    run timeout 20 "$BIN/reshard" verify "$name"
    if [ "$answer" = read ]; then
        claim "$name is read" [ $rc = 0 ]
        continue
    fi
    claim "$name: status 1" [ $rc = 1 ] && claim "$name: one line" [ "$(wc -l <"$TMP/.err")" = 1 ] && claim "$name: it names the checkpoint" has "$err" "$name" &&
        claim "$name: it says \"$says\"" has "$err" "$says"
    run timeout 20 "$BIN/reshard" --tp 2 "$name" new
    claim "$name: is not converted" [ $rc != 0 ] && claim "$name: nothing appears" [ -z "$(ls -d new* 2>/dev/null)" ]
done <cases

# G103: two at once into one place: at most one of them wins, what is there is whole, and the next run works and tidies up
for n in 1 2 3; do
    "$BIN/reshard" --format hf E0-megatron both 2>one.err &
    first=$!
    "$BIN/reshard" --format hf E0-megatron both 2>two.err
    second=$?
    wait $first
    claim "two at once ($n): not both succeed" [ $(($? == 0 && second == 0)) = 0 ]
    [ -e both ] || run reshard --format hf E0-megatron both
    run reshard verify both
    claim "two at once ($n): what is there in the end is whole" [ $rc = 0 ]
    rm -rf both
    run reshard --format hf E0-megatron both
    claim "two at once ($n): the next run leaves nothing else" [ $rc = 0 -a "$(ls -d both*)" = both ]
    rm -rf both
done
finish
