#!/usr/bin/env bash
# quick
# serve_bodies.sh - bodies that are no requests, wrong types for every field, 1 GB, lies about lengths: see serve_bodies.py. With schemathesis
# ($SCHEMATHESIS, or in PATH) its own requests made from openapi.json too; SCHEMATHESIS_EXAMPLES: of each endpoint (30).
here=$(cd "$(dirname "$0")" && pwd)
. "$here/lib.bash"
command -v python3 >/dev/null || { skip "no python3"; finish; }
for i in $(seq 300); do echo "line $i: $((i * i)) is the square of $i"; done >"$TMP/text"
run ptrain --data "$TMP/text" --out "$TMP/run" --steps 2 --seq-len 64 --global-batch 4
claim "a model is trained" [ $rc = 0 ] || finish
cp -r "$TMP/run/step-2" "$TMP/plain"
run reshard --format hf "$TMP/run/step-2" "$TMP/chat"
cat >"$TMP/chat/chat_template.jinja" <<'JINJA'
{% for m in messages %}{% if m.role == 'refuse' %}{{ raise_exception('no such role') }}{% endif %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}
JINJA
export SCHEMATHESIS=${SCHEMATHESIS:-$(command -v schemathesis || true)}
BIN=$BIN TMP=$TMP exec python3 -B "$here/serve_bodies.py" "$TMP/chat"
