#!/usr/bin/env bash
# quick
# save.sh - saves of a running training: behind it (--save-async) the same bytes as in place, and the memory
# of the copy as planned; a save that fails is said and leaves nothing, and training goes on
# (--on-save-error).
. "$(dirname "$0")/../lib/train_lib.bash"
text 1 20000 >"$TMP/text"
config "$TMP/model.json" vocab_size=256
common=(--data "$TMP/text" --model "$TMP/model.json" --seq-len 31 --global-batch 4 --threads 1)
errors() { grep -v "$ptrain_usual" "$TMP/.err"; }             # without the lines of every run
lines() { errors | wc -l; }
names() { (cd "$TMP/$1" && echo *); }
event() { grep "\"event\":\"$2\"" "$TMP/$1.jsonl"; }
whole() { "$BIN/reshard" verify "$TMP/$1" >/dev/null 2>&1; }
same_files() { diff -r -x .ptrain.lock "$TMP/$1" "$TMP/$2" >/dev/null; }

# ---- the same bytes, whoever writes them ----
while read -r layout; do
    train place --steps 5 --save-every 1 $layout
    claim "in place ($layout)" [ $rc = 0 ]
    place=$out
    train behind --steps 5 --save-every 1 --save-async $layout
    claim "behind ($layout)" [ $rc = 0 ] &&
        claim "behind ($layout): every checkpoint is the same, to the byte" same_files place behind
    claim "behind ($layout): and the last line" [ "${out//behind/place}" = "$place" ]
    claim "behind ($layout): five saves are logged" [ \
        "$(event behind save |
            grep -c '"async":true,"stall_ms":[0-9.e+-]*,"snapshot_ms":[0-9.e+-]*,"write_s":[0-9.e+-]*,"bytes":[1-9]')" = 5 ]
    claim "behind ($layout): with the step they hold" [ \
        "$(event behind save | grep -o '"step":[0-9]*' | tr '\n' ' ')" = \
            '"step":1 "step":2 "step":3 "step":4 "step":5 ' ]
done <<'LAYOUTS'
--ranks 1
--ranks 4 --tp 2 --zero 1 --dtype bf16
--ranks 4 --pp 2 --zero 3
LAYOUTS
# on a slow disk steps pass while a checkpoint is written, and the next save waits for the one before
train place --steps 12 --save-every 6
export SHARDLINE_IO_SLOW=10
train behind --steps 12 --save-every 6 --save-async
claim "a slow disk: the step that was saved, not a later one" [ $rc = 0 ] &&
    claim "a slow disk: to the byte" same_files place behind
claim "a slow disk: the event comes steps later" eval \
    '[ "$(grep -n "\"event\":\"save\",\"step\":6" "$TMP/behind.jsonl" | cut -d: -f1)" -gt "$(grep -n "\"step\":8,\"loss" "$TMP/behind.jsonl" | cut -d: -f1)" ]'
train behind --steps 3 --save-every 1 --save-async
claim "a slow disk, a save a step: each waits for the one before" [ "$rc/$(names behind)" = \
    "0/step-1 step-2 step-3" ]
claim "a slow disk: which is in its stall" eval \
    'event behind save | sed -n "s/.*\"step\":2,.*\"stall_ms\":\([0-9]*\).*/\1/p" | grep -q "^[1-9][0-9][0-9]"'
unset SHARDLINE_IO_SLOW
train behind --steps 6 --save-every 2 --save-async --keep 1 --ranks 2 --zero 2
claim "--keep 1 behind training: the last stays" [ "$rc/$(names behind)" = "0/step-6" ]
train behind --steps 20 --stop-after 3 --save-async
claim "a run that stops early waits for its save" [ $rc = 0 ] && claim "which is whole" whole behind/step-3

# ---- the memory of the copy: as planned, on the fullest rank to the byte ----
held() {
    grep '"when":"end"' "$TMP/$1.jsonl" | tr '{' '\n' | grep "\"rank\":$2," |
        sed "s/.*\"save\":\[\([0-9]*\),.*/\1/"
}
for layout in "--ranks 1" "--ranks 2 --zero 1" "--ranks 2 --zero 3 --dtype bf16" "--ranks 2 --tp 2"; do
    train behind --steps 1 --save-async $layout
    planned=$("$BIN/ptrain" "${common[@]}" $layout --save-async --dry-run |
        sed -n 's/^save  *\([0-9.]* [kM]B\) a rank$/\1/p')
    claim "the copy of $layout is in the plan" awk -v a="$(held behind 0)" -v b="$planned" \
        'BEGIN { exit !(a > 0 && b == (a < 999995 ? sprintf("%.2f kB", a / 1e3) : sprintf("%.2f MB", a / 1e6))) }'
done
train place --steps 1
claim "without --save-async there is none" [ "$(held place 0)" = 0 ]

