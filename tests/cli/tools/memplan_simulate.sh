#!/usr/bin/env bash
# quick
# memplan_simulate.sh - --simulate: the line of the step comes before the tables, and these are to the byte those without it, in
# memplan and in ptrain --dry-run; pictures are written; the search is ranked by the clock; bad clusters are refused.
. "$(dirname "$0")/../lib/lib.bash"

shape=(--seq-len 256 --global-batch 16 --micro-batch 1)
while read -r -a layout; do
    run memplan --model 110m --gpus 8 "${shape[@]}" "${layout[@]}"
    plain=$out
    run memplan --model 110m --gpus 8 "${shape[@]}" "${layout[@]}" --simulate a100
    claim "memplan ${layout[*]}: a step" grep -Eq '^step [0-9.e-]+ s, MFU [0-9.]+ %$' <<<"$(sed -n 2p <<<"$out")"
    claim "the rest is the plan" [ "$(grep -Ev '^(step|on|time|failures|a day) ' <<<"$out")" = "$plain" ]
    run ptrain --model 110m --ranks 8 --dry-run "${shape[@]}" "${layout[@]}"
    plain=$out
    run ptrain --model 110m --ranks 8 --dry-run "${shape[@]}" "${layout[@]}" --simulate a100
    claim "ptrain ${layout[*]}: a step" grep -Eq '^step [0-9.e-]+ s, MFU [0-9.]+ %$' <<<"$(sed -n 1p <<<"$out")"
    claim "the rest is the plan" [ "$(grep -Ev '^(step|on|time) ' <<<"$out")" = "$plain" ]
done <<'LAYOUTS'
--tp 1 --zero 0
--tp 2 --sp --zero 3
--tp 2 --pp 2 --zero 1 --schedule interleaved --virtual-stages 2 --recompute full
--tp 1 --pp 4 --zero 2 --schedule zero-bubble
LAYOUTS

run memplan --model 110m --gpus 8 --tp 2 --pp 2 "${shape[@]}" --simulate h100 --train-tokens 300B --trace-out "$TMP/step.json" \
    --scale-out "$TMP/scale.svg"
claim "a job has days and energy" grep -Eq '^the job +3e\+11 tokens: [0-9.]+ days, ' <<<"$out"
claim "the trace is JSON with a forward a stage" python3 -c '
import json, sys
t = json.load(open(sys.argv[1]))["traceEvents"]
sys.exit({e["tid"] for e in t if e["name"] == "forward"} != {0, 1})' "$TMP/step.json"
claim "step time against ranks is SVG" python3 -c '
import sys, xml.dom.minidom as m
sys.exit(len(m.parse(sys.argv[1]).getElementsByTagName("circle")) < 3)' "$TMP/scale.svg"
run memplan --model 110m --gpus 8 --tp 1 --pp 4 "${shape[@]}" --simulate h100 --trace-out "$TMP/step.svg"
claim "the timeline is SVG" python3 -c 'import sys, xml.dom.minidom as m; m.parse(sys.argv[1])' "$TMP/step.svg"

run memplan --model 110m --gpus 2 "${shape[@]}" --simulate h100
rows=$(sed -n '/^[0-9]/{/layouts fit/!p}' <<<"$out")
# what a search would leave out is refused
for option in --fit=1 --trace-out=x.json --scale-out=x.svg; do
    run memplan --model 110m --gpus 2 "${shape[@]}" --simulate h100 "${option%=*}" "${option#*=}"
    claim "a search with ${option%=*} is refused" [ "$rc/$(wc -l <<<"$err")" = 2/1 ] && claim "with what to do" has "$err" "this is a search: give --tp"
done
claim "a search is ranked by the clock" [ -n "$rows" -a \
    "$(awk '{ for (i = 1; i < NF; i++) if ($(i + 1) == "s") print $i }' <<<"$rows")" = \
    "$(awk '{ for (i = 1; i < NF; i++) if ($(i + 1) == "s") print $i }' <<<"$rows" | sort -g)" ]

run memplan --model 110m --gpus 8 --tp 1 --zero 1 "${shape[@]}" --simulate h100 --reshard-nodes 4 --sites 2
claim "a reshard over nodes" grep -Eq '^reshard +[0-9.]+ GB over 4 nodes: [0-9.e-]+ s' <<<"$out"
run memplan --model 1b --simulate h100 --serve-load 100000 --serve-first 1
claim "servers for a load" grep -Eq '^serve +100000 tokens a second: [0-9]+ replicas of tp [0-9]+, batch' <<<"$out"

