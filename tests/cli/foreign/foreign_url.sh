#!/usr/bin/env bash
# quick
# foreign_url.sh - folders of other frameworks by URL: what is told by them is what the folder tells, only
# what is needed comes over the network, a download is the same files, a name in them that leads elsewhere is
# refused.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../lib/lib.bash"
command -v python3 >/dev/null || { skip "no python3 here"; finish; }
cd "$TMP" || exit 1
export SHARDLINE_CACHE=$TMP/cache no_proxy=127.0.0.1,localhost
mkdir served
file_server served "$TMP/log"
at=http://127.0.0.1:$port

for case in zero3-5 zero2-3 dcp-3 legacy-2-2-1 dist-2-2-3; do
    python3 "$here/../lib/foreign_make.py" $case served/$case || { claim "$case is made" false; continue; }
    run reshard digest served/$case/ckpt
    want=$out
    run reshard digest $at/ok/$case/ckpt
    claim "$case by URL has the digests of the folder" [ $rc = 0 -a "$out" = "$want" ]
    run reshard fetch $at/ok/$case/ckpt got-$case
    claim "$case is fetched" [ $rc = 0 ]
    claim "$case: the same files" diff -r served/$case/ckpt got-$case
done
rm -rf cache
run reshard digest $at/plain/zero3-5/ckpt
claim "a server without ranges: the same" [ $rc = 0 ]

# the folder of a tag, an iteration; one file
run reshard inspect $at/ok/zero3-5/ckpt/global_step7
claim "the folder of a tag by URL" [ $rc = 0 ]
run reshard inspect $at/ok/legacy-2-2-1/ckpt/iter_0000009
claim "the folder of an iteration by URL" [ $rc = 0 ]

# tables only: data stay where they are
rm -rf cache
: >log
run reshard inspect $at/ok/dcp-3/ckpt
claim "inspect by URL" has "$out" "optimizer state: moments, step"
sent=$(sed -n 's|^ok dcp-3/ckpt/__.*sent=\([0-9]*\).*|\1|p' log | awk '{ s += $1 } END { print s + 0 }')
claim "inspect reads tables: $sent bytes of data files" [ "$sent" -le \
    $(($(cat served/dcp-3/ckpt/__* | wc -c) * 2)) ]

# model-parallel ranks are refused, as in a folder: half of every tensor would be taken for the whole
cp served/zero2-3/ckpt/*/mp_rank_00_model_states.pt \
    "$(ls -d served/zero2-3/ckpt/*/)mp_rank_01_model_states.pt"
rm -rf cache
run reshard digest $at/ok/zero2-3/ckpt
claim "a second model-parallel rank by URL is refused" [ $rc = 1 ]
claim "and said" has "$err" "model-parallel rank 1"

printf '../../etc' >served/zero3-5/ckpt/latest
rm -rf cache
run reshard inspect $at/ok/zero3-5/ckpt
claim "latest that leads elsewhere is refused" [ $rc = 1 ]
claim "and said" has "$err" latest
printf 'global_step8' >served/zero3-5/ckpt/latest
run reshard inspect $at/ok/zero3-5/ckpt
claim "latest that names nothing is refused" has "$err" global_step8
rm served/dcp-3/ckpt/__1_0.distcp
run reshard inspect $at/ok/dcp-3/ckpt
claim "a data file that is missing is refused by its name" has "$err" __1_0.distcp
finish
