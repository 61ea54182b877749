"""serve_adapters.py DIR quick|all - adapters in pserve. DIR has a model hf, its adapters a, b and c, the model
merged with a (merged), adapters that are refused (wrong, nan, far, wide), one that ptrain has trained and its
log-probs (trained, eval.jsonl), and admin-keys. Every answer
of a mixture is, bit for bit, the one that its request gets alone; that of the model itself the one of a server
without adapters."""
import json
import os
import re
import sys
import threading
import time
from serve_server import Server, bits, claim, finish, together

tmp, part = sys.argv[1:3]
MODEL = os.path.join(tmp, "hf")
TEXT = "".join(f"line {i}: {i * i} is the square of {i}\n" for i in range(11, 19))
ADAPTERS = ("--lora", f"a={tmp}/a", "--lora", f"b={tmp}/b")
ADMIN = {"Authorization": "Bearer admin-key"}
GREEDY = dict(max_tokens=12, temperature=0, ignore_eos=True, return_token_ids=True, logprobs=2)
DRAWN = dict(GREEDY, temperature=0.8, seed=7, top_p=0.95, n=2, logprobs=0)


def bodies(long):
    """Requests without a model: the beginnings of some are those of others."""
    return [dict(GREEDY, prompt=TEXT[:long]), dict(DRAWN, prompt=TEXT[:long] + "line"),
            dict(GREEDY, prompt="line 9:", max_tokens=70 if part == "all" else 12),
            dict(GREEDY, prompt=TEXT[:long], echo=True, max_tokens=3),
            dict(DRAWN, prompt="x", presence_penalty=0.5),
            dict(GREEDY, prompt=TEXT[:90], prompt_logprobs=1, max_tokens=2)]


def essence(answer):
    return answer["system_fingerprint"], answer["model"], [
        (c["index"], c["text"], c["token_ids"], c["logprobs"], c.get("prompt_logprobs"), c["finish_reason"])
        for c in sorted(answer["choices"], key=lambda c: c["index"])]


def ask(server, model, body):
    return essence(server.complete(model=model, **body))


def post(server, path, body, headers=ADMIN):
    status, data, head = server.request("POST", path, body, headers)
    return status, data.decode(), head


def load(server, name, folder, **more):
    status, text, _ = post(server, "/v1/load_lora_adapter",
                           dict(lora_name=name, lora_path=f"{tmp}/{folder}", **more))
    return status, text


def unload(server, name):
    return post(server, "/v1/unload_lora_adapter", dict(lora_name=name))[:2]


def names(server):
    return [m["id"] for m in json.loads(server.request("GET", "/v1/models")[1])["data"]]


def numbers(answer):
    c = answer["choices"][0]["logprobs"]
    return [float(x) for x in c["token_logprobs"] if x is not None]


# ---- alone: without adapters, then each in a server that has them ----
asked = bodies(240)
plain = Server(MODEL)
base = [ask(plain, "m", b) for b in asked]
score = dict(prompt=TEXT[:200], max_tokens=0, echo=True, logprobs=0)
of_base = plain.complete(**score)
plain.stop()

s = Server(MODEL, *ADAPTERS, "--admin-key-file", f"{tmp}/admin-keys", "--prefix-cache", "off")
claim("a server with adapters starts", s.port is not None, s.err)
alone = {m: [ask(s, m, b) for b in asked] for m in ("m", "a", "b")}
claim("the model itself answers as without adapters", alone["m"] == base)
for m, other in (("a", "m"), ("b", "m"), ("a", "b")):
    claim(f"{m} answers otherwise than {other}", all(x[2] != y[2] for x, y in zip(alone[m], alone[other])))
claim("an answer names its adapter", all(x[1] == m for m in alone for x in alone[m]))
prints = {m: alone[m][0][0] for m in alone}
DIGEST = {m: os.popen(f"{os.environ['BIN']}/reshard digest {tmp}/{m}").read().split()[1] for m in "ab"}
claim("a fingerprint has the adapter's digest behind the model's",
      all(prints[m].startswith(prints["m"] + "-lora-" + DIGEST[m]) for m in "ab"), prints)
