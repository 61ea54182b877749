#!/usr/bin/env bash
# quick waits
# faults.sh - damaged checkpoints, full disks, ranks that die or stop while they train, signals: one clear
# line, a status that says so, all processes gone within 10 s, and never half a checkpoint. (Ranks of a
# server: serve_faults.sh; the ranks' own part: faults_comm.sh.)
. "$(dirname "$0")/../lib/train_lib.bash"
here=$(cd "$(dirname "$0")" && pwd)
text 1 20000 >"$TMP/text"
config "$TMP/model.json" vocab_size=256
common=(--data "$TMP/text" --model "$TMP/model.json" --steps 2 --seq-len 31 --global-batch 4 --threads 1)
train good --tp 2
good=$TMP/good/step-2
claim "a checkpoint to damage" [ $rc = 0 ] || finish

errors() { grep -v "$ptrain_usual" "$TMP/.err"; }             # without the lines of every run
one_line() { [ "$(errors | wc -l)" = 1 ]; }
# neither it nor a temporary folder
nothing_at() { local f; for f in "$@"; do compgen -G "$f*" >/dev/null && return 1; done; return 0; }

# ---- damaged files: everyone who is given them names the file ----
# refused WHAT NAME COMMAND...: status 1, one line with NAME in it
refused() {
    local what=$1 name=$2
    shift 2
    run timeout -k 10 60 "$@"
    claim "$what: status 1" [ $rc = 1 ] && claim "$what: one line" one_line &&
        claim "$what: it names $name" has "$err" "$name"
}
everyone() {                # everyone WHAT NAME: the damaged copy $TMP/bad given to every program
    refused "$1: ptrain --resume" "$2" "$BIN/ptrain" --data "$TMP/text" --steps 3 --threads 1 --resume \
        "$TMP/bad" --out "$TMP/o"
    refused "$1: ptrain --resume at tp 4" "$2" "$BIN/ptrain" --data "$TMP/text" --steps 3 --threads 1 \
        --resume "$TMP/bad" --out "$TMP/o" --tp 4
    refused "$1: ptrain --init" "$2" "$BIN/ptrain" "${common[@]}" --init "$TMP/bad" --out "$TMP/o"
    refused "$1: reshard" "$2" "$BIN/reshard" "$TMP/bad" "$TMP/moved"
    refused "$1: reshard verify" "$2" "$BIN/reshard" verify "$TMP/bad"
    refused "$1: pserve" "$2" "$BIN/pserve" "$TMP/bad" --tp 2 --once a --max-tokens 1
    claim "$1: nothing was written" nothing_at "$TMP/o/step" "$TMP/moved"
}
fresh() { rm -rf "$TMP/bad" "$TMP/o"; cp -r "$good" "$TMP/bad"; }
for file in weights-00001.safetensors optim-00000.safetensors; do
    size=$(stat -c %s "$good/$file")
    fresh
    truncate -s $((size - 1)) "$TMP/bad/$file"
    everyone "$file one byte short" "$file"
    for at in 20 $((size / 2)) $((size - 1)); do
        fresh
        printf "\\x$(printf %02x $((0x$(xxd -s $at -l 1 -p "$TMP/bad/$file") ^ 16)))" |
            dd of="$TMP/bad/$file" bs=1 seek=$at conv=notrunc status=none
        everyone "$file, byte $at changed" "$file"
    done
    fresh
    rm "$TMP/bad/$file"
    everyone "$file missing" "$file"
done
fresh
sed -i 's/"hidden_act": "silu"/"hidden_act": "relu"/' "$TMP/bad/config.json"
everyone "config.json changed" config.json
fresh
sed -i 's/"step":2/"step":3/' "$TMP/bad/manifest.json"
everyone "manifest.json changed" manifest.json
if command -v python3 >/dev/null; then
    fresh
    python3 -B - "$TMP/bad/manifest.json" "$here/../.." <<'PYTHON'
import sys
sys.path.insert(0, sys.argv[2])
from native_reader import xxh128
raw = open(sys.argv[1], "rb").read()[:-36].replace(b'"version":1', b'"version":7')
open(sys.argv[1], "wb").write(raw + b'"' + xxh128(raw).encode() + b'"}\n')
PYTHON
    everyone "a manifest of version 7" "version 7 of the format"
