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
