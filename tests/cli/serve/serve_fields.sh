#!/usr/bin/env bash
# quick
# serve_fields.sh - fields of requests beside OpenAI's, with a tokenizer whose words carry their space;
# weights that are NaN: see serve_fields.py.
. "$(dirname "$0")/../lib/serve_lib.bash"
trained --steps 2
run reshard --format hf "$TMP/run/step-2" "$TMP/model"
claim "and becomes a Hugging Face folder" [ $rc = 0 ] || finish
cat >"$TMP/model/chat_template.jinja" <<'EOF'
{% for m in messages %}{{ m.content }}{% if not loop.last or add_generation_prompt %};{% endif %}{% endfor %}
EOF
asked serve_fields.py "$TMP/model"
finish
