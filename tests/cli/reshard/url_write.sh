#!/usr/bin/env bash
# quick waits
# url_write.sh - checkpoints written to s3:// URLs: the same bytes as in a folder, a whole checkpoint or none, a
# killed run goes on where it stopped. url_write_all.sh has the servers that misbehave.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../lib/lib.bash"
command -v python3 >/dev/null || { skip "no python3 here"; finish; }
. "$here/../lib/s3_lib.bash"
make_source src 7
s3_server
digest=$("$BIN/reshard" digest src)

# every format and layout: the bytes of a folder
while read -r name args; do
    # shellcheck disable=SC2086
    run reshard $args src s3://ok/a/$name
    claim "$name: written" [ $rc = 0 ] || continue
    # shellcheck disable=SC2086
    run reshard $args src $name
    run reshard fetch s3://ok/a/$name got-$name
    claim "$name: the files of a folder" diff -r $name got-$name
done <<'END'
whole
zero --dp 3 --zero 3
files --format hf --shard-size 9MB
END
python3 "$here/../lib/reshard_make.py" llama
run reshard --format serve llama s3://ok/a/panels
claim "panels: written" [ $rc = 0 ]
run reshard --format serve llama panels
run reshard fetch s3://ok/a/panels got-panels
claim "panels: the files of a folder" diff -r panels got-panels
claim "no uploads are left" [ "$(state ok 'len(u)')" = 0 ]
claim "no folders are left" [ -z "$(find cache -name '*.tmp-upload')" ]
run reshard src s3://ok/a/whole
claim "what exists is not written over" [ $rc = 1 ] &&
    claim "which is said" has "$err" "s3://ok/a/whole exists (it has a manifest.json): choose another prefix"
run reshard --format hf src s3://ok/a
claim "nor a prefix with other things below it" has "$err" "is no file of such a checkpoint"

# one line each, and nothing there
while IFS='|' read -r bucket says; do
    run reshard src s3://$bucket/run
    claim "$bucket: status 1" [ $rc = 1 ]
    claim "$bucket: one line that says $says" [ "$(grep -c "^reshard: .*$says" <<<"$err")" = 1 ]
    claim "$bucket: nothing is there" [ "$(state $bucket 'len(o), len(u)')" = "(0, 0)" ]
done <<'END'
forbid|the key has not the right
skew|the clock of this machine says .* that of the server 2020-01-01T00:00:00Z
none|there is no such bucket
flip|read with one digest and written with another
END
AWS_ACCESS_KEY_ID=other run reshard src s3://ok/c
claim "an unknown key is named" has "$err" "check AWS_ACCESS_KEY_ID"
AWS_SECRET_ACCESS_KEY=other run reshard src s3://ok/c
claim "a wrong secret is named" has "$err" "check AWS_SECRET_ACCESS_KEY"

# killed at any time: no manifest; then the parts that are there are used
for n in 1 1; do
    stopped_at KILL $n src s3://ok/killed
    claim "killed after a part: not published" [ "$(state ok '"killed/manifest.json" in o')" = False ]
    claim "a part is there" [ "$(state ok '[p for n, p in u if "killed/" in n][0] > 0')" = True ]
done
run reshard src s3://ok/killed
claim "after kills it ends" [ $rc = 0 ]
claim "with the right digest" [ "$("$BIN/reshard" digest s3://ok/killed)" = "$digest" ]
claim "parts that are there are not sent again" has "$err" "were there from an earlier run"

# a signal is an orderly end
stopped_at TERM 1 src s3://ok/stopped
claim "SIGTERM: status 1" [ $rc = 1 ]
claim "SIGTERM: one line" [ "$(grep -c "stopped by a signal" .err)" = 1 ]
claim "SIGTERM: nothing is left" [ "$(state ok '[n for n in [*o, *(n for n, _ in u)] if "stopped" in n]')" = "[]" ]

# the cache: what it holds, and what a process uses stays
rm -rf cache
"$BIN/reshard" digest s3://ok/a/whole >/dev/null
"$BIN/reshard" digest s3://ok/a/zero >/dev/null
run reshard cache list
claim "the cache is listed" [ "$(grep -c 's3://ok/a/\(whole\|zero\)$' <<<"$out")" = 2 ]
claim "with its bytes" has "$out" "2 URLs, 35."
folder=$("$BIN/reshard" cache list --json | python3 -c 'import json, sys
print([c["folder"] for c in json.load(sys.stdin)["cache"] if c["url"].endswith("zero")][0])')
flock -s "$folder/.users" "$BIN/reshard" cache clear >.out 2>.err
claim "clear keeps what is in use" [ "$(ls cache)" = "$(basename "$folder")" ]
claim "and names it" grep -q "s3://ok/a/zero stays: a process uses it" .err
run flock -s "$folder/.users" "$BIN/reshard" cache clear s3://ok/a/zero
claim "by URL that is an error" [ "$rc $(grep -c 'a process uses it: clear it when' <<<"$err")" = "1 1" ]
run reshard cache clear s3://ok/a/zero/
claim "clear by URL" [ "$rc $(ls cache)" = "0 " ]
run reshard cache clear s3://ok/a/zero
claim "what is not there is an error" [ $rc = 2 ]

# what is no place to write to
while IFS='|' read -r where says; do
    run reshard --format hf src "$where"
    claim "$where: $says" has "$err" "$says"
    claim "$where: usage" [ $rc = 2 ]
done <<'END'
hf://owner/name|hf upload owner/name FOLDER
https://host/x|give a folder or s3://bucket/prefix
END
run ptrain --data src/config.json --out s3://ok/run
claim "ptrain writes to folders only" [ $rc = 2 ]
finish
