#!/usr/bin/env bash
# quick
# foreign_made.sh - folders of other frameworks at degrees and shapes that the reference files do not have: twelve ranks, sub-groups that cut
# parameters, gaps between them, wrapped names, virtual stages, biases. Each is written twice, the second time every tensor whole.
. "$(dirname "$0")/lib.bash"
make=$(dirname "$0")/foreign_make.py
command -v python3 >/dev/null || { skip "python3 is not there"; finish; }

for case in zero3-12 zero3-5 zero2-12 zero2-3 dcp-12 dcp-3-wrapped legacy-1-1-1 legacy-2-2-1 legacy-2-2-2 legacy-1-4-2-bias legacy-2-1-1-bias \
    legacy-2-2-2-distopt legacy-1-2-1-distopt-bias dist-1-1-1 dist-2-2-3 dist-2-4-2-bias; do
    mkdir "$TMP/$case"
    python3 "$make" $case "$TMP/$case" || { claim "$case is made" false; continue; }
    run reshard diff "$TMP/$case/ckpt" "$TMP/$case/universal"
    claim "$case holds the tensors, moments and step that were put in" [ $rc = 0 -a -z "$out" ]
    run reshard verify "$TMP/$case/ckpt"
    claim "$case is right to the last checksum" [ $rc = 0 ]
    rm -rf "${TMP:?}/$case"
done
finish
