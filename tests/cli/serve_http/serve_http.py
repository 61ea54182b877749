"""serve_http.py CHECKPOINT TP - the server's HTTP side: routes, refusals, streams, clients that disconnect,
idling, draining."""
import http.client
import json
import os
import re
import socket
import sys
import threading
import time
from serve_server import Server, claim, finish

checkpoint, tp = sys.argv[1], int(sys.argv[2])
s = Server(checkpoint, "--tp", tp, "--verbose")
claim("it says when it is ready", s.port is not None and f"(tp={tp}, replicas=1, kv=" in s.line,
      s.line + repr(s.err))


# ---- routes ----
def error_of(data):
    e = json.loads(data)["error"]
    return e["code"], e["type"], e["param"], e["message"]


def check(what, got, status, part=b""):
    claim(what, got[0] == status and part in got[1], got[:2])
    return got


check("health is 200 and empty", s.request("GET", "/health"), 200)
claim("and has no body", s.request("GET", "/health")[1] == b"")
check("version", s.request("GET", "/version"), 200, b'"version"')
models = json.loads(check("models", s.request("GET", "/v1/models"), 200)[1])
claim("one model is listed", [m["id"] for m in models["data"]] == ["m"]
      and models["data"][0]["max_model_len"] > 0, models)
check("the model by name", s.request("GET", "/v1/models/m"), 200, b'"id":"m"')
check("another model", s.request("GET", "/v1/models/x"), 404, b"'x'")
check("another path", s.request("GET", "/v1/nothing"), 404, b"/v1/nothing")
for path, body, part in (("/models", None, b'"id":"m"'), ("/models/m", None, b'"id":"m"'),
                         ("/completions", {"prompt":
    "a", "max_tokens": 1}, b'"text_completion"')):
    check(f"{path} without /v1", s.request("POST" if body else "GET", path, body), 200, part)
check("another model without /v1", s.request("GET", "/models/v1/models/"), 404, b"'v1/models/'")
check("a chat without /v1",
      s.request("POST", "/chat/completions", {"messages": [{"role": "user", "content": "a"}]}), 400,
      b"no chat template")
for path in ("/v1/health", "/v1/v1/models", "/v1", "/modelsx"):
    check(f"nothing is at {path}", s.request("GET", path), 404)
got = check("a GET of completions", s.request("GET", "/v1/completions"), 405)
claim("says what is allowed", got[2].get("allow") == "POST", got[2])
check("a POST of models", s.request("POST", "/v1/models", {}), 405)
check("a HEAD of health", s.request("HEAD", "/health"), 200)
J = {"Content-Type": "application/json"}
for what, body, headers, status, param in (
        ("no JSON", "{", J, 400, None), ("an empty body", "", J, 400, None),
        ("deep JSON", "[" * 100000, J, 400, None),
        ("another content type", '{"prompt":"a"}', {"Content-Type": "text/plain"}, 400, None),
        ("an unknown field", '{"prompt":"a","guided_json":{}}', J, 400, "guided_json"),
        ("another model", '{"prompt":"a","model":"gpt"}', J, 404, "model"),
        ("an id outside of the vocabulary", '{"prompt":[1,70000]}', J, 400, "prompt"),
        ("an empty prompt", '{"prompt":""}', J, 400, "prompt"),
        ("too many tokens", '{"prompt":"a","max_tokens":1000000}', J, 400, "max_tokens"),
        ("no prompt", "{}", J, 400, "prompt"), ("invalid UTF-8", b'{"prompt":"\xff"}', J, 400, None)):
    status_got, data, h = s.request("POST", "/v1/completions", body, headers)
    e = error_of(data)
    code = "context_length_exceeded" if what == "too many tokens" else status
    claim(f"{what} is refused", status_got == status and e[0] == code and e[2] == param
          and e[1] in ("invalid_request_error", "not_found_error"),
          (status_got, data))
    claim(f"{what}: the error is JSON", h.get("content-type") == "application/json", h)