else
    skip "no python3 to write a manifest of another version"
fi

# ---- a full disk, and every other call that fails while a checkpoint is written ----
full() {                    # full WHAT FAULT ARGS...: the save fails with one line, and leaves nothing
    local what=$1 fault=$2
    shift 2
    rm -rf "$TMP/full"
    SHARDLINE_IO_FAULT=$fault run timeout -k 10 60 "$BIN/ptrain" "${common[@]}" --out "$TMP/full" "$@"
}
for kind in write:ENOSPC fsync:EIO close:EDQUOT rename:EIO; do
    for ranks in 1 4; do
        for n in 1 2 3 4 5 6 7 8 9 10 20 40 80; do
            full x "${kind%:*}:$n:${kind#*:}" --ranks $ranks --zero 1
            [ $rc = 0 ] && break
            what="$kind number $n fails on $ranks ranks"
            claim "$what: status 1" [ $rc = 1 ] && claim "$what: one line" one_line &&
                claim "$what: it names the place" has "$err" "$TMP/full/step-2"
            claim "$what: neither a checkpoint nor a temporary folder is left" nothing_at "$TMP/full/step-2"
        done
        claim "$kind on $ranks ranks: beyond the last call the run ends well" [ $rc = 0 ] &&
            claim "and its checkpoint is whole" "$BIN/reshard" verify "$TMP/full/step-2" >/dev/null
    done
done
mkdir "$TMP/small"
if mount -t tmpfs -o size=256k none "$TMP/small" 2>/dev/null; then
    run timeout -k 10 60 "$BIN/ptrain" "${common[@]}" --out "$TMP/small/run" --ranks 2
    claim "a disk that is really full: status 1" [ $rc = 1 ]
    claim "one line that says it" one_line && claim "and names the file" has "$err" "step-2" &&
        claim "and why" has "$err" "No space left"
    claim "and leaves nothing" nothing_at "$TMP/small/run/step-2"
    run "$BIN/reshard" "$good" "$TMP/small/moved"
    claim "reshard too: status 1" [ $rc = 1 ] && claim "reshard: why" has "$err" "No space left" &&
        claim "reshard leaves nothing" nothing_at "$TMP/small/moved"
    umount "$TMP/small"
else
    skip "no right to mount a small tmpfs: a really full disk is not tried"
fi

run bash -c 'ulimit -f 40; exec "$0" "$@"' "$BIN/reshard" "$good" "$TMP/limit"
claim "files may not grow so large: status 1" [ $rc = 1 ] &&
    claim "one line names the file and why" eval 'one_line && [[ $err == *limit*"File too large"* ]]'
claim "and nothing is left" nothing_at "$TMP/limit"
run bash -c 'ulimit -f 40; exec "$0" "$@"' "$BIN/ptrain" "${common[@]}" --out "$TMP/limit"
claim "ptrain does not begin under such a limit: status 1" [ $rc = 1 ] &&
    claim "one line says what to change" eval 'one_line && [[ $err == *"ulimit -f"*"File too large"* ]]'

