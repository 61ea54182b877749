#!/usr/bin/env bash
# quick waits
# faults_comm.sh - ranks that die, stop, leave, disagree: the others end within 10 s, with one line that says
# which rank; and signals.
. "$(dirname "$0")/../lib/lib.bash"
prog=$BIN/../tests/ranks/comm_fault_test
unset OMPI_MCA_mpi_yield_when_idle
[ -x "$prog" ] || { skip "no $prog: run through tests/run"; finish; }

# go SECONDS-AT-MOST VARIABLE=VALUE...: the program with 4 ranks; fills rc, err, took (whole seconds), in_time
go() {
    local most=$1 begin=$EPOCHREALTIME
    shift
    timeout -s KILL 60 env RANKS=4 "$@" "$prog" >"$TMP/.out" 2>"$TMP/.err" </dev/null
    rc=$?
    err=$(cat "$TMP/.err")
    in_time=$(awk -v a="$begin" -v b="$EPOCHREALTIME" -v m="$most" \
        'BEGIN { print b - a <= m ? "yes" : "no, " b - a " s" }')
}
one_line() { [ "$(wc -l <"$TMP/.err")" = 1 ] && [[ $err =~ $1 ]]; }

# once_there FILE: waits until FILE exists: a launcher that runs its mpirun takes signals already
once_there() { for _ in {1..300}; do [ -e "$1" ] && return; sleep 0.1; done; }

# An mpirun whose ranks are gone, waited for, and that stays, as one does whose rank died while it said hello;
# looked at when the rest is done.
mkdir "$TMP/fake"
printf '#!/bin/bash\ntrap "" TERM\nsleep 2 &\nwait\nexec sleep 600\n' >"$TMP/fake/mpirun"
chmod +x "$TMP/fake/mpirun"
PATH=$TMP/fake:$PATH RANKS=2 "$prog" >/dev/null 2>"$TMP/stays.err" </dev/null &
stays=$!
# Others that stay, and have not even waited for them: the ranks' own status counts.
mkdir "$TMP/deaf"
printf '#!/bin/bash\nexec python3 -c "import os, time\nfor i in range(2):\n    if not os.fork(): os._exit(i * $CODE)\ntime.sleep(600)"\n' >"$TMP/deaf/mpirun"
chmod +x "$TMP/deaf/mpirun"
deaf=()
for code in 0 3; do
    CODE=$code PATH=$TMP/deaf:$PATH RANKS=2 "$prog" >/dev/null 2>"$TMP/deaf$code.err" </dev/null &
    deaf+=($!)
done
# And one that stays because nobody reads what its ranks have said.
mkdir "$TMP/says"
printf '#!/bin/bash\nsleep 2 &\nwait\nprintf %%200000s\n' >"$TMP/says/mpirun"
chmod +x "$TMP/says/mpirun"
PATH=$TMP/says:$PATH RANKS=2 "$prog" 2>"$TMP/says.err" </dev/null | { sleep 14; wc -c; } >"$TMP/says.bytes" &
says=$!
# And one whose ranks are slow to start: a wish to end waits until they can take it.
mkdir "$TMP/slow"
cat >"$TMP/slow/mpirun" <<'PY'
#!/usr/bin/env python3
import os, signal, sys, time
open(os.path.dirname(sys.argv[0]) + "/started", "w").close()
ready = []
for _ in range(2):
    r, w = os.pipe()
    ready.append((r, os.fork()))
    if not ready[-1][1]:
        time.sleep(8)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
        os.write(w, b"x")
        time.sleep(600)
    os.set_blocking(r, False)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
signal.sigwait({signal.SIGUSR1})
try:
    early = [os.read(r, 1) for r, _ in ready] != [b"x", b"x"]
except BlockingIOError:
    early = True
for _, pid in ready:
    os.kill(pid, signal.SIGKILL)
raise SystemExit(9 if early else 0)
PY
chmod +x "$TMP/slow/mpirun"
slow=
if command -v python3 >/dev/null; then
    PATH=$TMP/slow:$PATH RANKS=2 "$prog" >/dev/null 2>&1 </dev/null &
    slow=$!
    (once_there "$TMP/slow/started"; sleep 1; kill -TERM $slow) &
fi
# And one that is ending, whose ranks are gone: it crashes of a second signal.
mkdir "$TMP/ends"
printf '#!/bin/bash\ntrap "exit 99" TERM\n: >"$0.started"\nsleep 2 &\nwait\nexec 3<> <(:)\nread -t 3 -u 3\nexit 7\n' >"$TMP/ends/mpirun"
chmod +x "$TMP/ends/mpirun"
PATH=$TMP/ends:$PATH RANKS=2 "$prog" >/dev/null 2>&1 </dev/null &
ends=$!
(once_there "$TMP/ends/mpirun.started"; sleep 1; kill -TERM $ends; sleep 2.5; kill -TERM $ends) &

