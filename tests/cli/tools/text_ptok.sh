#!/usr/bin/env bash
# quick sanitize
# text_ptok.sh - ptok: JSON lines in and out, its errors; against the reference vectors when FIXTURES is set.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../lib/lib.bash"

feed() {                    # feed LINES ARGUMENTS...: ptok with LINES as its stdin
    local lines=$1
    shift
    printf '%s' "$lines" >"$TMP/in"
    "$BIN/ptok" "$@" <"$TMP/in" >"$TMP/.out" 2>"$TMP/.err"
    rc=$?
    out=$(cat "$TMP/.out") err=$(cat "$TMP/.err")
}

feed $'{"n":3,"text_b64":"QWL/"}\n\n{"text_b64":""}' encode --tokenizer bytes
claim "bytes are their own ids, invalid ones too" [ "$out" = \
    '{"n":3,"ids":[65,98,255],"ids_plain":[65,98,255],"decoded_b64":"QWLvv70=","decoded_skip_b64":"QWLvv70="}
{"ids":[],"ids_plain":[],"decoded_b64":"","decoded_skip_b64":""}' ]
claim "and the end is success" [ $rc = 0 ]
feed '{"n":"x","ids":[240,159,152,128]}' decode --tokenizer=bytes
claim "ids come back as text, n as it was" [ "$out" = \
    '{"n":"x","decoded_b64":"8J+YgA==","decoded_skip_b64":"8J+YgA=="}' ]

feed $'{"ids":[1]}\n{"ids":[-1]}' decode --tokenizer bytes
claim "a bad id is an error that names the line" has "$err" "ptok: line 2 of the input: ids[0] is no token id"
claim "after the lines before it" [ $rc = 1 ]
feed 'x' decode --tokenizer bytes
claim "a line that is no JSON is named" has "$err" "line 1 of the input: not a JSON object"
feed '{"text_b64":"?"}' encode --tokenizer bytes
claim "text that is not base64 is refused" has "$err" "no text_b64 that is base64"
feed '' encode
claim "no tokenizer is wrong usage" [ $rc = 2 ]
claim "and says what to add" has "$err" "add --tokenizer bytes"
feed '' encode --tokenizer "$TMP/nowhere"
claim "a missing folder is named" has "$err" "$TMP/nowhere/tokenizer.json"
claim "and is a failure" [ $rc = 1 ]
feed '' shred --tokenizer bytes
claim "an unknown command is wrong usage" [ $rc = 2 ]
mkdir "$TMP/uni" && echo '{"model":{"type":"WordPiece"}}' >"$TMP/uni/tokenizer.json"
feed '' encode --tokenizer "$TMP/uni"
claim "an unsupported model is refused by name" has "$err" \
    "the model is WordPiece: only BPE and Unigram are supported"
claim "as a wrong configuration" [ $rc = 2 ]

if [ -d "${FIXTURES:-}/hf/tok" ] && command -v python3 >/dev/null; then
    check=$FIXTURES/hf/check_tokenizer.py
    for d in "$FIXTURES"/hf/tok/{llama2-added,llama3}; do          # all of them: text_fixture_test
        name=$(basename "$d")
        python3 "$check" emit "$d" >"$TMP/vin" && "$BIN/ptok" encode --tokenizer "$d" <"$TMP/vin" >"$TMP/vout"
        run python3 "$check" check "$d" "$TMP/vout"
        claim "$name: every vector encodes as the library does" [ $rc = 0 ]
        python3 "$check" emit-decode "$d" >"$TMP/vin" &&
            "$BIN/ptok" decode --tokenizer "$d" <"$TMP/vin" >"$TMP/vout"
        run python3 "$check" check-decode "$d" "$TMP/vout"
        claim "$name: every list of ids decodes as the library does" [ $rc = 0 ]
    done
else
    skip "FIXTURES is not set: ptok was not compared with the reference vectors"
fi
finish
