# chats_lib.bash - conversations that must give the same bits at every layout. Includes train_lib.bash.
. "$(dirname "${BASH_SOURCE[0]}")/train_lib.bash"

cat >"$TMP/form" <<'JINJA'
{%- for m in messages -%}<{{ m.role[0] }}>{{ m.content }};{%- endfor -%}{%- if add_generation_prompt -%}<a>{%- endif -%}
JINJA

# talks SEED N: prints conversations of one to three turns; weights of both signs, some of them 0
talks() {
    awk -v s="$1" -v n="$2" 'function words(m,   t) { for (t = ""; m-- > 0;) t = t w[int(rand() * 8) + 1] " "; return t }
        BEGIN { srand(s); split("the model rank tree sum of layer head", w, " ")
        for (i = 0; i < n; i++) {
            printf "{\"weight\":%.3f,\"messages\":[", rand() * 4 - 2
            for (k = int(rand() * 3); k >= 0; k--) {
                printf "{\"role\":\"user\",\"content\":\"%s\"},", words(1 + rand() * 3)
                printf "{\"role\":\"assistant\",\"content\":\"%s\",\"weight\":%.3g}%s", words(1 + rand() * 3),
                    rand() < 0.2 ? 0 : 2 * rand() - 0.5, k ? "," : ""
            }
            print "]}" } }'
}