for t in shm mpi; do
    go 10 FAULT=none SHARDLINE_TRANSPORT=$t
    claim "$t: nothing wrong, nothing said" [ "$rc$err" = 0 ]

    for who in 0 2; do
        go 10 FAULT=kill FAULT_RANK=$who SHARDLINE_TRANSPORT=$t
        # 128 + its number, or 1 when a survivor's own end comes first
        claim "$t: a killed rank ends the job" [ "${rc/137/1}/$in_time" = 1/yes ]
        claim "$t: and one line names it" one_line "^comm_fault_test: rank $who died \(process [0-9]+\)$"
    done

    go 12 FAULT=stop FAULT_RANK=1 SHARDLINE_TRANSPORT=$t
    claim "$t: a stopped rank ends the job" [ "$in_time" = yes ] &&
        claim "$t: with a status that is not 0" [ $rc -ne 0 ]
    claim "$t: and one line names it" one_line \
        "rank 1 does not answer for 5 s \(process [0-9]+, state T\); stopping all ranks$"

    go 12 FAULT=long FAULT_RANK=3 SHARDLINE_TRANSPORT=$t
    claim "$t: a rank that computes for 8 s is not taken for dead" [ "$rc$err" = 0 ]

    go 10 FAULT=error FAULT_RANK=3 SHARDLINE_TRANSPORT=$t
    claim "$t: a rank's own error ends all" [ "$rc/$in_time" = 1/yes ]
    claim "$t: and is the only line" [ "$err" = "comm_fault_test: rank 3: data.bin: no such file" ]

    go 10 FAULT=agreed FAULT_RANK=2 SHARDLINE_TRANSPORT=$t
    claim "$t: an agreed error ends all" [ "$rc/$in_time" = 1/yes ]
    claim "$t: and is the only line" [ "$err" = "comm_fault_test: rank 2: data.bin: no such file" ]

    go 10 FAULT=other-call FAULT_RANK=2 SHARDLINE_TRANSPORT=$t
    claim "$t: calls that do not fit are an error" [ "$rc/$in_time" = 1/yes ]
    claim "$t: that says so in one line" one_line "all ranks of a group must make the same calls"
    go 10 FAULT=other-counts FAULT_RANK=2 SHARDLINE_TRANSPORT=$t
    claim "$t: counts of rows that do not fit are an error" [ "$rc/$in_time" = 1/yes ]
    claim "$t: that says so in one line" one_line \
        "rank 2 sends 12 bytes of rows to rank [0-3], which expects 4|a longer message came"
done

go 10 FAULT=crash FAULT_RANK=1
# as above: 128 + its number, or 1
claim "a crashed rank ends the job with its signal" [ "${rc/139/1}/$in_time" = 1/yes ]
go 12 FAULT=kill-while-others-compute FAULT_RANK=1
claim "ranks that compute end too" [ "$rc/$in_time" = 137/yes ]
go 10 FAULT=leave FAULT_RANK=1
claim "a rank that left ends the job with its status" [ "$rc/$in_time" = 3/yes ]
claim "and is named" has "$err" "rank 1 died"

# ---- as if there were two machines: a failure travels by message ----
go 10 FAULT=error FAULT_RANK=3 SHARDLINE_RANKS_PER_NODE=2
claim "two machines: a rank's own error ends all" [ "$rc/$in_time" = 1/yes ]
claim "two machines: and it is said" has "$err" "data.bin: no such file"
go 10 FAULT=none SHARDLINE_RANKS_PER_NODE=2 SHARDLINE_TRANSPORT=shm
claim "two machines: shm is refused by name" has "$err" \
    "transport shm needs all 4 ranks on one machine, 2 are here"
go 10 FAULT=none SHARDLINE_TRANSPORT=udp
claim "an unknown transport is refused" has "$err" \
    'no transport is called "udp": take auto, self, shm, mpi or nccl'