# ---- a rank that dies or stops while it trains ----
# start ARGS...: an endless run of 4 ranks in the background; fills job and rank[] (process of each rank)
start() {
    rm -rf "$TMP/long"
    "$BIN/ptrain" --data "$TMP/text" --model "$TMP/model.json" --steps 1000000 --seq-len 31 --global-batch 4 \
        --threads 1 --out "$TMP/long" \
        --log "$TMP/long.jsonl" --ranks 4 "$@" >"$TMP/.out" 2>"$TMP/.err" </dev/null &
    job=$!
    rank=()
    rm -f "$TMP/long.jsonl"
    for _ in {1..200}; do
        [ "$(grep -c loss_bits "$TMP/long.jsonl" 2>/dev/null || true)" -ge 3 ] 2>/dev/null && break
        sleep 0.1
    done
    local launcher p r
    launcher=$(pgrep -P $job) || launcher=$job
    for p in $(pgrep -P "$launcher"); do
        r=$(tr '\0' '\n' <"/proc/$p/environ" | sed -n 's/^OMPI_COMM_WORLD_RANK=//p')
        [ -n "$r" ] && rank[r]=$p
    done
    claim "four ranks train" [ ${#rank[@]} = 4 ]
}
stay() {
    local p; for p in "${rank[@]}"; do [ -d /proc/$p ] &&
        [[ $(cat /proc/$p/stat 2>/dev/null) != *") Z "* ]] && return 0; done; return 1
}
# ended WHAT: waits for the job; within 10 s, and all ranks with it
ended() {
    local begin=$EPOCHREALTIME
    wait $job 2>/dev/null
    rc=$? err=$(errors)
    took=$(awk -v a="$begin" -v b="$EPOCHREALTIME" 'BEGIN { print int(b - a) }')
    for _ in 1 2 3 4 5; do stay && sleep 0.2; done
    claim "$1: all end within 10 s" [ "$took" -lt 10 ]
    claim "$1: no process is left" eval '! stay'
    stay && kill -KILL "${rank[@]}" 2>/dev/null
}
for zero in 0 3; do
    for who in 0 2; do
        start --zero $zero --save-every 5
        kill -KILL "${rank[who]}"
        ended "zero $zero, rank $who killed"
        claim "zero $zero, rank $who killed: not as if all were well" [ $rc -ne 0 ]
        claim "zero $zero, rank $who killed: one line names it" eval \
            '[ "$(wc -l <<<"$err")" = 1 ] && [[ $err == *"rank $who died"* ]]'
        broken=0
        for c in "$TMP"/long/step-*[0-9]; do
            [ -d "$c" ] && ! "$BIN/reshard" verify --quick "$c" >/dev/null 2>&1 && broken=$((broken + 1))
        done
        claim "zero $zero, rank $who killed: every checkpoint with a name is whole" [ $broken = 0 ]
    done
done
newest=$(ls -d "$TMP"/long/step-*[0-9] | sed 's/.*step-//' | sort -n | tail -1)
run "$BIN/ptrain" --data "$TMP/text" --out "$TMP/long" --resume auto --steps 1000000 --stop-after \
    $((newest + 1)) --threads 1
claim "and --resume auto goes on from the newest" [ $rc = 0 ]
start
kill -STOP "${rank[1]}"
ended "rank 1 stopped"
claim "rank 1 stopped: not as if all were well" [ $rc -ne 0 ]
claim "rank 1 stopped: one line names it" eval \
    '[ "$(wc -l <<<"$err")" = 1 ] && [[ $err == *"rank 1 does not answer"* ]]'
claim "rank 1 stopped: nothing was saved" nothing_at "$TMP/long/step"

# ---- a rank that dies while a checkpoint is written behind training ----
SHARDLINE_IO_SLOW=100 start --zero 1 --save-async --save-every 2
for ((i = 0; i < 200; i++)); do ls -d "$TMP"/long/step-*.tmp-save >/dev/null 2>&1 && break || sleep 0.05; done
claim "a save is under way" [ $i -lt 200 ]
kill -KILL "${rank[2]}"
ended "killed during a save"
claim "killed during a save: not as if all were well" [ $rc -ne 0 ]
claim "killed during a save: one line names it" eval \
    '[ "$(wc -l <<<"$err")" = 1 ] && [[ $err == *"rank 2 died"* ]]'
newest=0
for c in "$TMP"/long/step-*[0-9]; do
    [ -d "$c" ] || continue
    claim "killed during a save: ${c##*/} is whole" "$BIN/reshard" verify "$c" >/dev/null
    [ "${c##*-}" -gt "$newest" ] && newest=${c##*-}
done
run "$BIN/ptrain" --data "$TMP/text" --model "$TMP/model.json" --seq-len 31 --global-batch 4 --out \
    "$TMP/long" --resume auto --steps 1000000 --stop-after $((newest + 2)) --threads 1
claim "killed during a save: --resume auto goes on" [ $rc = 0 ] &&
    claim "and saves" "$BIN/reshard" verify "$TMP/long/step-$((newest + 2))" >/dev/null

# ---- an orderly end ----
for sig in TERM INT; do
    start
    kill -$sig $job
    ended "SIG$sig"
    last=$(grep -c loss_bits "$TMP/long.jsonl")
    claim "SIG$sig: status 0" [ $rc = 0 ]
    claim "SIG$sig: the step it was at is saved, whole" "$BIN/reshard" verify "$TMP/long/step-$last" \
        >/dev/null
    claim "SIG$sig: and it is said" has "$err" "continue with --resume $TMP/long/step-$last"
done
finish
