#!/usr/bin/env bash
# quick
# reshard_ranks.sh - several processes share a conversion: the same bytes as one, and when one of them fails
# or dies nothing appears.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../lib/lib.bash"
cd "$TMP" || exit 1
command -v python3 >/dev/null || { skip "no python3 here"; finish; }
command -v mpirun >/dev/null || { skip "no mpirun here"; finish; }
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_pml=ob1 \
    OMPI_MCA_btl=self,vader,tcp OMPI_MCA_mpi_yield_when_idle=1
mpi="mpirun -q --oversubscribe --bind-to none"
python3 "$here/../lib/reshard_make.py" hf hidden_size=64 intermediate_size=72 vocab_size=1000 gauss=1
run reshard --tp 2 --dp 3 --zero 3 hf base
claim "a source in many pieces" [ $rc = 0 ] || finish

# ranks | options: one process's bytes
while IFS='|' read -r ranks options; do
    rm -rf one many
    run reshard $options base one
    run reshard --ranks "$ranks" $options base many
    claim "$ranks processes, $options: works" [ $rc = 0 ]
    claim "$ranks processes, $options: one line says so" [ "$(wc -l <"$TMP/.err")" = 1 ]
    claim "$ranks processes, $options: the same bytes as one" diff -r one many
done <<'TABLE'
2|--tp 8
3|--tp 4 --pp 2
4|--dp 3 --zero 3
3|
2|--tp 2 --dtype bf16 --compress zstd
TABLE
rm -rf many one
run $mpi -n 3 "$BIN/reshard" --tp 2 --pp 2 hf many
claim "under mpirun, from a source without digests" [ $rc = 0 ]
run reshard --tp 2 --pp 2 hf one
claim "the same bytes" diff -r one many

# ---- what is refused ----
run reshard --ranks 2 --format hf base x
claim "a Hugging Face target is one process's" [ $rc = 2 ]
run reshard --ranks 2 --tp 3 base x
claim "an impossible layout is said once" [ "$rc/$(wc -l <"$TMP/.err")" = 2/1 ]
run reshard --ranks 2 base one
claim "an existing name too" [ "$rc/$(wc -l <"$TMP/.err")" = 1/1 ]
run $mpi -n 2 "$BIN/reshard" digest base
claim "digest answers from one process" has "$err" "start it without mpirun"

# ---- one process fails ----
nothing() { ! compgen -G 'x*' >/dev/null; }
for fault in write:9:ENOSPC read:12:EIO fsync:2:EIO; do
    run $mpi -n 1 "$BIN/reshard" --tp 8 base x : -n 1 env SHARDLINE_IO_FAULT=$fault "$BIN/reshard" --tp 8 \
        base x : -n 1 "$BIN/reshard" --tp 8 base x
    claim "$fault on rank 1: it fails" [ $rc != 0 ]
    claim "$fault on rank 1: the rank is named" has "$err" "rank 1: "
    claim "$fault on rank 1: nothing is left" nothing
done
cp -r base bad
printf '\377' | dd of=bad/weights-00000.safetensors bs=1 seek=20000 conv=notrunc status=none
run reshard --ranks 3 --tp 8 bad x
claim "a damaged source is found" [ $rc = 1 ]
claim "and the file named" has "$err" weights-00000.safetensors
claim "and nothing is left" nothing

# ---- one process is killed: rank 1 while it converts, the others must not go on. Not before: mpirun of Open
# MPI 4.1 itself may hang for ever when a process dies in MPI_Init, with none of ours left alive ----
cat >mortal.sh <<'END'
"$BIN/reshard" --tp 8 base x &
for ((i = 0; i < 2000; i++)); do compgen -G 'x*' >/dev/null && break; sleep 0.005; done
sleep "$1"
kill -KILL $! 2>/dev/null
wait $!
END
whole=0
for s in 0 0.005 0.015 0.04; do
    started=$SECONDS
    run timeout -k 5 60 $mpi -n 1 "$BIN/reshard" --tp 8 base x : -n 1 bash mortal.sh $s : -n 1 \
        "$BIN/reshard" --tp 8 base x
    claim "a kill after $s s: nobody hangs" [ $((SECONDS - started)) -lt 60 ]
    [ -e x ] && { run reshard verify x; claim "a kill after $s s: what appeared is whole" [ $rc = 0 ]
    whole=$((whole + 1)); }
    rm -rf x
done
run reshard --ranks 2 --tp 8 base x
claim "after that ($whole of 4 were done before) it works, over what was left" [ $rc = 0 ]
claim "and nothing is beside it" [ "$(compgen -G 'x*')" = x ]
finish