of_a = s.complete(model="a", **score)
s.stop()

s = Server(os.path.join(tmp, "merged"))
of_merged = s.complete(**score)
far = max(abs(x - y) for x, y in zip(numbers(of_a), numbers(of_merged)))
claim("the merged folder's log-probs are near", far < (0.1 if "bf16" in prints["m"] else 1e-3), far)
claim("far from the model's own", max(abs(x - y) for x, y in zip(numbers(of_a), numbers(of_base))) > 0.5)
claim("and have other bits", numbers(of_a) != numbers(of_merged))
s.stop()


# ---- mixtures ----
def mixture(what, server, times=1, models=("m", "a", "b"), which=None):
    jobs, want = [], []
    for _ in range(times):
        for i in range(len(asked)) if which is None else which:
            for m in models:
                jobs.append(lambda m=m, i=i: ask(server, m, asked[i]))
                want.append(alone[m][i])
    got = together(jobs)
    wrong = [i for i in range(len(got)) if got[i] != want[i]]
    claim(f"{what}: every answer of a mixture is that of its request alone", not wrong,
          (wrong, str(got[wrong[0]])[:300], str(want[wrong[0]])[:300]) if wrong else "")


LAYOUTS = [("--tp", 2, "--max-batch", 5, "--prefill-chunk", 50)]
if part == "all":
    FEW = f"{480 if 'bf16' in prints['m'] else 960}KiB"                # six pages
    LAYOUTS = [("--tp", 1), ("--tp", 1, "--max-batch", 6, "--ctx", 320, "--kv-memory", FEW),
               ("--tp", 2, "--prefill-chunk", 30), ("--tp", 4, "--prefix-cache", "off"),
               ("--tp", 8, "--max-batch", 40),
               ("--cp", 2, "--prefill-chunk", 130), ("--tp", 2, "--cp", 2), ("--pp", 2),
               ("--pp", 2, "--tp", 2),
               ("--replicas", 2), ("--replicas", 2, "--tp", 2, "--threads", 2), ("--speculate", "ngram:4"),
               ("--tp", 2, "--speculate", "suffix"), ("--speculate", f"{tmp}/hf:3")]
for layout in LAYOUTS:
    s = Server(MODEL, *ADAPTERS, *layout)
    if claim(f"{layout} starts", s.port is not None, s.err):
        mixture(layout, s, 1 + (part == "all"))
        if "--kv-memory" in layout:                                    # sequences that begin with a page, and grow
            mixture(f"{layout}, preempted", s, 3, which=[2])
            told = s.request("GET", "/metrics")[1].decode()
            claim("some were preempted",
                  int(re.search(r"^vllm:num_preemptions_total\{.*\} (\d+)", told, re.M)[1]) > 0)
    rc, err = s.stop()
    claim(f"{layout} ends well", rc == 0, (rc, err))
if part == "all":
    for drafter in ("random", "replay"):
        os.environ["SHARDLINE_DRAFTER"] = drafter
        s = Server(MODEL, *ADAPTERS, "--speculate", "ngram:5")
        mixture(f"drafts {drafter}", s, 2)
        s.stop()
        del os.environ["SHARDLINE_DRAFTER"]

# ---- the trainer's log-probs ----
s = Server(MODEL, "--lora", f"t={tmp}/trained", *ADAPTERS)
for w in [json.loads(line) for line in open(f"{tmp}/eval.jsonl")][:3]:
    got = s.complete(model="t", prompt=w["ids"], max_tokens=1, echo=True,
                     logprobs=0)["choices"][0]["logprobs"]
    claim("the log-probs of an adapter are the trainer's, bit for bit",
          [x and bits(x) for x in got["token_logprobs"][:len(w["ids"])]] == [x and bits(x) for x in w["logprobs"]],
          (got["token_logprobs"][:4], w["logprobs"][:4]))
