#!/usr/bin/env bash
# quick
# serve_page.sh - the script of the server's page, in node where there is one: see serve_page.js.
. "$(dirname "$0")/../lib/lib.bash"
here=$(cd "$(dirname "$0")" && pwd)
command -v node >/dev/null || { skip "no node here"; finish; }
node "$here/serve_page.js" "$here/../../../serve/http/page.html" >"$TMP/said" 2>&1
grep '^FAIL' "$TMP/said"
read -r p f <<<"$(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed.*/\1 \2/p' "$TMP/said")"
n_passed=$((n_passed + ${p:-0})) n_failed=$((n_failed + ${f:-1}))
[ -n "${p:-}" ] || tail -n 5 "$TMP/said"
finish
