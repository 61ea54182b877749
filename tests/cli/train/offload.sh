#!/usr/bin/env bash
# quick
# offload.sh - --offload DIR: disks that are full, slow, short of bytes or wrong; what a killed run leaves; the bytes
# of a step; the plan.
. "$(dirname "$0")/../lib/train_lib.bash"
text 3 30000 >"$TMP/text"
config "$TMP/model.json" vocab_size=256
common=(--data "$TMP/text" --model "$TMP/model.json" --steps 4 --seq-len 32 --global-batch 4 --threads 1 --dtype bf16)
disk=(--offload "$TMP/disk")
reference

# ---- ways to read and write ----
SHARDLINE_AIO=threads SHARDLINE_IO_SHORT=1 same "threads, short counts" "${disk[@]}"
claim "the log says that threads read" grep -q "offload: masters and moments in .* by threads" <<<"$err"
SHARDLINE_IO_SHORT=1 same "short counts" "${disk[@]}"
SHARDLINE_IO_STALL=aio_read:9:1500 same "a disk that stalls costs time" "${disk[@]}" --ranks 2 --zero 2

# ---- a disk that fails ----
for fault in aio_read:7:EIO aio_write:9:ENOSPC; do
    SHARDLINE_IO_FAULT=$fault train broken "${disk[@]}"
    claim "$fault ends the run" [ $rc = 1 ] &&
        claim "$fault: in one line that names the file" grep -q "disk/ptrain-.*-rank-00000\.[ab] at byte" <<<"$err"
    claim "$fault: and leaves no file" [ -z "$(ls -A "$TMP/disk")" ]
done
for n in 5 11; do
    SHARDLINE_IO_FAULT=aio_write:$n:EIO train broken "${disk[@]}" --zero 3 --offload-grads --micro-batch 2
    claim "gradients that cannot be written end the run, with the system's reason (write $n)" \
        grep -q "cannot write .*: Input/output error" <<<"$err"
done
SHARDLINE_IO_FAULT=aio_read:7:EIO train broken "${disk[@]}" --ranks 2 --zero 1
claim "a disk that fails ends all ranks" [ $rc = 1 ]

run timeout 60 "$BIN/ptrain" --data "$TMP/text" --model 70b --seq-len 8 --global-batch 1 --steps 1 --force --out "$TMP/big" \
    "${disk[@]}" --dtype bf16
if grep -q "are needed and" <<<"$err"; then
    claim "a disk that is too small is said before the first step" grep -q \
        "TB are needed and .* are free: free some space" <<<"$err"
    claim "with status 1" [ $rc = 1 ]
else
    skip "no memory for the tables of 70b, or a disk of 2 TB"
fi
run bash -c "ulimit -f 8192; exec timeout 60 $BIN/ptrain --data $TMP/text --steps 1 --out $TMP/limit --offload $TMP/disk"
claim "no space for the files ends the run" [ $rc = 1 ] &&
    claim "and the file is named" grep -q "cannot .*rank-00000\.a" <<<"$err"

