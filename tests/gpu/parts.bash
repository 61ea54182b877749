# parts.bash - the parts of tools/gpu-check in the order in which they run, with their time limits in seconds.
# A part is a function part_NAME. It prints the rows of a table to stdout and everything else to stderr, and
# appends "figure NAME VALUE UNIT" to $out/figures. Status: 0 success, 1 a test failed, 3 no GPU. $here: the
# packed folder; $tmp: a folder that the parts share.
parts="machine 40
kernels 90
bits 100
products 110
wgmma 90
train 120
serve 90
memory 40
batches 90
programs 120
providers 60
tune 90
fake 120"

# on the fake device, to test the script: everything tiny
small=$([ -n "${SHARDLINE_DEVICE:-}" ] && echo 1 || echo 0)

row() { echo "| $1 | $2 |"; }
head_of() { printf '| %s | |\n|---|---|\n' "$1"; }
figure() { [ -z "$2" ] || echo "figure $1 $2 $3" >>"$out/figures"; row "$1" "${2:-nothing came} $3"; }
last_line() { tail -n 1 | cut -c 1-300; }

# tested NAME SECONDS COMMAND…: prints a test program's last line; status 1 unless that line has 0 failures
tested() {
    local name=$1 seconds=$2 last
    shift 2
    echo "== $name" >&2
    last=$(timeout -k 3 "$seconds" "$@" 2>&1 | tee /dev/stderr | last_line)
    row "$name" "${last:-nothing within $seconds s}"
    [[ $last == *" 0 failed"* ]]
}

words() {
    awk -v n="$1" 'BEGIN { srand(1); split("the model rank tree sum of layer head token page shard step bits order", w, " "); for (; c < n; c += 5) printf "%s ", w[int(rand() * 14) + 1] }'
}
data() { [ -s "$tmp/text" ] || words 400000 >"$tmp/text"; echo "$tmp/text"; }
ptrain() { "$here/bin/ptrain" --data "$(data)" --device cuda "$@"; }

# ---- is there a GPU, and does a step run on it ----
part_machine() {
    head_of machine
    row GPU "$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null |
        last_line || echo 'no nvidia-smi')"
    row CPU "$(sed -n 's/^model name.*: //p' /proc/cpuinfo 2>/dev/null | head -n 1), $(nproc) cores"
    row programs "$("$here/bin/ptrain" --version)"
    row libraries "$(cd "$tmp/found" && for f in *; do [ -e "$f" ] && echo "$f -> $(readlink "$f")"; done |
        paste -sd';')"
    ptrain --model tiny --steps 1 --global-batch 1 --seq-len 64 --out "$tmp/first" >"$tmp/first.out" 2>&1
    local rc=$?
    cat "$tmp/first.out" >&2
    row "a step of ptrain --model tiny" "$(last_line <"$tmp/first.out")"
    [ $rc = 0 ] || { grep -qE 'no GPU here|built without CUDA' "$tmp/first.out" && return 3; }
    return $rc
}

# ---- kernels: unit tests ----
part_kernels() {
    local rc=0 t
    head_of test
    for t in "$here"/unit/*_test; do
        tested "$(basename "$t")" 40 "$t" || rc=1
    done
    return $rc
}

# ---- the same bits for ranks that share the GPU ----
# A line a step, and the state's digest
run_bits() {
    rm -rf "$tmp/layout" "$tmp/layout.jsonl"
    timeout -k 5 40 "$here/bin/ptrain" --data "$(data)" --device cuda --model tiny --steps 3 --seq-len 128 \
        --global-batch 8 --out "$tmp/layout" --log "$tmp/layout.jsonl" "$@" >"$tmp/layout.out" \
            2>"$tmp/layout.err" </dev/null
    local rc=$?
    cat "$tmp/layout.out" "$tmp/layout.err" >&2
    sed -n 's/.*"loss_bits":"\([0-9a-f]*\)".*/\1/p' "$tmp/layout.jsonl" 2>/dev/null
    sed -n 's/.*"state_digest":"\([0-9a-f]*\)".*/\1/p' "$tmp/layout.out"
    return $rc
}

compare_layouts() {         # DTYPE: against one rank
    local want got rc=0 l
    want=$(run_bits --dtype "$1") || return 1
    while read -r l; do
        got=$(run_bits --dtype "$1" $l)
        [ "$got" = "$want" ] && row "$1, ${l:-one rank again}" "the same bits" ||
            { row "$1, ${l:-one rank again}" "OTHER BITS, or failed: $(last_line <"$tmp/layout.err")"; rc=1; }
    done <<<"$layouts"
    return $rc
}
layouts="
--ranks 2 --tp 2
--ranks 2 --zero 2
--ranks 4 --tp 4
--ranks 4 --zero 3 --micro-batch 1
--ranks 4 --tp 2 --zero 1
--ranks 2 --pp 2 --recompute full"

part_bits() {
    local rc=0
    head_of "layout, against one rank on the GPU"
    compare_layouts bf16 || rc=1
    compare_layouts fp32 || rc=1
    return $rc
}

