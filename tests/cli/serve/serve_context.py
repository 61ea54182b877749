"""serve_context.py CHECKPOINT [ARGUMENTS]… - long prompts divided among the ranks of a replica (--cp), layers
among its stages (--pp): the bits of the first server, one rank's, in every server that is named by its arguments; alone, at once, with
cached beginnings. "few": of so few pages that sequences are preempted."""
import re
import sys
from serve_server import Server, claim, finish, together

checkpoint, specs = sys.argv[1], sys.argv[2:]
WISH = dict(max_tokens=6, temperature=0, logprobs=2, echo=True, ignore_eos=True, return_token_ids=True)


def prompt(n, k=7):
    return [(k * i + i * i // 11) % 256 for i in range(n)]


requests = [dict(WISH, prompt=prompt(n)) for n in (1, 64, 65, 129, 333, 900)]
requests += [dict(WISH, prompt=prompt(700, 5), echo=False, n=3, temperature=1.0, seed=9),
             dict(WISH, prompt=prompt(650), echo=False),                     # begins as others do
             dict(WISH, prompt=[prompt(200, 3), prompt(90, 13)], max_tokens=0)]
long = [dict(WISH, prompt=prompt(250 + i, 3 + i), echo=False, max_tokens=80) for i in range(5)]


def essence(answer):
    return [(c["index"], c["token_ids"], c["logprobs"]["token_logprobs"], c["logprobs"]["top_logprobs"])
            for c in sorted(answer["choices"], key=lambda c: c["index"])]


def ask(server, request):
    return lambda: essence(server.complete(**request))


def same(what, got, want):
    """got: answers, or the exceptions that came instead."""
    differ = [(i, g, w) for i, (g, w) in enumerate(zip(got, want)) if g != w]
    claim(what, not differ, f"{len(differ)} differ: {str(differ[:1])[:600]}")


def metric(server, name):
    return float(re.search(rf"^{name}\{{[^}}]*\}} (\S+)", server.request("GET", "/metrics")[1].decode(),
                           re.M).group(1))


def held_as_said(server, err):
    """Do the ranks hold the keys and values of the ready line? In equal parts, unless there are stages."""
    each = [int(x) for x in re.findall(r"rank \d+: weights \d+ bytes, kv (\d+) bytes", err)]
    number, unit = re.search(r"kv=([\d.]+) (\w*)B", server.line).groups()
    said = float(number) * {"": 1, "k": 1e3, "M": 1e6, "G": 1e9}[unit]
    even = "pp=" in server.line or max(each) - min(each) <= 1
    return even and abs(sum(each) - said) < 0.01 * said, f"{each}, said {said}"


want = want_long = None
for spec in specs:
    few, args = "few" in spec.split(), [a for a in spec.split() if a != "few"]
    s = Server(checkpoint, *args, "--verbose", *(() if few else ("--ctx", 1024)))
    if not claim(f"{spec}: starts", s.port is not None, b"".join(s.err)):
        continue
    if not few:
        alone = [ask(s, r)() for r in requests]
        want = want or alone
        same(f"{spec}: as one rank", alone, want)
        same(f"{spec}: all at once", together([ask(s, r) for r in requests]), want)
        if "--replicas" not in args:
            hits = metric(s, "vllm:prefix_cache_hits_total")
            claim(f"{spec}: pages of earlier prompts were found", (hits >= 640) == ("off" not in args), hits)
            claim(f"{spec}: first tokens are timed", metric(s, "vllm:time_to_first_token_seconds_count") >= 9)
    got_long = together([ask(s, r) for r in long])
    want_long = want_long or got_long
    same(f"{spec}: longer answers at once", got_long, want_long)
    rc, err = s.stop()
    claim(f"{spec}: ends well", rc == 0, f"{rc}: {err}")
    claim(f"{spec}: pages ran out", not few or re.search(r" [1-9]\d* preempted", err), err)
    claim(f"{spec}: the ranks hold the pages once", *held_as_said(s, err))
finish()
