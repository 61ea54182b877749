#!/usr/bin/env bash
# quick
# odd_places.sh - pipes, links, full disks and other places where files should not be: refused in one line, at
# once, and nothing of the user's is lost.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../lib/lib.bash"
cd "$TMP" || exit 1
for i in $(seq 200); do echo "line $i: $((i * i)) is the square of $i"; done >text
train="--data text --seq-len 32 --global-batch 4"
run ptrain $train --out run --steps 2 --stop-after 1
claim "a model is trained" [ $rc = 0 ] || finish

# pipes that nobody writes or reads: an open would wait for ever
mkfifo pipe pipe.safetensors
mkdir piped piped-hf
mkfifo piped/manifest.json piped-hf/model.safetensors
cp run/step-1/config.json piped-hf
while IFS='|' read -r at command; do
    run timeout -k 5 30 bash -c "PATH=$BIN:\$PATH; $command"
    claim "$command: status 1" [ $rc = 1 ]
    claim "$command: names $at" has "$err" "$at is a pipe"
done <<'TABLE'
pipe|ptrain --data pipe --seq-len 32 --out other
pipe|reshard inspect pipe
pipe.safetensors|reshard inspect pipe.safetensors
piped/manifest.json|reshard inspect piped
piped/manifest.json|pserve piped --port 0
piped-hf/model.safetensors|reshard --tp 2 piped-hf other
pipe|ptok prepare --tokenizer bytes pipe --out tokens.bin
pipe|pserve run/step-1 --port 0 --api-key-file pipe
pipe|pserve run/step-1 --port 0 --access-log pipe
pipe|ptrain --data text --seq-len 32 --out other --steps 1 --trace pipe
TABLE

# a second signal, over a second later, ends what does not look for the first
SHARDLINE_IO_SLOW=30000 "$BIN/reshard" --tp 2 run/step-1 slow 2>slow.err &
slow=$!
for ((i = 0; i < 500; i++)); do [ -e slow.tmp-save ] && break || sleep 0.02; done
kill -TERM $slow
sleep 1.5
kill -TERM $slow
wait $slow
claim "two signals end a conversion" [ $? = 143 ]
claim "and nothing appears" [ ! -e slow ]

# stdout that takes nothing: no result, no success
while read -r command; do
    run bash -c "PATH=$BIN:\$PATH; $command >/dev/full"
    claim "$command, stdout full: status 1" [ $rc = 1 ]
    claim "$command, stdout full: says it" has "$err" "cannot write"
    run bash -c "PATH=$BIN:\$PATH; $command >&-"
    claim "$command, stdout closed: status 1" [ $rc = 1 ]
    claim "$command, stdout closed: says it" has "$err" "Bad file descriptor"
done <<'TABLE'
memplan --params 7B --gpus 8
memplan --help
ptrain --dry-run --data text --seq-len 32 --out other
reshard digest run/step-1
pserve --version
TABLE
run bash -c "$BIN/reshard --tp 2 run/step-1 closed 0>&- 1>&- 2>&-"
claim "all standard files closed: a conversion succeeds" [ $rc = 0 ]
run reshard verify closed
claim "all standard files closed: nothing is written into it" [ $rc = 0 ]

# a cache on a full disk: the state of a file is mapped, and a write to a map without space is a SIGBUS
apart=
unshare -m true 2>/dev/null && apart="unshare -m"
[ -n "$apart" ] || { unshare -rm true 2>/dev/null && apart="unshare -rm"; }
if [ -n "$apart" ] && command -v python3 >/dev/null; then
    mkdir -p served full
    cp text served
    file_server served "$TMP/log"
    for left in 0 4096; do
        SHARDLINE_CACHE=$TMP/full/cache no_proxy=127.0.0.1 run $apart bash -c \
            "mount -t tmpfs -o size=1m none full && mkdir full/cache &&
            head -c 2M /dev/zero >full/fill 2>/dev/null; truncate -s -$left full/fill
            $BIN/ptrain --data http://127.0.0.1:$port/ok/text --seq-len 32 --out other --steps 1"
        claim "a cache with $left bytes of space: status 1" [ $rc = 1 ]
        claim "a cache with $left bytes of space: says it" has "$err" "No space left on device"
    done
else
    skip "no mount namespaces here"
fi

# a limit on open files that leaves none for connections
run timeout -k 5 30 bash -c "ulimit -n 24; $BIN/pserve run/step-1 --port 0"
claim "pserve below ulimit -n 24: status 2" [ $rc = 2 ]
claim "pserve below ulimit -n 24: says what is needed" has "$err" "ulimit -n leaves files for"

# a limit on the size of files is an error in words
run bash -c "ulimit -f 100; $BIN/pserve run/step-1 --once x --max-tokens 1"
claim "pserve below ulimit -f: status 1, no signal" [ $rc = 1 ]
claim "pserve below ulimit -f: says it" has "$err" "ulimit -f"
finish
