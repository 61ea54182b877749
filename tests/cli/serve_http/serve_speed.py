"""serve_speed.py CHECKPOINT TP - requests that come together share steps: eight take less than three times as
long as one."""
import sys
import time
from serve_server import Server, claim, finish, together

s = Server(sys.argv[1], "--tp", int(sys.argv[2]))
BODY = dict(prompt="line 1", temperature=0, max_tokens=60, ignore_eos=True)


def wall_s(n):
    begin = time.monotonic()
    together([lambda: s.complete(**BODY)] * n)
    return time.monotonic() - begin


wall_s(8)
best = {1: 1e9, 8: 1e9}
# other work on the machine only makes it slower: the best of alternating runs counts
for _ in range(12):
    for n in best:
        best[n] = min(best[n], wall_s(n))
claim("eight at once take less than three times as long as one", best[8] < 3 * best[1],
      f"{best[8]:.3f} s, one {best[1]:.3f} s")
print(f"tp {sys.argv[2]}: one {best[1] * 1e3:.0f} ms, eight {best[8] * 1e3:.0f} ms")
rc, err = s.stop()
claim("the server ends well", rc == 0, (rc, err))
finish()