status, data, _ = s.request("POST", "/v1/completions", b'{"prompt":"' + b"a" * (65 << 20) + b'"}', J)
claim("a body of 65 MiB is refused", status == 413, (status, data[:200]))
got = s.request("POST", "/v1/completions", '{"prompt":"a","max_tokens":2}',
                {"Content-Type": "application/json; charset=utf-8"})
check("a charset is fine", got, 200)
claim("the answer names itself", got[2].get("x-request-id") == json.loads(got[1])["id"], got[2])

c = http.client.HTTPConnection(s.host, s.port)
for i in range(3):
    c.request("POST", "/v1/completions",
              json.dumps(dict(prompt="a", max_tokens=1 + i, temperature=0, ignore_eos=True)), J)
    r = c.getresponse()
    claim(f"request {i} on one connection", r.status == 200
          and json.loads(r.read())["usage"]["completion_tokens"] == 1 + i)
c.close()

# ---- answers ----
BASE = dict(prompt="line 1", temperature=0, max_tokens=24, ignore_eos=True)
full = s.complete(**BASE)
claim("an answer says which weights it came from",
      full["system_fingerprint"] == "contract1-fp32-" + os.environ["DIGEST"], full["system_fingerprint"])
claim("it stops for length", full["choices"][0]["finish_reason"] == "length", full)
status, events = s.stream(stream_options=dict(include_usage=True), **BASE)
chunks = [json.loads(e) for e, _ in events[:-1]]
claim("a stream ends with [DONE]", events[-1][0] == "[DONE]")
claim("a chunk a token, then the usage", len(chunks) == 25 and chunks[-1]["choices"] == []
      and chunks[-1]["usage"]["completion_tokens"] == 24, len(chunks))
claim("its pieces join to the answer",
      "".join(c["choices"][0]["text"] for c in chunks[:-1]) == full["choices"][0]["text"])
claim("only the last piece has a reason",
      [c["choices"][0]["finish_reason"] for c in chunks[:-1]] == [None] * 23 + ["length"])
claim("every chunk has the same id", len({c["id"] for c in chunks}) == 1)
body = dict(BASE, n=2, temperature=0.9, seed=3, logprobs=2, echo=True)
whole = s.complete(**body)
status, events = s.stream(**body)
chunks = [json.loads(e, parse_float=str) for e, _ in events[:-1]]
for i in range(2):
    mine = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == i]
    claim(f"streamed choice {i} joins to the answer",
          "".join(c["text"] for c in mine) == whole["choices"][i]["text"])
    for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        claim(f"choice {i}: streamed {key} join",
              sum((c["logprobs"][key] for c in mine), []) == whole["choices"][i]["logprobs"][key])
claim("the prompt is echoed", whole["choices"][0]["text"].startswith("line 1"), whole["choices"][0]["text"])
none = s.complete(prompt="abc", max_tokens=0, echo=True)
claim("no token is generated when none is asked for", none["choices"][0]["text"] == "abc"
      and none["usage"]["completion_tokens"] == 0, none)
status, events = s.stream(prompt="abc", max_tokens=0, echo=True)
claim("nor in a stream", len(events) == 2 and json.loads(events[0][0])["choices"][0]["text"] == "abc", events)
stop = full["choices"][0]["text"][5:8]
cut = s.complete(stop=stop, **BASE)["choices"][0]
claim("a stop string cuts the text", cut["finish_reason"] == "stop" and cut["stop_reason"] == stop and
      cut["text"] == full["choices"][0]["text"][:full["choices"][0]["text"].index(stop)], cut)
first = s.complete(**dict(BASE, temperature=1, seed=7))["choices"][0]["text"]
claim("a seed gives the same answer again",
      s.complete(**dict(BASE, temperature=1, seed=7))["choices"][0]["text"] == first)
claim("another seed another one",
      s.complete(**dict(BASE, temperature=1, seed=8))["choices"][0]["text"] != first)
