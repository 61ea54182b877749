#!/usr/bin/env bash
# all
# published_all.sh - every published configuration of published_models.py: cut, joined, fused experts and one
# digest, turned matrices. With PEER_PYTHON, a python3 that has transformers 5, models made by it have the same
# names and shapes.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../lib/lib.bash"
command -v python3 >/dev/null || { skip "no python3 here"; finish; }
python3 -B "$here/published.py" check "$BIN/reshard" >"$TMP/said" 2>&1
rc=$?
claim "$(cat "$TMP/said")" [ $rc = 0 ]
if "${PEER_PYTHON:-python3}" -c 'import transformers, torch' 2>/dev/null; then
    "${PEER_PYTHON:-python3}" -B "$here/published.py" judge >"$TMP/said" 2>"$TMP/err"
    rc=$?
    claim "$(cat "$TMP/said")" [ $rc = 0 ]
else
    skip "PEER_PYTHON has no transformers: names and shapes are not compared with its models"
fi
finish
