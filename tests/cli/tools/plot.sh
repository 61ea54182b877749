#!/usr/bin/env bash
# quick
# plot.sh - the curves of runs: in the terminal, as SVG, as PNG; one run or several; what is no log is
# refused.
. "$(dirname "$0")/../lib/lib.bash"
cd "$TMP" || exit 1
# curve FILE FACTOR: 40 steps that fall, events between, one step without a number, a last line that was cut
# off
curve() {
    awk -v k="$2" 'BEGIN { for (i = 1; i <= 40; i++) { printf "{\"step\":%d,\"loss\":%s,\"lr\":0.1}\n", i, i == 7 ? "null" : k / i;
        if (i % 10 == 0) printf "{\"event\":\"eval\",\"step\":%d,\"eval_loss\":%g}\n", i, 2 * k / i } printf "{\"step\":41,\"lo" }' >"$1"
}
curve a.jsonl 5
curve 'b<&>.jsonl' 8

run plot a.jsonl --title 'one run' --width 40 --height 8
claim "one run in the terminal" [ $rc = 0 ]
claim "heading, 8 rows, axis, steps" [ "$(wc -l <<<"$out")" = 11 ]
claim "from the highest" has "$out" "         5 |"
claim "to the round number below the lowest" has "$out" "         0 |"
claim "dots, no colours" eval '[[ $out == *[⠁-⣿]* && $out != *$(printf "\033")* ]]'
run plot a.jsonl 'b<&>.jsonl' --svg p.svg --png p.png --height 8
claim "two runs compared" [ $rc = 0 ]
claim "by letters where there are no colours" eval '[[ $out == *a* && $out == *b* ]]'
claim "with what they are, and where they end" has "$out" "b b<&>.jsonl: last 0.2"
run plot a.jsonl 'b<&>.jsonl' --color always
claim "by colours where there are" has "$out" $'\033[31m'
run plot a.jsonl --y eval_loss --svg q.svg
claim "another figure" [ $rc = 0 ] &&
    claim "its points only" [ "$(grep '#1f6feb' q.svg | grep -o '[0-9.]*,[0-9.]* ' | wc -l)" = 4 ]
awk 'BEGIN { for (i = 1; i <= 9; i++) printf "{\"step\":%d,\"loss\":1,\"expert_load\":[%g,2,%g]}\n", i, 4 / i, 1 + i / 10 }' >experts.jsonl
run plot experts.jsonl --y expert_load
claim "a figure with an item a layer: a curve each" [ \
    "$rc $(grep -c 'experts.jsonl \[[012]\]: last' <<<"$out")" = "0 3" ]
claim "each with its own end" has "$out" "c experts.jsonl [2]: last 1.9"
run plot experts.jsonl experts.jsonl --y expert_load.0
claim "one item of it" [ "$rc $(grep -c 'experts.jsonl \[0\]: last 0.444444' <<<"$out")" = "0 2" ]
echo '{"step":10,"expert_load":[null,3,1,7]}' >>experts.jsonl
run plot experts.jsonl --y expert_load
claim "a list with a gap, and one more item" [ "$rc $(grep -c 'last [0-9]' <<<"$out")" = "0 4" ]
run plot experts.jsonl --y expert_load.4
claim "an item that is none" [ "$rc $err" = \
    "2 plot: experts.jsonl: no line with a number for expert_load.4: choose another --y" ]
if command -v python3 >/dev/null; then
    cat >check.py <<'PY'