# ---- a flipped bit ----
# flip FILE: another byte at its beginning
flip() { python3 -c 'import sys
f = open(sys.argv[1], "r+b"); b = f.read(1); f.seek(0); f.write(bytes([b[0] ^ 4]))' "$1"; }
for try in 1 2 3; do
    rm -rf "$TMP/flip" "$TMP/flip.jsonl"
    "$BIN/ptrain" "${common[@]}" --steps 100000 --out "$TMP/flip" --log "$TMP/flip.jsonl" "${disk[@]}" 2>"$TMP/flip.err" \
        >/dev/null &
    pid=$!
    for _ in {1..200}; do grep -q '"step":3,' "$TMP/flip.jsonl" 2>/dev/null && break; sleep 0.02; done
    kill -STOP $pid
    for f in "$TMP"/disk/*; do flip "$f"; done
    kill -CONT $pid
    for _ in {1..100}; do kill -0 $pid 2>/dev/null || break; sleep 0.02; done
    kill -9 $pid 2>/dev/null
    wait $pid 2>/dev/null
    grep -q "are not those that were written" "$TMP/flip.err" && break
done
claim "a flipped bit is found: file, unit, piece and bytes are named (try $try)" \
    grep -q "rank-00000\.[ab]: unit 0, piece 1 of 1: the masters at bytes 0 to" "$TMP/flip.err"

# ---- what a killed run leaves, and saves ----
rm -rf "$TMP/disk" "$TMP/killed"
"$BIN/ptrain" "${common[@]}" --steps 100000 --ranks 2 --save-every 1 --keep 1 --out "$TMP/killed" "${disk[@]}" >/dev/null 2>&1 &
pid=$!
for _ in {1..300}; do [ -e "$TMP/killed/step-2" ] || [ -e "$TMP/killed/step-3" ] && break; sleep 0.02; done
kill -9 $pid
wait $pid 2>/dev/null
sleep 1.5                       # ranks end within 1 s of their launcher
touch "$TMP/disk/mine"
claim "a killed run leaves files" [ "$(find "$TMP/disk" -name 'ptrain-*' | wc -l)" = 4 ]
run timeout 100 "$BIN/ptrain" "${common[@]}" --steps 100000 --stop-after 9 --out "$TMP/killed" --resume auto "${disk[@]}"
claim "the next run of one rank resumes" [ $rc = 0 ]
claim "and removes them, but no file of others" [ "$(ls -A "$TMP/disk")" = mine ]

same "saves between steps change nothing" --save-every 2 "${disk[@]}"

# ---- bytes ----
train bytes "${disk[@]}"
params=$(sed -n 's/.*"parameters":\([0-9]*\).*/\1/p' "$TMP/bytes.jsonl" | head -n 1)
moved=$(sed -n 's/.*"event":"offload".*"bytes":\([0-9]*\).*/\1/p' "$TMP/bytes.jsonl")
claim "a step moves 24 bytes a parameter, and what rounds pieces up to 4 KiB: $moved of $params parameters" \
    [ $((moved >= 24 * params && moved <= 24 * params + 100 * 4096)) = 1 ]
train more "${disk[@]}" --zero 3 --offload-grads --offload-params
moved=$(sed -n 's/.*"event":"offload".*"bytes":\([0-9]*\).*"side_bytes":\([0-9]*\).*/\1 \2/p' "$TMP/more.jsonl")
claim "with gradients and bf16 weights the update moves 30 bytes a parameter: $moved of $params parameters" \
    [ $((${moved% *} >= 30 * params && ${moved% *} <= 30 * params + 200 * 4096)) = 1 ]
claim "training itself writes 4 and reads 2 to 4 in each of four steps (some units stay from forward to backward)" \
    [ $((${moved#* } >= 4 * 6 * params && ${moved#* } <= 4 * 8 * params + 400 * 4096)) = 1 ]
SHARDLINE_AIO=threads SHARDLINE_IO_SHORT=1 same "gradients and weights by threads, in short counts" "${disk[@]}" --zero 3 \
    --offload-grads --offload-params
plan=$("$BIN/ptrain" "${common[@]}" "${disk[@]}" --dry-run)
claim "the plan has the files" grep -q "^files  *[0-9.]* MB a rank, in the folder of --offload" <<<"$plan"
claim "and what a step moves" grep -q "^disk  *[0-9.]* MB a rank and step, read and written" <<<"$plan"

# ---- refusals ----
run ptrain "${common[@]}" --out "$TMP/no" "${disk[@]}" --save-async
claim "--save-async is refused" [ $rc = 2 ] && claim "with what to leave out" grep -q "leave one of them out" <<<"$err"
run ptrain "${common[@]}" --out "$TMP/cpu" --offload cpu
claim "--offload cpu changes nothing on a CPU" [ "$(state_of "$out")" = "$ref_state" ] &&
    claim "and says so" grep -q "of a CPU device already: nothing changes" <<<"$err"
finish
