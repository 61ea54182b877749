#!/usr/bin/env bash
# quick
# serve_work.sh - bodies that make work: thousands of names, long texts, slow templates, stop strings; nobody
# else waits for them: see serve_work.py.
. "$(dirname "$0")/../lib/serve_lib.bash"
trained --steps 2
run reshard --format hf "$TMP/run/step-2" "$TMP/chat"
cat >"$TMP/chat/chat_template.jinja" <<'JINJA'
{% for m in messages %}{% if m.role == 'slow' %}{% set a = 'a' * 100000 %}{% for i in range(12000) %}{% if a|length == 1 %}{% endif %}{% endfor %}{% endif %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}
JINJA
asked serve_work.py "$TMP/chat"
finish
