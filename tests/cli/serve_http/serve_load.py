"""serve_load.py CHECKPOINT SECONDS CLIENTS - streams that many clients ask for at once, some of which
disconnect: no error, constant resident memory, every complete answer equal to the one computed alone, pages
that run out; then idle connections and slow readers, which must not slow others."""
import asyncio
import json
import random
import sys
import time
from serve_server import Server, answers, claim, finish

checkpoint, seconds, n_clients = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
rng = random.Random(5)
BODIES = []
for i in range(24):                        # greedy and drawn, of several pages and of none
    body = dict(prompt=f"line {i}: " + "7 is left of seven " * (i % 5) * 2,
                max_tokens=rng.choice((3, 9, 40, 90)), ignore_eos=True, return_token_ids=True,
                logprobs=1, temperature=i % 2, seed=i)
    BODIES.append(dict(body, cache_salt=f"{i % 3}"))


def message(body):
    text = json.dumps(dict(body, stream=True)).encode()
    return b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(text) + text


async def lines_of(r):
    """The lines of a body that comes in chunks; a line may go over the end of a chunk."""
    rest = b""
    while size := int(await r.readline(), 16):
        *lines, rest = (rest + await r.readexactly(size)).split(b"\n")
        await r.readexactly(2)
        for line in lines:
            yield line


class Load:
    def __init__(self, server):
        self.s, self.stop, self.errors, self.wrong = server, 0, [], []
        self.n_done = self.n_left = self.n_tokens = 0

    async def ask(self, body, most=None):
        """Tokens and log-probs of a stream, as they were printed; None when the client disconnected after `most` events."""
        r, w = await asyncio.open_connection(self.s.host, self.s.port)
        try:
            w.write(message(body))
            head = await r.readuntil(b"\r\n\r\n")
            if b" 200 " not in head:
                raise RuntimeError(head + await r.read(500))
            ids, floats, n = [], [], 0
            async for line in lines_of(r):
                if not line.startswith(b"data: "):
                    continue
                if line.strip() == b"data: [DONE]":
                    return ids, floats
                for c in json.loads(line[6:], parse_float=str)["choices"]:
                    ids += c["token_ids"]
                    floats += (c["logprobs"] or {}).get("token_logprobs", [])
                n += 1
                if n == most:
                    return None
            raise RuntimeError("the stream has no end")
        finally:
            w.close()

    async def client(self, want, seed):
        own = random.Random(seed)
        while time.monotonic() < self.stop:
            i = own.randrange(len(BODIES))
            try:
                got = await self.ask(BODIES[i], own.randrange(1, 30) if own.random() < 0.25 else None)
            except (OSError, RuntimeError, ValueError, KeyError, asyncio.IncompleteReadError) as e:
                self.errors.append(repr(e)[:300])
                continue
            if got is None:
                self.n_left += 1
                continue
            self.n_done += 1
            self.n_tokens += len(got[0])
            if got != want[i]:
                self.wrong.append((i, got, want[i]))


def resident_bytes(s):
    return sum(int(open(f"/proc/{pid}/statm").read().split()[1]) * 4096 for pid in s.ranks().values())


async def watch(s, load, samples):
    while time.monotonic() < load.stop:
        samples.append(resident_bytes(s))
        await asyncio.sleep(max(0.2, seconds / 100))


async def storm(s):
    load = Load(s)
    want = [await load.ask(b) for b in BODIES]
    for body, answer in zip(BODIES, want):
        answers.note("stream", body, answer)
    claim("every answer has its tokens",
          all(len(w[0]) == b["max_tokens"] and len(w[1]) == b["max_tokens"] for w, b in zip(want, BODIES)))
    load.stop, samples = time.monotonic() + seconds, []
    await asyncio.gather(watch(s, load, samples), *(load.client(want, c) for c in range(n_clients)))
    claim("no client met an error", not load.errors, (len(load.errors), load.errors[:3]))
    claim("every finished answer is the lone one", not load.wrong,
          (len(load.wrong), str(load.wrong[:1])[:600]))
    claim("answers were finished and left", load.n_done > n_clients and load.n_left > n_clients // 8,
          (load.n_done, load.n_left))
    third = len(samples) // 3
    early, late = max(samples[third // 2:third + 1]), max(samples[-third:])
    claim("resident memory stays", late < early * 1.02 + (1 << 20), (early, late))
    print(f"{n_clients} clients, {seconds:.0f} s: {load.n_done} answers ({load.n_tokens} tokens), {load.n_left} left, "
          f"{len(load.errors)} errors; resident {early / 1e6:.1f} then {late / 1e6:.1f} MB", flush=True)


async def quiet_ms(s, n=30):
    load, took = Load(s), []
    for _ in range(n):
        begin = time.perf_counter()
        await load.ask(BODIES[1])
        took.append(time.perf_counter() - begin)
    return 1000 * sorted(took)[n // 2]


async def beside(s):
    before = await quiet_ms(s)
    idle = [await asyncio.open_connection(s.host, s.port) for _ in range(1000)]
    slow = []
    for _ in range(8):                     # they ask for much and read nothing
        slow.append(await asyncio.open_connection(s.host, s.port, limit=64))
        slow[-1][1].write(message(dict(BODIES[0], max_tokens=400)))
    await asyncio.sleep(1 if seconds < 60 else 3)
    after = min([await quiet_ms(s) for _ in range(3)])
    claim("1000 idle connections and slow readers do not slow others", after < 2 * before + 5,
          f"{before:.2f} ms, beside them {after:.2f} ms")
    print(f"a stream of {BODIES[1]['max_tokens']} tokens: {before:.2f} ms, beside 1000 idle connections and 8 slow readers {after:.2f} ms", flush=True)
    for r, w in idle + slow:
        w.close()


s = Server(checkpoint, "--tp", 2, "--ctx", 512, "--kv-memory", "6MB", "--max-batch", 64, "--verbose")
if claim("it starts", s.port is not None, b"".join(s.err)):
    asyncio.run(storm(s))
    if claim("it lives", s.p.poll() is None, b"".join(s.err)[-2000:]):
        asyncio.run(beside(s))
        status, metrics, _ = s.request("GET", "/metrics")
        n = sum(float(line.split()[-1]) for line in metrics.decode().splitlines()
                if line.startswith("vllm:num_preemptions_total"))
        claim("pages ran out, and nothing was dropped", n > 0, metrics.decode()[:400])
    rc, err = s.stop()
    claim("the server ends well", rc == 0, (rc, err[-500:]))
finish()
