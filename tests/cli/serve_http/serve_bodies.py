"""serve_bodies.py CHECKPOINT - what is not a request: an error body with a 4xx and the field's name, never a
5xx, never much memory."""
import http.client
import json
import os
import re
import socket
import subprocess
import sys
import time
from serve_server import Server, claim, finish, skip

s = Server(sys.argv[1], "--tp", 1, "--ctx", 128)
claim("it starts", s.port is not None, s.err)
J = {"Content-Type": "application/json"}
POSTS = ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/embeddings",
         "/inference/v1/generate", "/tokenize", "/detokenize")


def rss(peak=False):
    text = open(f"/proc/{s.ranks()[0]}/status").read()
    return int(re.search((r"VmHWM" if peak else r"VmRSS") + r":\s+(\d+)", text).group(1)) >> 10


def refused(what, path, body, status=400, part="", headers=J):
    """An error body as OpenAI's, with the status; part: of its text."""
    begin = time.monotonic()
    got, data, _ = s.request("POST", path, body, headers)
    try:
        e = json.loads(data)["error"]
        coded = path == "/v1/messages" or e["code"] in (status, "context_length_exceeded")
        good = got == status and coded and e["type"] and e["message"] and part in data.decode()
    except (ValueError, KeyError, TypeError):
        good = False
    claim(f"{path}: {what} is a {status} that says {part!r}", good, (got, data[:300]))
    claim(f"{path}: {what} is refused at once", time.monotonic() - begin < 2, time.monotonic() - begin)


# ---- not JSON, or not an object ----
for path in POSTS:
    for what, body in (
            ("nothing", b""), ("a blank", b" "), ("a cut object", b'{"prompt":"a"'), ("a list", b"[]"),
            ("a number", b"7"), ("null", b"null"), ("a text", b'"a"'),
            ("something behind", b'{"prompt":"a"} x'), ("zeros", b"\0" * 100),
            ("a zero in a text", b'{"prompt":"a\0b"}'), ("an escaped zero", b'{"prompt":"a\\u0000b"}'),
            ("an escaped zero in a name", b'{"a\\u0000b":1}'),
            ("bytes that are not UTF-8", b'{"prompt":"\xff\xfe"}'),
            ("an overlong form", b'{"prompt":"\xc0\xaf"}'),
            ("a half surrogate", b'{"prompt":"\\ud800"}'),
            ("a byte order mark", b'\xef\xbb\xbf{"prompt":"a"}'),
            ("UTF-16", '{"prompt":"a"}'.encode("utf-16")),
            ("a member twice", b'{"prompt":"a","prompt":"b"}'), ("NaN", b'{"prompt":"a","temperature":NaN}'),
            ("a number of 10,000 digits", b'{"prompt":' + b"9" * 10000 + b"}"),
            ("1e999", b'{"prompt":"a","temperature":1e999}'),
            ("10,000 lists", b'{"prompt":' + b"[" * 10000 + b"]" * 10000 + b"}"),
            ("10,000 objects", b'{"a":' * 10000 + b"1" + b"}" * 10000), ("10,000 open lists", b"[" * 10000),
            ("a comment", b'{"prompt":"a"}//')):
        refused(what, path, body)

# ---- every field that the description knows, with every type it is not ----
api = json.loads(s.request("GET", "/openapi.json")[1])


def resolve(schema):
    while "$ref" in schema:
        at = api
        for k in schema["$ref"][2:].split("/"):
            at = at[k]
        schema = at
    return schema


good = {"/v1/completions": {"prompt": "a", "max_tokens": 1},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1},
        "/v1/responses": {"input": "a", "max_output_tokens": 1},
        "/v1/messages": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1},
        "/v1/embeddings": {"input": "a"}, "/inference/v1/generate": {"token_ids": [97], "sampling_params": {"max_tokens": 1}},
        "/tokenize": {"prompt": "a"}, "/detokenize": {"tokens": [97]}}
