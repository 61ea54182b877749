#!/usr/bin/env bash
# quick
# first_lines.sh - a run says what it is: lines at the start, the log's first line, times; options from a
# file; how it answers Ctrl-C; evaluation in part; the tokenizer that token files carry, and the vocabulary
# that follows it.
. "$(dirname "$0")/../lib/train_lib.bash"
command -v python3 >/dev/null || { skip "no python3 to read the log and to be a terminal"; finish; }
cd "$TMP" || exit 1
text 1 20000 >text
cat >run.toml <<'EOF'
data = ["text"]       # as bytes
seq-len = 32
global-batch = 4
steps = 900
lr = 2e-3
EOF

run ptrain --config run.toml --threads 1 --stop-after 4 --lr 1e-3 --eval-data text --eval-every 2 \
    --eval-batches 3 --log log.jsonl --out a
claim "options from a file" [ $rc = 0 ]
claim "the start names the model" has "$err" \
    "ptrain: model tiny: llama, 989k parameters, 5 layers of 128, 8 heads, vocabulary 256"
claim "layout, numbers, device, memory" eval \
    '[[ $err == *"ptrain: 1 rank; fp32, exact; cpu "*", 1 thread a rank; "*"MB of memory planned a rank"* ]]'
claim "steps and tokens" has "$err" \
    "ptrain: steps 1 to 4 of 900, each 4 sequences of 32: 128 tokens; 512 in all, of 20k in the data"
cat >check.py <<'PY'
import json, sys, time
lines = [json.loads(line) for line in open(sys.argv[1])]
first = lines[0]
assert first["event"] == "run" and first["step"] == 0, first
assert first["arguments"]["lr"] == 1e-3 and first["arguments"]["steps"] == 900 and first["arguments"]["data"] == ["text"]
assert first["arguments"]["config"] == "run.toml"
assert first["model"]["vocab_size"] == 256 and first["model"]["num_hidden_layers"] == 5 and first["parameters"] == 988544
assert first["layout"] == {"ranks": 1, "tp": 1, "pp": 1, "cp": 1, "dp": 1, "ep": 1, "zero": 0, "sp": False, "virtual_stages": 1}
assert first["orders"] == {"grain": 8, "expert_leaf": 1, "cp_grain": 1, "own_bits": False} and first["dtype"] == "fp32" and first["device"]["kind"] == "cpu"
assert first["plan"]["memory_bytes"] == sum(v for k, v in first["plan"].items() if k != "memory_bytes") > 1e6
assert first["version"] and first["tokens_a_step"] == 128 and 20000 <= first["data_tokens"] < 20020
times = [x["time"] for x in lines]
assert all(a <= b for a, b in zip(times, times[1:])) and abs(times[-1] - time.time()) < 100, times
assert sum(x.get("event") == "run" for x in lines) == int(sys.argv[2])
evals = [x for x in lines if x.get("event") == "eval"]
assert [x["windows"] for x in evals] == [12] * len(evals) and len(evals) >= 2, evals
assert all("event" in x or "loss_bits" in x for x in lines)
PY
run python3 check.py log.jsonl 1
claim "the log's first line says what the run is, and every line its time" [ $rc = 0 ]
run ptrain --config run.toml --threads 1 --stop-after 6 --lr 1e-3 --resume a/step-4 --eval-data text \
    --eval-every 2 --eval-batches 3 --log log.jsonl --out a
claim "a resumed run goes on from the file, too" [ $rc = 0 ] &&
    claim "and says so" has "$err" "steps 5 to 6 of 900"
run python3 check.py log.jsonl 2
claim "and adds a line of its own to the log" [ $rc = 0 ]
run ptrain --eval-only --init a/step-6 --eval-data text --eval-batches 2 --seq-len 32 --global-batch 4
claim "eval-only takes a part as well" has "$out" '"windows":8,"tokens":256}'
claim "and prints what it will do, and no progress when that is short" eval \
    '[[ $err == *"ptrain: evaluation of 8 windows of 32 tokens" ]]'