# ---- a save that fails ----
# go_on WHAT FAULT ARGS...: the save of step 2 or 4 fails, the run ends well
go_on() {
    local what=$1 fault=$2
    shift 2
    export SHARDLINE_IO_FAULT=$fault
    train fail --steps 6 --save-every 2 "$@"
    unset SHARDLINE_IO_FAULT
    claim "$what: training goes on" [ $rc = 0 ] && claim "$what: one line" [ "$(lines)" = 1 ] &&
        claim "$what: which says so" has "$(errors)" ": training goes on"
    claim "$what: the line names the place" has "$(errors)" "saving $TMP/fail/step-"
    claim "$what: it is an event of that step" [ \
        "$(event fail save_failed | grep -c "\"step\":[24],\"checkpoint\":\".*/step-[24]\",\"error\":\"")" = \
            1 ]
    claim "$what: the other saves are there, nothing else" [ "$(names fail)" = "${expect:-step-4 step-6}" ]
    for s in $(names fail); do claim "$what: $s is whole" whole "fail/$s"; done
}
for async in "" --save-async; do
    for ranks in "--ranks 1" "--ranks 4 --tp 2 --zero 1"; do
        go_on "write fails ($ranks $async)" write:2:ENOSPC $ranks $async
        go_on "no room for a folder ($ranks $async)" mkdir:2:ENOSPC $ranks $async
        go_on "rename fails ($ranks $async)" rename:1:EIO $ranks $async
    done
    go_on "fsync of the folder fails ($async)" fsync:1:EIO $async
    go_on "fsync of a file fails ($async)" fsync:2:EIO $async
    # each rank counts its own: only rank 0, which publishes, has so many
    go_on "fsync fails while rank 0 publishes ($async)" fsync:7:EIO --ranks 4 --tp 2 --zero 1 $async
    # the first mkdir is --out itself, the second the folder of step 2; the third that of step 4
    expect=step-6 go_on "--keep 1 ($async)" mkdir:3:ENOSPC --keep 1 $async
    export SHARDLINE_IO_FAULT=write:2:ENOSPC
    train fail --steps 6 --save-every 2 --on-save-error stop $async
    claim "--on-save-error stop $async: status 1" [ $rc = 1 ] &&
        claim "--on-save-error stop $async: one line" [ "$(lines)" = 1 ]
    claim "--on-save-error stop $async: nothing is left" [ "$(names fail)" = '*' ]
    train fail --steps 2 $async
    claim "the last save fails $async: status 1" [ $rc = 1 ] &&
        claim "the last save fails $async: one line" [ "$(lines)" = 1 ]
    claim "the last save fails $async: nothing is left" [ "$(names fail)" = '*' ]
    unset SHARDLINE_IO_FAULT
done
# a full disk for good: all but the last save are passed over, what was whole before stays, and the next run
# goes on from it
train kept --steps 6 --stop-after 2
mkdir "$TMP/disk"
if mount -t tmpfs -o size=3500k none "$TMP/disk" 2>/dev/null; then
    cp -r "$TMP/kept/step-2" "$TMP/disk/step-2"
    dd if=/dev/zero of="$TMP/disk/full" bs=4k >/dev/null 2>&1
    run "$BIN/ptrain" "${common[@]}" --steps 6 --save-every 1 --keep 1 --out "$TMP/disk" --resume auto
    claim "a disk that stays full: status 1 at the end" [ $rc = 1 ] &&
        claim "a line a save" [ "$(errors | grep -c "No space left")" = 4 ]
    claim "--keep 1 has not touched the last whole one" whole disk/step-2
    rm "$TMP/disk/full"
    run "$BIN/ptrain" "${common[@]}" --steps 6 --save-every 1 --keep 1 --out "$TMP/disk" --resume auto
    claim "with room again --resume auto goes on from it" has "$err" "disk/step-2 at step 2" &&
        claim "to the end" [ "$rc/$(names disk)" = 0/step-6 ]
    umount "$TMP/disk"
else
    skip "no right to mount a small tmpfs: a really full disk is not tried"
fi

# ---- --resume auto takes the newest whole one ----
train auto --steps 6 --save-every 2 --stop-after 6
printf x | dd of="$TMP/auto/step-6/$(ls "$TMP/auto/step-6" | grep -m1 weights)" bs=1 seek=900 conv=notrunc \
    status=none
rm "$TMP/auto/step-4/manifest.json"
mkdir "$TMP/auto/step-8.tmp-save"
run "$BIN/ptrain" "${common[@]}" --steps 7 --out "$TMP/auto" --resume auto
claim "damaged ones are passed over by name" eval \
    'has "$err" "passing over $TMP/auto/step-6: " && has "$err" "passing over $TMP/auto/step-4: "'
claim "and the newest whole one is taken" has "$err" "resumed $TMP/auto/step-2 at step 2"
rm -rf "$TMP/auto"/step-[27]
rm "$TMP/auto/step-6/manifest.json"
run "$BIN/ptrain" "${common[@]}" --steps 7 --out "$TMP/auto" --resume auto
claim "a run does not begin anew over checkpoints of which none is whole" eval \
    '[ $rc = 1 ] && has "$err" "no checkpoint in $TMP/auto is whole"'
claim "and leaves them" [ -d "$TMP/auto/step-6" -a -d "$TMP/auto/step-4" ]

# ---- an end that nobody planned: the save behind it is not lost ----
train nan --steps 40 --save-every 1 --save-async --lr 1e6 --clip 0 --warmup 0
claim "a run whose loss is no number ends with status 1" [ $rc = 1 ]
for s in $(names nan); do claim "and what it saved is whole: $s" whole "nan/$s"; done
claim "all of it: a folder a step" [ "$(names nan | wc -w)" = "$(wc -l <<<"$bits")" ]
finish
