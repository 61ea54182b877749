#!/usr/bin/env bash
# all
# grammar_suite.sh - `ptok accepts` on the JSON-Schema-Test-Suite and MaskBench: no text is accepted that a schema forbids; what is
# not honoured is refused with exit 2 and a name; a valid text that is refused has a known reason. JSON_SCHEMAS is the folder that
# holds their archives, which are not part of this repository. With PEER_PYTHON's llguidance and xgrammar: more schemas pass than there.
. "$(dirname "$0")/../lib/lib.bash"
folder=${JSON_SCHEMAS:-}
ls "$folder"/*.tar.zst >/dev/null 2>&1 || { skip "JSON_SCHEMAS is not set: no suite of schemas was run"; finish; }
for archive in test-suite maskbench-1500; do
    mkdir -p "$TMP/$archive"
    zstd -dc "$folder/$archive.tar.zst" | tar -xf - -C "$TMP/$archive" || { skip "no $archive"; finish; }
done
"${PEER_PYTHON:-python3}" -B "$(dirname "$0")/grammar_suite.py" "$BIN/ptok" "$TMP/test-suite" "$TMP/maskbench-1500" >"$TMP/said" 2>"$TMP/.err"
rc=$?
cat "$TMP/said"
claim "the suites are run to their end" [ $rc = 0 ]
claim "no text is accepted that its schema forbids" grep -q '^wrong accepts: 0$' "$TMP/said"
claim "every refusal is exit 2 and names what it refuses" grep -q '^nameless refusals: 0$' "$TMP/said"
claim "95 of 100 schemas of MaskBench pass" grep -q '^maskbench share ok$' "$TMP/said"
claim "a valid text that is refused has a reason" grep -q '^without a reason: 0$' "$TMP/said"
for peer in llguidance xgrammar; do
    if grep -q "^$peer: " "$TMP/said"; then
        claim "more schemas pass than $peer passes" grep -q "^more than $peer\$" "$TMP/said"
    else
        skip "PEER_PYTHON has no $peer"
    fi
done
finish
