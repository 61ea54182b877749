#!/usr/bin/env bash
# quick
# help.sh - what every program prints about itself: help of at most 100 columns with examples and one default
# an option, a man page without warnings, completion in bash, zsh and fish. All of it comes from the tables of
# options. Also: words of other tools, mistyped commands.
. "$(dirname "$0")/../lib/lib.bash"
programs="ptrain reshard pserve pshare ptok memplan plot pbench"
at_most() {
    awk -v n="$1" '{ gsub(/[\200-\277]/, ""); if (length($0) > n) { print; bad = 1 } } END { exit bad }'
}
one_default() {             # of every option: its lines joined
    awk '/^  [^ ]/ { if (gsub(/\(default/, "(default", row) > 1) { print row; bad = 1 } row = "" } { row = row $0 } END { exit bad }' <<<"$1"
}

for p in $programs "reshard inspect" "reshard diff" "reshard fetch"; do
    run $p --help
    claim "$p --help" [ $rc = 0 ]
    claim "$p: at most 100 columns" eval 'LC_ALL=C at_most 100 <<<"$out"'
    claim "$p: examples" has "$out" $'\nexamples:\n'
    claim "$p: one default an option" one_default "$out"
done
run reshard --help
for c in inspect verify digest diff plan fetch; do
    claim "reshard --help names $c" has "$out" $'\n'"  reshard $c "
done

if command -v groff >/dev/null; then
    for p in $programs; do
        run $p --man
        claim "$p --man has no warnings" [ -z "$(groff -Kutf8 -man -ww -z 2>&1 <<<"$out")" ]
    done
    run reshard --man
    page=$(groff -Kutf8 -man -Tutf8 -P-cbou <<<"$out" 2>/dev/null)
    claim "its commands are in reshard's page" has "$page" "reshard diff A B"
else
    skip "no groff: man pages are not set"
fi

complete_bash() {           # PROGRAM WORD...: what bash offers for the last word
    ( eval "$("$BIN/$1" --completion bash)"
      COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
      cd "$TMP" || exit; "_$1"; echo "${COMPREPLY[@]}" )
}
: >"$TMP/a-file"
claim "bash: presets" [ "$(complete_bash ptrain --model tiny)" = "tiny tiny-moe" ]
claim "bash: values, and files where they may stand" [ "$(complete_bash ptrain --resume a)" = "auto a-file" ]
claim "bash: values behind =" [ "$(complete_bash ptrain --dtype = b)" = bf16 ]
claim "bash: commands" [ "$(complete_bash reshard di)" = "digest diff" ]
claim "bash: options of a command" [ "$(complete_bash reshard verify --q)" = --quick ]
claim "bash: commands of ptok" [ "$(complete_bash ptok en)" = encode ]
claim "bash: files" [ "$(complete_bash pserve a-)" = a-file ]
for shell in bash zsh fish; do
    command -v $shell >/dev/null || { skip "no $shell"; continue; }
    for p in $programs; do
        run $p --completion $shell
        claim "$shell can read it for $p" [ -z "$($shell -n <(echo "$out") 2>&1)" ]
    done
done
if command -v fish >/dev/null; then
    run reshard --completion fish
    echo "$out" >"$TMP/r.fish"
    claim "fish: commands" [ \
        "$(HOME=$TMP fish -c "source $TMP/r.fish; complete -C'reshard di'" | cut -f1 | grep -v / | xargs)" = \
            "diff digest" ]
    claim "fish: values" [ \
        "$(HOME=$TMP fish -c "source $TMP/r.fish; complete -C'reshard --dtype b'" | cut -f1 | xargs)" = bf16 ]
fi

run pserve x --tensor-parallel-size 2
claim "vLLM's tensor-parallel-size" has "$err" "did you mean --tp"
run pserve x --max_model_len 2
claim "vLLM's max-model-len" has "$err" "did you mean --ctx"
run ptrain --zero_stage 1
claim "DeepSpeed's zero_stage" has "$err" "did you mean --zero"
run ptrain --nproc-per-node=2
claim "torchrun's nproc-per-node" has "$err" "did you mean --ranks"
run ptrain --learning-rate 1
claim "learning-rate" [ "$rc $err" = "2 ptrain: unknown option --learning-rate: did you mean --lr" ]
cd "$TMP" || exit 1
run reshard verfy ckpt
claim "a mistyped command is named" [ "$rc $err" = \
    "2 reshard: verfy is neither a command nor a checkpoint here: did you mean reshard verify" ]
finish
