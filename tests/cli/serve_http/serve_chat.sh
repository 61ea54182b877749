#!/usr/bin/env bash
# quick
# serve_chat.sh - chats, the prefix cache, keys and limits, the load generator: see serve_chat.py; the
# reference's chats: serve_vectors.py. The model is a Hugging Face folder that reshard wrote, with a chat
# template added.
. "$(dirname "$0")/../lib/serve_lib.bash"
trained --steps 4
run reshard --format hf "$TMP/run/step-4" "$TMP/model"
claim "and becomes a Hugging Face folder" [ $rc = 0 ] || finish
cat >"$TMP/model/chat_template.jinja" <<'EOF'
{% for m in messages %}{% if m.role == 'bad' %}{{ raise_exception('no bad roles here') }}{% endif %}<{{ m.role }}>{{ m.content }};{% endfor %}
{%- if add_generation_prompt %}<assistant>{% endif %}
EOF
printf '# of the tests\nfirst-key\nsecond-key\n' >"$TMP/keys"
asked serve_chat.py "$TMP/model" "$TMP"
if [ -n "${FIXTURES:-}" ]; then
    asked serve_vectors.py "$TMP/model" "$TMP" "$FIXTURES/hf/chat"
else
    skip "FIXTURES is not set: no chats of the reference"
fi
run pbench --url http://127.0.0.1:1 --requests 1
claim "a server that is not there is one line and status 1" [ $rc = 1 -a "$(wc -l <"$TMP/.err")" = 1 ]
finish