s.stop()

# ---- the routes, and a server that adapters come to and go from ----
with open(f"{tmp}/template", "w") as f:
    f.write("{% for m in messages %}{{ m.content }}\n{% endfor %}")
s = Server(MODEL, "--lora", f"a={tmp}/a", "--admin-key-file", f"{tmp}/admin-keys", "--chat-template",
           f"{tmp}/template",
           *(("--replicas", 2, "--tp", 2) if part == "all" else ()))
models = json.loads(s.request("GET", "/v1/models")[1])["data"]
claim("/v1/models lists them with their parent",
      [(m["id"], m["parent"]) for m in models] == [("m", None), ("a", "m")]
      and models[1]["root"] == f"{tmp}/a", models)
claim("/v1/models/NAME", json.loads(s.request("GET", "/v1/models/a")[1])["id"] == "a")
for path in ("/v1/models/b", "/models/aa"):
    claim(f"{path}: 404", s.request("GET", path)[0] == 404)
said = [{"role": "user", "content": "x"}]
for path, body in (("/v1/completions", dict(prompt="x", max_tokens=2)), ("/tokenize", dict(prompt="x")),
                   ("/v1/chat/completions", dict(messages=said, max_tokens=2)),
                   ("/detokenize", dict(tokens=[120])),
                   ("/v1/responses", dict(input="x", max_output_tokens=2)),
                   ("/v1/messages", dict(messages=said, max_tokens=2)),
                   ("/v1/messages/count_tokens", dict(messages=said)),
                   ("/inference/v1/generate", dict(token_ids=[120], sampling_params=dict(max_tokens=2))),
                   ("/v1/embeddings", dict(input="x"))):
    status, text, _ = post(s, path, dict(body, model="a"))
    claim(f"{path} takes an adapter", status == 200 and json.loads(text).get("model", "a") == "a", text)
    status, text, _ = post(s, path, dict(body, model="b"))
    claim(f"{path} does not know others",
          status == 404 and "served here" in json.loads(text)["error"]["message"], text)
vectors = [json.loads(post(s, "/v1/embeddings", dict(input="x", model=m))[1])["data"] for m in ("m", "a")]
claim("embeddings are the adapter's", vectors[0] != vectors[1])

# what is cached for one is not found for another, nor by a salt that is made for it
long = dict(prompt=TEXT[:200], max_tokens=1, temperature=0)
digest = s.complete(model="a", **long)["system_fingerprint"].split("-lora-")[1]


def cached(**more):
    return s.complete(**long, **more)["usage"]["prompt_tokens_details"]["cached_tokens"]


if part != "all":
    claim("pages are kept for an adapter", cached(model="a") == 192)
    claim("and for it alone", [cached(), cached(model="a", cache_salt="x")] == [0, 0])
    claim("no salt stands for an adapter",
          [cached(cache_salt=x) for x in ("a" + digest, digest, "a")] == [0, 0, 0])

# refusals: one line, nothing changes
for what, args, status, words in (
        ("an adapter of another model", ("x", "wrong"), 400, ("lora_", "of the model is [")),
        ("a value that is not finite", ("x", "nan"), 400, ("not finite",)),
        ("a module that the model lacks", ("x", "far"), 400, ("the model has no weight",)),
        ("a rank that is too large", ("x", "wide"), 400, ("has rank 65, this server has room for rank 64",)),
        ("no folder", ("x", "none"), 400, ("cannot open",)),
        ("a model", ("x", "hf"), 400, ("adapter_config.json",)),
        ("a name that is taken", ("a", "b"), 400, ("The lora adapter 'a' has already been loaded",)),
        ("the model's name", ("m", "b"), 400, ("name of the model itself",)),
        ("a name that is too long", ("x" * 256, "b"), 400, ("256 bytes, must have 1 to 255",)),
        ("no name", ("", "b"), 400, ("Both 'lora_name' and 'lora_path' must be provided",))):
    got, text = load(s, *args)
    message = json.loads(text)["error"]["message"]
    claim(f"{what}: {status}", got == status and all(w in message for w in words) and "\n" not in message,
          text)