ids = s.complete(**dict(BASE, temperature=1e6, seed=7, return_token_ids=True))["choices"][0]["token_ids"]
claim("every position is drawn anew", len(set(ids)) > 12, ids)

# ---- sampling fields ----
def text(**more):
    return s.complete(**{**BASE, **more})["choices"][0]


plain = text(return_token_ids=True)["token_ids"]
claim("a bias of -100 keeps a token out",
      plain[0] not in text(return_token_ids=True, logit_bias={str(plain[0]): -100})["token_ids"])
claim("a bias of 100 puts one in",
      text(return_token_ids=True, logit_bias={"65": 100})["token_ids"] == [65] * 24)
claim("a penalty makes answers less repetitive",
      len(set(text(return_token_ids=True, frequency_penalty=2,
                   presence_penalty=2)["token_ids"])) > len(set(plain)))
claim("neutral penalties change nothing",
      text(return_token_ids=True, frequency_penalty=0, repetition_penalty=1,
           min_tokens=24)["token_ids"] == plain)
claim("a stop id waits for min_tokens",
      len(text(return_token_ids=True, stop_token_ids=[plain[0]], min_tokens=5)["token_ids"]) >= 6)
both = s.complete(prompt=["line 1", "line 23"], max_tokens=2, temperature=0, ignore_eos=True,
                  prompt_logprobs=2, logprobs=1, echo=True)["choices"]
for c, p in zip(both, ("line 1", "line 23")):
    mine = c["prompt_logprobs"]
    claim("prompt_logprobs has an entry a token, null first", len(mine) == len(p) and mine[0] is None, mine)
    claim("they are echo's log-probs",
          [e[str(ord(x))]["logprob"] for e,
           x in zip(mine[1:], p[1:])] == c["logprobs"]["token_logprobs"][1:len(p)])
    claim("a rank is the place among the logits",
          all(e[str(ord(x))]["rank"] == 1 or min(float(v["logprob"]) for k, v in e.items() if v["rank"] == 1)
                                                       <= 0 and e[str(ord(x))]["rank"] > 1 for e,
                                                       x in zip(mine[1:], p[1:])), mine)

# ---- token ids in, token ids out ----
HOW = dict(temperature=0, max_tokens=24, ignore_eos=True)
asked = dict(token_ids=list(b"line 1"), request_id="ids-1",
             sampling_params=dict(HOW, logprobs=2, prompt_logprobs=1, n=2))
got = check("token ids", s.request("POST", "/inference/v1/generate", asked), 200)
made = json.loads(got[1], parse_float=str)
claim("the answer has the request's name", made["request_id"] == "ids-1"
      and got[2].get("x-request-id") == "ids-1", (made["request_id"], got[2]))
same = s.complete(prompt="line 1", return_token_ids=True, logprobs=2, prompt_logprobs=1,
                  return_tokens_as_token_ids=True, n=2, **HOW)
for i in range(2):
    a, b = made["choices"][i], same["choices"][i]
    claim(f"answer {i}: the ids of a completion", a["token_ids"] == b["token_ids"]
          and a["finish_reason"] == "length", a)
    claim(f"answer {i}: and its log-probs, to the last digit",
          [(t["token"], t["logprob"]) for t in a["logprobs"]["content"]]
          == list(zip(b["logprobs"]["tokens"], b["logprobs"]["token_logprobs"])), a["logprobs"])
claim("the prompt's, too", made["prompt_logprobs"] == same["choices"][0]["prompt_logprobs"],
      made["prompt_logprobs"])
claim("the same usage and weights", all(made[k] == same[k] for k in ("usage", "system_fingerprint"))
      and "text" not in a, made["usage"])
_, data, _ = s.request("POST", "/inference/v1/generate",
                       dict(asked, stream=True, stream_options=dict(include_usage=True),
                            sampling_params=dict(HOW, logprobs=2)))
