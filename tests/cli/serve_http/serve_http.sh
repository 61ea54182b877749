#!/usr/bin/env bash
# quick
# serve_http.sh - routes, refusals, streams, disconnects, idling, draining, at tp 1 and 2: see serve_http.py.
. "$(dirname "$0")/../lib/serve_lib.bash"
trained --steps 4
export DIGEST=$(digest "$TMP/run/step-4")
for tp in 1 2; do
    what="tp $tp" asked serve_http.py "$TMP/run/step-4" $tp
done
out1=$("$BIN/pserve" "$TMP/run/step-4" --once "line 7" --max-tokens 20)
out2=$("$BIN/pserve" "$TMP/run/step-4" --once "line 7" --max-tokens 20 --tp 2)
claim "--once completes a prompt, the same at tp 1 and 2" [ -n "$out1" -a "$out1" = "$out2" ]
# a made-up machine, each of whose CPUs is a memory node
mkdir -p "$TMP/machine/proc"
cp /proc/meminfo "$TMP/machine/proc/"
for cpu in 0 1; do
    mkdir -p "$TMP/machine/sys/devices/system/node/node$cpu"
    echo $cpu >"$TMP/machine/sys/devices/system/node/node$cpu/cpulist"
done
export SHARDLINE_MACHINE_ROOT=$TMP/machine
run pserve "$TMP/run/step-4" --once x --max-tokens 2
claim "two memory nodes and one rank: --tp 2 is advised in a line" \
    [ $rc = 0 -a "$(grep -c 'has 2 memory nodes and 1 rank: --tp 2, ' "$TMP/.err")" = 1 ]
run pserve "$TMP/run/step-4" --once x --max-tokens 2 --tp 2
claim "with a rank a node nothing is advised" [ $rc = 0 -a "$(grep -c 'memory nodes' "$TMP/.err")" = 0 ]
export SHARDLINE_MACHINE_ROOT= # empty: unset
run pserve "$TMP/run/step-4" --once ""
claim "--once without a prompt is refused" [ $rc = 2 ]
claim "in one line" [ "$(wc -l <"$TMP/.err")" = 1 ]
run pserve "$TMP/run/step-4" --tp 3
claim "a tp that does not fit is refused" [ $rc = 2 ]
claim "in one line, too" [ "$(wc -l <"$TMP/.err")" = 1 ]
run pserve "$TMP/none"
claim "a checkpoint that is not there is one line and status 1" [ $rc = 1 -a "$(wc -l <"$TMP/.err")" = 1 ]
cp -r "$TMP/run/step-4" "$TMP/bad"
printf '\xff' | dd of="$TMP/bad/weights-00000.safetensors" bs=1 seek=300000 conv=notrunc 2>/dev/null
run pserve "$TMP/bad" --port 0 --tp 2
claim "a damaged checkpoint is not served" [ $rc = 1 -a "$(wc -l <"$TMP/.err")" = 1 ]
claim "and the file is named" has "$err" "weights-00000.safetensors"
finish
