"""serve_memory.py FOLDER - makes a mixture with random weights in FOLDER, serves it, and compares the
resident memory of its ranks with the plan."""
import os
import re
import sys
from serve_server import Server, claim, finish, together

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench"))
from serve_models import make_model

PLAN = re.compile(rb"([\d.]+) GB are needed")


def resident(parent):
    """Bytes of pserve's ranks: of the process, and of those that it started."""
    found, todo = 0, [parent]
    while todo:
        pid = todo.pop()
        with open(f"/proc/{pid}/task/{pid}/children") as f:
            todo += [int(x) for x in f.read().split()]
        with open(f"/proc/{pid}/status") as f:
            kilobytes = int(re.search(r"VmRSS:\s+(\d+)", f.read()).group(1))
        found += kilobytes * 1024 if kilobytes > 100 << 10 else 0      # no launcher holds that much
    return found


make_model("mixtral-1b", "bf16", sys.argv[1])
for args in ("--tp 1", "--tp 2 --ep 2", "--tp 2", "--tp 4 --ep 4", "--tp 2 --cp 2", "--pp 2", "--pp 2 --tp 2", "--cp 2 --ep 2"):
    s = Server(sys.argv[1], *args.split(), "--threads", 1, "--ctx", 1024, "--max-batch", 8, "--prefill-chunk",
               512, "--kv-memory", "128MB", "--verbose")
    if not claim(f"{args}: starts", s.port is not None, s.err):
        continue
    prompts = [[(7 * i + 13 * j) % 31000 + 300 for j in range(1000)] for i in range(8)]
    together([lambda p=p: s.complete(prompt=p, max_tokens=2, echo=True, logprobs=1, ignore_eos=True)
              for p in prompts])
    plan = next((float(m.group(1)) * 1e9 for m in map(PLAN.search, s.err) if m), 0)
    used = resident(s.p.pid)
    claim(f"{args}: the memory is within 5 % of the plan", plan and 0.95 < used / plan < 1.05,
          f"{used / 1e9:.3f} GB are used, {plan / 1e9:.3f} GB are planned")
    print(f"{args}: {used / 1e9:.3f} GB of {plan / 1e9:.3f} GB planned", file=sys.stderr)
    s.stop()
finish()
