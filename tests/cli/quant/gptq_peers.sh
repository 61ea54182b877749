#!/usr/bin/env bash
# all
# gptq_peers.sh - weights that GPTQModel and AutoAWQ pack: their values, and the bytes that --requantize gives
# back. PEER_PYTHON=python that has torch, gptqmodel 7.7 and autoawq 0.2.9 (pip install --no-deps).
here=$(cd "$(dirname "$0")" && pwd)
python=${PEER_PYTHON:-python3}
. "$here/../lib/lib.bash"
cd "$TMP" || exit 1

"$python" -c 'import sys; from importlib.util import find_spec as f
sys.exit(not all(map(f, ("torch", "safetensors", "gptqmodel", "awq"))))' >/dev/null 2>&1 ||
    { skip "no gptqmodel and autoawq here: set PEER_PYTHON"; finish; }
run "$python" -B "$here/gptq_peers.py" "$BIN/reshard" "$TMP"
claim "all forms are tried" [ "$(grep -cE '^(gptq|awq)[^:]*: ' <<<"$out")" = 12 ]
while IFS= read -r line; do
    claim "$line" [ "${line##*: }" = ok ]
done < <(grep -E '^(gptq|awq)[^:]*: ' <<<"$out")
finish
