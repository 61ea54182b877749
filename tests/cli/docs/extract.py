"""extract.py PAGE.md PYTHON PORT URL - prints the commands of a page as one bash script; says on stderr what
it leaves out.

Blocks begin with ```sh. Words behind it: modules of Python that the block needs; "not run: WHY" for a block
that a test cannot run. A block that begins with ```python runs with PYTHON, and needs what its words name.
Each block is preceded by "echo @@ LINE", behind an empty line: what curl prints has no end of line."""
import re
import subprocess
import sys

page, python, port, url = sys.argv[1:5]
text = open(page, encoding="utf-8").read().replace(":8000", f":{port}").replace("--port 8000",
    f"--port {port}")
text = re.sub(r"\b(?:hf://[\w.-]+/[\w.-]+|https://host/[\w./-]+)", url + "/hf-model", text)
have = {}


def has(module):
    if module not in have:
        have[module] = subprocess.run([python, "-c", f"import {module}"], capture_output=True).returncode == 0
    return have[module]


commands = 0
for m in re.finditer(r"^```(sh|python)([^\n]*)\n(.*?)^```$", text, re.M | re.S):
    kind, words, body = m.group(1), m.group(2).strip(), m.group(3)
    line = text[:m.start()].count("\n") + 2
    if words.startswith("not run:"):
        print(f"line {line}: {words}", file=sys.stderr)
        continue
    missing = [w for w in words.split() if not has(w)]
    if missing:
        print(f"line {line}: no Python module {', '.join(missing)}", file=sys.stderr)
        continue
    print(f"echo\necho @@ line {line}")
    if kind == "sh":
        print(re.sub(r"\bpserve\b(?![^\n]*(?:--once|--help))([^\n&]*)&", rf"pserve\1--port {port} &", body)
              if f"--port {port}" not in body else body)
    else:
        print(f"{python} - <<'END_OF_BLOCK'\n{body}END_OF_BLOCK")
    commands += 1
if not commands:
    sys.exit(f"{page}: no block of commands")
