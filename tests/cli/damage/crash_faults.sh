#!/usr/bin/env bash
# quick
# crash_faults.sh - the n-th call of every kind fails, n = 1, 2, …, until none is left to fail, in a save, a
# conversion and a download: one line, status 1, what was there is whole, and the next run succeeds. EVERY=1:
# every n; else those of a growing sequence (crash_faults_all.sh).
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../lib/lib.bash"
cd "$TMP" || exit 1
every=${EVERY:-0}
for i in $(seq 100); do echo "line $i: $((i * i)) is the square of $i"; done >text
echo '{"model_type":"llama","hidden_size":24,"num_hidden_layers":1,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":6,"intermediate_size":40,"vocab_size":256,"max_position_embeddings":64,"rms_norm_eps":1e-5,"rope_theta":10000.0,"tie_word_embeddings":false}' >model.json
train=(ptrain --data text --model model.json --steps 3 --seq-len 15 --global-batch 4 --threads 1 --keep 1 \
    --on-save-error stop)
kinds="open:EMFILE read:EIO write:ENOSPC fsync:EIO close:EDQUOT rename:EIO mkdir:ENOSPC unlink:EIO truncate:ENOSPC malloc:ENOMEM"
run "${train[@]}" --out first --stop-after 1
claim "a first checkpoint" [ $rc = 0 ] || finish
cp -r first good
run "${train[@]}" --out good --resume auto --stop-after 2
run reshard --tp 2 good/step-2 moved
claim "what whole ones are like" [ $rc = 0 ] || finish
mv moved good-moved

one_line() {
    [ "$(grep -vc "$ptrain_usual"'\|^ptrain: resumed\|^ptrain: passing over\|^ptrain: --keep' .err)" = 1 ]
}
nothing_but() { [ "$(echo "$1"*)" = "$2" ]; }

save() { run "${train[@]}" --out out --resume auto --stop-after 2; }
save_before() { rm -rf out; cp -r first out; }
save_kept() { diff -r out/step-1 first/step-1 && nothing_but out/step-2 'out/step-2*'; }
# when nothing is reported the new one is there; the old one may still be, if it was its removal that failed
# the marker may stay in a published folder, where it does no harm
same() { diff -r -x .shardline-tmp "$@"; }
save_whole() { same out/step-2 good/step-2; }
# nobody can remove what a failed removal left but the next run
save_next() { save && save_whole; }

reshard_to() { run reshard --tp 2 --threads 1 good/step-2 moved; }
reshard_before() { rm -rf moved moved.tmp-save; }
reshard_kept() { [ ! -e moved ]; }
reshard_whole() { same moved good-moved && [ ! -e moved.tmp-save ]; }
reshard_next() { reshard_to && reshard_whole; }

# the writers for other frameworks
dcp_to() { run reshard --format dcp --tp 2 --threads 1 good/step-2 moved; }
dcp_before() { reshard_before; }
dcp_kept() { reshard_kept; }
dcp_whole() { run reshard verify moved; [ $rc = 0 ] && [ ! -e moved.tmp-save ]; }
dcp_next() { dcp_to && dcp_whole; }
universal_to() { run reshard --format deepspeed-universal --threads 1 good/step-2 moved; }
universal_before() { reshard_before; }
universal_kept() { reshard_kept; }
universal_whole() { dcp_whole; }
universal_next() { universal_to && dcp_whole; }

fetch() { run reshard fetch --threads 1 "$url" got; }
fetch_before() { rm -rf got got.tmp-fetch; }
fetch_kept() { [ ! -e got ]; }
fetch_whole() { same got good/step-2 && [ ! -e got.tmp-fetch ]; }
fetch_next() { fetch && fetch_whole; }

# loop NAME COMMAND PREFIX
loop() {
    local kind n step hit borne
    for kind in $kinds; do
        n=1 hit=0 borne=0
        while :; do
            "$2_before"
            rm -f record
            export SHARDLINE_IO_FAULT=${kind%:*}:$n:${kind#*:} SHARDLINE_IO_RECORD=$TMP/record
            "$3"
            unset SHARDLINE_IO_FAULT SHARDLINE_IO_RECORD
            what="$1, ${kind%:*} $n fails"
            grep -aqF "(made to fail)" record 2>/dev/null || break         # there is no n-th
            if [ $rc = 0 ]; then
                borne=$((borne + 1))
                claim "$what and nothing is said: it is whole" "$2_whole" >.diff || cat .diff
            else
                hit=$((hit + 1))
                claim "$what: status 1" [ $rc = 1 ] && claim "$what: one line" one_line
                claim "$what: what was there is whole, nothing else is" "$2_kept" >.diff || cat .diff
                claim "$what: the next run succeeds" "$2_next" >.diff || cat .diff
            fi
            step=$((every ? 1 : n / 3 + 1))
            n=$((n + step))
        done
        echo "$1: ${kind%:*} ended it $hit times, was borne $borne times"
        claim "$1: with ${kind%:*} beyond the last it ends well" [ $rc = 0 ]
    done
}
if [ "${LOOPS:-}" = foreign ]; then
    loop "conversion to dcp" dcp dcp_to
    loop "conversion to universal" universal universal_to
    finish
fi
loop save save save
loop conversion reshard reshard_to
if command -v python3 >/dev/null; then
    file_server "$TMP/good/step-2" "$TMP/server.log"
    url=http://127.0.0.1:$port/ok
    loop download fetch fetch
else
    skip "no python3 for a server: no download fails"
fi
finish
