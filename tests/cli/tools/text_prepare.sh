#!/usr/bin/env bash
# quick sanitize
# text_prepare.sh - ptok prepare: text and JSONL to a token file that ptrain reads; ptok render: chats to
# text, against the reference.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../lib/lib.bash"
cd "$TMP" || exit 1

printf 'hello\nworld' >a.txt
printf '{"text":"one"}\n\n{"x":1,"text":"two"}\r\n{"text":""}' >b.jsonl
run ptok prepare --tokenizer bytes a.txt b.jsonl --out t1 --threads 1
claim "texts become tokens" [ "$rc/$out" = '0/{"tokens":17,"documents":4,"bytes":17,"width":2,"vocab":256}' ]
run ptok prepare --tokenizer bytes a.txt b.jsonl --out t2 --threads 4
claim "and the same bytes by four threads" cmp -s t1 t2
run ptok prepare --tokenizer bytes a.txt --out t1
claim "a file that is there is not written over" has "$err" "t1 exists"
claim "which is a failure" [ $rc = 1 ]
run ptok prepare --tokenizer bytes a.txt b.jsonl --jsonl-field body --out t3
claim "a line without the field is named" has "$err" \
    'ptok: b.jsonl: line 1, byte 0: the object has no text "body"'
claim "and nothing is left" [ ! -e t3 ] && claim "nor a part of it" [ ! -e t3.part ]
run ptok prepare --tokenizer bytes a.txt
claim "no --out is wrong usage" [ $rc = 2 ]
run ptok encode --tokenizer bytes a.txt
claim "encode takes no files" has "$err" "encode reads stdin"
if command -v zstd >/dev/null; then
    zstd -q a.txt b.jsonl
    run ptok prepare --tokenizer bytes a.txt.zst b.jsonl.zst --out t4
    claim "compressed files are read" cmp -s t1 t4
    head -c 20 b.jsonl.zst >c.jsonl.zst
    run ptok prepare --tokenizer bytes c.jsonl.zst --out t5
    claim "and a cut is seen" has "$err" "is it cut off"
else
    skip "no zstd program here: compressed files in the unit test only"
fi

# ptrain: the same training from text and from tokens
for i in $(seq 300); do echo "line $i of a text that repeats itself"; done >train.txt
run ptok prepare --tokenizer bytes train.txt --out train.bin
train() {
    rm -rf "out.$1"; run ptrain --data "$1" --out "out.$1" --model tiny --steps 1 --global-batch 2 --seq-len \
        16
}
if [ -x "$BIN/ptrain" ]; then
    train train.txt
    want=$(sed 's/,"checkpoint.*//' <<<"$out")
    train train.bin
    claim "ptrain reads token files" [ $rc = 0 ]
    claim "and takes the same step as from text" [ "$want" = "$(sed 's/,"checkpoint.*//' <<<"$out")" ]
    printf 'A' | dd of=train.bin bs=1 seek=1000 conv=notrunc 2>/dev/null
    train train.bin
    claim "a changed byte is refused" has "$err" "are not what was written"
    head -c 3000 train.bin >cut.bin
    train cut.bin
    claim "a cut file too" has "$err" "is it cut off"
else
    skip "no ptrain here: token files are not trained on"
fi

# ---- render ----
printf '%s' "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}" >t.jinja
printf '{"messages":[{"role":"user","content":"h\\u00e9"}]}\n{"i":7,"messages":[{"role":"user","content":[1,{"a":"b"}]}]}\n{"messages":5}\n' >chats
render() { "$BIN/ptok" render "$@" <chats >.out 2>.err; rc=$?; out=$(cat .out) err=$(cat .err); }
render --template t.jinja
claim "a chat becomes text, a line's own number stays, a refusal is a line" [ "$out" = \
    '{"i":0,"text":"<user>h\u00E9"}
{"i":7,"text":"<user>[1, {'"'a': 'b'"'}]"}
{"i":2,"error":"messages is not a list"}' ]
render --template t.jinja --spans
claim "with the spans that came from messages" has "$out" \
    '{"i":0,"text":"<user>h\u00E9","spans":[[1,5],[6,9]]}'
render
claim "no template is wrong usage" [ $rc = 2 ]
printf '{{ x' >bad.jinja
render --template bad.jinja
claim "a bad template is named with its line" has "$err" \
    "ptok: bad.jinja, line 1: a tag of line 1 is not closed"

if [ -d "${FIXTURES:-}/hf/chat" ] && command -v python3 >/dev/null; then
    cp "$FIXTURES/hf/chat/vectors.jsonl" chats
    render --template "$FIXTURES/hf/chat"
    cp .out vout
    run python3 "$FIXTURES/hf/check_tokenizer.py" check-chat "$FIXTURES/hf/chat" vout
    claim "every vector renders as transformers does" [ $rc = 0 ]
else
    skip "FIXTURES is not set: chats were not compared with the reference vectors"
fi
finish
