#!/usr/bin/env bash
# all waits
# url_write_all.sh - checkpoints written to S3 servers that misbehave in every way: right bytes or a clear error, and
# what was sent is used by the next run.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../lib/lib.bash"
command -v python3 >/dev/null || { skip "no python3 here"; finish; }
. "$here/../lib/s3_lib.bash"
make_source src 7
make_source other 8
s3_server
digest=$("$BIN/reshard" digest src)

while read -r name args; do
    # shellcheck disable=SC2086
    run reshard $args src s3://ok/a/$name
    claim "$name: written" [ $rc = 0 ] || continue
    run reshard digest s3://ok/a/$name
    claim "$name: the digest of the source" [ "$out" = "$digest" ]
done <<'END'
single --format hf
dcp --format dcp --dp 2 --zero 3
planes --compress zstd-planes
zstd --compress zstd --dp 2 --zero 3
END

# servers that recover, and some that know less
for bucket in busy cut lost late old kms; do
    run reshard src s3://$bucket/run
    claim "$bucket: written" [ $rc = 0 ]
    run reshard digest s3://$bucket/run
    claim "$bucket: with the right digest" [ "$out" = "$digest" ]
    claim "$bucket: no uploads are left" [ "$(state $bucket 'len(u)')" = 0 ]
done

# servers that refuse
while IFS='|' read -r bucket says; do
    run reshard src s3://$bucket/run
    claim "$bucket: status 1" [ $rc = 1 ]
    claim "$bucket: one line that says $says" [ "$(grep -c "^reshard: .*$says" <<<"$err")" = 1 ]
done <<'END'
full|quota of the bucket is used up
race|another program has written its manifest.json
down|s3\|http.*the same command goes on from there
unsure|the key has not the right
END
claim "what was sent is kept" [ "$(state down 'u[0][1]')" -ge 1 ]
run reshard --ranks 2 src s3://ok/b
claim "several processes are refused" [ $rc = 2 ]

# finished files of a run that could not publish
: >log
run reshard src s3://unsure/run
claim "the next run publishes" [ $rc = 0 ]
claim "says what was there" has "$err" "were there from an earlier run"
claim "and sends no part again" [ "$(grep -c '^PUT .*weights' log)" = 0 ]
claim "the digest is right" [ "$("$BIN/reshard" digest s3://unsure/run)" = "$digest" ]

# what is left of another run is never mixed with this one
stopped_at KILL 2 other s3://ok/mixed
claim "another run has left something" [ "$(state ok 'len([n for n in [*o, *(n for n, _ in u)] if "mixed" in n]) > 0')" = True ]
run reshard src s3://ok/mixed
if [ $rc = 0 ]; then
    claim "its parts are replaced" [ "$("$BIN/reshard" digest s3://ok/mixed)" = "$digest" ]
else
    claim "its file is named" has "$err" "is there with other bytes"
fi
stopped_at KILL 2 --dp 2 --zero 3 src s3://ok/layout
run reshard --format hf src s3://ok/layout
claim "what another layout left is named" bash -c 'grep -q "has no use for it\|no file of this checkpoint" .err'

# killed at random times, in every layout
RANDOM=$$
for k in 1 2 3 4 5 6; do
    args=("" "--dp 3 --zero 3" "--format hf --shard-size 9MB")
    how=${args[$((k % 3))]}
    for _ in 1 2; do
        # shellcheck disable=SC2086
        stopped_at KILL $((RANDOM % 3)) $how src s3://ok/random$k
    done
    last=manifest.json
    [ $((k % 3)) = 2 ] && last=model.safetensors.index.json
    if [ "$(state ok "'random$k/$last' in o")" = False ]; then
        # shellcheck disable=SC2086
        run reshard $how src s3://ok/random$k
        claim "killed at random ($how): ends" [ $rc = 0 ]
    fi
    claim "with the right digest" [ "$("$BIN/reshard" digest s3://ok/random$k)" = "$digest" ]
done
finish
