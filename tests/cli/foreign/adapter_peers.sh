#!/usr/bin/env bash
# all
# adapter_peers.sh - merges of adapters that PEFT saved: of every family and option the bits of the rule in
# binary64 with one rounding, PEFT's own merge_and_unload within its roundings, loaded by transformers; files
# joined to PEFT's bytes. PEER_PYTHON=python that has torch, transformers and peft.
here=$(cd "$(dirname "$0")" && pwd)
python=${PEER_PYTHON:-python3}
. "$here/../lib/lib.bash"
"$python" -c 'import peft, torch, transformers' >/dev/null 2>&1 || { skip "no peft here: set PEER_PYTHON"; finish; }
cd "$TMP" || exit 1
export HF_HUB_OFFLINE=1

run "$python" -B "$here/adapter_peers.py" make cases
claim "PEFT makes adapters" [ $rc = 0 ]
cases=$(grep -x '[a-z0-9]*' <<<"$out")
for name in $cases; do
    case=cases/$name
    run reshard --format hf --merge "$case/adapter" "$case/base" "$case/merged"
    claim "$name is merged" [ $rc = 0 ]
    run reshard digest "$case/merged"
    digest=$out
    run reshard --tp 2 "$case/base" "$case/base2"
    run reshard --tp 2 --config "$case/base/config.json" "$case/adapter" "$case/adapter2"
    claim "$name: the adapter is cut" [ $rc = 0 ]
    run reshard --merge "$case/adapter2" --threads 3 --pp 2 "$case/base2" "$case/merged2"
    run reshard digest "$case/merged2"
    claim "$name: the same bits from and to other layouts" [ "$out" = "$digest" ]
    run reshard --format hf "$case/adapter2" "$case/joined"
    for file in adapter_config.json adapter_model.safetensors; do
        claim "$name: $file comes back byte for byte" cmp "$case/adapter/$file" "$case/joined/$file"
    done
done
run reshard digest cases/list/bin
bin=$out
run reshard digest cases/list/adapter
claim "adapter_model.bin has the same digest" [ "$out" = "$bin" ]

run "$python" -B "$here/adapter_peers.py" check cases
claim "all are checked" [ "$(grep -c ': ' <<<"$out")" = "$(wc -l <<<"$cases")" ]
while IFS= read -r line; do
    claim "$line" has "$line" ": ok"
done <<<"$out"
finish
