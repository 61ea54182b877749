#!/usr/bin/env bash
# quick
# plot_axes.sh - plot's axes: round ticks, logarithms, time and tokens; running means; event files that
# TensorBoard reads; tools/follow-log. With PYTHON, a python3 that has the package tensorboard, that package
# reads the events too.
. "$(dirname "$0")/../lib/lib.bash"
command -v python3 >/dev/null || { skip "no python3 to read the events"; finish; }
tools=$(cd "$lib_dir/../../.." && pwd)/tools
cd "$TMP" || exit 1
# 60 steps, one a minute from 1000 s on, 100 tokens each; the loss is 640 halved every 10 steps
awk 'BEGIN { print "{\"event\":\"run\",\"step\":0,\"parameters\":5,\"arguments\":{\"lr\":0.1},\"time\":1000}"
    for (i = 1; i <= 60; i++) printf "{\"step\":%d,\"loss\":%.9g,\"tokens\":%d,\"time\":%d.5}\n", i, 640 / 2 ^ (i / 10), 100 * i, 1000 + 60 * i
    print "{\"event\":\"eval\",\"step\":60,\"eval_loss\":9.5,\"time\":4700}"
    print "{\"event\":\"memory\",\"step\":60,\"when\":\"end\",\"ranks\":[],\"time\":4700}" }' >run.jsonl

# ticks: the numbers on the left of the drawing, from the top; x_ticks: those below it, and the unit
ticks() { sed -n 's/^ *\([-0-9.e+][-0-9.e+]*\) |.*/\1/p' <<<"$out" | tr '\n' ' '; }
x_ticks() { tail -n 1 <<<"$out" | tr -s ' '; }
run plot run.jsonl --height 13
claim "round ticks on y, and the range ends at them" [ "$(ticks)" = "600 400 200 0 " ]
claim "round ticks on x" [ "$(x_ticks)" = " 20 40 60 step" ]
head -n 4 run.jsonl >few.jsonl
run plot few.jsonl
claim "steps are whole numbers" [ "$(x_ticks)" = " 1 2 3 step" ]
run plot run.jsonl --height 25 --log-y --x time
claim "a logarithmic y axis: 1, 2, 5 times powers of ten" [ "$(ticks)" = "1000 500 200 100 50 20 10 " ]
claim "wall-clock time in minutes" [ "$(x_ticks)" = " 20 40 60 minutes" ]
run plot run.jsonl --x tokens --log-x
claim "tokens, on a logarithmic x axis" [ "$(x_ticks)" = " 100 200 500 1000 2000 5000 tokens" ]
run plot run.jsonl --y eval_loss --x tokens
claim "an evaluation has the tokens of the step before it" has "$(x_ticks)" "6000"
run plot run.jsonl --smooth 0.5 --svg s.svg
run plot run.jsonl --svg r.svg
cat >means.py <<'PY'
import re
points = lambda name: [tuple(map(float, p.split(","))) for p in re.search(r'stroke="#1f6feb"[^>]*points="([^"]*)"', open(name).read())[1].split()]
raw, mean = points("r.svg"), points("s.svg")
assert len(raw) == len(mean) == 60 and raw[0] == mean[0]
y = [640 / 2 ** (i / 10) for i in range(1, 61)]
top = 40 + 340 * (1 - y[1] / 600)
total = weight = 0
for i, v in enumerate(y):                      # both pages go from 0 to 600
    total, weight = 0.5 * total + 0.5 * v, 0.5 * weight + 0.5
    want = 40 + 340 * (1 - total / weight / 600)
    assert abs(mean[i][1] - want) < 0.06, (i, mean[i], want)
assert abs(raw[1][1] - top) < 0.06
PY
run python3 means.py
claim "a running mean, without the bias of its start" [ $rc = 0 ]
printf '{"step":1,"loss":-1}\n{"step":2,"loss":0}\n' >low.jsonl
run plot low.jsonl --log-y
claim "nothing above 0 on a logarithmic axis is refused" eval \
    '[ $rc = 2 ] && [[ $err == *"leave the logarithmic axis out"* ]]'
run plot low.jsonl --x time
claim "a log without times has no time axis" has "$err" "no line with a number for loss and for time"
run plot low.jsonl
claim "and is drawn over steps" eval '[ $rc = 0 ] && [ "$(ticks)" = "0 -0.2 -0.4 -0.6 -0.8 -1 " ]'

# ---- TensorBoard ----
run plot run.jsonl --tensorboard tb
run plot run.jsonl --tensorboard tb
claim "one event file a run, also the second time" [ "$(find tb -type f)" = \
    tb/run/events.out.tfevents.1000.shardline ]
