#!/usr/bin/env bash
# all
# grammar_masks.sh - masks on schemas of MaskBench beside PEER_PYTHON's llguidance: every token that one of them allows alone has a
# reason that is known. JSON_SCHEMAS is the folder that holds MaskBench's archive, as of grammar_suite.sh.
. "$(dirname "$0")/../lib/lib.bash"
archive=${JSON_SCHEMAS:-}/maskbench-1500.tar.zst
bench=$BIN/../tests/bench/grammar/mask_bench
[ -e "$archive" ] || { skip "JSON_SCHEMAS is not set: no masks were compared"; finish; }
"${PEER_PYTHON:-python3}" -c "import llguidance, numpy" 2>/dev/null || { skip "PEER_PYTHON has no llguidance and numpy"; finish; }
mkdir -p "$TMP/schemas"
zstd -dc "$archive" | tar -xf - -C "$TMP/schemas" || { skip "no MaskBench"; finish; }
"${PEER_PYTHON:-python3}" -B "$(dirname "$0")/grammar_masks.py" "$bench" "$TMP/schemas" "${MASK_SCHEMAS:-300}" >"$TMP/said" 2>"$TMP/.err"
rc=$?
cat "$TMP/said"
claim "the masks are compared to their end" [ $rc = 0 ]
claim "every difference has a reason" grep -q '^without a reason: 0$' "$TMP/said"
claim "and they are many masks" grep -qE '^ *[0-9]{4,} masks$' "$TMP/said"
finish
