#!/usr/bin/env bash
# all
# templates.sh - published chat templates against Jinja's own sandbox: the same text, or an error from both.
# TEMPLATES=FOLDER has NAME.jinja files; they are not part of this repository, because their licences are
# those of their models. Without one the templates of FIXTURES are taken.
. "$(dirname "$0")/../lib/lib.bash"
python=${PYTHON:-python3}
"$python" -c 'import jinja2' 2>/dev/null || { skip "no python with jinja2"; finish; }
folder=${TEMPLATES:-${FIXTURES:+$FIXTURES/hf/chat}}
ls "$folder"/*.jinja >/dev/null 2>&1 ||
    { skip "TEMPLATES is not set: no published template was rendered"; finish; }
"$python" -B "$(dirname "$0")/templates.py" "$BIN/ptok" "$folder" >"$TMP/said" 2>"$TMP/.err"
rc=$?
grep -A 3 '^FAIL' "$TMP/said"
read -r p f <<<"$(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed; .*/\1 \2/p' "$TMP/said")"
claim "it ends well" [ $rc = 0 -a "${p:-0}" -gt 0 ]
n_passed=$((n_passed + ${p:-0})) n_failed=$((n_failed + ${f:-1}))
tail -n 1 "$TMP/said"
finish