cat >events.py <<'PY'
import struct
data, at, events = open("tb/run/events.out.tfevents.1000.shardline", "rb").read(), 0, []
def crc(b):
    c = 0xFFFFFFFF
    for x in b:
        c ^= x
        for _ in range(8):
            c = c >> 1 ^ (0x82F63B78 if c & 1 else 0)
    c ^= 0xFFFFFFFF
    return ((c >> 15 | c << 17) + 0xA282EAD8) & 0xFFFFFFFF
assert crc(b"123456789") == (((0xE3069283 >> 15 | 0xE3069283 << 17) + 0xA282EAD8) & 0xFFFFFFFF)   # the check value of CRC-32C
def fields(b):
    i = 0
    def varint():
        nonlocal i
        n = shift = 0
        while True:
            n |= (b[i] & 127) << shift
            shift += 7
            i += 1
            if b[i - 1] < 128:
                return n
    while i < len(b):
        key = varint()
        size = {0: 0, 1: 8, 5: 4}.get(key & 7)
        value = varint() if key & 7 == 0 else None
        if value is None:
            size = size if size is not None else varint()
            value, i = b[i:i + size], i + size
        yield key >> 3, value
while at < len(data):
    n, = struct.unpack_from("<Q", data, at)
    assert struct.unpack_from("<I", data, at + 8)[0] == crc(data[at:at + 8])
    body = data[at + 12:at + 12 + n]
    assert struct.unpack_from("<I", data, at + 12 + n)[0] == crc(body)
    events.append(dict(fields(body)))
    at += n + 16
assert events[0][3] == b"brain.Event:2" and struct.unpack("<d", events[0][1])[0] == 1000
assert len(events) == 62 and [e[2] for e in events[1:61]] == list(range(1, 61))
first = {dict(fields(v))[1]: struct.unpack("<f", dict(fields(v))[2])[0] for _, v in fields(events[1][5])}
assert set(first) == {b"loss", b"tokens"} and abs(first[b"loss"] - 640 / 2 ** 0.1) < 1e-4 and first[b"tokens"] == 100, first
assert struct.unpack("<d", events[1][1])[0] == 1060.5
assert [dict(fields(v))[1] for _, v in fields(events[61][5])] == [b"eval_loss"]
PY
run python3 events.py
claim "its records and sums are TensorBoard's format" [ $rc = 0 ]
if "${PYTHON:-python3}" -c 'import tensorboard' 2>/dev/null; then
    run "${PYTHON:-python3}" -c '
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
a = EventAccumulator("tb/run")
a.Reload()
assert [(x.step, x.wall_time) for x in a.Scalars("loss")] == [(i, 1000.5 + 60 * i) for i in range(1, 61)]
assert [x.value for x in a.Scalars("eval_loss")] == [9.5]'
    claim "TensorBoard itself reads them" [ $rc = 0 ]
else
    skip "no package tensorboard here"
fi
run plot run.jsonl --tensorboard run.jsonl
claim "a folder that cannot be made is refused" eval '[ $rc = 1 ] && [[ $err == *run.jsonl* ]]'

# ---- a log followed: the packages it calls are stood in for ----
mkdir stand
cat >stand/wandb.py <<'PY'
def init(**more): print("init", more)
def log(figures, step): print(step, figures)
def finish(): print("finish")
class config:
    update = staticmethod(lambda x, allow_val_change: print("config", x))
PY
cat >stand/tensorboardX.py <<'PY'
class SummaryWriter:
    def __init__(self, folder): print("folder", folder)
    def add_text(self, *more): print(*more)
    def add_scalar(self, *where, walltime): print(*where, walltime)
    def close(self): print("close")
PY
run env PYTHONPATH=stand python3 -B "$tools/follow-log" --to wandb --project p run.jsonl
claim "to Weights & Biases: options, every step, the end" eval \
    '[ $rc = 0 ] && [ "$(wc -l <<<"$out")" = 64 ] && [[ $out == "init {'"'project': 'p', 'name': 'run'}"'"*"config {'"'lr': 0.1}"'"*"60 {'"'eval_loss': 9.5}"'"*finish ]]'
head -n 30 run.jsonl >part.jsonl
printf '{"step":30,"lo' >>part.jsonl
run env PYTHONPATH=stand python3 -B "$tools/follow-log" --once --dir d part.jsonl
claim "to TensorBoard: what is there, without the line that is not whole" eval \
    '[ $rc = 0 ] && [[ $out == "folder d"*"loss 85.7"*" 29 2740.5"*close ]]'
finish
