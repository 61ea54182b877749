#!/usr/bin/env bash
# quick
# serve_bodies.sh - bodies that are not requests, wrong types for every field, 1 GB, wrong lengths: see
# serve_bodies.py. With schemathesis ($SCHEMATHESIS, or in PATH) its own requests made from openapi.json too;
# SCHEMATHESIS_EXAMPLES: of each endpoint (30).
. "$(dirname "$0")/../lib/serve_lib.bash"
trained --steps 2
cp -r "$TMP/run/step-2" "$TMP/plain"
run reshard --format hf "$TMP/run/step-2" "$TMP/chat"
cat >"$TMP/chat/chat_template.jinja" <<'JINJA'
{% for m in messages %}{% if m.role == 'refuse' %}{{ raise_exception('no such role') }}{% endif %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}
JINJA
export SCHEMATHESIS=${SCHEMATHESIS:-$(command -v schemathesis || true)}
asked serve_bodies.py "$TMP/chat"
finish
