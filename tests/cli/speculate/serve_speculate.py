"""serve_speculate.py CHECKPOINT OTHER BROKEN few|usual|experts|all - answers with --speculate are those without, bit for bit:
drafts from the text, by chance, from earlier answers, in every layout, when pages run out, with every field
that looks at earlier tokens. OTHER is a model of the same tokens; BROKEN has a token whose embedding is NaN: as a draft it changes nothing."""
import json
import os
import re
import subprocess
import sys
from serve_server import Server, claim, finish, together

checkpoint, other, broken, part = sys.argv[1:5]
os.environ["SHARDLINE_DEVICE"] = os.path.join(os.environ["BIN"], "..", "tests", "devices", "fake_device.so")
NAN_ID = 250
TEXT = "".join(f"line {i}: {i * i} is the square of {i}\n" for i in range(11, 15))
LONG = TEXT * 3
GREEDY = dict(max_tokens=60 if part == "all" else 40, temperature=0, ignore_eos=True, return_token_ids=True)
DRAWN = dict(GREEDY, temperature=0.7, top_p=0.95, seed=5)
PROMPTS = [TEXT, LONG, "line", "the square of the square of", [10], TEXT[:64], TEXT[:63]]


def essence(answer):
    answer["usage"].pop("prompt_tokens_details", None)            # what others have left in the cache
    return [(c["index"], c["text"], c["token_ids"], c["logprobs"], c["finish_reason"], c.get("stop_reason"),
             c.get("prompt_logprobs")) for c in sorted(answer["choices"], key=lambda c: c["index"])], answer["usage"]


def ask(server, body):
    def plain():
        return essence(server.complete(**body))

    def streamed():
        events = [json.loads(e) for e, _ in server.stream(**body)[1] if e != "[DONE]"]
        for e in events:
            e.pop("id"), e.pop("created"), (e.get("usage") or {}).pop("prompt_tokens_details", None)
        return sorted(json.dumps(e) for e in events)
    return streamed if body.get("stream") else plain


def counters(server):
    text = server.request("GET", "/metrics")[1].decode()
    names = ("drafts", "draft_tokens", "accepted_tokens")
    found = [re.findall(rf"^vllm:spec_decode_num_{n}_total\{{.*\}} (\d+)", text, re.M) for n in names]
    each = {}                                                     # of all replicas together, by position
    for at, n in re.findall(r"^vllm:spec_decode_num_accepted_tokens_per_pos_total\{.*position=\"(\d+)\".*\} (\d+)", text, re.M):
        each[int(at)] = each.get(int(at), 0) + int(n)
    return [sum(map(int, n)) if n else None for n in found], [each[k] for k in sorted(each)]


def bodies(server):
    """Every field that looks at earlier tokens. Stop strings and ids come from the answers themselves, so that
    they end them in the middle."""
    plain = server.complete(prompt=LONG, **GREEDY)["choices"][0]
    text, ids = plain["text"], plain["token_ids"]
    common = [dict(prompt=p, logprobs=2, echo=True, **GREEDY) for p in PROMPTS]
    drawn = [dict(prompt=p, logprobs=1, n=3, **DRAWN) for p in PROMPTS[:4]]
    changed = [dict(how, prompt=LONG, **more) for how in (GREEDY, DRAWN) for more in (
        dict(presence_penalty=0.7, frequency_penalty=0.3), dict(repetition_penalty=1.3, logprobs=0),
        dict(logit_bias={str(ids[3]): -4, str(ids[7]): 2}), dict(min_p=0.05, top_k=20),
        dict(bad_words=["e s", "1", text[20:30]]), dict(allowed_token_ids=sorted(set(ids[:9]))),
        dict(stop=[text[21:25]]), dict(stop=[text[30:33], "~~"], include_stop_str_in_output=True),
        dict(stop=[text[5:7]], min_tokens=30), dict(stop_token_ids=[ids[17]]),
        dict(stop_token_ids=[ids[17]], min_tokens=25, ignore_eos=False),
        dict(prompt_logprobs=2), dict(logprob_token_ids=[10, 49], logprobs=1), dict(max_tokens=1), dict(max_tokens=2),
        dict(max_tokens=3, n=2), dict(stream=True, n=2), dict(stream=True, logprobs=1, stop=[text[21:25]],
                                                             stream_options=dict(include_usage=True)))]
    return common + drawn + changed


def compare(name, got, want, asked):
    for body, g, w in zip(asked, got, want):
        what = {k: v for k, v in body.items() if k != "prompt"}
        claim(f"{name}: {what} is as without", g == w, f"{str(g)[:300]} expected {str(w)[:300]}")


