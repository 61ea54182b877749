#!/usr/bin/env bash
# all long
# slurm.sh - Slurm for real: munge, slurmctld and two slurmd of Debian's packages on this machine, each node
# with a host name and a /dev/shm of its own. The job of examples/train.sbatch ends at SIGUSR1 with a
# checkpoint, queues itself again and finishes, to the bits of one rank; examples/reshard.sbatch shares a
# conversion over both nodes; srun --mpi=pmix starts ranks by itself, and names a wrong --mpi.
. "$(dirname "$0")/../lib/train_lib.bash"
top=$(cd "$(dirname "$0")/../../.." && pwd)
for tool in munged slurmctld slurmd sbatch srun scontrol; do
    PATH=$PATH:/usr/sbin command -v $tool >/dev/null ||
        { skip "no $tool (apt-get install slurm-wlm munge)"; finish; }
done
unshare --uts --ipc --mount true 2>/dev/null || { skip "this machine allows no namespaces"; finish; }
[ "$(id -u)" = 0 ] || { skip "Slurm's daemons are started by root only"; finish; }
PATH=$BIN:$PATH:/usr/sbin
export SLURM_CONF=$TMP/slurm/slurm.conf OMPI_MCA_btl=self,vader,tcp OMPI_MCA_pml=ob1 \
    OMPI_MCA_mpi_yield_when_idle=1
port=$((20000 + RANDOM % 10000))
text 1 20000 >"$TMP/text"

# A node: a host name, a /dev/shm and a folder for PMIx of its own.
start_node() {
    mkdir -p "$TMP/slurm/pmix-$1"
    echo "PMIxCliTmpDirBase=$TMP/slurm/pmix-$1" >"$TMP/slurm/$1.mpi.conf"
    unshare --uts --ipc --mount bash -c '
        hostname "$1" && mount -t tmpfs none /dev/shm && mount --bind "$2/$1.mpi.conf" "$2/mpi.conf" && exec slurmd -D' - "$1" "$TMP/slurm" \
        >"$TMP/slurm/$1.out" 2>&1 &
}

start_daemons() {
    mkdir -p "$TMP/slurm/state" "$TMP/slurm/n1" "$TMP/slurm/n2" "$TMP/munge"
    chmod 700 "$TMP/munge"
    chown munge "$TMP/munge" 2>/dev/null
    dd if=/dev/urandom of="$TMP/munge/key" bs=128 count=1 2>/dev/null
    chmod 400 "$TMP/munge/key"
    echo "PMIxCliTmpDirBase=$TMP/slurm" >"$TMP/slurm/mpi.conf"
    cat >"$SLURM_CONF" <<EOF
ClusterName=test
SlurmctldHost=$(hostname)(127.0.0.1)
SlurmctldPort=$port
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$TMP/munge/socket,cred_expire=5
StateSaveLocation=$TMP/slurm/state
SlurmdSpoolDir=$TMP/slurm/%n
SlurmctldPidFile=$TMP/slurm/ctld.pid
SlurmdPidFile=$TMP/slurm/%n.pid
SlurmctldLogFile=$TMP/slurm/ctld.log
SlurmdLogFile=$TMP/slurm/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
InactiveLimit=0
KillWait=10
MpiDefault=none
NodeName=n1 NodeHostname=n1 NodeAddr=127.0.0.1 Port=$((port + 1)) CPUs=8 State=UNKNOWN
NodeName=n2 NodeHostname=n2 NodeAddr=127.0.0.1 Port=$((port + 2)) CPUs=8 State=UNKNOWN
PartitionName=all Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
EOF
    munged --foreground --force --socket="$TMP/munge/socket" --key-file="$TMP/munge/key" \
        --pid-file="$TMP/munge/pid" --log-file="$TMP/munge/log" \
        --seed-file="$TMP/munge/seed" >/dev/null 2>&1 &
    for _ in {1..50}; do [ -S "$TMP/munge/socket" ] && break; sleep 0.1; done
    slurmctld -D >/dev/null 2>&1 &
    for node in n1 n2; do start_node $node; done
    for _ in {1..100}; do [ "$(sinfo -h -t idle -o %D 2>/dev/null)" = 2 ] && return 0; sleep 0.2; done
    return 1
}
if ! start_daemons; then
    skip "Slurm does not start here: $(tail -qn 1 "$TMP"/munge/log "$TMP"/slurm/*.log 2>/dev/null |
        head -c 300 | tr '\n' ' ')"
    finish
fi
state() { scontrol show job "$1" | sed -n 's/.*JobState=\([A-Z_]*\).*/\1/p'; }
wait_for() {                # JOB STATE...: up to two minutes
    local job=$1 s
    shift
    for _ in {1..600}; do
        s=$(state "$job")
        [[ " $* " == *" $s "* ]] && return 0
        sleep 0.2
    done
    echo "job $job is $s"
    return 1
}

common=(--data "$TMP/text" --model tiny --steps 8 --seq-len 32 --global-batch 8 --threads 1)
reference

