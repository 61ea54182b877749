#!/usr/bin/env bash
# all
# rl_all.sh - rl.py with more updates, at several layouts of trainer and server, in fp32 and bf16.
. "$(dirname "$0")/../lib/serve_lib.bash"
printf 'admin-key\n' >"$TMP/admin-keys"
for case in "--dtype fp32|--ranks 4 --tp 2 --zero 1|--tp 4" "--dtype bf16|--ranks 2 --pp 2 --dtype bf16|--tp 2 --cp 2" \
    "--dtype bf16|--ranks 2 --tp 2 --dtype bf16|--pp 2 --speculate ngram"; do
    IFS='|' read -r dtype trainer server <<<"$case"
    what="$dtype, $trainer, $server"
    rm -rf "$TMP/run" "$TMP/policy"
    trained --steps 20 --warmup 2 $dtype
    asked rl.py "$TMP" "${RL_UPDATES:-8}" "$trainer" "$server"
done
finish