# this machine: single operations, then one measured step
run memplan --model tiny --seq-len 64 --calibrate "$TMP/here.toml"
claim "operations are measured" [ $rc = 0 ]
claim "kernels by name" [ "$(sed -n 's/^name = "\([a-z_]*\)"$/\1/p' "$TMP/here.toml" | sort -u | tr '\n' ' ')" = \
    "adamw add_rounded attn attn_dx ce_dx ce_max ce_sum copy embed embed_dw linear linear_dw linear_dx linear_pack rms_norm rms_norm_dw \
rms_norm_dx rope_dx rope_store round_to sum_squares swiglu swiglu_dx " ]
claim "collectives of two ranks, and what they wait" [ "$(grep -c '^ranks = 2$' "$TMP/here.toml")" = 22 ]
claim "sums of one rank" [ "$(grep -c '^ranks = 1$' "$TMP/here.toml")" = 7 ]
run memplan --model tiny-moe --seq-len 64 --calibrate "$TMP/moe.toml"
claim "experts are not measured" has "$err" "dense attention and MLP"
run memplan --model tiny --seq-len 64 --gpus 65 --calibrate "$TMP/many.toml"
claim "as many ranks are not started" [ $rc = 2 ] && claim "with both numbers" has "$err" "--gpus 65: --calibrate starts so many ranks here, and at most 64"
one=(memplan --model tiny --gpus 1 --dp 1 --dtype fp32 --seq-len 64 --global-batch 4 --micro-batch 4 --simulate "$TMP/here.toml")
run "${one[@]}"
twice=$(awk '/^step/ { print 2 * $2 }' <<<"$out") # whatever this machine's speed is, rows can cost as much
run "${one[@]}" --fit "$twice"
claim "a step fits" [ "$rc/$(grep -c ^fitted <<<"$out")" = 0/1 ]
run "${one[@]}"
claim "and is the one that was measured" awk -v want="$twice" \
    '/^step/ { near = $2 > 0.98 * want && $2 < 1.02 * want } END { exit !near }' <<<"$out"
# kernels of a trace in the place of those
head -c 30000 "$BIN/memplan" | base64 >"$TMP/text"
run ptrain --model tiny --data "$TMP/text" --out "$TMP/run" --dtype fp32 --seq-len 64 --global-batch 4 --steps 2 --trace "$TMP/trace.json"
claim "a traced run" [ $rc = 0 ]
run "${one[@]}" --ops "$TMP/trace.json"
claim "a step from a trace" grep -Eq '^step [0-9.e-]+ s, MFU' <<<"$out"
sed 's/"dur":[0-9.]*/"dur":1000000/' "$TMP/trace.json" >"$TMP/slow.json"
run "${one[@]}" --ops "$TMP/slow.json"
claim "its seconds count" awk '/^step/ { slow = $2 > 100 } END { exit !slow }' <<<"$out"
cp "$TMP/here.toml" "$TMP/kept.toml"
run "${one[@]}" --ops "$TMP/trace.json" --fit "$twice"
claim "a fit does not replace the calibration by a trace" [ "$rc/$(wc -l <<<"$err")" = 2/1 ] && claim "the file stays" cmp -s "$TMP/here.toml" "$TMP/kept.toml"
python3 -c '
import json
print(json.dumps({"traceEvents": [{"name": "swiglu", "cat": "kernel", "ph": "X", "pid": 0, "tid": 0, "ts": 0, "dur": 5,
    "args": {"shape": "%dx4x8" % n}} for n in range(1, 4098)]}))' >"$TMP/shapes.json"
run "${one[@]}" --ops "$TMP/shapes.json"
claim "shapes that do not fit are not dropped" [ $rc != 0 ] && claim "with their limit" has "$err" "more than 4096 shapes"
run "${one[@]}" --ops "$TMP/text"
claim "another file is one line" [ "$rc/$(wc -l <<<"$err")" = 1/1 ]
run memplan --model tiny --gpus 1 --dp 1 --ops "$TMP/trace.json"
claim "a trace needs a clock" has "$err" "add --simulate"
for option in --serve-load --fit --reshard-nodes --second-gpus; do
    run memplan --model tiny --gpus 1 --dp 1 $option 5
    claim "$option needs a clock" has "$err" "add --simulate"