def bench(s):
    """pbench says what came of drafts; the second of two equal answers is guessed."""
    with open(os.path.join(os.environ["TMP"], "prompts"), "w") as f:
        f.write(json.dumps(TEXT) + "\n" + json.dumps([10, 108]) + "\n")
    r = subprocess.run([os.path.join(os.environ["BIN"], "pbench"), "--url", f"http://{s.host}:{s.port}", "--requests",
                        "4", "--concurrency", "1", "--output-tokens", "40", "--prompts", f.name, "--json"],
                       capture_output=True, text=True)
    j = json.loads(r.stdout or "{}")
    claim("pbench reads prompts", j.get("total_input_tokens") == 2 * (len(TEXT) + 2), (j, r.stderr))
    n, tokens, right = (j.get(f"spec_decode_{k}", -1) for k in ("num_drafts", "draft_tokens", "accepted_tokens"))
    claim("and prints what came of drafts", 0 < n <= right < tokens
          and abs(j["spec_decode_acceptance_length"] - 1 - right / n) < 1e-6
          and abs(j["spec_decode_acceptance_rate"] - 100 * right / tokens) < 1e-4, j)


def serve(name, args, drafter=None, folder=checkpoint):
    os.environ.pop("SHARDLINE_DRAFTER", None)
    if drafter:
        os.environ["SHARDLINE_DRAFTER"] = drafter
    s = Server(folder, *args)
    os.environ.pop("SHARDLINE_DRAFTER", None)
    return s if claim(f"{name}: starts", s.port is not None, b"".join(s.err)) else None


s = Server(checkpoint)
requests = bodies(s)
want = [ask(s, b)() for b in requests]
long = [dict(prompt=LONG[:50 + i] * 2, logprobs=0, **dict(GREEDY, max_tokens=150)) for i in range(6)]
want_long = [ask(s, b)() for b in long]
claim("a server without drafts says nothing of them", counters(s) == ([None] * 3, []), counters(s))
s.stop()

FEW = ("--ctx", 512, "--kv-memory", 1800000, "--verbose")
SERVERS = [("ngram", ("--speculate", "ngram"), None),
           ("by chance, tp 2, few pages", ("--speculate", "ngram:5", "--tp", 2, *FEW), "random"),
           ("replayed, chunks of 7", ("--speculate", "ngram:9", "--prefill-chunk", 7), "replay"),
           ("its own model", ("--speculate", checkpoint + ":4"), "always")]
MORE = [("replayed, on a device", ("--speculate", "ngram:7", "--device", "cuda"), "replay"),
        ("its own model, on a device", ("--speculate", checkpoint + ":4", "--device", "cuda", "--tp", 2), "always"),
        ("its own model at tp 2, on a device", ("--speculate", checkpoint + ":4", "--device", "cuda", "--tp", 2, "--speculate-tp", 2), "always"),
        ("ngram:5, few pages", ("--speculate", "ngram:5", *FEW), "ngram"),
        ("another model, tp 2, few pages", ("--speculate", other + ":3", "--tp", 2, "--ctx", 512, "--kv-memory", 3600000, "--verbose"), "always"),
        ("its own model on two of four ranks, few pages", ("--speculate", checkpoint + ":4", "--tp", 4, "--speculate-tp", 2, "--ctx", 512,
                                                           "--kv-memory", 3600000, "--verbose"), "always"),
        ("another model at tp 4, cp 2, tp 2, chunks of 7", ("--speculate", other + ":3", "--cp", 2, "--tp", 2, "--speculate-tp", 4,
                                                            "--prefill-chunk", 7), "always"),
        ("its own model at tp 2, pp 2", ("--speculate", checkpoint + ":5", "--tp", 2, "--speculate-tp", 2, "--pp", 2), "always"),
        ("its own model at tp 2, 2 replicas", ("--speculate", checkpoint, "--tp", 2, "--speculate-tp", 2, "--replicas", 2), "always"),
        ("its own model at tp 2, machines of one rank", ("--speculate", checkpoint, "--tp", 2, "--speculate-tp", 2, "--ranks-per-node", 1), "always"),
        ("suffix, tp 2", ("--speculate", "suffix:7", "--tp", 2), "suffix"),
        ("its own model, cp 2, tp 2", ("--speculate", checkpoint, "--cp", 2, "--tp", 2), "always"),
        ("its own model, 2 replicas", ("--speculate", checkpoint + ":5", "--replicas", 2), "always"),
        ("its own model, pp 2, when it pays", ("--speculate", checkpoint + ":5", "--pp", 2), None),
        ("by chance, tp 4, chunks of 7", ("--speculate", "ngram:6", "--tp", 4, "--prefill-chunk", 7), "random"),
        ("replayed, cp 2", ("--speculate", "ngram:9", "--cp", 2), "replay"),
        ("replayed, pp 2", ("--speculate", "ngram:4", "--pp", 2), "replay"),
        ("replayed, few pages", ("--speculate", "ngram:16", *FEW), "replay"),
        ("by chance, no prefix cache", ("--speculate", "ngram:2", "--prefix-cache", "off"), "random"),
        ("replayed, cp 2, tp 2, chunks of 1", ("--speculate", "ngram:7", "--cp", 2, "--tp", 2, "--prefill-chunk", 1),
         "replay"),
        ("replayed, machines of one rank", ("--speculate", "ngram:7", "--cp", 2, "--ranks-per-node", 1), "replay"),
        ("by chance, 2 replicas", ("--speculate", "ngram:3", "--replicas", 2), "random"),
        ("replayed, pp 2, cp 2", ("--speculate", "ngram:8", "--pp", 2, "--cp", 2), "replay")]