# ---- signals ----
# start VARIABLE=VALUE...: an endless run; fills job, mpirun, ranks
start() {
    env RANKS=4 STEPS=1000000 "$@" "$prog" >"$TMP/.out" 2>"$TMP/.err" </dev/null &
    job=$!
    for _ in {1..100}; do
        mpirun=$(pgrep -P $job mpirun) && ranks=($(pgrep -P "$mpirun")) && [ ${#ranks[@]} = 4 ] && break
        sleep 0.1
    done
    sleep 1
}
gone() {                    # all processes named, within 10 s
    local p
    for _ in {1..100}; do
        for p in "$@"; do
            [ -d /proc/$p ] && [[ $(cat /proc/$p/stat 2>/dev/null) != *") Z "* ]] &&
                { sleep 0.1; continue 2; }
        done
        return 0
    done
    return 1
}
saved() {
    [ "$(grep -c 'saved at step [0-9]* after signal 15' "$TMP/.err")" = 4 ] &&
        [ "$(sed -n 's/.*saved at step//p' "$TMP/.err" | sort -u | wc -l)" = 1 ]
}

for sig in TERM INT; do
    start SAVE_S=3
    kill -$sig $job; wait $job; rc=$?
    claim "SIG$sig lets the ranks save for 3 s, all at the same step" saved
    claim "and the job ends in order" [ $rc = 0 ]
done
# before there are ranks, before they have met: nothing was begun, or they take it in their first step
for s in 0.005 0.01 0.02 0.04 0.06 0.09 0.12 0.16 0.2; do
    RANKS=4 STEPS=1000000 SAVE_S=0 "$prog" >"$TMP/.out" 2>"$TMP/.err" </dev/null &
    job=$!
    sleep $s
    kill -TERM $job
    for ((i = 0; i < 200; i++)); do
        [ -d /proc/$job ] && [[ $(cat /proc/$job/stat 2>/dev/null) != *") Z "* ]] || break; sleep 0.1
    done
    claim "a signal $s s after the start ends the job" [ $i -lt 200 ] || kill -KILL $job
    wait $job 2>/dev/null; rc=$?
    [ $rc = 143 ] && [ ! -s "$TMP/.err" ] ||
        { claim "a signal $s s after the start: status 0" [ $rc = 0 ] &&
            claim "a signal $s s after the start: all saved" saved; }
done
start SAVE_S=0
kill -TERM "${ranks[2]}"; wait $job; rc=$?
claim "a signal to one rank ends all in order" saved && claim "with status 0" [ $rc = 0 ]
start SAVE_S=0
kill -TERM "$mpirun"; wait $job
claim "mpirun itself stopped: the ranks see the signal" saved
start SAVE_S=60
kill -KILL $job; wait $job 2>/dev/null
claim "the launcher killed: nothing is left" gone "$mpirun" "${ranks[@]}"
start
# Open MPI's, of this job: nobody removes them
left=$(sed -n 's|.* \(/dev/shm/vader_segment[^ ]*\)$|\1|p' /proc/"${ranks[0]}"/maps | sort -u)
kill -KILL "$mpirun"; wait $job; rc=$?
claim "mpirun killed: nothing is left" gone "${ranks[@]}"
claim "and the job says so by its status" [ $rc = 137 ]
[ -z "$left" ] || rm -f $left

wait $stays; rc=$?
claim "an mpirun that stays without ranks is ended" [ $rc = 137 ] &&
    claim "and that is said" grep -q "the ranks are dead and mpirun does not notice" "$TMP/stays.err"
wait ${deaf[0]}; rc=$?
claim "ranks that ended well have, and nothing is said" [ "$rc$(cat "$TMP/deaf0.err")" = 0 ]
wait ${deaf[1]}; rc=$?
claim "those that failed have" [ "$rc/$(wc -l <"$TMP/deaf3.err")" = 3/1 ]
[ -z "$slow" ] ||
    { wait $slow; rc=$?; claim "a wish to end waits for ranks that are slow to start" [ $rc = 0 ]; }
wait $ends; rc=$?
claim "an mpirun that is ending gets no second signal" [ $rc = 7 ]
wait $says
claim "one whose output waits for a reader is not" [ "$(cat "$TMP/says.bytes")" = 200000 ] &&
    claim "and nothing is said" [ ! -s "$TMP/says.err" ]

# an mpirun that fails without a word, as Open MPI's does under -q; a rank that dies before it knows the others
mkdir "$TMP/mute"
printf '#!/bin/bash\n[ "$CODE" = 1 ] && exit 1\nkill -SEGV $$\n' >"$TMP/mute/mpirun"
chmod +x "$TMP/mute/mpirun"
run env CODE=1 RANKS=2 PATH="$TMP/mute:$PATH" "$prog"
claim "an mpirun that fails without a word" [ $rc = 1 ] &&
    claim "is one line" one_line "mpirun ended with status 1 and no rank has said why: start .mpirun -n 2 comm_fault_test"
run env CODE=139 RANKS=2 PATH="$TMP/mute:$PATH" "$prog"
claim "a signal that nobody has reported: one line names it" [ $rc = 139 ] &&
    claim "by number and name" has "$err" "a rank was ended by signal 11 (Segmentation fault) before it could say why"
run env RANKS=2 PATH=/nowhere "$prog"
claim "without mpirun the message says what is missing" has "$err" \
    "cannot start 2 ranks with mpirun (is openmpi-bin installed): No such file"
run env RANKS=3 OMPI_COMM_WORLD_SIZE=2 "$prog"
claim "another number under a launcher is refused" has "$err" "--ranks 3, but the launcher started 2"
run env RANKS=2 SLURM_NTASKS=2 "$prog"
claim "Slurm without PMIx is refused" has "$err" "srun --mpi=pmix"
finish
