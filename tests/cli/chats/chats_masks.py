"""chats_masks.py PTOK TMP [TEMPLATES]: conversations through `ptok prepare` against transformers: the ids of
apply_chat_template, and the mask of return_assistant_tokens_mask where a template has {% generation %}. The
same templates without these marks must give the same masks by renderings. TEMPLATES: a folder of NAME.jinja files,
whose text of an answer is marked here. Prints a line a template. Status 1: some differ."""
import glob
import json
import os
import re
import struct
import subprocess
import sys

import numpy
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

ptok, tmp = sys.argv[1:3]
folder = sys.argv[3] if len(sys.argv) > 3 else ""
GEN, END = "{% generation %}", "{% endgeneration %}"
# an answer's text lies between the marks; the templates are this project's own
OWN = {
    "chatml": "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}{% if m.role == 'assistant' %}GEN"
              "{{ m.content + '<|im_end|>\\n' }}END{% else %}{{ m.content + '<|im_end|>\\n' }}{% endif %}{% endfor %}"
              "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    "headers": "{{ bos_token }}{% for m in messages %}<|h|>{{ m.role }}<|e|>\n\n{% if m.role == 'assistant' %}GEN"
               "{{ m.content | trim }}<|eot|>END{% else %}{{ m.content | trim }}<|eot|>{% endif %}{% endfor %}"
               "{% if add_generation_prompt %}<|h|>assistant<|e|>\n\n{% endif %}",
    "words": "{% for m in messages %}{% if m.role == 'assistant' %}### Answer:\nGEN{{ m.content }}\n\nEND{% else %}"
             "### {{ m.role }}:\n{{ m.content }}\n\n{% endif %}{% endfor %}"
             "{% if add_generation_prompt %}### Answer:\n{% endif %}",
}
TALKS = [
    [("user", "Hi"), ("assistant", "Hello there.")],
    [("system", "Be kind."), ("user", "2+2?"), ("assistant", "Four,\nI think."), ("user", " And é中?  "),
     ("assistant", "No “idea” — 日本 🙂")],
    [("user", "say <|im_end|> or <|eot|>"), ("assistant", "a b"), ("user", "x"), ("assistant", "y\n"), ("user", "z")],
    [("user", "only a question")],
]


def read_tokens(path):
    """A token file, by text/TOKENS.md: a list of ids and one of weights for each document."""
    b = open(path, "rb").read()
    version, width, count, vocab, documents, block = struct.unpack_from("<IIQQQQ", b, 8)
    assert b[:8] == b"SHLDTOK\n" and version == 3
    ids = numpy.frombuffer(b, f"<u{width}", count, 64).astype("int64")
    at = (64 + count * width + 7) // 8 * 8 + 8 * -(-count * width // block)
    ends = struct.unpack_from(f"<{documents}Q", b, at)
    at += 8 * documents
    chats, runs = struct.unpack_from("<QQ", b, at)
    assert chats == 1
    weights, done = [], 0
    for i in range(runs):
        end, w, zero = struct.unpack_from("<QfI", b, at + 16 + 16 * i)
        assert not zero
        weights += [w] * (end - done)
        done = end
    starts = (0,) + ends[:-1]
    return [(ids[a:z].tolist(), weights[a:z]) for a, z in zip(starts, ends)]


def tokenizer_for(template, name):
    """A byte-level BPE whose added tokens are the template's special words."""
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    corpus = [open(__file__).read(), template]
    t.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=700, show_progress=False,
                                                      initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    t.add_special_tokens(sorted({"<s>", "</s>", *re.findall(r"<[|｜][^<>{}'\" \n]{1,40}[|｜]>|<\w+_of_turn>|\[/?INST\]",
                                                            template)}))
    path = os.path.join(tmp, "tok-" + name)
    os.makedirs(path, exist_ok=True)
    t.save(path + "/tokenizer.json")
    json.dump({"bos_token": "<s>", "eos_token": "</s>", "chat_template": template,
               "tokenizer_class": "PreTrainedTokenizerFast"}, open(path + "/tokenizer_config.json", "w"))
    return path