# ---- speed of kernels ----
bench() {
    local rc
    head_of figure
    "$here/bench/gpu_bench" $([ $small = 1 ] && echo --small) "$@" 2>&1 |
        while read -r word name value unit; do
        [ "$word" = figure ] && figure "$name" "$value" "$unit" || row "$word" "$name $value $unit"
    done
    rc=${PIPESTATUS[0]}
    return "$rc"
}
part_products() { bench copy products; }
# products by each of a Hopper GPU's two instructions, and by each size of wgmma's tiles, beside cuBLASLt in
# the part products; elsewhere wgmma is not here
part_wgmma() {
    local p rc=0
    for p in mma wgmma wgmma:128x256 wgmma:128x128 wgmma:128x64; do
        SHARDLINE_CUDA=${p%:*} SHARDLINE_WGMMA=$([[ $p = *:* ]] && echo "${p#*:}") bench instructions \
            >"$tmp/instructions" 2>&1 || { grep -q "not here" "$tmp/instructions" || rc=1; }
        cat "$tmp/instructions"
    done
    return $rc
}
part_memory() { bench copy few attention decode rows; }

# ---- training: MFU ----
# peak TFLOP/s in dense bf16 that shares are of: the datasheet's of an H100 SXM and of an H200
peak=989

model_of() {                # NAME FILE: a config; floating-point operations of a token at 2048 tokens
    local h i l q kv d v
    case $1 in
    1b) h=2048 i=8192 l=16 q=32 kv=8 d=64 v=128256 ;;
    8b4) h=4096 i=14336 l=4 q=32 kv=8 d=128 v=128256 ;;                 # 8b's layers, four of them
    tiny) h=128 i=352 l=2 q=8 kv=4 d=16 v=512 ;;
    esac
    echo "{\"model_type\":\"llama\",\"hidden_size\":$h,\"num_hidden_layers\":$l,\"num_attention_heads\":$q,\"num_key_value_heads\":$kv,\"head_dim\":$d,\"intermediate_size\":$i,\"vocab_size\":$v,\"max_position_embeddings\":8192,\"rms_norm_eps\":1e-5,\"rope_theta\":500000.0,\"tie_word_embeddings\":false}" >"$2"
    awk -v h=$h -v i=$i -v l=$l -v q=$q -v kv=$kv -v d=$d -v v=$v \
        'BEGIN { printf "%.0f\n", 6 * (l * (h * (2 * q + 2 * kv) * d + 3 * h * i) + h * v) + 6 * l * 2048 * q * d }'
}

# Tokens a second of the last of a few steps; the run is ended then: its checkpoint would take longer than the
# steps.
# MODEL NUMERICS SECONDS [WORD]: the word stands in the figure's name, for numerics
train_speed() {
    local name=$1 numerics=$2 end=$((SECONDS + $3)) word=${4:-$2} flops pid speed
    flops=$(model_of "$name" "$tmp/$name.json")
    rm -f "$tmp/speed.jsonl"
    data >/dev/null
    "$here/bin/ptrain" --data "$tmp/text" --device cuda --model "$tmp/$name.json" --dtype bf16 --numerics \
        "$numerics" --seq-len $([ $small = 1 ] && echo 64 || echo 2048) --global-batch 8 --micro-batch 4 \
            --steps 1000 \
        --out "$tmp/speed" --log "$tmp/speed.jsonl" >&2 &
    pid=$!
    while kill -0 $pid 2>/dev/null && [ $SECONDS -lt $end ] &&
        [ "$(cat "$tmp/speed.jsonl" 2>/dev/null | grep -c loss_bits)" -lt 6 ]; do
        sleep 0.2
    done
    kill -9 $pid 2>/dev/null
    wait $pid 2>/dev/null
    rm -rf "$tmp/speed"
    speed=$(sed -n 's/.*"tokens_per_s":\([0-9.e+]*\).*/\1/p' "$tmp/speed.jsonl" 2>/dev/null | tail -n 1)
    [ -n "$speed" ] || { row "train.$name.$word" "no step within $3 s"; return 1; }
    figure "train.$name.$word" "$speed" tokens/s
    figure "train.$name.$word.mfu" \
        "$(awk -v s="$speed" -v f="$flops" -v p=$peak 'BEGIN { printf "%.2f", 100 * s * f / p / 1e12 }')" %
}

part_train() {
    local rc=0 m n
    head_of "training, bf16, one GPU; MFU of $peak TFLOP/s"
    for m in $([ $small = 1 ] && echo tiny || echo 1b 8b4); do
        for n in exact fast; do train_speed $m $n 28 || rc=1; done
        awk -v m="train.$m" '$2 == m ".exact" { e = $3 } $2 == m ".fast" { f = $3 } END { if (e && f) print "figure", m ".exact_of_fast", 100 * e / f, "%" }' "$out/figures" |
            while read -r _ name value unit; do figure "$name" "$value" "$unit"; done
    done
    return $rc
}

