"""grammar_suite.py PTOK SUITE MASKBENCH: every schema of both, its valid and invalid instances through `ptok accepts`."""

import base64
import collections
import glob
import json
import subprocess
import sys
import tempfile

ptok, suite, maskbench = sys.argv[1:]
count = collections.Counter()


def lines_of(tests):
    """The instances as JSON texts, in three ways of writing them."""
    ways = [{}, {"ensure_ascii": False, "indent": 2}, {"separators": (",", ":")}]
    for i, test in enumerate(tests):
        text = json.dumps(test["data"], **ways[i % 3]).encode("utf-8", "surrogatepass")
        yield json.dumps({"n": i, "text_b64": base64.b64encode(text).decode()})


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


def peer_passes(guide, tokenizer, case):
    """Does llguidance pass the schema: valid instances accepted, invalid ones refused?"""
    m = guide.LLMatcher(tokenizer, guide.LLMatcher.grammar_from_json_schema(case["schema"]))
    if m.is_error():
        return False
    for test in case["tests"]:
        one = m.deep_copy()
        ids = tokenizer.tokenize_str(json.dumps(test["data"], ensure_ascii=False))
        accepted = one.try_consume_tokens(ids) == len(ids) and one.is_accepting()
        if accepted != test["valid"]:
            return False
    return True


def run_maskbench(file):
    try:
        import llguidance as guide

        tokenizer = guide.LLTokenizer("byte")
    except ImportError:
        guide = tokenizer = None
    peer = 0
    for path in sorted(glob.glob(f"{maskbench}/**/*.json", recursive=True)):
        with open(path, encoding="utf-8") as f:
            case = json.load(f)
        count["maskbench " + run(path, case["schema"], case["tests"], file)] += 1
        if guide:
            try:
                peer += peer_passes(guide, tokenizer, case)
            except Exception:  # whatever it raises: it does not pass
                pass
    passed = count["maskbench pass"]
    total = sum(n for word, n in count.items() if word.startswith("maskbench"))
    if passed >= 0.95 * total > 0:
        print("maskbench share ok")
    if guide:
        print(f"llguidance: {peer} of {total} pass, ours: {passed}")
        if passed > peer:
            print("more than llguidance")


with tempfile.NamedTemporaryFile("w+", suffix=".json") as schema_file:
    run_suite(schema_file)
    run_maskbench(schema_file)
print(dict(sorted(count.items())))
print(f"wrong accepts: {count['wrong accepts']}")
print(f"nameless refusals: {count['nameless']}")
