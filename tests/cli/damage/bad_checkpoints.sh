#!/usr/bin/env bash
# quick sanitize
# bad_checkpoints.sh - the broken checkpoints of bad_checkpoints.py (tests/BAD_INPUTS.md): refused with status
# 1, in one line that names the place, by verify and by a conversion, of which nothing appears; and those that
# are only odd are read.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../lib/lib.bash"
command -v python3 >/dev/null || { skip "no python3 here"; finish; }
cd "$TMP" || exit 1
python3 -B "$here/bad_checkpoints.py" . || { claim "the checkpoints are made" false; finish; }
while IFS=$'\t' read -r name answer says; do
    run timeout -k 10 20 "$BIN/reshard" verify "$name"
    if [ "$answer" = read ]; then
        claim "$name is read" [ $rc = 0 ]
        continue
    fi
    claim "$name: status 1" [ $rc = 1 ] && claim "$name: one line" [ "$(wc -l <"$TMP/.err")" = 1 ] &&
        claim "$name: it names the checkpoint" has "$err" "$name" &&
        claim "$name: it says \"$says\"" has "$err" "$says"
    run timeout -k 10 20 "$BIN/reshard" --tp 2 "$name" new
    claim "$name: is not converted" [ $rc != 0 ] &&
        claim "$name: nothing appears" [ -z "$(ls -d new* 2>/dev/null)" ]
done <cases

# G103: two at once into one place: the second is refused while the first works, and both may be killed; the
# next run tidies up
SHARDLINE_IO_SLOW=300 "$BIN/reshard" --format hf E0-megatron both 2>one.err &
first=$!
for ((i = 0; i < 500; i++)); do [ -e both.tmp-save ] && break || sleep 0.02; done
run reshard --format hf E0-megatron both
claim "two at once: the second is refused" [ $rc = 1 ]
claim "two at once: it says why" has "$err" "another process is writing both.tmp-save"
wait $first
claim "two at once: the first is not disturbed" [ $? = 0 ]
run reshard verify both
claim "two at once: what is there in the end is whole" [ $rc = 0 ]
rm -rf both
SHARDLINE_IO_SLOW=300 "$BIN/reshard" --format hf E0-megatron both 2>one.err &
first=$!
for ((i = 0; i < 500; i++)); do [ -e both.tmp-save ] && break || sleep 0.02; done
kill -9 $first
wait $first 2>/dev/null
claim "killed: its folder is left" [ -e both.tmp-save ]
run reshard --format hf E0-megatron both
claim "killed: the next run leaves nothing else" [ $rc = 0 -a "$(ls -d both*)" = both ]
rm -rf both
for n in 1 2 3; do
    for i in 1 2 3 4; do "$BIN/reshard" --format hf E0-megatron both 2>"$i.err" && echo "$i" >>won & done
    wait
    claim "four at once ($n): one of them wins" [ "$(wc -l <won)" = 1 -a "$(ls -d both*)" = both ]
    run reshard verify both
    claim "four at once ($n): what is there is whole" [ $rc = 0 ]
    rm -rf both won
done
# G106: a folder that nobody may write to, and one in memory (no O_DIRECT there)
SHARDLINE_IO_FAULT=mkdir:1:EROFS run reshard --format hf E0-megatron both
claim "read-only: status 1 and one line" [ "$rc/$(wc -l <"$TMP/.err")" = 1/1 ]
claim "read-only: it names the folder" has "$err" "cannot make folder both.tmp-save: Read-only file system"
if shm=$(mktemp -d -p /dev/shm 2>/dev/null); then
    run reshard --format hf E0-megatron "$shm/both"
    claim "in memory: a conversion works" [ $rc = 0 ]
    rm -rf "$shm"
else
    skip "no /dev/shm to write to"
fi
finish