# srun starts the ranks itself
run srun --mpi=pmix --nodes=2 --ntasks=4 --ntasks-per-node=2 ptrain "${common[@]}" --tp 2 --zero 1 --out \
    "$TMP/srun"
claim "srun --mpi=pmix: 4 ranks on two nodes" [ $rc = 0 ] &&
    claim "the same state as one rank" [ "$(state_of "$out")" = "$ref_state" ]
run srun --mpi=none --ntasks=2 ptrain "${common[@]}" --out "$TMP/none"
claim "srun without PMIx is refused" [ $rc = 2 ] &&
    claim "and the reason names the option" has "$err" "srun --mpi=pmix"
run srun --mpi=pmix --ntasks=2 ptrain "${common[@]}" --lr nan --out "$TMP/bad"
claim "an error of all ranks" [ $rc != 0 ] &&
    claim "is printed once" [ "$(grep -c '^ptrain: --lr nan' <<<"$err")" = 1 ]

# a rank is killed: named, all end, and the next job goes on
srun --mpi=pmix --kill-on-bad-exit=1 --nodes=2 --ntasks=4 --ntasks-per-node=2 ptrain "${common[@]}" --steps \
    100000 --save-every 5 --keep 2 --log "$TMP/kill.jsonl" --tp 2 \
    --out "$TMP/kill" >"$TMP/kill.out" 2>"$TMP/kill.err" </dev/null &
step=$!
for _ in {1..300}; do [ -e "$TMP/kill/step-5/manifest.json" ] && break; sleep 0.1; done
begin=$SECONDS
kill -KILL "$(pgrep -f -- "--out $TMP/kill\$" | while read -r p; do grep -qs ptrain "/proc/$p/comm" &&
    echo "$p"; done | tail -1)"
wait $step
rc=$?
claim "a killed rank ends the job" [ $rc != 0 ] && claim "within 30 s" [ $((SECONDS - begin)) -lt 30 ]
claim "and is named" grep -qE "rank [0-9]+ .*(killed|died|ended|exited|disconnected)|Killed" "$TMP/kill.err"
newest=$(ls "$TMP/kill" | sed -n 's/^step-//p' | sort -n | tail -1)
run srun --mpi=pmix --ntasks=2 ptrain "${common[@]}" --steps 100000 --stop-after $((newest + 1)) --resume \
    auto --zero 1 --out "$TMP/kill"
claim "the next job resumes" [ $rc = 0 ] &&
    claim "from the newest checkpoint" has "$err" "resumed $TMP/kill/step-$newest"

# the example: SIGUSR1 in the middle, back into the queue, then done
sed 's/^#SBATCH --ntasks-per-node=.*/#SBATCH --ntasks-per-node=2/; s/^#SBATCH --cpus-per-task=.*/#SBATCH --cpus-per-task=1/' "$top/examples/train.sbatch" >"$TMP/train.sbatch"
export DATA=$TMP/text OUT=$TMP/job STEPS=400 TP=2 MODEL=tiny BATCH=8 SEQ_LEN=32
run sbatch --parsable --output="$TMP/job.log" "$TMP/train.sbatch"
job=$out
claim "sbatch takes examples/train.sbatch" [ $rc = 0 ]
for _ in {1..600}; do [ "$(grep -cs loss_bits "$TMP/job.jsonl")" -ge 5 ] 2>/dev/null && break; sleep 0.1; done
scancel --signal=USR1 "$job"                 # what --signal=USR1@120 does by the clock
claim "it goes back into the queue" wait_for "$job" PENDING
saved=$(ls "$TMP/job" 2>/dev/null | sed -n 's/^step-//p' | sort -n | tail -1)
claim "with a checkpoint before the last step" [ "${saved:-0}" -ge 5 -a "${saved:-0}" -lt 400 ]
claim "it runs again" wait_for "$job" RUNNING COMPLETING COMPLETED
claim "and is done" wait_for "$job" COMPLETED
claim "it went on from there" grep -q "resumed $TMP/job/step-$saved at step $saved" "$TMP/job.log"
claim "every step is in the log once" [ "$(grep -c loss_bits "$TMP/job.jsonl")" = 400 ]
run ptrain --data "$TMP/text" --model tiny --steps 400 --global-batch 8 --seq-len 32 --threads 1 --out \
    "$TMP/one"
claim "the state is that of one rank without a stop" eval 'grep -qF "$(state_of "$out")" "$TMP/job.log"'

# a conversion by both nodes
sed 's/^#SBATCH --ntasks-per-node=.*/#SBATCH --ntasks-per-node=2/; s/^#SBATCH --cpus-per-task=.*/#SBATCH --cpus-per-task=1/' "$top/examples/reshard.sbatch" >"$TMP/reshard.sbatch"
run env TP=4 sbatch --parsable --wait --output="$TMP/reshard.log" "$TMP/reshard.sbatch" "$TMP/job/step-400" \
    "$TMP/tp4"
claim "examples/reshard.sbatch converts" [ $rc = 0 ]
run reshard diff "$TMP/job/step-400" "$TMP/tp4"
claim "to the same tensors" [ $rc = 0 ]
finish
