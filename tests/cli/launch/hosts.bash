# hosts.bash - two machines made of namespaces (network, UTS, IPC, mount): names, a /dev/shm and an SSH server
# of their own, a link between them.
#
#   hosts_open || { skip "$why"; finish; }     # hosta 10.77.0.1, hostb 10.77.0.2, $TMP/hostfile with two
#   slots each
#   on hosta COMMAND...                        # runs it there
#   start_on hosta COMMAND... &                # so that $! is the command's own process
#   link_down; link_up; link_bytes             # the link between them; bytes that crossed it, both ways
#
# $TMP is a folder that both see, as on a cluster with a shared file system. The SSH settings are those of
# train/Dockerfile.
declare -A host_pid=()

on() { local host=$1; shift; nsenter --target "${host_pid[$host]}" --net --uts --ipc --mount -- "$@"; }
start_on() {
    local host=$1; shift; exec nsenter --target "${host_pid[$host]}" --net --uts --ipc --mount -- "$@"
}
link_down() { on hosta ip link set link0 down; }
link_up() { on hosta ip link set link0 up; }
link_bytes() {
    on hosta bash -c 'echo $(($(cat /sys/class/net/link0/statistics/tx_bytes) + $(cat /sys/class/net/link0/statistics/rx_bytes)))'
}

start_host() {              # NAME ADDRESS
    unshare --net --uts --ipc --mount bash -c '
        hostname "$1" && ip link set lo up && mount -t tmpfs none /dev/shm && mount -t tmpfs none /run && mkdir -p /run/sshd &&
        mount -t sysfs none /sys && mount --bind "$2/hosts" /etc/hosts && touch "$2/$1.ready" && exec sleep infinity' - "$1" "$TMP" >"$TMP/$1.log" 2>&1 &
    host_pid[$1]=$!
    disown                  # the shell says nothing when it is killed
    for _ in {1..50}; do [ -e "$TMP/$1.ready" ] && return 0; sleep 0.1; done
    return 1
}

hosts_close() {             # ends every process of both hosts
    local host pid net
    for host in "${!host_pid[@]}"; do
        net=$(readlink "/proc/${host_pid[$host]}/ns/net")
        for pid in /proc/[0-9]*; do
            [ -n "$net" ] && [ "$(readlink "$pid/ns/net" 2>/dev/null)" = "$net" ] &&
                kill -9 "${pid#/proc/}" 2>/dev/null
        done
    done
}

hosts_open() {
    local tool host
    trap 'hosts_close; kill $(jobs -p) 2>/dev/null' EXIT
    for tool in unshare nsenter ip ssh ssh-keygen mpirun; do
        command -v $tool >/dev/null || { why="no $tool"; return 1; }
    done
    [ -x /usr/sbin/sshd ] || { why="no sshd (apt-get install openssh-server)"; return 1; }
    unshare --net --uts --ipc --mount true 2>/dev/null ||
        { why="this machine allows no namespaces"; return 1; }
    printf '127.0.0.1 localhost\n10.77.0.1 hosta\n10.77.0.2 hostb\n' >"$TMP/hosts"
    printf 'hosta slots=2\nhostb slots=2\n' >"$TMP/hostfile"
    mkdir -p "$TMP/ssh"
    ssh-keygen -q -t ed25519 -N '' -f "$TMP/ssh/id"
    printf 'Host *\n    StrictHostKeyChecking no\n    UserKnownHostsFile /dev/null\n    LogLevel ERROR\n    ServerAliveInterval 5\n    ServerAliveCountMax 3\n    Port 2222\n    IdentityFile %s\n' "$TMP/ssh/id" >"$TMP/ssh/config"
    printf 'PidFile none\nHostKey %s\nStrictModes no\nPort 2222\nAuthorizedKeysFile %s\nPermitRootLogin yes\nUsePAM no\n' "$TMP/ssh/id" "$TMP/ssh/id.pub" >"$TMP/ssh/sshd_config"

    for host in hosta hostb; do
        start_host $host || { why="no host: $(head -n 1 "$TMP/$host.log")"; return 1; }
    done
    ip link add link0 netns "${host_pid[hosta]}" type veth peer name link0 netns "${host_pid[hostb]}" \
        2>"$TMP/link.log" ||
        { why="no virtual link: $(head -n 1 "$TMP/link.log")"; return 1; }
    on hosta ip addr add 10.77.0.1/24 dev link0
    on hostb ip addr add 10.77.0.2/24 dev link0
    for host in hosta hostb; do
        on $host ip link set link0 up
        on $host bash -c 'echo 5 >/proc/sys/net/ipv4/tcp_retries2' # as examples/README.md advises
        on $host /usr/sbin/sshd -D -e -f "$TMP/ssh/sshd_config" >"$TMP/$host.sshd" 2>&1 &
    done
    export OMPI_MCA_plm_rsh_args="-F $TMP/ssh/config" OMPI_ALLOW_RUN_AS_ROOT=1 \
        OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    export OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,vader,tcp OMPI_MCA_mpi_yield_when_idle=1
    for _ in {1..50}; do on hosta ssh -F "$TMP/ssh/config" hostb true 2>/dev/null && return 0; sleep 0.1; done
    why="ssh from hosta to hostb does not answer: $(on hosta ssh -F "$TMP/ssh/config" hostb true 2>&1 |
        head -n 1)"
    return 1
}
