"""serve_chat.py MODEL TMP - chats, the prefix cache, keys and limits, pbench."""
import http.client
import json
import os
import subprocess
import sys
import time
from serve_server import Server, claim, finish, together

model, tmp = sys.argv[1:3]
J = {"Content-Type": "application/json"}


def post(s, path, body, **headers):
    status, data, h = s.request("POST", path, body, headers)
    return status, json.loads(data, parse_float=str), h


def stream(s, path, body):
    c = http.client.HTTPConnection(s.host, s.port, timeout=120)
    c.request("POST", path, json.dumps(dict(body, stream=True)), J)
    events = [line[6:].strip().decode() for line in c.getresponse() if line.startswith(b"data: ")]
    c.close()
    return events


# ---- chats ----
s = Server(model, "--tp", 2)
claim("it starts", s.port is not None, s.err)
hi = dict(messages=[{"role": "user", "content": "line 1"}], max_completion_tokens=20, temperature=0,
          ignore_eos=True, logprobs=True, top_logprobs=2,
          return_token_ids=True)
status, chat, _ = post(s, "/v1/chat/completions", hi)
claim("a chat is answered", status == 200 and chat["object"] == "chat.completion", chat)
choice = chat["choices"][0]
plain = s.complete(prompt="<user>line 1;<assistant>", max_tokens=20, temperature=0, ignore_eos=True,
                   logprobs=2, return_token_ids=True)["choices"][0]
claim("it is what completions make of the rendered text",
      chat["prompt_token_ids"] == plain["prompt_token_ids"] and choice["token_ids"] == plain["token_ids"] and
      choice["message"]["content"] == plain["text"], (choice, plain))
claim("with the same log-probs",
      [t["logprob"] for t in choice["logprobs"]["content"]] == plain["logprobs"]["token_logprobs"])
claim("and the tokens' bytes",
      bytes(sum((t["bytes"] for t in choice["logprobs"]["content"]), [])).decode("utf-8",
          "replace") == plain["text"])
events = stream(s, "/v1/chat/completions", dict(hi, stream_options={"include_usage": True}))
chunks = [json.loads(e, parse_float=str) for e in events[:-1]]
deltas = [c["choices"][0]["delta"] for c in chunks if c["choices"]]
claim("a stream begins with the role", deltas[0] == {"role": "assistant", "content": ""}, deltas[:2])
claim("joins to the answer", "".join(d.get("content", "") for d in deltas) == choice["message"]["content"])
claim("the prompt's ids are in the first chunk only, beside the choices",
      [c.get("prompt_token_ids") for c in chunks] == [chat["prompt_token_ids"]] + [None] * 21)
claim("the answer's ids in those of its tokens",
      sum((c["choices"][0].get("token_ids", []) for c in chunks if c["choices"]), []) == choice["token_ids"])
claim("has a chunk a token", len(deltas) == 21 and events[-1] == "[DONE]"
      and chunks[-1]["usage"]["completion_tokens"] == 20, len(deltas))
claim("ends with a reason",
      [c["choices"][0]["finish_reason"] for c in chunks[:-1]] == [None] * 20 + ["length"])
parts = dict(hi, messages=[{"role": "user", "content": [{"type": "text", "text": "line 1"}]}])
claim("a list of text parts is a text",
      post(s, "/v1/chat/completions", parts)[1]["choices"][0]["message"] == choice["message"])
for what, body, param in (("an unknown role's refusal", dict(messages=[{"role":
    "bad", "content": "x"}]), "messages"), ("no messages", {}, "messages"),
                          ("tools", dict(hi, tools=[{"type": "function"}]), "tools"),
                          ("a prompt", dict(hi, prompt="a"), "prompt")):
    status, e, _ = post(s, "/v1/chat/completions", body)
    claim(f"{what} is a 400 that names the field", status == 400 and e["error"]["param"] == param, e)
status, e, _ = post(s, "/tokenize", dict(messages=hi["messages"]))
claim("messages are tokenized through the template", e.get("tokens") == chat["prompt_token_ids"], e)

# ---- the prefix cache ----
long = ("line 2: 4 is the square of 2\n" * 12)[:300]
ask = dict(prompt=long, max_tokens=8, temperature=0, ignore_eos=True, logprobs=3, return_token_ids=True)


def essence(a):
    return [(c["token_ids"], c["logprobs"]["token_logprobs"], c["logprobs"]["top_logprobs"])
            for c in a["choices"]]