# ---- cuBLASLt's algorithms: timed for this GPU, and what that brings (kernels/cuda/lt/lt_table.h) ----
part_tune() {
    local rc=0 m
    m=$([ $small = 1 ] && echo tiny || echo 1b)
    export SHARDLINE_CUBLASLT_TABLE=$out/cublaslt.table
    rm -f "$SHARDLINE_CUBLASLT_TABLE"
    head_of "algorithms of cuBLASLt by time"
    SHARDLINE_CUBLASLT_TUNE=1 train_speed $m fast 45 timing || rc=1
    [ -s "$SHARDLINE_CUBLASLT_TABLE" ] || { row cublaslt.table "no line: nobody asked cuBLASLt"; return $rc; }
    row cublaslt.table "$(wc -l <"$SHARDLINE_CUBLASLT_TABLE") products, of $(grep -vc 'number 1 of' \
        "$SHARDLINE_CUBLASLT_TABLE") another algorithm than the library's first"
    train_speed $m fast 28 by_table || rc=1
    return $rc
}

# ---- serving: tokens a second ----
serve_speed() {             # MODEL NUMERICS
    local pid url='' end=$((SECONDS + 40)) n
    # the line of the server before must not be read for this one's
    : >"$tmp/pserve.out"
    "$here/bin/pserve" "$tmp/serve-$1" --device cuda --numerics "$2" --port 0 --ctx 2048 --max-batch 64 \
        >"$tmp/pserve.out" 2>"$tmp/pserve.err" &
    pid=$!
    while kill -0 $pid 2>/dev/null && [ $SECONDS -lt $end ] && ! grep -q ready "$tmp/pserve.out"; do
        sleep 0.2
    done
    url=$(sed -n 's/.*ready on \(http[^ ]*\).*/\1/p' "$tmp/pserve.out")
    for n in 1 16; do
        [ -n "$url" ] || break
        timeout 25 "$here/bin/pbench" --url "$url" --requests $((n * 2)) --concurrency $n --prompt-tokens 32 \
            --output-tokens $([ $small = 1 ] && echo 8 || echo 96) --vocab 500 --json >"$tmp/pbench.json" 2>&1
        cat "$tmp/pbench.json" >&2
        figure "serve.$1.$2.clients$n" \
            "$(sed -n 's/.*"output_throughput": *\([0-9.e+]*\).*/\1/p' "$tmp/pbench.json")" tokens/s
    done
    cat "$tmp/pserve.err" >&2
    kill -9 $pid 2>/dev/null
    wait $pid 2>/dev/null
    [ -n "$url" ] || { row "serve.$1.$2" "not ready: $(last_line <"$tmp/pserve.err")"; return 1; }
}

part_serve() {
    local rc=0 m n
    head_of "serving, bf16, one GPU"
    for m in $([ $small = 1 ] && echo tiny || echo 1b 8b4); do
        mkdir -p "$tmp/serve-$m"
        model_of $m "$tmp/serve-$m/config.json" >/dev/null
        python3 "$here/tests/gpu/random_model.py" "$tmp/serve-$m" ||
            { row "$m" "no model: no python3"; return 1; }
        for n in exact fast; do serve_speed $m $n || rc=1; done
        rm -rf "$tmp/serve-$m"
    done
    return $rc
}

# ---- serving: the same bits in any batch, at every tp, as the trainer says ----
part_batches() {
    head_of "serving in any batch"
    run_bits --dtype bf16 >/dev/null
    data >/dev/null && head -c 3000 "$tmp/text" >"$tmp/held-out"
    "$here/bin/ptrain" --eval-only --init "$tmp/layout/step-3" --eval-data "$tmp/held-out" --seq-len 64 \
        --eval-logprobs "$tmp/eval.jsonl" --device cuda >&2
    PSERVE_ARGS="--device cuda" tested "serve_bits, bf16" 80 env PYTHONPATH="$here/tests/cli/lib" python3 -B \
        "$here/tests/cli/serve/serve_bits.py" "$tmp/layout/step-3" "$tmp/eval.jsonl" part
}

# ---- programs with the CPU's bits: products of simt ----
part_programs() {
    head_of "programs, against the CPU"
    [ $small = 0 ] || { row cuda_device "skipped: the fake device has its own part"; return 0; }
    mkdir -p "$tmp/cuda"
    SHARDLINE_CUDA=simt TMP=$tmp/cuda tested cuda_device 115 bash "$here/tests/cli/devices/cuda_device.sh"
}

# ---- who multiplies: bits over layouts and speed ----
part_providers() {
    local p one two
    head_of "products of"
    for p in simt own lt; do
        one=$(SHARDLINE_CUDA=$p run_bits --dtype bf16) &&
            two=$(SHARDLINE_CUDA=$p run_bits --dtype bf16 --ranks 2 --tp 2)
        row "$p" "$([ -n "$one" ] && { [ "$one" = "$two" ] &&
            echo "tp 2 has the bits of one rank: ${one//$'\n'/ }" || echo "other bits at tp 2"; } ||
                echo "not here: $(last_line <"$tmp/layout.err")")"
    done
}

# ---- the fake device ----
part_fake() {
    head_of "the fake device, on the CPU"
    mkdir -p "$tmp/fake"
    SHARDLINE_DEVICE= TMP=$tmp/fake tested fake_device 115 bash "$here/tests/cli/devices/fake_device.sh"
}