EXPERTS = [("replayed, tp 2, ep 2", ("--speculate", "ngram:7", "--tp", 2, "--ep", 2), "replay"),
           ("by chance, cp 2, ep 2", ("--speculate", "ngram:5", "--cp", 2, "--ep", 2), "random"),
           ("its own model at tp 2, tp 2, ep 2", ("--speculate", checkpoint + ":4", "--tp", 2, "--ep", 2, "--speculate-tp", 2), "always"),
           ("its own model, tp 4, ep 4", ("--speculate", checkpoint + ":4", "--tp", 4, "--ep", 4), "always")]
# in the quick set: the two servers whose drafts are mostly wrong and mostly right
FEWER = [s for s in SERVERS if s[2] in ("random", "replay")]
pages = {}
for name, args, drafter in dict(few=FEWER, usual=SERVERS, experts=SERVERS + EXPERTS, all=SERVERS + MORE)[part]:
    s = serve(name, args, drafter)
    if not s:
        continue
    if drafter == "replay" or part == "all":              # a second answer is guessed from the first
        compare(name + ", alone", [ask(s, b)() for b in requests], want, requests)
    compare(name + ", together", together([ask(s, b) for b in requests]), want, requests)
    if "few" in name:
        compare(name, together([ask(s, b) for b in long]), want_long, long)
    pages[name] = int(re.search(r'num_gpu_blocks="(\d+)"', s.request("GET", "/metrics")[1].decode()).group(1))
    (drafts, tokens, right), each = counters(s)
    claim(f"{name}: drafts were checked", drafts > 0 and tokens >= drafts and right <= tokens, (drafts, tokens, right))
    claim(f"{name}: accepted tokens add up", sum(each) == right and sorted(each, reverse=True) == each, each)
    claim(f"{name}: drafts were right", right > 50 or drafter in ("random", None), right)
    if name == "its own model":
        claim("a model that agrees is right but behind an answer's end, whatever is drawn", right > 0.98 * tokens, (right, tokens))
    if name == "replayed, chunks of 7":
        bench(s)
    rc, err = s.stop()
    claim(f"{name}: ends well", rc == 0, f"{rc}: {err}")
    if "few" in name:
        claim(f"{name}: pages ran out", " 0 preempted" not in err and "preempted" in err, err)

if part == "all":
    both, one = pages["another model, tp 2, few pages"], pages["ngram:5, few pages"]
    claim("twice the --kv-memory has as many pages with a draft model of the same size", both == one > 0, (both, one))
# the same guesses at every tp of the draft model: as many are right at each place
few, counted = [b for b in requests if not b.get("stream")][::9], {}
for tp in (1, 2, 4) if part == "all" else (1, 2) if part == "few" else ():
    name = f"another model at tp {tp}"
    s = serve(name, ("--speculate", other + ":3", "--tp", 4 if part == "all" else 2, "--speculate-tp", tp), "always")
    compare(name, [ask(s, b)() for b in few], [want[requests.index(b)] for b in few], few)
    counted[tp] = counters(s)
    rc, err = s.stop()
    claim(f"{name}: ends well", rc == 0, f"{rc}: {err}")
claim("a draft model guesses the same at every tp", all(c == counted[1] for c in counted.values()) and
      all(0 < c[0][2] < c[0][1] for c in counted.values()), counted)
# a draft whose keys and values are NaN, in windows and behind them
s = Server(broken)
want = [ask(s, b)() for b in requests[:12]]
claim("the NaN is there", s.request("POST", "/v1/completions", dict(prompt=[NAN_ID], max_tokens=1))[0] == 500)
s.stop()
for tp in (1, 2) if part == "all" else (1,):
    s = serve("NaN", ("--speculate", "ngram:5", "--tp", tp), "random", broken)
    compare(f"drafts of NaN, tp {tp}", together([ask(s, b) for b in requests[:12]]), want, requests[:12])
    s.stop()
finish()
