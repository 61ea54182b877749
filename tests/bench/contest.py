"""contest.py - shared by the benches of whole programs: turns of contestants, rows, peers.

A contestant is a function that runs once and returns one figure (higher is better) or None. Contestants take
turns, and the best turn counts: the machine's speed changes within minutes, but hardly between two turns.
Peers are other software: PEERS is a folder with programs that call it, PEER_PYTHON the interpreter that has
its libraries. Without them a row has no peer."""
import json
import os
import subprocess
import sys

PEERS = os.environ.get("PEERS")
PYTHON = os.environ.get("PEER_PYTHON", sys.executable)


def log(text):
    print(text, file=sys.stderr, flush=True)


def peer_has(module, program):
    if not PEERS or not os.path.exists(os.path.join(PEERS, program)):
        return False
    return subprocess.run([PYTHON, "-c", f"import {module}"], stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL).returncode == 0


def peer_lines(program, *args, env=None, timeout=900):
    """The JSON lines a peer's program prints, [] when it fails."""
    try:
        out = subprocess.run([PYTHON, os.path.join(PEERS, program), *map(str, args)], stdout=subprocess.PIPE,
                             stderr=subprocess.DEVNULL,
                             timeout=timeout, env=dict(os.environ, **(env or {})), cwd=PEERS)
    except subprocess.TimeoutExpired:
        return []
    lines = []
    for line in out.stdout.decode(errors="replace").splitlines():
        if line.startswith("{"):
            lines.append(json.loads(line))
    return lines


def turns(contestants, rounds):
    """contestants: name -> function; the best figure of each over the rounds."""
    best = {}
    for _ in range(rounds):
        for name, run in contestants.items():
            value = run()
            if value is not None:
                best[name] = max(best.get(name, 0.0), value)
    return best


class Table:
    """Rows as they are found, and the line of all at the end (ratio > 1: ours is better)."""

    def __init__(self, header):
        self.rows = []
        print(header, flush=True)

    def add(self, name, ours, peer, peer_name, unit, note="", better="higher", ratio=None):
        """ratio: of the figures unless given (the median over rounds, say)."""
        if peer and ratio is None:
            ratio = ours / peer if better == "higher" else peer / ours
        self.rows.append({"name": name, "ours": ours, "peer": peer, "peer_name": peer_name, "unit": unit,
                          "ratio": ratio and round(ratio, 4)})
        side = f"{peer:10.1f} {peer_name:14s} {ratio:6.2f}" if peer else " " * 10 + f" {'-':14s} {'-':>6s}"
        print(f"{name:58s} {ours:10.1f} {side}  {unit}{'  ' + note if note else ''}", flush=True)

    def end(self):
        print(json.dumps({"rows": self.rows}, separators=(",", ":")))
