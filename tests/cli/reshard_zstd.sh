#!/usr/bin/env bash
# quick sanitize
# reshard_zstd.sh - compressed checkpoints: `zstd -d` gives the plain files back, every reader takes them, every changed byte is found.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/lib.bash"
command -v python3 >/dev/null || { skip "no python3 here"; finish; }
cd "$TMP" || exit 1
export LC_ALL=C
# the embedding alone is a MiB: files of several frames
python3 "$here/reshard_make.py" hf hidden_size=64 intermediate_size=96 vocab_size=4096 gauss=1
run reshard digest hf
digest=$out
run reshard --tp 2 hf plain
claim "a plain one" [ $rc = 0 ]
for level in zstd zstd:9; do
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
    if command -v zstd >/dev/null; then
        for f in z/*.zst; do
            zstd -dqf "$f" -o one
            claim "$level: zstd -d gives $(basename "$f" .zst) back" cmp one "plain/$(basename "$f" .zst)"
        done
    fi
done
claim "it is smaller" [ "$(du -sb z | cut -f1)" -lt "$(du -sb plain | cut -f1)" ]
run pserve z --once x --max-tokens 1
claim "pserve takes it or says why not (no byte vocabulary here)" [ $rc != 139 ]
run reshard --compress zstd:20 hf z3
claim "a level that is not there is refused" [ $rc = 2 ]

python3 - <<'PY'
import random
n = len(open("z/weights-00000.safetensors.zst", "rb").read())
r = random.Random(2)
print(*[0, 3, 4, 5, n - 1, n - 9, n - 20, n - 40] + [r.randrange(n) for _ in range(20)], sep="\n", file=open("spots", "w"))
PY
for at in $(cat spots); do
    rm -rf bad
    cp -r z bad
    python3 -c "
f = open('bad/weights-00000.safetensors.zst', 'r+b'); f.seek($at); b = f.read(1)[0]; f.seek($at); f.write(bytes([b ^ 1 << $at % 8]))"
    run reshard verify bad
    claim "one bit at $at: verify fails" [ $rc = 1 ]
    claim "one bit at $at: and names the file" has "$err" weights-00000.safetensors.zst
    run reshard --pp 2 bad bad2
    claim "one bit at $at: reshard refuses" [ $rc = 1 ]
    claim "one bit at $at: nothing appears" [ ! -e bad2 ]
done
finish
