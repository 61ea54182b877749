#!/usr/bin/env bash
# quick
# serve_structured.sh - constrained answers: see serve_structured.py. SERVE_STRUCTURED=N: so many generations.
. "$(dirname "$0")/../lib/serve_lib.bash"
trained --steps 2
printf '%s' "{% for m in messages %}{{ m['content'] }}{% endfor %}" >"$TMP/template"
asked serve_structured.py "$TMP/run/step-2" "${SERVE_STRUCTURED:-96}" "$TMP/template"
finish