done
run "${one[@]}" --fit 1e-9
claim "a step that cannot be is refused" [ $rc = 2 ] && claim "with both numbers" has "$err" "a step takes"

# two kinds of devices: uneven stages, in a layout and in a search
two=(--model 1b --seq-len 2048 --global-batch 16 --simulate h100 --second a100)
run memplan "${two[@]}" --gpus 8 --tp 2 --pp 4 --second-gpus 4
claim "layers by what one takes on either kind" grep -Eq '^kinds +2 stages on h100, 2 on a100, .* layers( [1-9][0-9]*){4}$' <<<"$out"
run memplan "${two[@]}" --gpus 8 --tp 2 --pp 4 --second-gpus 3
claim "part of a stage is refused" [ "$rc/$(wc -l <<<"$err")" = 2/1 ] && claim "with both numbers" has "$err" "--second-gpus 3: a stage"
run memplan "${two[@]}" --gpus 8 --tp 2 --pp 4
claim "how many are needed" has "$err" "--second-gpus belong together"
run memplan "${two[@]}" --second "$TMP/here.toml" --gpus 8 --tp 2 --pp 4 --second-gpus 4
claim "cores on one kind alone are refused" [ $rc = 2 ] && claim "with both numbers" has "$err" "cores of h100: 0, of this machine: "
run memplan --model tiny --gpus 2 --tp 1 --pp 2 --seq-len 16 --micro-batch 1 --global-batch 60000 --simulate h100 --trace-out "$TMP/long.json"
claim "a timeline that is cut says so" has "$err" "ends after 200000 actions"
run memplan "${two[@]}" --gpus 8 --second-gpus 4 --memory-out "$TMP/memory.svg"
claim "a search over both: whole stages of one kind" [ $rc = 0 -a "$(awk '/^[0-9]+ +[0-9]+ +[0-9]+ / && $3 % 2' <<<"$out" | wc -l)" = 0 ]
claim "memory against layouts is SVG" python3 -c '
import sys, xml.dom.minidom as m
texts = [t.firstChild.data for t in m.parse(sys.argv[1]).getElementsByTagName("text")]
sys.exit(sum(t.startswith("tp ") for t in texts) != 10 or "80 GB" not in texts)' "$TMP/memory.svg"
run memplan --model 7b --gpus 1 --seq-len 2048 --global-batch 4 --simulate h100 --offload any
claim "a search tries the host's memory and the disk" has "$out" "; state "

# measured servers
{ printf '[device]\nbf16_flops = 1e12\nefficiency = 0.5\nhbm_bytes_per_s = 1e12\nhbm_bytes = 80e9\n[[network]]\nranks = 0\nalpha_s = 0\nbytes_per_s = 1e9\n'
    printf '[[serve]]\ntp = %s\nbatch = %s\ntokens_per_s = %s\nfirst_s = %s\n' 1 8 90 0.2 1 32 250 1.5 2 32 450 0.4; } >"$TMP/served.toml"
run memplan --model 1b --simulate "$TMP/served.toml" --serve-load 1000
claim "replicas from measured servers" has "$out" "4 replicas of tp 1, batch 32: 4 devices; 250 tokens a second each, first token after 1.5 s, as measured"
run memplan --model 1b --simulate "$TMP/served.toml" --serve-load 1000 --serve-first 0.5
claim "in time" has "$out" "3 replicas of tp 2, batch 32: 6 devices"
run memplan --model 1b --simulate "$TMP/served.toml" --serve-load 1000 --serve-first 0.1
claim "none is so fast" has "$err" "none of the 3 measured servers"

printf '[device]\nbf16_flops = 1e12\nefficiency = 7\n' >"$TMP/bad.toml"
run memplan --model 110m --gpus 8 --tp 1 --simulate "$TMP/bad.toml"
claim "an impossible value is one line" [ "$rc/$(wc -l <<<"$err")" = 2/1 ] && claim "with key and value" has "$err" "line 3: efficiency is 7"
run memplan --model 110m --gpus 8 --tp 1 --simulate h1000
claim "a cluster that does not exist: the presets are listed" has "$err" "a100|h100|h800|b200"
run memplan --model 110m --gpus 8 --tp 1 --trace-out x.json
claim "a timeline needs a clock" has "$err" "add --simulate"
run ptrain --model 110m --simulate h100 --data x --out y
claim "a run is not predicted" has "$err" "goes with --dry-run"
finish