for body in (dict(lora_name="x"), dict(lora_name="x", lora_path="y", more=1),
             dict(lora_name=5, lora_path="y"),
             dict(lora_name="x", lora_path="y", load_inplace="z"), [], "{"):
    claim(f"{body}: 400", post(s, "/v1/load_lora_adapter", body)[0] == 400)
claim("an operator's key is needed",
      post(s, "/v1/load_lora_adapter", dict(lora_name="x", lora_path="y"), {})[0] == 401)
claim("to unload what is not there", unload(s, "x")[0] == 404)
claim("nothing has changed", names(s) == ["m", "a"], names(s))

# beside requests
stream, told = dict(prompt=TEXT[:100], max_tokens=400, temperature=0, ignore_eos=True,
                    return_token_ids=True), {}


def ids_of(events):
    return [i
            for e, _ in events if e[0] == "{" for c in json.loads(e)["choices"] for i in c.get("token_ids") or ()]


want = {m: s.complete(model=m, **stream)["choices"][0]["token_ids"] for m in ("m", "a")}
threads = [threading.Thread(target=lambda m=m: told.update({m: s.stream(model=m, **stream)})) for m in ("m",
    "a")]
for t in threads:
    t.start()
time.sleep(0.15)
claim("an adapter is loaded beside streams", load(s, "b", "b") ==
      (200, "Success: LoRA adapter 'b' added successfully."))
claim("and answers", [ask(s, "b", b) for b in asked[:2]] == alone["b"][:2])
claim("another one takes its name", load(s, "b", "c", load_inplace=True)[0] == 200)
claim("with other answers", ask(s, "b", asked[0])[2] != alone["b"][0][2])
RUNNING = (r'^vllm:lora_requests_info\{max_lora="\d+",running_lora_adapters="a",'
           r'waiting_lora_adapters=""\} 1\d{9}\.\d+')
for _ in range(100):  # the last answer's adapter is named until the step that runs now has ended
    metrics = s.request("GET", "/metrics")[1].decode()
    named = re.search(RUNNING, metrics, re.M)
    if named or not threads[1].is_alive():
        break
    time.sleep(0.05)
claim("metrics name the adapters of running requests", named or not threads[1].is_alive(),
      re.findall("^vllm:lora.*", metrics, re.M))
claim("one that is in use is unloaded",
      unload(s, "a") == (200, "Success: LoRA adapter 'a' removed successfully."))
claim("its name is gone",
      names(s) == ["m", "b"] and post(s, "/v1/completions", dict(prompt="x", model="a"))[0] == 404)
for t in threads:
    t.join(60)
for m in want:
    claim(f"the stream of {m} was not changed", ids_of(told[m][1]) == want[m], len(ids_of(told[m][1])))
claim("it comes back with its bits", load(s, "a", "a")[0] == 200 and ask(s, "a", asked[0]) == alone["a"][0])
for i in range(20 if part == "all" else 5):
    ok = load(s, f"n{i}", "c")[0] == 200 and unload(s, f"n{i}")[0] == 200
    if not ok:
        break
claim("adapters come and go", ok, i)
if part == "all":
    mixture("loaded later", s, 1, ("m", "a"))
    status, text, _ = post(s, "/admin/reload", dict(checkpoint=f"{tmp}/merged"))
    claim("other weights below an adapter", status == 200 and ask(s, "a", asked[0])[2] != alone["a"][0][2],
          text)
    claim("both digests are named", "-lora-" + DIGEST["a"] in ask(s, "a", asked[0])[0])
    post(s, "/admin/reload", dict(checkpoint=MODEL))
    mixture("the weights are back", s, 1, ("m", "a"))
rc, err = s.stop()
claim("ends well", rc == 0, (rc, err))
claim("the log says what was read", "adapter read in" in err and "an adapter is refused" in err, err)
finish()