chunks = [line[6:] for line in data.decode().split("\n\n") if line]
claim("a stream of ids ends with [DONE]", chunks.pop() == "[DONE]", chunks[-1])
chunks = [json.loads(c, parse_float=str) for c in chunks]
claim("its ids join to the answer's",
      sum((c["choices"][0]["token_ids"] for c in chunks[:-1]), []) == made["choices"][0]["token_ids"]
      and len(chunks) == 25, len(chunks))
claim("its log-probs, too",
      sum((c["choices"][0]["logprobs"]["content"] for c in chunks[:-1]),
          []) == made["choices"][0]["logprobs"]["content"])
claim("the last event is the usage", chunks[-1]["choices"] == []
      and chunks[-1]["usage"]["completion_tokens"] == 24, chunks[-1])
ended = s.request("POST", "/inference/v1/generate",
                  dict(token_ids=list(b"line 1"),
                       sampling_params=dict(HOW, stop=[full["choices"][0]["text"][5:8]])))
claim("a stop string ends ids, too", json.loads(ended[1])["choices"][0]["finish_reason"] == "stop", ended[1])
rest = s.request("POST", "/inference/v1/generate",
                 dict(token_ids=[97], sampling_params=dict(ignore_eos=True)))
claim("without max_tokens the answer fills the context",
      json.loads(rest[1])["usage"]["total_tokens"] == models["data"][0]["max_model_len"], rest[1][-200:])

# ---- the small endpoints ----
got = s.request("POST", "/tokenize", {"prompt": "ab", "add_special_tokens": False, "return_token_strs": True})
claim("a text is tokenized", got[0] == 200 and json.loads(got[1])["tokens"] == [97, 98]
      and json.loads(got[1])["count"] == 2, got)
got = s.request("POST", "/tokenize", {"prompt": "ab", "messages": None, "nothing": None})
claim("null is as if the field were not there", got[0] == 200 and json.loads(got[1])["tokens"] == [97, 98],
      got)
got = s.request("POST", "/detokenize", {"tokens": [104, 105]})
claim("and back", got[0] == 200 and json.loads(got[1]) == {"prompt": "hi"}, got)
for path, body, param in (("/tokenize", {}, "prompt"), ("/tokenize", {"prompt":
    1}, "prompt"), ("/tokenize", {"prompt": "a", "x": 1}, "x"),
                          ("/tokenize", {"prompt": "a", "chat_template_kwargs": "x"}, "chat_template_kwargs"),
                          ("/detokenize", {"tokens": [256]}, "tokens"),
                          ("/detokenize", {"tokens": "a"}, "tokens"), ("/detokenize", {}, "tokens")):
    got = s.request("POST", path, body)
    claim(f"{path} refuses {body}", got[0] == 400 and error_of(got[1])[2] == param, got)
info = json.loads(check("tokenizer_info", s.request("GET", "/tokenizer_info"), 200)[1])
claim("it has what clients look for", {"bos_token", "eos_token", "pad_token", "chat_template"} <= set(info),
      info)
api = json.loads(check("the API's description", s.request("GET", "/openapi.json"), 200)[1])
for path in api["paths"]:
    got = s.request("GET", path.replace("{id}", "m"))
    there = got[0] in (200, 405) or (got[0] == 404 and b"'m' not found" in got[1])
    claim(f"{path} of the description is there", there, got[:2])
check("a page", s.request("GET", "/"), 200, b"<!doctype html")


def metrics():
    text = s.request("GET", "/metrics")[1].decode()
    return {line.split("{")[0].split(" ")[0] +
            ("/" + line.split('finished_reason="')[1].split('"')[0] if "finished_reason" in line
             else ""): float(line.rsplit(" ", 1)[1])
            for line in text.splitlines() if line[0] != "#" and "_bucket" not in line}


