"""hangup.py FOLDER COMMAND... - runs COMMAND in the background of an interactive shell with a terminal of its own, sends it
SIGHUP, waits until it has gone on, and takes the terminal away. Status 0: COMMAND ended only then."""
import os
import pty
import shlex
import signal
import sys
import time

folder, command = sys.argv[1], sys.argv[2:]
log = folder + "/stderr"
pid = 0


def until(is_so):
    end = time.monotonic() + 60
    while not is_so():
        if time.monotonic() > end:
            if pid:
                os.kill(pid, signal.SIGTERM)
            sys.exit("waited for 60 s: " + (open(log).read()[-300:] if os.path.exists(log) else "no start"))
        time.sleep(0.02)


def steps():
    path = folder + "/log"
    return open(path).read().count("loss_bits") if os.path.exists(path) else 0


def has_ended():
    """Also a process that nobody has waited for: where process 1 is not init, that may stay."""
    try:
        return open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


shell, terminal = pty.fork()
if shell == 0:
    os.execvp("bash", ["bash", "--norc", "-i"])
os.write(terminal, f"{shlex.join(command)} >{folder}/stdout 2>{log} & echo $! >{folder}/pid\n".encode())
until(steps)
pid = int(open(folder + "/pid").read())
os.kill(pid, signal.SIGHUP)
before = steps()
until(lambda: steps() > before + 1)
assert "stopping" not in open(log).read()
os.close(terminal)
until(has_ended)
