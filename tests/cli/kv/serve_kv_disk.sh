#!/usr/bin/env bash
# quick
# serve_kv_disk.sh - pages in a folder (--kv-disk): see serve_kv_disk.py.
. "$(dirname "$0")/../lib/serve_lib.bash"
trained --steps 4 --dtype fp32
asked serve_kv_disk.py "$TMP/run/step-4" "$TMP/pages" few

run pserve "$TMP/run/step-4" --kv-disk "$TMP/pages"
claim "a folder without a size is refused" [ $rc = 2 -a "$(wc -l <"$TMP/.err")" = 1 ]
run pserve "$TMP/run/step-4" --kv-disk "$TMP/pages:1GB" --prefix-cache off
claim "and one without a prefix cache" [ $rc = 2 -a "$(wc -l <"$TMP/.err")" = 1 ]
run pserve "$TMP/run/step-4" --kv-disk "$TMP/text:1GB" --once x
claim "a file is no folder" [ $rc != 0 -a "$(wc -l <"$TMP/.err")" = 1 ]
run pserve "$TMP/run/step-4" --kv-disk "$TMP/pages:1000" --once x
claim "a size that holds no page is refused with both numbers" [ $rc = 2 -a "$(wc -l <"$TMP/.err")" = 1 ]
finish
