#!/usr/bin/env bash
# quick waits
# serve_reload.sh - weights that come slowly, damaged or not at all from a server, for all ranks or for one:
# see serve_reload.py.
. "$(dirname "$0")/../lib/serve_lib.bash"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 SHARDLINE_STALL_S=1
mkdir "$TMP/m"
for name in a b; do                              # different seeds, other answers
    trained run-$name --steps 2 --seed $(printf %d "'$name")
    mv "$TMP/run-$name/step-2" "$TMP/m/$name"
done
A=$(digest "$TMP/m/a") B=$(digest "$TMP/m/b")
export A B
printf 'admin-key\n' >"$TMP/admin-keys"
asked serve_reload.py "$TMP"
finish
