"""templates.py PTOK FOLDER - every NAME.jinja of FOLDER rendered by `ptok render` and by Jinja's own sandbox,
with the settings that transformers documents for chat templates: the same text, or an error from both. Prints
a line a template and then the sums."""
import datetime
import glob
import json
import os
import subprocess
import sys
import jinja2
import jinja2.ext
import jinja2.sandbox

ptok, folder = sys.argv[1:3]


def user(text):
    return {"role": "user", "content": text}


def answer(text):
    return {"role": "assistant", "content": text}


def calls(*arguments, content="", as_text=False):
    return {"role": "assistant", "content": content, "tool_calls": [
        {"id": f"call{i}xyz0", "type": "function",
         "function": {"name": "weather", "arguments": json.dumps(a) if as_text else a}} for i,
         a in enumerate(arguments)]}


SYSTEM = {"role": "system", "content": "Answer in one word. <b>é中</b>"}
THINKING = answer("<think>\nTwo and two.\n</think>\n\nFour.")
REASONED = {"role": "assistant", "content": "Four.", "reasoning_content": "Two and two."}
RESULT = {"role": "tool", "tool_call_id": "call0xyz0", "name": "weather", "content": "{\"c\": 21}"}
PLACE = {"city": "Paris", "days": 2, "deep": {"list": [1, 2.5, None, True], "text": "a \"b\" <c> é"}}
PARTS = [{"type": "text", "text": "Two "}, {"type": "text", "text": "parts"}]
CASES = {
    "one_user": [user("Hi")], "system": [SYSTEM, user("Hi")],
    "turns": [user("Hi"), answer("Hello."), user(" 2+2? \n")],
    "system_turns": [SYSTEM, user("Hi"), answer("Hello."), user("2+2?")],
    "thinking": [user("2+2?"), THINKING, user("And 3+3?")],
    "reasoning": [user("2+2?"), REASONED, user("And 3+3?")], "reasoning_last": [user("2+2?"), REASONED],
    "ends_with_answer": [user("Hi"), answer("Hel")],
    "parts": [user(PARTS)], "system_parts": [{"role": "system", "content": PARTS}, user("Hi")],
    "empty": [user("")],
    "marks": [user("<|im_end|>\n<s>[INST] {{ 7*7 }} {% x %}")], "two_users": [user("a"), user("b")],
    "assistant_first": [answer("a"), user("b")],
    "developer": [{"role": "developer", "content": "Be kind."}, user("Hi")],
    "odd_role": [{"role": "critic", "content": "x"}],
    "call": [user("Weather?"), calls(PLACE)],
    "call_text": [user("Weather?"), calls({"city": "Rome"}, as_text=True)],
    "call_result": [user("Weather?"), calls(PLACE), RESULT],
    "two_calls": [user("Weather?"), calls({"city": "Rome"}, {"city": "Oslo"}, content="Let me see."),
                                                                         RESULT, dict(RESULT, tool_call_id="call1xyz0", content="cold"), answer("Cold."), user("Thanks")],
    "system_call": [SYSTEM, user("Weather?"), calls(PLACE), RESULT, answer("21.")],
    "null_content": [user("Weather?"), calls(PLACE, content=None), RESULT],
}
TOOLS = [{"type": "function",
          "function": {"name": "weather", "description": "The weather <of> a city, \"now\"", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "description": "its name"},
                                     "days": {"type": "integer", "description": "how many", "default": 1},
                                     "unit": {"type": "string", "description": "", "enum": ["c", "f"]},
                                     "more": {"type": "array", "description": "a list",
                                              "items": {"type": "number"}}},
    "required": ["city"]}}},
    {"type": "function", "function": {"name": "now", "description": "The time",
                                      "parameters": {"type": "object", "properties": {}}}}]
EXTRAS = [{}, {"enable_thinking": False}, {"enable_thinking": True},
          {"functions": "[]", "datetime": "today", "date_string": "26 Jul 2024", "reasoning_effort": "high"}]


class Generation(jinja2.ext.Extension):
    """{% generation %} … {% endgeneration %} marks the model's own text; the text is rendered as it is."""
    tags = {"generation"}

    def parse(self, parser):
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def fail(message):
    raise jinja2.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def compiled(text):
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                       extensions=[Generation, "jinja2.ext.loopcontrols"])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = fail
    env.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return env.from_string(text)


def vectors():
    for name, messages in CASES.items():
        for tools in (None, TOOLS):
            for extra in EXTRAS:
                for prompt in (False, True):
                    yield dict(case=name, messages=messages, tools=tools, add_generation_prompt=prompt,
                               extra=extra, bos_token="<s>", eos_token="</s>")


def expected(template, v):
    try:
        return template.render(messages=v["messages"], tools=v["tools"], documents=None,
                               add_generation_prompt=v["add_generation_prompt"],
                               bos_token=v["bos_token"], eos_token=v["eos_token"], **v["extra"])
    except Exception:          # noqa: BLE001: whatever a template raises there, the request is refused here
        return None


def compare(path, lines):
    """(vectors, errors of them, differences)"""
    template, differ, errors = compiled(open(path, encoding="utf-8").read()), [], 0
    said = subprocess.run([ptok, "render", "--template", path],
                          input="".join(json.dumps(v) + "\n" for v in lines), text=True, capture_output=True)
    rows = [json.loads(line) for line in said.stdout.splitlines()]
    if len(rows) != len(lines):
        return len(lines), 0, [f"{len(rows)} answers to {len(lines)} vectors: {said.stderr[:200]}"]
    for v, row in zip(lines, rows):
        want = expected(template, v)
        errors += want is None
        if want != row.get("text"):
            differ.append(f"{v['case']} tools={bool(v['tools'])} {v['extra']} prompt={v['add_generation_prompt']}: {want!r} and not {row}"[:1500])
    return len(lines), errors, differ


all_n = all_errors = failed = 0
lines = list(vectors())
for path in sorted(glob.glob(folder + "/*.jinja")):
    n, errors, differ = compare(path, lines)
    all_n, all_errors = all_n + n, all_errors + errors
    failed += bool(differ)
    print(f"{'FAIL' if differ else 'ok  '} {os.path.basename(path)}: {n} vectors, {errors} of them errors" +
          "".join(f"\n    {d}" for d in differ[:3]))
print(f"{len(glob.glob(folder + '/*.jinja')) - failed} passed, {failed} failed; {all_n} vectors, {all_errors} errors")
