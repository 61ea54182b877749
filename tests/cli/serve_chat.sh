#!/usr/bin/env bash
# quick
# serve_chat.sh - chats, the prefix cache, keys and limits, the load generator: see serve_chat.py; the reference's chats: serve_vectors.py. The model is a Hugging Face folder that
# reshard wrote, with a chat template put beside it.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/lib.bash"
command -v python3 >/dev/null || { skip "no python3"; finish; }
for i in $(seq 700); do echo "line $i: $((i * i)) is the square of $i"; done >"$TMP/text"
run ptrain --data "$TMP/text" --out "$TMP/run" --steps 4 --seq-len 64 --global-batch 4
claim "a model is trained" [ $rc = 0 ] || finish
run reshard --format hf "$TMP/run/step-4" "$TMP/model"
claim "and becomes a Hugging Face folder" [ $rc = 0 ] || finish
cat >"$TMP/model/chat_template.jinja" <<'EOF'
{% for m in messages %}{% if m.role == 'bad' %}{{ raise_exception('no bad roles here') }}{% endif %}<{{ m.role }}>{{ m.content }};{% endfor %}
{%- if add_generation_prompt %}<assistant>{% endif %}
EOF
printf '# of the tests\nfirst-key\nsecond-key\n' >"$TMP/keys"
python3 "$here/serve_chat.py" "$TMP/model" "$TMP" >"$TMP/chat" 2>&1
grep -v '^[0-9]* passed' "$TMP/chat"
read -r p f <<<"$(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed.*/\1 \2/p' "$TMP/chat")"
n_passed=$((n_passed + ${p:-0})) n_failed=$((n_failed + ${f:-1}))
if [ -n "${FIXTURES:-}" ]; then
    python3 -B "$here/serve_vectors.py" "$TMP/model" "$TMP" "$FIXTURES/hf/chat" >"$TMP/chat" 2>&1
    grep -v '^[0-9]* passed' "$TMP/chat"
    read -r p f <<<"$(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed.*/\1 \2/p' "$TMP/chat")"
    n_passed=$((n_passed + ${p:-0})) n_failed=$((n_failed + ${f:-1}))
else
    skip "FIXTURES is not set: no chats of the reference"
fi
run pbench --url http://127.0.0.1:1 --requests 1
claim "a server that is not there is one line and status 1" [ $rc = 1 -a "$(wc -l <"$TMP/.err")" = 1 ]
finish
