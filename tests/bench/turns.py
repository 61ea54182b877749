"""turns.py - shared by the benches of reshard: safetensors folders, and programs in turn beside `cp -r`.

A way is a program that writes to one target. Ways take turns, the median of a way's turns counts. The source is in
the page cache for all. reshard ends with its files on the disk, read again and compared; `cp -r` leaves its bytes to
be written later, so cp is timed alone and followed by a sync."""

import json
import os
import shutil
import statistics
import struct
import subprocess
import sys
import time


def write(folder, tensors, config):
    """tensors: (name, dtype, shape, bytes)"""
    os.makedirs(folder)
    header, at = {}, 0
    for name, dtype, shape, data in tensors:
        end = at + len(data)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(folder + "/model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for *_, data in tensors:
            f.write(data)
    with open(folder + "/config.json", "w") as f:
        json.dump(config, f)


def bf16(n):
    """Bytes of n bf16 numbers: random, of a size that weights have."""
    data = bytearray(2 * n)
    data[0::2] = os.urandom(n)
    data[1::2] = os.urandom(n).translate(bytes((i & 128) | (0x3B + i % 3) for i in range(256)))
    return bytes(data)


def size(path):
    """Bytes of a file, or of the files of a folder."""
    if not os.path.isdir(path):
        return os.path.getsize(path)
    return sum(os.path.getsize(os.path.join(path, f)) for f in os.listdir(path))


def apart(work, *args):
    """Runs work in a process of its own: a program started from a large process counts that one's memory as its own."""
    pid = os.fork()
    if pid == 0:
        try:
            work(*args)
            os._exit(0)
        finally:
            os._exit(1)
    if os.waitpid(pid, 0)[1]:
        sys.exit("making a source failed")


def remove(path):
    if os.path.isdir(path):
        shutil.rmtree(path)
    elif os.path.exists(path):
        os.remove(path)


def run(command):
    """wall seconds, seconds of processors, peak MiB"""
    os.sync()
    t = time.monotonic()
    p = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    text = p.stderr.read()
    _, status, use = os.wait4(p.pid, 0)
    if status:
        sys.exit(f"{' '.join(command)}: {text.decode()[-400:]}")
    return time.monotonic() - t, use.ru_utime + use.ru_stime, use.ru_maxrss / 1024


def copies(source, target):
    """The ways that copy source."""
    return {
        "cp -r": ["cp", "-r", source, target],
        "cp -r, sync": [
            "sh",
            "-c",
            f"cp -r '{source}' '{target}' && sync -f '{target}'",
        ],
    }


def converter(what, source, target, *more):
    """The command of another program's conversion (converters.py)."""
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "converters.py")
    return [os.environ["PEER_PYTHON"], "-B", program, what, source, target, *more]


def take(ways, target, rounds, gb):
    """Runs the ways in turn, prints what each took, and returns GB/s and peak MiB of each. gb: counted for each."""
    took = {w: [] for w in ways}
    for _ in range(rounds):
        for way, command in ways.items():
            remove(target)
            took[way].append(run(command))
    remove(target)

    speed, peak = {}, {}
    for way, turns in took.items():
        seconds, cpu, mib = zip(*turns)
        middle, peak[way] = statistics.median(seconds), max(mib)
        speed[way] = gb / middle
        figures = f"{min(seconds):7.2f} to {max(seconds):6.2f} {statistics.median(cpu):7.2f}"
        print(f"{way:38} {middle:8.2f} {figures} {speed[way]:6.2f} {peak[way]:8.0f}", flush=True)
    return speed, peak


def header(title):
    print(f"{title:38} {'s':>8} {'(range)':>17} {'cpu s':>7} {'GB/s':>6} {'peak MiB':>8}", flush=True)


def row(name, ours, peer, peer_name, unit="GB/s", better="higher"):
    ratio = ours / peer if better == "higher" else peer / ours
    return dict(
        name=name,
        ours=round(ours, 3),
        peer=round(peer, 3),
        peer_name=peer_name,
        unit=unit,
        ratio=round(ratio, 3),
    )


def end(rows):
    print(json.dumps({"rows": rows}))