def prepare(path, talks, *more):
    lines, out = os.path.join(tmp, "talks.jsonl"), os.path.join(tmp, "talks.bin")
    with open(lines, "w") as f:
        for talk in talks:
            f.write(json.dumps({"messages": [{"role": r, "content": c} for r, c in talk]}) + "\n")
    if os.path.exists(out):
        os.remove(out)
    r = subprocess.run([ptok, "prepare", "--tokenizer", path, lines, "--out", out, *more], capture_output=True, text=True)
    return read_tokens(out) if r.returncode == 0 else r.stderr.strip()


def compare(name, marked, talks):
    """0: equal to transformers with the marks, and by renderings without them."""
    path = tokenizer_for(marked, name)
    peer = transformers.PreTrainedTokenizerFast.from_pretrained(path)
    wrong = 0
    for form in (marked, marked.replace(GEN, "").replace(END, "")):
        json.dump({"bos_token": "<s>", "eos_token": "</s>", "chat_template": form,
                   "tokenizer_class": "PreTrainedTokenizerFast"}, open(path + "/tokenizer_config.json", "w"))
        ours = prepare(path, talks)
        if isinstance(ours, str):
            print(f"{name}: {ours}")
            return 1
        for talk, (ids, weights) in zip(talks, ours):
            messages = [{"role": r, "content": c} for r, c in talk]
            theirs = peer.apply_chat_template(messages, chat_template=marked, tokenize=True, return_dict=True,
                                              return_assistant_tokens_mask=True)
            special = any("<|" in c for r, c in talk)   # here special words in messages are plain text
            if special:
                answers = [peer.decode([i for i, w in zip(ids, weights) if w])]
                wrong += not all(c.strip() in answers[0] for r, c in talk if r == "assistant")
            elif ids != theirs["input_ids"] or [int(w != 0) for w in weights] != theirs["assistant_masks"]:
                wrong += 1
                print(f"{name}: {talk}\n  ours   {ids} {[int(w != 0) for w in weights]}\n  theirs {theirs}")
    print(f"{name}: {len(talks)} conversations, {wrong} differ")
    return wrong


bad = sum(compare(name, t.replace("GEN", GEN).replace("END", END), TALKS) for name, t in OWN.items())

# published templates: by renderings. What has a weight must decode to the answers, and the ids be transformers'.
taken = refused = 0
for file in sorted(glob.glob(folder + "/*.jinja")) if folder else []:
    name, template = os.path.basename(file)[:-6], open(file).read()
    path = tokenizer_for(template, name)
    peer = transformers.PreTrainedTokenizerFast.from_pretrained(path)
    for talk in (TALKS[0], TALKS[1][1:]):
        ours = prepare(path, [talk])
        if isinstance(ours, str):
            refused += 1
            bad += "\n" in ours or "Traceback" in ours or not ours.startswith("ptok: ")
            print(f"{name}: {ours[:200]}")
            continue
        messages = [{"role": r, "content": c} for r, c in talk]
        try:
            theirs = peer.apply_chat_template(messages, tokenize=True, return_dict=True)["input_ids"]
        except Exception as x:
            theirs = repr(x)
        ids, weights = ours[0]
        parts, was = [], 0
        for i, w in zip(ids, weights):
            if w and not was:
                parts.append([])
            if w:
                parts[-1].append(i)
            was = w
        said = [peer.decode(p) for p in parts]
        answers = [c.strip() for r, c in talk if r == "assistant"]
        fits = len(said) == len(answers) and all(a in s for a, s in zip(answers, said))
        users = any(c.strip() in s for r, c in talk if r == "user" and len(c) > 3 for s in said)
        # dates of today may change between two renderings; ids then differ outside of the answers
        if not fits or users or (ids != theirs and not isinstance(theirs, str)):
            bad += 1
            print(f"{name}: {said} for {answers}; ids {'as' if ids == theirs else 'not as'} transformers {str(theirs)[:80]}")
        taken += 1
if folder:
    print(f"published templates: {taken} conversations taken, {refused} refused in one line")
sys.exit(bad > 0)
