#!/usr/bin/env bash
# quick sanitize
# reshard_zstd.sh - compressed checkpoints: `zstd -d` gives the plain files back, every reader takes them,
# every changed byte is found.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../lib/lib.bash"
command -v python3 >/dev/null || { skip "no python3 here"; finish; }
cd "$TMP" || exit 1
export LC_ALL=C
# the embedding alone is a MiB: files of several frames
python3 "$here/../lib/reshard_make.py" hf hidden_size=64 intermediate_size=96 vocab_size=4096 gauss=1
run reshard digest hf
digest=$out sizes=
run reshard --tp 2 hf plain
claim "a plain one" [ $rc = 0 ]
for level in zstd zstd:9 zstd-planes zstd-planes:3; do
    rm -rf z again
    run reshard --tp 2 --compress $level hf z
    claim "$level: written" [ $rc = 0 ]
    run reshard digest z
    claim "$level: the same digest" [ "$out" = "$digest" ]
    run reshard verify z
    claim "$level: verifies" [ $rc = 0 ]
    run reshard --tp 2 z again
    claim "$level: and back: the same bytes" diff -r plain again
    run reshard --tp 2 --compress $level plain z2
    claim "$level: from another source: the same bytes" diff -r z z2
    rm -rf z2
    run python3 "$here/../../native_reader.py" z
    [ $rc = 77 ] && skip "$level: no zstd for the second reader" ||
        claim "$level: a reader made from FORMAT.md finds the same digests" [ "$out" = "$digest" ]
    sizes+=" $(du -sb z | cut -f1)"
    [[ $level != zstd-planes* ]] || { [ -e planes ] || cp -r z planes; continue; }
    if command -v zstd >/dev/null; then
        for f in z/*.zst; do
            zstd -dqf "$f" -o one
            claim "$level: zstd -d gives $(basename "$f" .zst) back" cmp one "plain/$(basename "$f" .zst)"
        done
    fi
done
if command -v zstd >/dev/null; then
    zstd -dqf planes/weights-00000.safetensors.planes.zst -o flat
    python3 - "$here/../../../format/FORMAT.md" <<'PY'
import json, re, sys
lines = open(sys.argv[1]).read().split("\n")
at = next(i for i, l in enumerate(lines) if l.startswith("    for b, w in enumerate"))
data = bytearray(open("flat", "rb").read())
planes = json.load(open("planes/manifest.json"))["files"][0]["planes"]
exec("\n".join(l[4:] for l in lines[at:at + 4]))
open("joined", "wb").write(data)
PY
    claim "the lines of FORMAT.md put the planes back" cmp joined plain/weights-00000.safetensors
else
    skip "no zstd here"
fi
for h in $(grep -o '[0-9a-f]\{32\}' "$here/../../../format/FORMAT.md" | sort -u); do
    [ $h = 0123456789abcdef0123456789abcdef ] ||
        claim "the vector $h of FORMAT.md is in format_digest_test" grep -q $h \
            "$here/../../unit/format/format_digest_test.c"
done
read -r plain zstd _ planes _ <<<"$(du -sb plain | cut -f1) $sizes"
claim "it is smaller" [ "$zstd" -lt "$plain" ]
claim "byte planes are smaller still, by 5 % and more" [ $((planes * 20)) -lt $((zstd * 19)) ]
run reshard --tp 2 --dtype bf16 --compress zstd hf zb
run reshard --tp 2 --dtype bf16 --compress zstd-planes hf pb
claim "and of bf16 by 10 % and more" [ $(($(du -sb pb | cut -f1) * 10)) -lt $(($(du -sb zb | cut -f1) * 9)) ]
rm -rf z && run reshard --tp 2 --compress zstd hf z
run pserve planes --once x --max-tokens 1
claim "pserve takes planes or says why not" [ $rc != 139 ]
run pserve z --once x --max-tokens 1
claim "pserve takes it or says why not (no byte vocabulary here)" [ $rc != 139 ]
for level in zstd:20 zstd:0 zstd:x zstd-planes:20 zstd-planes: none:1; do
    run reshard --compress $level hf z3
    claim "$level: a level that is not there is refused" [ $rc = 2 ]
done

# damage SRC NAME SPOTS: one bit at SPOTS random places and at the ends
damage() {
    for at in $(python3 -c "
import random
n = len(open('$1/$2', 'rb').read())
r = random.Random(2)
print(*[0, 3, 4, 5, n - 1, n - 9, n - 20, n - 40] + [r.randrange(n) for _ in range($3)])"); do
        rm -rf bad
        cp -r $1 bad
        python3 -c "
f = open('bad/$2', 'r+b'); f.seek($at); b = f.read(1)[0]; f.seek($at); f.write(bytes([b ^ 1 << $at % 8]))"
        run reshard verify bad
        claim "one bit at $at of $2: verify fails" [ $rc = 1 ]
        claim "one bit at $at of $2: and names the file" has "$err" "$2"
        run reshard --pp 2 bad bad2
        claim "one bit at $at of $2: reshard refuses" [ $rc = 1 ]
        claim "one bit at $at of $2: nothing appears" [ ! -e bad2 ]
    done
}
damage z weights-00000.safetensors.zst 12
damage planes weights-00000.safetensors.planes.zst 4
finish
