"""grammar_suite.py PTOK SUITE MASKBENCH: every schema of both, its valid and invalid instances through `ptok accepts`.

llguidance and xgrammar, where they are, are asked the same of MaskBench. A valid text that is refused must have a known reason."""

import base64
import collections
import glob
import json
import re
import subprocess
import sys
import tempfile

try:
    import llguidance as guide
except ImportError:
    guide = None
try:
    import xgrammar
    from xgrammar.testing import _is_grammar_accept_string as xgrammar_accepts
except ImportError:
    xgrammar = None

ptok, suite, maskbench = sys.argv[1:]
count = collections.Counter()

# what text/grammar/README.md calls narrower than the standard: a file of the suite, the test's name, the text
NARROWER = [
    ("formats assert", r"draft2020-12/format\.json", r"only an annotation by default", ""),
    ("times", r"format/(date-)?time\.json", r"leap second|case-insensitive|fifteen nines", ""),
    ("host names", r"format/hostname\.json", "", r"xn--"),
    ("addresses", r"format/email\.json", r"address-literal|quoted string", ""),
    ("whole numbers have no point", "", "", r"\d\.0\b"),
    ("classes of regexes", r"ecmascript-regex\.json", r"latin-1|NKO DIGIT|zero-width whitespace", ""),
    ("long numbers", r"float-overflow\.json", "", r"e\+?308"),
    ("vocabularies", r"vocabulary\.json", "no validation", ""),
]


def lines_of(tests):
    """The instances as JSON texts, in three ways of writing them."""
    ways = [{}, {"ensure_ascii": False, "indent": 2}, {"separators": (",", ":")}]
    for i, test in enumerate(tests):
        text = json.dumps(test["data"], **ways[i % 3]).encode("utf-8", "surrogatepass")
        yield json.dumps({"n": i, "text_b64": base64.b64encode(text).decode()})


def explain(name, test):
    """A valid text is refused: counts the reason."""
    text = json.dumps(test["data"])
    for reason, file, description, data in NARROWER:
        if re.search(file, name) and re.search(description, test.get("description", "")) and re.search(data, text):
            count[f"valid texts refused: {reason}"] += 1
            return
    print("no reason:", name, test.get("description", "")[:80], text[:80])
    count["valid texts refused without a reason"] += 1


def run(name, schema, tests, file):
    """ "pass", "refused" or "fail"."""
    file.seek(0)
    file.truncate()
    file.write(json.dumps(schema))
    file.flush()
    done = subprocess.run(
        [ptok, "accepts", "--schema", file.name],
        input="\n".join(lines_of(tests)) + "\n",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode:
        if done.returncode != 2 or done.stderr.count("\n") != 1 or len(done.stderr) < 40:
            print("nameless:", name, done.returncode, done.stderr)
            count["nameless"] += 1
        return "refused"
    word = "pass"
    for line, test in zip(done.stdout.splitlines(), tests, strict=True):
        accepted = json.loads(line)["accepted"]
        if accepted and not test["valid"]:
            print("wrong accept:", name, test.get("description", "")[:80])
            count["wrong accepts"] += 1
        if test["valid"] and not accepted:
            explain(name, test)
        if accepted != test["valid"]:
            word = "fail"
    return word


def run_suite(file):
    for draft in ("draft2020-12", "draft7"):
        for path in sorted(glob.glob(f"{suite}/tests/{draft}/**/*.json", recursive=True)):
            with open(path, encoding="utf-8") as f:
                groups = json.load(f)
            for group in groups:
                schema = group["schema"]
                if draft == "draft7" and isinstance(schema, dict):
                    schema = {"$schema": "http://json-schema.org/draft-07/schema#"} | schema
                count["suite " + run(path, schema, group["tests"], file)] += 1


def ask_llguidance(tokenizer, case):
    """What it accepts of the tests' texts, in order; raises where it refuses the schema."""
    m = guide.LLMatcher(tokenizer, guide.LLMatcher.grammar_from_json_schema(case["schema"]))
    if m.is_error():
        raise ValueError(m.get_error())
    for test in case["tests"]:
        one = m.deep_copy()
        ids = tokenizer.tokenize_str(json.dumps(test["data"], ensure_ascii=False))
        yield one.try_consume_tokens(ids) == len(ids) and one.is_accepting()


def ask_xgrammar(_, case):
    text = json.dumps(case["schema"])
    if len(text) > 20000:
        raise ValueError("it takes minutes")
    grammar = xgrammar.Grammar.from_json_schema(text, strict_mode=False)
    for test in case["tests"]:
        yield xgrammar_accepts(grammar, json.dumps(test["data"], ensure_ascii=False))


def peer_passes(name, ask, tokenizer, case):
    try:
        accepted = list(ask(tokenizer, case))
    except Exception:  # whatever it raises: it does not pass
        return
    wrong = sum(a and not t["valid"] for a, t in zip(accepted, case["tests"]))
    count[f"{name}: wrong accepts"] += wrong
    count[f"{name}: pass"] += accepted == [t["valid"] for t in case["tests"]]


def run_maskbench(file):
    tokenizer = guide.LLTokenizer("byte") if guide else None
    for path in sorted(glob.glob(f"{maskbench}/**/*.json", recursive=True)):
        with open(path, encoding="utf-8") as f:
            case = json.load(f)
        count["maskbench " + run(path, case["schema"], case["tests"], file)] += 1
        for peer, name, ask in ((guide, "llguidance", ask_llguidance), (xgrammar, "xgrammar", ask_xgrammar)):
            if peer:
                peer_passes(name, ask, tokenizer, case)
    passed = count["maskbench pass"]
    total = sum(n for word, n in count.items() if word.startswith("maskbench"))
    if passed >= 0.95 * total > 0:
        print("maskbench share ok")
    for name in [n for p, n in ((guide, "llguidance"), (xgrammar, "xgrammar")) if p]:
        peer = count[f"{name}: pass"]
        print(f"{name}: {peer} of {total} pass, ours: {passed}; wrong accepts: {count[f'{name}: wrong accepts']}")
        if passed > peer:
            print("more than", name)


with tempfile.NamedTemporaryFile("w+", suffix=".json") as schema_file:
    run_suite(schema_file)
    run_maskbench(schema_file)
for what, n in sorted(count.items()):
    print(f"{n:6} {what}")
print(f"wrong accepts: {count['wrong accepts']}")
print(f"nameless refusals: {count['nameless']}")
print(f"without a reason: {count['valid texts refused without a reason']}")