cold, warm = s.complete(**ask), s.complete(**ask)
cached = [a["usage"]["prompt_tokens_details"]["cached_tokens"] for a in (cold, warm)]
claim("the second time the full pages are found", cached == [0, 256], cached)
claim("and the answer has the same bits", essence(cold) == essence(warm))
salted = s.complete(**ask, cache_salt="tenant")
claim("another salt finds nothing", salted["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
      and essence(salted) == essence(cold))
echo = [s.complete(**dict(ask, echo=True, cache_salt=salt)) for salt in ("fresh", None)]
claim("log-probs of a cached prompt are those of a fresh one", essence(echo[0]) == essence(echo[1]))
scored = [s.complete(prompt=long, max_tokens=1, temperature=0, prompt_logprobs=1,
                     cache_salt=salt)["choices"][0]["prompt_logprobs"] for salt in ("new", None)]
claim("prompt_logprobs, too", scored[0] == scored[1] and len(scored[0]) == 300)
forked = [dict(ask, prompt=long[:200 + 7 * i] + "x" * i, cache_salt="fork") for i in range(8)]
want = [essence(s.complete(**dict(b, cache_salt=f"alone {i}"))) for i, b in enumerate(forked)]
claim("eight at once on a common beginning have the bits of each alone",
      together([lambda b=b: essence(s.complete(**b)) for b in forked]) == want)
rc, err = s.stop()
claim("the server ends well", rc == 0, (rc, err))
s = Server(model, "--prefix-cache", "off")
off = s.complete(**ask)
claim("without the cache nothing is counted", off["usage"]["prompt_tokens_details"] is None)
claim("and the bits are the same", essence(off) == essence(cold))
s.stop()

s = Server(model, "--ctx", 512, "--max-batch", 64, "--kv-memory", "3MB")
shared = dict(ask, max_tokens=4)
want = essence(s.complete(**shared))
claim("64 at once that share pages name more of them than there are",
      together([lambda: essence(s.complete(**shared))] * 64) == [want] * 64)
s.stop()

# ---- keys, limits, the log ----
s = Server(model, "--api-key-file", f"{tmp}/keys", "--max-requests-per-key", 1, "--max-requests", 3,
           "--access-log", f"{tmp}/access")
slow = dict(prompt="a", max_tokens=400, ignore_eos=True, temperature=0)
status, e, h = post(s, "/v1/completions", slow)
claim("without a key nothing is computed", status == 401 and e["error"]["type"] == "authentication_error", e)
got = together([lambda k=k: post(s, "/v1/completions", dict(slow, n=8), Authorization=f"Bearer {k}")
                for k in ("first-key", "first-key", "second-key")])
claim("one key may ask one thing at a time", sorted(g[0] for g in got) == [200, 200, 429],
      [g[:2] for g in got if g[0] != 200])
claim("the other is told when to come back", all(g[2].get("retry-after") for g in got if g[0] == 429))
status, e, h = post(s, "/v1/completions", dict(slow, max_tokens=3),
                    **{"Authorization": "Bearer second-key", "X-Request-Id": "trace-1"})
claim("a request keeps its name", h.get("x-request-id") == "trace-1", h)
rc, err = s.stop()
log = [json.loads(line) for line in open(f"{tmp}/access")]
claim("every request is a line", len(log) == 5
      and sorted(x["status"] for x in log) == [200, 200, 200, 401, 429], log)
claim("with its tokens", [x["completion_tokens"] for x in log if x["id"] == "trace-1"] == [3], log)
claim("and never the key", "first-key" not in open(f"{tmp}/access").read())

# ---- pbench ----
s = Server(model)
url = f"http://{s.host}:{s.port}"
for name, args in (("closed loop", ["--concurrency", "4"]),
                   ("open loop", ["--rate", "200", "--concurrency", "12", "--spread", "0.5"]),
                   ("chat", ["--chat"]), ("sampled",
                                          ["--temperature", "0.8", "--top-p", "0.9", "--top-k", "40"])):
    r = subprocess.run([os.path.join(os.environ["BIN"], "pbench"), "--url", url, "--requests", "12",
                        "--prompt-tokens", "40", "--output-tokens", "10", "--json", *args],
                       capture_output=True, text=True)
    if not claim(f"pbench, {name}: ends well", r.returncode == 0, r.stderr):
        continue
    j = json.loads(r.stdout)
    claim(f"pbench, {name}: all are done", j["completed"] == 12 and j["failed"] == 0
          and j["total_output_tokens"] > 60, j)
    claim(f"pbench, {name}: the numbers make sense",
          0 < j["median_ttft_ms"] <= j["p99_ttft_ms"] <= j["p99_e2el_ms"] and
          abs(j["output_throughput"] * j["duration"] - j["total_output_tokens"]) < 1 and 0 <= j["mean_itl_ms"],
          j)
s.stop()
finish()
