#!/usr/bin/env bash
# all
# serve_clients.sh - clients of other projects: the openai package (serve_openai.py), anthropic
# (serve_anthropic.py), lm-eval (serve_lm_eval.py), schemathesis (serve_schemathesis.py), Chromium on the page (serve_selenium.py),
# pydantic-ai and the Agents SDK (serve_agents.py), where the python ($PYTHON, else python3) has them. The model is a folder that reshard wrote, with a chat template
# put beside it.
. "$(dirname "$0")/../lib/serve_lib.bash"
trained --steps 4
run reshard --format hf "$TMP/run/step-4" "$TMP/model"
claim "and becomes a Hugging Face folder" [ $rc = 0 ] || finish
echo "{% for m in messages %}<{{ m.role }}>{{ m.content }};{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}" >"$TMP/model/chat_template.jinja"
for client in openai anthropic lm_eval schemathesis selenium; do
    "$python" -c "import $client" 2>/dev/null || { skip "no $client here"; continue; }
    (cd "$TMP" && "$python" -B "$here/serve_$client.py" "$TMP/model" "$TMP") >"$TMP/said" 2>"$TMP/.err"
    grep '^FAIL' "$TMP/said"
    read -r p f <<<"$(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed.*/\1 \2/p' "$TMP/said")"
    n_passed=$((n_passed + ${p:-0})) n_failed=$((n_failed + ${f:-1}))
    [ -n "${p:-}" ] || tail -n 5 "$TMP/.err"
done
asked serve_agents.py "$TMP/model" "$TMP"
finish
