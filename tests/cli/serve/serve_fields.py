"""serve_fields.py MODEL - fields of requests beside OpenAI's through a server: texts and tokens agree,
log-probs keep their bits; NaN weights are a 500."""
import json
import shutil
import struct
import sys
from serve_server import Server, claim, finish

model = sys.argv[1]
SPECIAL = ("<unk>", "<s>", "</s>")
WORDS = ["▁", "a", "b", "▁a", "▁b", "▁big", ";"] + ["i", "g", "ig", "big"]
MERGES = ["▁ a", "i g", "b ig", "▁ big"]


def write_tokenizer(folder):
    """As SentencePiece's: a word begins with its space, which the first word of a text loses; a text is
    encoded behind <s>."""
    vocab = {t: i for i, t in enumerate((*SPECIAL, "<0x0A>", "<0xC3>", "<0xA9>", *WORDS))}
    while len(vocab) < 256:
        vocab[f"x{len(vocab)}"] = len(vocab)
    json.dump({
        "version": "1.0",
        "added_tokens": [dict(id=i, content=t, single_word=False, lstrip=False, rstrip=False,
                              normalized=False, special=True) for i, t in enumerate(SPECIAL)],
        "normalizer": {"type": "Sequence",
                       "normalizers": [{"type": "Prepend", "prepend": "▁"},
                                       {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "post_processor": {"type": "TemplateProcessing",
                           "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                                      {"Sequence": {"id": "A", "type_id": 0}}],
                           "pair": [{"Sequence": {"id": "A", "type_id": 0}}],
                           "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "decoder": {"type": "Sequence",
                    "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                                 {"type": "ByteFallback"}, {"type": "Fuse"},
                                                     {"type": "Strip", "content": " ", "start": 1,
                                                      "stop": 0}]},
        "model": {"type": "BPE", "unk_token": "<unk>", "byte_fallback": True, "vocab": vocab,
                  "merges": MERGES}}, open(f"{folder}/tokenizer.json", "w"))
    json.dump({"bos_token": "<s>", "eos_token": "</s>"}, open(f"{folder}/tokenizer_config.json", "w"))
    return vocab


vocab = write_tokenizer(model)
s = Server(model, "--tp", 2)
claim("it starts", s.port is not None, s.err)


def chat(**body):
    status, data, _ = s.request("POST", "/v1/chat/completions", body)
    claim(f"a chat with {list(body)} is answered", status == 200, data)
    return json.loads(data, parse_float=str)


def logprobs(choice):
    return choice["logprobs"]["token_logprobs"]


# ---- texts: only these three words can come ----
words = [vocab[t] for t in ("▁a", "▁big", "ig")]
ASK = dict(prompt="big a", max_tokens=12, seed=3, logprobs=0, allowed_token_ids=words, return_token_ids=True)
whole = s.complete(**ASK)["choices"][0]
claim("only allowed tokens come", set(whole["token_ids"]) <= set(words), whole)
claim("the tokens' texts join to the text, the first space too",
      "".join(whole["logprobs"]["tokens"]) == whole["text"], whole)
for echo in (False, True):
    c = s.complete(**ASK, echo=echo)["choices"][0]
    _, events = s.stream(**ASK, echo=echo)
    pieces = [json.loads(e, parse_float=str)["choices"][0] for e, _ in events[:-1]]
    claim("a stream joins to the same", "".join(p["text"] for p in pieces) == c["text"]
          and sum((p["logprobs"]["text_offset"] for p in pieces), []) ==
          c["logprobs"]["text_offset"]
          and sum((p["logprobs"]["tokens"] for p in pieces), []) == c["logprobs"]["tokens"], (pieces, c))
    shown = [(t, o) for t, o in zip(c["logprobs"]["tokens"], c["logprobs"]["text_offset"]) if t != "<s>"]
    claim("every token stands in the text where its offset says",
          all(c["text"][o:o + len(t)] == t for t, o in shown), c)
    claim("an echo is the prompt and the answer",
          c["text"] == (ASK["prompt"] if echo else "") + whole["text"], c)
    claim("with the same bits", logprobs(c)[-12:] == logprobs(whole), c)
claim("the echo of a prompt's ids is that of its text",
      s.complete(**dict(ASK, prompt=whole["prompt_token_ids"]), echo=True)["choices"][0]["text"] == c["text"])

# ---- fields that choose tokens or what is said of them do not change log-probs ----
free = s.complete(prompt="big a", max_tokens=6, temperature=0, ignore_eos=True, logprobs=2,
                  return_token_ids=True)["choices"][0]
word = s.complete(prompt="big a", max_tokens=6, temperature=0, ignore_eos=True, logprobs=2,
                  allowed_token_ids=sorted(set(free["token_ids"])),
                  include_stop_str_in_output=True, truncation_side="right",
                  bad_words=["b b b b"])["choices"][0]
claim("with the same tokens come the same log-probs", word["logprobs"] == free["logprobs"], (word, free))
given = s.complete(prompt="big a", max_tokens=6, temperature=0, ignore_eos=True, logprobs=0,
                   logprob_token_ids=[*free["token_ids"], *words])["choices"][0]["logprobs"]
claim("log-probs of given ids", all(set(row) >= {" a", " big", "ig"} for row in given["top_logprobs"]), given)
claim("are the same bits, too", given["token_logprobs"] == logprobs(free) and
      all(row[t] == p for row, t, p in zip(given["top_logprobs"], given["tokens"], given["token_logprobs"])),
      (given, free))
bad = s.complete(prompt="big", max_tokens=20, seed=1, allowed_token_ids=words, bad_words=["a big"],
                 return_token_ids=True)["choices"][0]
claim("a bad word of two tokens does not come", " a big" not in bad["text"]
      and set(bad["token_ids"]) == set(words), bad)
status, data, _ = s.request("POST", "/v1/completions",
                            dict(prompt="big", allowed_token_ids=[vocab["▁a"]], bad_words=["a"]))
claim("where no token is left it is a 400", status == 400 and b"leave no token" in data, (status, data))
stop = s.complete(prompt="big", max_tokens=20, temperature=0, logit_bias={str(vocab["▁big"]): 100},
                  stop=" big b", include_stop_str_in_output=True)["choices"][0]
claim("a stop string can stay in the answer", stop["text"] == " big b" and stop["stop_reason"] == " big b",
      stop)

# ---- chats ----
TALK = dict(messages=[{"role": "user", "content": "big"}, {"role": "assistant", "content": "a b"}],
            max_tokens=3, temperature=0, ignore_eos=True)
on = dict(TALK, add_generation_prompt=False, continue_final_message=True)
text = chat(**on)["choices"][0]["message"]["content"]
claim("echo puts the last message before the answer",
      chat(**on, echo=True)["choices"][0]["message"]["content"] == "a b" + text)
scored = chat(**TALK, prompt_logprobs=1, return_token_ids=True)
rows = scored["prompt_logprobs"]
plain = s.complete(prompt=scored["prompt_token_ids"], max_tokens=3,
                   prompt_logprobs=1)["choices"][0]["prompt_logprobs"]
claim("a chat's prompt has log-probs, those of the same prompt elsewhere", rows == plain
      and len(rows) == len(scored["prompt_token_ids"]), rows)
s.p.terminate()
s.wait(60)

# ---- weights that are NaN ----
broken = model + "-nan"
shutil.copytree(model, broken)
with open(f"{broken}/model.safetensors", "r+b") as f:
    n = struct.unpack("<Q", f.read(8))[0]
    at = json.loads(f.read(n))["model.embed_tokens.weight"]
    width = (at["data_offsets"][1] - at["data_offsets"][0]) // at["shape"][0]
    f.seek(8 + n + at["data_offsets"][0] + vocab["▁big"] * width)
    f.write(b"\xff" * width)
s = Server(broken, "--tp", 1)
claim("a NaN in the weights does not stop the start", s.port is not None, s.err)
BIG, A = vocab["▁big"], vocab["▁a"]
for what, path, body in (("generation", "/v1/completions", dict(prompt=[1, BIG])),
                         ("an echo with log-probs", "/v1/completions",
                          dict(prompt=[1, BIG, A], echo=True, logprobs=0, max_tokens=0)),
                         ("prompt_logprobs", "/v1/completions",
                          dict(prompt=[1, BIG, A], prompt_logprobs=1, max_tokens=0)),
                         ("prompt_logprobs of a chat", "/v1/chat/completions",
                          dict(messages=[{"role": "user", "content": "big a"}], prompt_logprobs=0,
                               max_tokens=0))):
    status, data, _ = s.request("POST", path, body)
    claim(f"{what} on a NaN is a 500 that says so", status == 500
          and b"the model gives a NaN at position" in data, (status, data[:300]))
finish()