# taken without effect, whatever they hold
free = {"user", "metadata", "store", "safety_identifier", "prompt_cache_key"}
for path in POSTS:
    got = s.request("POST", path, good[path])
    claim(f"{path}: a good body is taken", got[0] == 200, got[:2])
    schema = resolve(api["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"])
    variants = [resolve(x) for x in [schema] + schema.get("oneOf", [])]
    fields = sorted({k for v in variants for k in v.get("properties", {})})
    inner = sorted(schema.get("properties", {}).get("sampling_params", {}).get("properties", {}))
    claim(f"{path}: the description has its fields", len(fields) > 0, schema)
    for field in fields + inner:
        for value in (-1, 1 << 62, -(1 << 63), 1.5, 1e308, -0.0, "", "x", "\u0301" * 50, True, [], {}, [[]],
                      [None], [{}], {"a":
            1}, [1, "a"], {"1": "x"}, {"role": 1}):
            more = {"sampling_params": {"max_tokens": 1, field: value}} if field in inner else {field: value}
            got, data, _ = s.request("POST", path, {**good[path], **more})
            named = got == 200 or (400 <= got < 500 and (field in data.decode() or field in free))
            claim(f"{path}: {field} = {json.dumps(value)[:40]} is taken, or refused by name", named,
                  (got, data[:300]))

# ---- items and blocks ----
for what, m, part in (("an item that is none", [7], "input[0] must be an object"),
                      ("an item of no kind", [{"type": "x"}], "'x'"), ("an item of a wrong kind", [{"type": 1}], "type"),
                      ("an item without a role", [{"content": "a"}], "input[0].role"),
                      ("a part of another kind", [{"role": "user", "content": [{"type": "input_image"}]}],
                       "input[0].content[0]"),
                      ("an unknown member", [{"role": "user", "content": "a", "colour": 1}], "input[0].colour"),
                      ("a call without a name", [{"type": "function_call", "call_id": "a", "arguments": "{}"}], "name"),
                      ("an output of no call", [{"type": "function_call_output", "output": "a"}], "call_id"),
                      ("no items", [], "input"), ("a million items", [{"role": "user", "content": "a"}] * 100000, "")):
    refused(what, "/v1/responses", {"input": m}, part=part)
for what, m, part in (("a block that is none", [7], "content[0]"), ("a block of no kind", [{"type": "x"}], "'x'"),
                      ("a text that is none", [{"type": "text", "text": 1}], "content[0].text"),
                      ("a call by the user", [{"type": "tool_use", "id": "a", "name": "b", "input": {}}], "assistant"),
                      ("a result of no call", [{"type": "tool_result", "content": "a"}], "tool_use_id"),
                      ("an unknown member", [{"type": "text", "text": "a", "colour": 1}], "content[0].colour")):
    refused(what, "/v1/messages", {"messages": [{"role": "user", "content": m}], "max_tokens": 1}, part=part)

