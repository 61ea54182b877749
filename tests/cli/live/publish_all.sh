#!/usr/bin/env bash
# all
# publish_all.sh - versions of many layouts have the digests of their checkpoints and change no bit; jobs whose ranks are killed publish on, never backwards.
. "$(dirname "$0")/../lib/train_lib.bash"
text 2 40000 >"$TMP/text"
digest() { "$BIN/reshard" digest "$1" | sed -n 's/^weights_digest //p'; }
published() { sed -n 's/.*"event":"publish","step":'"$2"',"weights_digest":"\([0-9a-f]*\)".*/\1/p' "$1"; }

check() {                   # check WHAT ARGS...: every version is its checkpoint, and the final state the reference's
    local what=$1
    shift
    train run --save-every 2 --publish 127.0.0.1:0 --publish-every 2 "$@"
    claim "$what: $*: the reference's state" [ "$state" = "$ref_state" ]
    for step in 2 4; do
        d=$(digest "$TMP/run/step-$step")
        claim "$what: $*: version $step" [ -n "$d" -a "$(published "$TMP/run.jsonl" $step)" = "$d" ]
    done
}

for dtype in fp32 bf16; do
    config "$TMP/model.json"
    common=(--data "$TMP/text" --model "$TMP/model.json" --steps 4 --seq-len 31 --global-batch 8 --lr 0.01 --warmup 2 --threads 1 --dtype $dtype)
    reference
    check llama
    check llama --ranks 4 --tp 4
    check llama --ranks 4 --zero 1
    check llama --ranks 4 --tp 2 --zero 2
    check llama --ranks 4 --zero 3
    check llama --ranks 4 --pp 2 --tp 2
    check llama --ranks 2 --zero 3 --offload "$TMP/offload"
done
family "$TMP/model.json" qwen3_moe
reference
check moe --ranks 4 --tp 2 --ep 4 --zero 3
check moe --ranks 4 --ep 2 --zero 1
family "$TMP/model.json" gpt2
reference
check gpt2 --ranks 2 --tp 2

# training does not stand still while 10m's weights are copied; on a busy machine it may wait for other ranks
common=(--data "$TMP/text" --model 10m --steps 6 --seq-len 128 --global-batch 8 --threads 1 --dtype bf16)
for layout in "--ranks 1" "--ranks 2 --zero 1" "--ranks 2 --zero 3"; do
    read -r -a words <<<"$layout"
    train run "${words[@]}" --publish 127.0.0.1:0
    claim "$layout: seven versions are there" [ "$rc,$(grep -c '"event":"publish"' "$TMP/run.jsonl")" = 0,7 ]
    claim "$layout: training did not wait for a copy" awk -F'"stall_ms":|,"copy_ms":|,"time":' \
        '/"event":"publish"/ { n += $2 < $3 / 2 } END { exit !n }' "$TMP/run.jsonl"
done

# the n-th write of every rank fails, on ranks that have unequal numbers of them: training goes on to its end
config "$TMP/model.json" num_hidden_layers=3
common=(--data "$TMP/text" --model "$TMP/model.json" --steps 3 --seq-len 31 --global-batch 8 --threads 1)
reference
for n in 1 5 11 13 17 23; do
    export SHARDLINE_IO_FAULT=write:$n:ENOSPC
    run timeout -k 10 100 "$BIN/ptrain" "${common[@]}" --ranks 2 --pp 2 --publish 127.0.0.1:0 --out "$TMP/fault-$n"
    unset SHARDLINE_IO_FAULT
    claim "write $n fails: a version is given up in one line" has "$err" "No space left on device: training goes on"
    claim "write $n fails: the run ends in the reference's state" [ "$(state_of "$out")" = "$ref_state" ]
done

# a run that changes its layout publishes on, and versions are what a run that stays saves
config "$TMP/model.json"
common=(--data "$TMP/text" --model "$TMP/model.json" --steps 12 --seq-len 31 --global-batch 8 --lr 0.01 --warmup 2 --threads 1 --save-every 1)
reference
printf 'ranks = 4\ntp = 2\nzero = 3\n' >"$TMP/layout.toml"
train run --ranks 2 --publish 127.0.0.1:0 --layout-file "$TMP/layout.toml"
claim "a run that changes its layout ends in the reference's state" [ "$state" = "$ref_state" ]
claim "and has changed it" grep -q '"event":"layout"' "$TMP/run.jsonl"
wrong=
for step in {1..12}; do [ "$(published "$TMP/run.jsonl" $step)" = "$(digest "$TMP/reference/step-$step")" ] || wrong+=" $step"; done
claim "every version is the checkpoint of its step (not: ${wrong:- none})" [ -z "$wrong" ]

# a rank is killed: the job starts again below its last version. It trains until all that has been seen, and is stopped
config "$TMP/model.json"
common=(--data "$TMP/text" --model "$TMP/model.json" --steps 100000 --seq-len 31 --global-batch 8 --lr 0.01 --warmup 2 --threads 1)
rm -rf "$TMP/again" "$TMP/again.jsonl"
"$BIN/ptrain" "${common[@]}" --ranks 2 --zero 1 --restarts 5 --resume auto --save-every 10 --keep 2 --publish 127.0.0.1:0 --out "$TMP/again" --log "$TMP/again.jsonl" >"$TMP/again.out" 2>"$TMP/again.err" &
pid=$!
lives() { kill -0 $pid 2>/dev/null; }
until url=$(sed -n 's/.*are at \(http:[^ ]*\)$/\1/p' "$TMP/again.err") && [ -n "$url" ] || ! lives; do sleep 0.05; done
version() { curl -s "$url/version" | sed -n 's/.*"version":\([0-9]*\).*/\1/p'; }
until compgen -G "$TMP/again/step-*" >/dev/null || ! lives; do sleep 0.02; done
curl -s -o "$TMP/ignored" "$url/version?after=11&timeout=60"
before=$(version)
kill -9 "$(pgrep -P "$(pgrep -P $pid -x mpirun)" | tail -n 1)"
after=$(version)
claim "a killed rank leaves the version that was there (or a newer one)" [ -n "$before" -a "${after:-0}" -ge "$before" ]
d=
until grep -q "started again" "$TMP/again.err" && [ "${after:-0}" -gt $((before + 40)) ] || ! lives; do
    now=$(version)
    [ -n "$now" ] && [ "$now" -lt "$after" ] && d=backwards
    [ -n "$now" ] && after=$now
    sleep 0.05
done
claim "the job is started again and publishes newer versions" lives
kill -TERM $pid
wait $pid
claim "the job ends well" [ $? = 0 ]
claim "no version went backwards" [ -z "$d" ]
reference --stop-after "$(sed -n 's/.*"steps":\([0-9]*\).*/\1/p' "$TMP/again.out")"
claim "in the reference's state" [ "$(state_of "$(cat "$TMP/again.out")")" = "$ref_state" ]
finish