printf 'stepz = 3\n' >bad.toml
run ptrain --config bad.toml --data text --out b
claim "a mistyped key is wrong usage, with file, line and advice" [ "$rc/$err" = \
    "2/ptrain: bad.toml: line 1: unknown option --stepz: did you mean --steps" ]

# Ctrl-C: answered while the step runs; the second one ends at once
cat >hands.py <<'PY'
"""TIMES PROGRAM ARGS...: runs it on a terminal, types Ctrl-C TIMES times after the first step; prints what it said and its status."""
import os, pty, sys
pid, fd = pty.fork()
if pid == 0:
    os.execv(sys.argv[2], sys.argv[2:])
said, typed = b"", 0
while True:
    try:
        part = os.read(fd, 65536)
    except OSError:
        break
    if not part:
        break
    said += part
    if typed < int(sys.argv[1]) and (b"step 1/" in said if not typed else b"stopping after" in said):
        os.write(fd, b"\x03")
        typed += 1
print(said.decode(), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
PY
answer="ptrain: stopping after this step, saving; a second Ctrl-C ends the run without saving"
for ranks in 1 2; do
    run python3 hands.py 1 "$BIN/ptrain" --config run.toml --threads 1 --ranks $ranks --out c$ranks
    claim "$ranks ranks: Ctrl-C is answered" has "$out" "$answer"
    claim "$ranks ranks: once, and the run is saved" eval \
        '[ "$(grep -c "stopping after" <<<"$out")" = 1 ] && [[ $out == *"continue with --resume c'$ranks'/step-"*" 0" ]]'
done
# steps of a second and more, so that the second Ctrl-C comes within one
run python3 hands.py 2 "$BIN/ptrain" --config run.toml --threads 1 --global-batch 32 --seq-len 256 --out d
claim "a second Ctrl-C ends it at once" eval \
    '[[ $out == *"$answer"* && $out == *" 130" ]] && [ ! -e d/step-2 ]'

# the progress of an evaluation: windows that only grow, of those that will be evaluated, before a result on a
# line of its own
cat >progress.py <<'PY'
import re, sys
said = sys.stdin.read()
lines = re.findall(r"\r\x1b\[Kptrain: evaluated (\d+)/(\d+) windows  left \d+ s", said)
assert lines and all(n == sys.argv[1] for _, n in lines), said
done = [int(d) for d, _ in lines]
assert done == sorted(set(done)) and 0 < done[0] and done[-1] <= int(sys.argv[1]), done
assert re.search(r'\n\{"loss":[\d.]+,"perplexity":[\d.]+,"windows":%s,' % sys.argv[1], said) if sys.argv[2] == "only" else \
    re.search(r"ptrain: step 2: evaluation loss [\d.]+, perplexity [\d.]+", said), said
PY
run python3 hands.py 0 "$BIN/ptrain" --eval-only --init a/step-6 --eval-data text --eval-batches 100 \
    --seq-len 32 --global-batch 4 --threads 1
claim "eval-only shows its progress on a terminal" eval 'python3 progress.py 400 only <<<"$out"'
run python3 hands.py 0 "$BIN/ptrain" --config run.toml --threads 1 --steps 2 --eval-data text --eval-every 2 \
    --eval-batches 100 --out p
claim "an evaluation between steps, too" eval 'python3 progress.py 400 steps <<<"$out"'

# a tokenizer of its own: 256 bytes, 3 merges, an end
python3 - <<'PY'
import json, os
chars = [chr(b) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174 else None for b in range(256)]
n = 0
for b in range(256):
    if chars[b] is None:
        chars[b] = chr(256 + n)
        n += 1
vocab = {c: i for i, c in enumerate(chars)}
for t in ("th", "the", "er"):
    vocab[t] = len(vocab)
def write(folder, more):
    os.mkdir(folder)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    json.dump({"version": "1.0", "added_tokens": [{"id": 259, "content": "<end>", "special": True}], "normalizer": None, "pre_tokenizer": byte_level,
               "post_processor": None, "decoder": byte_level, "model": {"type": "BPE", "vocab": vocab, "merges": ["t h", "th e", "e r"][:more]}},
              open(folder + "/tokenizer.json", "w"))
    json.dump({"eos_token": "<end>"}, open(folder + "/tokenizer_config.json", "w"))
    open(folder + "/chat_template.jinja", "w").write("{{ messages[0].content }}")
write("tok", 3)
write("other", 2)
PY
run ptok encode --tokenizer tok --text 'the er é'
claim "ptok encode --text: ids and tokens" [ "$out" = \
    '{"ids":[257,32,258,32,195,169],"ids_plain":[257,32,258,32,195,169],"tokens":["the","Ġ","er","Ġ","Ã","©"]}' ]
run ptok prepare --tokenizer tok text --out t.bin
claim "a token file" [ $rc = 0 ]
run ptok encode --tokenizer t.bin --text the
claim "is a tokenizer itself" has "$out" '"ids":[257]'
small=(--seq-len 32 --global-batch 2 --threads 1)
run ptrain --data t.bin "${small[@]}" --steps 2 --sample-every 2 --out e
claim "a preset takes its vocabulary" [ $rc = 0 ] && claim "the tokenizer's" has "$err" "vocabulary 260"
claim "the checkpoint holds the tokenizer's files" eval \
    'cmp -s tok/tokenizer.json e/step-2/tokenizer.json && cmp -s tok/chat_template.jinja e/step-2/chat_template.jinja'
claim "and knows its end" grep -q '"eos_token_id": 259' e/step-2/config.json
digest=$(state_of "$out")
run ptrain --data text --tokenizer tok "${small[@]}" --steps 2 --out f
claim "the same training from the text" [ "$(state_of "$out")" = "$digest" ]
run ptrain --data t.bin "${small[@]}" --model tiny --steps 3 --resume e/step-2 --out e
claim "resumed, with the preset named" [ $rc = 0 ]
run ptrain --data text "${small[@]}" --steps 1 --vocab-size 300 --out g
claim "--vocab-size overrides" has "$err" "vocabulary 300"
run ptok prepare --tokenizer other text --out o.bin
run ptrain --data t.bin --eval-data o.bin "${small[@]}" --steps 2 --out h
claim "token files of two tokenizers are refused" [ "$rc/$err" = \
    "2/ptrain: o.bin was made with another tokenizer than t.bin: make both with one, or name one with --tokenizer" ]
run ptrain --data o.bin "${small[@]}" --steps 4 --resume e/step-3 --out e
claim "and one that the resumed run did not have" has "$err" \
    "o.bin was made with another tokenizer than the run"
run ptok prepare --tokenizer tok --no-carry-tokenizer text --out plain.bin
claim "a token file without one" [ "$(head -c 9 plain.bin | tail -c 1 | od -An -tu1 | tr -d ' ')" = 1 ]
run ptrain --data plain.bin "${small[@]}" --steps 1 --out i
claim "still says how many tokens there are" has "$err" "vocabulary 260"

# Megatron's pair of files
python3 - <<'PY'
import struct
ids = [i % 300 for i in range(4000)]
open("m.bin", "wb").write(struct.pack("<4000H", *ids))
open("m.idx", "wb").write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 2, 3) + struct.pack("<2i2q3q", 1000, 3000, 0, 2000, 0, 1, 2))
open("m.u16", "wb").write(struct.pack("<4000H", *ids))
PY
run ptrain --data m.u16 "${small[@]}" --steps 2 --vocab-size 300 --out j
digest=$(state_of "$out")
for name in m.bin m.idx m; do
    rm -rf k
    run ptrain --data $name "${small[@]}" --steps 2 --vocab-size 300 --out k
    claim "Megatron's pair by the name $name: the same training as from its ids" [ "$(state_of "$out")" = \
        "$digest" ]
done
run ptrain --data m "${small[@]}" --documents 3 --steps 1 --vocab-size 300 --out l
claim "and with its documents" [ $rc = 0 ]
rm m.idx
run ptrain --data m.bin "${small[@]}" --steps 2 --vocab-size 300 --out n
claim "half a pair is refused" has "$err" "no .idx is beside it"
finish