import struct, sys, xml.etree.ElementTree as E, zlib
t = E.parse("p.svg").getroot()
ns = "{http://www.w3.org/2000/svg}"
curves = [p for p in t.iter(ns + "polyline") if p.get("stroke") in ("#1f6feb", "#d1242f")]
assert [len(p.get("points").split()) for p in curves] == [39, 39]
assert [x.text for x in t.iter(ns + "text")][-2:] == ["a.jsonl", "b<&>.jsonl"]
x, y = map(float, curves[1].get("points").split()[0].split(","))
assert (x, y) == (76.0, 40.0), (x, y)                    # step 1 of the higher run: the upper left corner
b, at, data = open("p.png", "rb").read(), 8, b""
assert b[:8] == b"\x89PNG\r\n\x1a\n"
while at < len(b):
    n, kind = struct.unpack(">I4s", b[at:at + 8])
    assert zlib.crc32(b[at + 4:at + 8 + n]) == struct.unpack(">I", b[at + 8 + n:at + 12 + n])[0]
    if kind == b"IHDR":
        w, h, depth, colour = struct.unpack(">IIBB", b[at + 8:at + 18])
    data += b[at + 8:at + 8 + n] if kind == b"IDAT" else b""
    at += 12 + n
assert (w, h, depth, colour) == (1600, 840, 8, 2)
raw, last, rows = zlib.decompress(data), bytes(3 * w), []
for r in range(h):                                       # the five filters of PNG
    f, line = raw[r * (3 * w + 1)], bytearray(raw[r * (3 * w + 1) + 1:(r + 1) * (3 * w + 1)])
    for i in range(3 * w):
        a, u, c = (line[i - 3] if i > 2 else 0), last[i], (last[i - 3] if i > 2 else 0)
        p = a + u - c
        paeth = a if abs(p - a) <= abs(p - u) and abs(p - a) <= abs(p - c) else u if abs(p - u) <= abs(p - c) else c
        line[i] = (line[i] + (0, a, u, (a + u) // 2, paeth)[f]) & 255
    rows.append(line)
    last = line
pixel = lambda x, y: tuple(rows[y][3 * x:3 * x + 3])
for name, rgb, k in (("a", (0x1f, 0x6f, 0xeb), 0), ("b", (0xd1, 0x24, 0x2f), 1)):
    for point in curves[k].get("points").split()[20::6]: # the curve is where the SVG has it
        x, y = (int(2 * float(v)) for v in point.split(","))
        assert any(pixel(x + i, y + j) == rgb for i in (-1, 0, 1) for j in (-1, 0, 1)), (name, point, pixel(x, y))
assert pixel(700, 300) == (255, 255, 255)
assert sum(pixel(x, y) == (0x1f, 0x23, 0x28) for x in range(150, 260) for y in range(20, 60)) > 100        # the heading
PY
    run python3 check.py
    claim "SVG and PNG show both curves where they belong" [ $rc = 0 ]
else
    skip "no python3 to read the pictures"
fi

# refused WHAT TEXT STATUS ARGS...: one line with TEXT
refused() {
    local what=$1 text=$2 status=$3
    shift 3
    run plot "$@"
    claim "$what" [ $rc = "$status" ] && claim "$what: in one line" [ "$(wc -l <<<"$err")" = 1 ] &&
        claim "$what: which says what to do" has "$err" "$text"
}
: >empty
echo '{"event":"x"}' >other
head -c 3000 /dev/urandom >noise
printf '{"step":1,"loss":2}' >single
refused "a file that is not there" "nowhere: cannot open it" 1 nowhere
refused "a folder" "name the --log file of the run" 2 .
refused "an empty file" "is it a --log file of ptrain" 1 empty
refused "a file of something else" "is it a --log file of ptrain" 1 other
refused "noise" "is it a --log file of ptrain" 1 noise
refused "a key that no line has" "choose another --y" 2 a.jsonl --y speed
refused "no run" "RUN.jsonl" 2
refused "a picture that cannot be written" "no/p.png: cannot write" 1 a.jsonl --png no/p.png
refused "the same of SVG" "cannot write no/p.svg" 1 a.jsonl --svg no/p.svg
cp single kept
refused "a picture over a run" "would be written over" 2 a.jsonl kept --svg ./kept
claim "which stays" cmp -s single kept
run plot single --png s.png --svg s.svg
claim "one step alone is drawn" [ $rc = 0 ]
"$BIN/plot" a.jsonl >/dev/full 2>"$TMP/.err"
claim "a result that is lost is an error" [ $? = 1 ]
finish
