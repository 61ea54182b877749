#!/usr/bin/env bash
# quick
# reshard_damage.sh - one byte changed or missing in any file of a checkpoint: ptrain, reshard and pserve
# refuse, also where they do not need it.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../lib/lib.bash"
command -v python3 >/dev/null || { skip "no python3 here"; finish; }
cd "$TMP" || exit 1
for i in $(seq 200); do echo "line $i: $((i * i)) is the square of $i"; done >text
run ptrain --data text --out run --steps 2 --seq-len 32 --global-batch 4 --ranks 2 --zero 1
claim "a model is trained" [ $rc = 0 ] || finish

flip() {                    # flip FILE PART: one bit at PART/8 of the file
    python3 - "$1" "$2" <<'PY'
import sys
with open(sys.argv[1], "r+b") as f:
    n = f.seek(0, 2)
    at = min(n - 1, n * int(sys.argv[2]) // 8)
    f.seek(at); b = f.read(1)[0]
    f.seek(at); f.write(bytes([b ^ 4]))
PY
}
for file in $(ls run/step-2); do
    for how in 1 7 cut; do
        rm -rf bad bad2
        cp -r run/step-2 bad
        if [ $how = cut ]; then truncate -s -1 "bad/$file"; else flip "bad/$file" $how; fi
        run reshard verify bad
        claim "$file, $how: verify fails" [ $rc != 0 ]
        claim "$file, $how: and names it" has "$err" "$file"
        run reshard --tp 2 bad bad2
        claim "$file, $how: reshard refuses" [ $rc != 0 ]
        claim "$file, $how: nothing appears" [ ! -e bad2 ]
        [ $how = 1 ] && continue
        run ptrain --resume bad --data text --out run2 --steps 3 --seq-len 32 --global-batch 4
        claim "$file, $how: ptrain refuses" [ $rc != 0 ]
        claim "$file, $how: and names it" has "$err" "$file"
        tp=1; [ $how = cut ] || tp=2
        run pserve bad --tp $tp --once x --max-tokens 1
        claim "$file, $how: pserve refuses at tp $tp" [ $rc != 0 ]
        claim "$file, $how: and names it" has "$err" "$file"
    done
done
run pserve run/step-2 --tp 2 --once x --max-tokens 1
claim "the whole one is served" [ $rc = 0 ]
finish
