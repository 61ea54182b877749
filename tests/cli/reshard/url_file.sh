#!/usr/bin/env bash
# quick
# url_file.sh - file:// URLs: the path behind them for every program, and a copy that is verified for reshard
# fetch.
. "$(dirname "$0")/../lib/lib.bash"
cd "$TMP" || exit 1
export SHARDLINE_CACHE=$TMP/cache
for i in $(seq 200); do echo "line $i: $((i * i)) is the square of $i"; done >text
run ptrain --data "file://$TMP/text" --out run --steps 1 --seq-len 32 --global-batch 4
claim "data by file://" [ $rc = 0 ] || finish
run reshard --dp 2 --zero 1 "file://$TMP/run/step-1" "two ranks"
claim "a source with file://" [ $rc = 0 ]
run reshard --format hf --shard-size 2MB "two ranks" hf
run reshard --format dcp "two ranks" dcp
want=$("$BIN/reshard" digest hf)

# characters that mean something in a URL may be coded, and this machine may be named
run reshard digest "file://localhost$TMP/two%20ranks"
claim "%20 is a blank" [ "$out" = "$("$BIN/reshard" digest "two ranks")" ]
run reshard digest "file://$TMP/two ranks"
claim "and a blank is one, too" [ "$out" = "$("$BIN/reshard" digest "two ranks")" ]
run ptrain --data "file://$TMP/te%78t" --model "file://$TMP/hf/config.jso%6e" --tokenizer "file://$TMP/hf" \
    --out other --steps 1 --seq-len 32
claim "data, config and tokenizer" [ $rc = 0 ]

# fetch: the files that a server would give, verified
for kind in "two%20ranks" hf dcp; do
    run reshard fetch "file://$TMP/$kind" "got $kind"
    claim "fetch of $kind" [ $rc = 0 ] && claim "says so" has "$err" "verified"
    claim "the same files" diff -r "${kind//%20/ }" "got $kind"
done
mkdir stray && cp hf/* stray && : >stray/notes.txt
run reshard fetch "file://$TMP/stray/" stray-got
claim "what belongs to no checkpoint is left behind" [ $rc = 0 -a ! -e stray-got/notes.txt ]
first=$(basename "$(ls hf/model*.safetensors | head -n 1)")
run reshard fetch "file://$TMP/hf/$first" one
claim "one file, and its config" [ $rc = 0 -a "$(ls one | xargs)" = "config.json $first" ]
claim "nothing goes to the cache" [ ! -e cache ]

# what cannot be read is named
run reshard fetch "file://$TMP/nothing" none
claim "a folder that is not there" [ $rc = 1 -a ! -e none -a ! -e none.tmp-fetch ] &&
    claim "is named" has "$err" "file://$TMP/nothing: has no manifest.json"
run reshard fetch "file://$TMP/text.safetensors" none
claim "a file that is not there" [ $rc = 1 ] && claim "is named, too" has "$err" "text.safetensors"
run reshard fetch file:// none
claim "no path at all" [ "$rc $err" = \
    "2 reshard: file://: give file:///path/of/a/folder or file:///path/of/a/file" ]
run reshard fetch "$TMP/hf" none
claim "a path without file://" [ $rc = 2 ] &&
    claim "the kinds of URL are listed" has "$err" "file://, s3://bucket/prefix"
cp -r "two ranks" flipped
printf x | dd of=flipped/weights-00000.safetensors bs=1 seek=5000 conv=notrunc status=none
run reshard fetch "file://$TMP/flipped" none
claim "a flipped byte" [ $rc = 1 -a ! -e none -a ! -e none.tmp-fetch ]
finish
