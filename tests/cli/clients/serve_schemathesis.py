"""serve_schemathesis.py MODEL TMP - requests that schemathesis makes from openapi.json, valid and invalid,
are never answered with a 5xx, and every answer has a status, a content type and a schema that the file
names."""
import json
import re
import subprocess
import sys
from serve_server import Server, claim, finish

model, tmp = sys.argv[1:3]
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
EXAMPLES, SECONDS = 20, 60

s = Server(model, "--ctx", 256, "--max-batch", 8)
spec = json.loads(s.request("GET", "/openapi.json")[1])
# most generated requests would fail at a name, a length or a token that does not exist
HERE = {"model": {"const": "m"}, "max_tokens": {"maximum": 40}, "max_completion_tokens": {"maximum": 40},
        "min_tokens": {"maximum": 10}, "n": {"maximum": 4}}


def narrow(x):
    if isinstance(x, dict):
        if x.get("maximum") == 2**31 - 1:
            x["maximum"] = 255
        for k, v in x.items():
            if k in HERE and isinstance(v, dict):
                v.update(HERE[k])
            narrow(v)
    for v in x if isinstance(x, list) else ():
        narrow(v)


narrow(spec)
with open(f"{tmp}/openapi.json", "w") as f:
    json.dump(spec, f)
run = subprocess.run([sys.executable, "-m", "schemathesis.cli", "run", f"{tmp}/openapi.json", "--url",
                      f"http://{s.host}:{s.port}", "-c", CHECKS, "-n",
                      str(EXAMPLES), "--max-time", str(SECONDS), "--seed", "1", "--no-shrink",
                      "--generation-allow-x00", "false", "--phases", "examples,coverage,fuzzing",
                      "--request-timeout", "30", "--continue-on-failure"],
                     capture_output=True, text=True, cwd=tmp, timeout=200)
claim("schemathesis finds nothing", run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:])
done = re.findall(r'^vllm:request_success_total\{.*\} (\d+)', s.request("GET", "/metrics")[1].decode(), re.M)
claim("and some of it was good", sum(map(int, done)) > 0, done)
claim("the server is well", s.health() == 200)
rc, err = s.stop()
claim("and ends well", rc == 0, (rc, err))
finish()