# ---- conversations ----
for what, m, part in (("messages that are none", 7, "messages"), ("no message", [], "messages"),
                      ("a message without a role", [{"content":
    "a"}], "role"),
                      ("a role of another type", [{"role": 1, "content": "a"}], "role"),
                      ("content of another type", [{"role": "user", "content": 5}], "content"),
                      ("a part of another kind",
                       [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
                       "content"),
                      ("a role that the template refuses", [{"role": "refuse", "content": "a"}],
                       "no such role"),
                      ("a million messages", [{"role": "user", "content": "a"}] * 100000, "")):
    refused(what, "/v1/chat/completions", {"messages": m}, part=part)
for kwargs in ({"a": {"b": [1] * 1000}}, {"messages": 1}, {"x" * 10000: 1}, {"loop": 1}):
    got = s.request("POST", "/v1/chat/completions",
                    {**good["/v1/chat/completions"], "chat_template_kwargs": kwargs})
    claim("chat_template_kwargs is taken or refused", got[0] in (200, 400), got[:2])

refused("a prompt beside messages", "/tokenize",
        {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, part="prompt")

# ---- sizes ----
before = rss(peak=True)


def upload(what, path, n, chunked, status):
    """n bytes of one text; the server may disconnect in the middle."""
    k = socket.create_connection((s.host, s.port))
    length = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % n
    k.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n%s\r\n\r\n" %
              (path.encode(), length))
    block, sent, begin = b"a" * (1 << 20), 0, time.monotonic()
    try:
        while sent < n:
            k.sendall(b"%x\r\n%s\r\n" % (len(block), block) if chunked else block)
            sent += len(block)
        k.sendall(b"0\r\n\r\n" if chunked else b"")
    except OSError:
        pass
    k.settimeout(30)
    answer = b""
    try:
        while b"\r\n\r\n" not in answer:
            more = k.recv(65536)
            if not more:
                break
            answer += more
    except OSError:
        pass
    k.close()
    claim(f"{what} is a {status}", answer.startswith(b"HTTP/1.1 %d" % status), answer[:200])
    return time.monotonic() - begin


for chunked in (False, True):
    took = upload(f"1 GB {'in chunks' if chunked else 'with its length'}", "/v1/completions", 1 << 30,
                  chunked, 413)
    claim("1 GB does not take long", took < 30, took)
claim("1 GB does not take memory", rss(peak=True) - before < 200, (before, rss(peak=True)))
upload("1 GB for nobody", "/v1/nothing", 1 << 28, False, 404)


def asked_leave(what, path, n, status):
    """A client that waits for 100 Continue is answered before it sends."""
    k = socket.create_connection((s.host, s.port))
    k.settimeout(5)
    k.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n" % (path.encode(), n))
    try:
        answer = k.recv(65536)
    except OSError as e:
        answer = repr(e).encode()
    k.close()
    claim(f"leave to send {what} is a {status}", answer.startswith(b"HTTP/1.1 %d" % status), answer[:200])


for what, path, n, status in (("1 GB", "/v1/completions", 1 << 30, 413),
                              ("a body for nobody", "/v1/nothing", 10, 404),
                              ("a body to who takes none", "/health", 10, 405),
                              ("a body", "/v1/completions", 10, 100)):
    asked_leave(what, path, n, status)
refused("a compressed body", "/v1/completions", b"\x1f\x8b\x08", part="content encoding gzip",
        headers={**J, "Content-Encoding": "gzip"})

# ---- HTTP itself ----


def raw(what, text, wanted, close=False):
    """Sends bytes; the status must be one of wanted (0: the connection is closed without an answer)."""
    k = socket.create_connection((s.host, s.port))
    k.settimeout(5)
    answer = b""
    try:
        k.sendall(text)
        if close:
            k.shutdown(socket.SHUT_WR)
        while b"\r\n\r\n" not in answer:
            more = k.recv(65536)
            if not more:
                break
            answer += more
    except socket.timeout:
        answer = b"HTTP/1.1 999"
    except OSError:
        pass
    k.close()
    got = int(answer[9:12]) if answer.startswith(b"HTTP/1.") else 0
    claim(f"{what}: {wanted}", got in wanted, answer[:200])


POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
raw("a length below 0", POST + b"Content-Length: -1\r\n\r\n", (400, 0))
raw("a length that is no number", POST + b"Content-Length: abc\r\n\r\n", (400, 0))
raw("a length beyond 64 bits", POST + b"Content-Length: 99999999999999999999999\r\n\r\n", (400, 413, 0))
raw("two lengths", POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", (400, 0))
raw("length and chunks", POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", (400, 0))
raw("chunks of no size", POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", (400, 0))
raw("a chunk beyond 64 bits", POST + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\nabc",
    (400, 413, 0))
raw("no HTTP", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 100 + b"\r\n\r\n", (400, 0),
    close=True)
raw("a header of 1 MB", POST + b"X: " + b"a" * (1 << 20) + b"\r\n\r\n", (400, 413, 414, 431, 0))
raw("a path of 1 MB", b"GET /" + b"a" * (1 << 20) + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    (400, 404, 413, 414, 431, 0))
raw("a method of 1 kB", b"A" * 1000 + b" / HTTP/1.1\r\nHost: localhost\r\n\r\n", (400, 405, 501, 0))
raw("zeros in the path", b"GET /v1/models\0x HTTP/1.1\r\nHost: localhost\r\n\r\n", (400, 404, 200, 0))
raw("ten thousand headers", POST + b"A: b\r\n" * 10000 + b"\r\n", (400, 413, 431, 0))

# ---- requests that schemathesis makes from the description ----
tool = os.environ.get("SCHEMATHESIS")
if tool:
    n = os.environ.get("SCHEMATHESIS_EXAMPLES", "30")
    r = subprocess.run([tool, "run", f"http://{s.host}:{s.port}/openapi.json", "--max-examples", n,
                        "--no-color", "--suppress-health-check", "all", "--generation-database", ":memory:",
                        # fields that exclude each other, lengths and ids of this model are not in the
                        # description
                        "--seed", "1", "--exclude-checks", "positive_data_acceptance"],
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=os.environ["TMP"])
    claim("schemathesis finds nothing", r.returncode == 0, r.stdout.decode()[-6000:])
else:
    skip("no schemathesis here")
claim("and good requests are still answered",
      s.complete(prompt="a", max_tokens=2)["usage"]["completion_tokens"] >= 1)
rc, err = s.stop()
claim("it ends well", rc == 0, (rc, err))
finish()