before = metrics()
s.complete(prompt=["line 1", "line 2"], max_tokens=5, temperature=0, ignore_eos=True)
time.sleep(0.3)                      # an answer is sent a moment before the gauges are set
after = metrics()
for name, grew in (("vllm:prompt_tokens_total", 12), ("vllm:generation_tokens_total", 10),
                   ("vllm:request_success_total/length", 2),
                   ("vllm:time_to_first_token_seconds_count", 2),
                   ("vllm:inter_token_latency_seconds_count", 8),
                   ("vllm:request_inference_time_seconds_count", 2),
                   ("vllm:request_time_per_output_token_seconds_count", 2),
                   ("vllm:request_params_n_count", 2), ("vllm:request_params_n_sum", 2),
                   ("vllm:request_params_max_tokens_sum", 10),
                   ("vllm:request_max_num_generation_tokens_sum", 10)):
    claim(f"{name} counts", after[name] - before[name] == grew, (before[name], after[name]))
claim("an answer's computation is its prefill and its decoding",
      abs(sum((after[f"vllm:request_{k}_time_seconds_sum"] - before[f"vllm:request_{k}_time_seconds_sum"])
      * sign for k, sign in (("prefill", 1), ("decode", 1), ("inference", -1)))) < 1e-4)
info = re.search(r'^vllm:cache_config_info\{.*block_size="(\d+)",num_gpu_blocks="(\d+)",kv_cache_size_tokens="(\d+)",cache_dtype="fp32",enable_prefix_caching="True"\} 1$',
                 s.request("GET", "/metrics")[1].decode(), re.M)
claim("the cache's configuration", info and int(info[1]) * int(info[2]) == int(info[3])
      and int(info[2]) == after["shardline:kv_pages"], info)
claim("the process is there", after["process_cpu_seconds_total"] > 0 and after["process_open_fds"] > 3
      and after["process_resident_memory_bytes"] > 1e6)
claim("nothing runs any more", after["vllm:num_requests_running"] == after["vllm:num_requests_waiting"] == 0,
      after)

# ---- idling ----
def cpu_s():
    t = os.sysconf("SC_CLK_TCK")
    return sum(sum(map(int, open(f"/proc/{p}/stat").read().rsplit(")", 1)[1].split()[11:13])) / t
               for p in s.ranks().values())


time.sleep(0.5)
begin = cpu_s()
time.sleep(2)
claim("an idle server uses no CPU", cpu_s() - begin < 0.1 * tp, f"{cpu_s() - begin:.2f} s of 2 s")

# ---- clients that disconnect ----
ctx = models["data"][0]["max_model_len"]
for streamed in (False, True):
    k = socket.create_connection((s.host, s.port))
    body = json.dumps(dict(prompt="a", max_tokens=ctx - 1, ignore_eos=True, temperature=0, stream=streamed,
                           n=32)).encode()
    k.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    if streamed:
        k.recv(100)
    time.sleep(0.3)
    k.close()
begin = time.monotonic()
s.complete(**BASE)
claim("nobody waits for clients that are gone", time.monotonic() - begin < 5, time.monotonic() - begin)

# ---- draining ----
result = {}


def slow():
    result["answer"] = s.complete(prompt="b", max_tokens=ctx - 1, ignore_eos=True, temperature=0, n=6)


t = threading.Thread(target=slow)
t.start()
time.sleep(0.15)
s.p.terminate()
seen = set()
while t.is_alive():
    seen.add(s.health())
    t.join(0.02)
rc, err = s.wait()
claim("an answer that was begun is finished",
      result.get("answer", {}).get("usage", {}).get("completion_tokens") == 6 * (ctx - 1), str(result)[:300])
claim("health says 503 while draining", 503 in seen, seen)
claim("SIGTERM ends it well", rc == 0, (rc, err))
rows = int(err.split(" rows,")[0].split()[-1])
claim("the answers nobody waited for were not computed", rows < 32 * ctx, f"{rows} rows, context {ctx}")
claim("what the ranks hold is logged", err.count("weights") == tp and err.count(", read ") == tp, err)
finish()
