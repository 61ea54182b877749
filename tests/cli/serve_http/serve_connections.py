"""serve_connections.py TMP - what a connection may do before a request is there: ambiguous heads, foreign
Host names, first lines and TLS handshakes that do not end, more connections than there may be, long bodies
that do not end."""
import http.client
import json
import os
import re
import socket
import ssl
import sys
import threading
import time
from serve_server import Server, claim, finish, skip, together

tmp = sys.argv[1]
checkpoint = f"{tmp}/run/step-2"
BODY = json.dumps(dict(prompt="a", max_tokens=1)).encode()
POST, HOST, JSON, LENGTH = (b"POST /v1/completions HTTP/1.1\r\n", b"Host: 127.0.0.1\r\n",
                            b"Content-Type: application/json\r\n", b"Content-Length: %d\r\n" % len(BODY))
# at most, on a loaded machine; trickle() takes 10 s where nothing is cut off
SOON_S = 9
CHUNKED, IN_CHUNKS = b"Transfer-Encoding: chunked\r\n", b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)


def dial(s, last=1):
    """From 127.0.0.LAST: every address of loopback is a client of its own."""
    k = socket.create_connection((s.host, s.port), timeout=20, source_address=(f"127.0.0.{last}", 0))
    k.settimeout(20)
    return k


def ask(s, text):
    """Sends bytes and half a request behind them. The status and body of the answer; whether the server
    closed the connection, and took nothing for a request."""
    with dial(s) as k:
        f = k.makefile("rb")
        try:
            k.sendall(text + b"GET /version HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            status, n = f.readline()[9:12].decode(), 0
            while (line := f.readline()) not in (b"\r\n", b""):
                n = int(line.split(b":")[1]) if line.lower().startswith(b"content-length") else n
            return int(status or 0), f.read(n).decode(), not f.read()
        except OSError as e:
            return 0, repr(e), True


# ---- heads whose body has no certain end, or that are for nobody ----
s = Server(checkpoint)
claim("it starts", s.port is not None, s.err)
claim("a good request is answered, and the next one",
      ask(s, POST + HOST + JSON + LENGTH + b"\r\n" + BODY)[::2] == (200, False))
claim("in chunks, too", ask(s, POST + HOST + JSON + CHUNKED + b"\r\n" + IN_CHUNKS)[::2] == (200, False))
for what, text, part in (
        ("the same length twice", POST + HOST + JSON + LENGTH + LENGTH + b"\r\n" + BODY, "Content-Length"),
        ("two lengths", POST + HOST + JSON + LENGTH + b"Content-Length: 3\r\n\r\n" + BODY, "Content-Length"),
        ("two lengths of nothing",
         b"GET /health HTTP/1.1\r\n" + HOST + b"Content-Length: 0\r\n" * 2 + b"\r\n", "Content-Length"),
        ("a length and chunks", POST + HOST + JSON + LENGTH + CHUNKED + b"\r\n" + IN_CHUNKS,
         "Transfer-Encoding"),
        ("chunks and a length", POST + HOST + JSON + CHUNKED + LENGTH + b"\r\n" + IN_CHUNKS,
         "Transfer-Encoding"),
        ("another coding", POST + HOST + JSON + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + IN_CHUNKS,
         "Transfer-Encoding"),
        ("two codings", POST + HOST + JSON + CHUNKED * 2 + b"\r\n" + IN_CHUNKS, "Transfer-Encoding"),
        ("chunks in HTTP/1.0", POST.replace(b"1.1", b"1.0") + HOST + JSON + CHUNKED + b"\r\n" + IN_CHUNKS,
         "Transfer-Encoding"),
        ("a blank before the colon", POST + HOST + JSON + b"Content-Length : %d\r\n\r\n" % len(BODY) + BODY,
         "name"),
        ("a folded line", POST + HOST + JSON + b"X: a\r\n Content-Length: 3\r\n" + LENGTH + b"\r\n" + BODY,
         "name"),
        ("no Host", POST + JSON + LENGTH + b"\r\n" + BODY, "Host"),
        ("two Hosts", POST + HOST + HOST + JSON + LENGTH + b"\r\n" + BODY, "Host")):
    status, body, closed = ask(s, text)
    claim(f"{what}: 400, closed", status == 400 and part in body and closed, (status, body, closed))
claim("HTTP/1.0 needs no Host", ask(s, b"GET /health HTTP/1.0\r\n\r\n")[0] == 200)

# ---- names that a page of another site could have ----
GET = b"GET /v1/models HTTP/1.1\r\nHost: %s\r\n\r\n"
for host in (b"localhost", b"LocalHost:80", b"localhost.", b"a.localhost:1", b"127.0.0.1:%d" % s.port,
             b"127.8.9.1", b"[::1]", b"[::1]:8000"):
    claim(f"Host: {host.decode()} is taken", ask(s, GET % host)[0] == 200)
for host in (b"evil.example", b"evil.example:%d" % s.port, b"127.0.0.1.evil.example",
             b"localhost.evil.example", b"evillocalhost", b"10.0.0.1", b"0.0.0.0", b"[::2]", b"[::1]x",
             b"localhost:80@evil.example", b"", b"[", b"a" * 300):
    status, body, closed = ask(s, GET % host)
    claim(f"Host: {host.decode():.30} is a 403", status == 403 and "--allow-host" in body and closed,
          (status, body, closed))
status, body, _ = ask(s, POST + HOST + LENGTH + b"\r\n" + BODY)
claim("a body of no type is a 400", status == 400 and "Content-Type" in body, (status, body))
rc, err = s.stop()
claim("it ends well", rc == 0, (rc, err))

s = Server(checkpoint, "--allow-host", "pserve.lan,other.lan")
claim("--allow-host adds names",
      [ask(s, GET % h)[0] for h in (b"pserve.lan", b"OTHER.lan:80", b"localhost", b"lan",
                                    b"pserve.lan.evil")] == [200, 200, 200, 403, 403])
s.stop()
# ---- first lines and handshakes that do not end ----


def trickle(k, drops):
    """Sends a byte now and then; seconds until the server has closed."""
    begin = time.monotonic()
    k.settimeout(0.05)
    for i in range(200):
        try:
            k.sendall(drops[i:i + 1])
            if not k.recv(4096):
                break
        except socket.timeout:
            continue
        except OSError:
            break
    k.close()
    return time.monotonic() - begin


def after_an_answer():
    k = dial(s)
    k.sendall(GET % b"localhost")
    while b"}]}" not in k.recv(4096):
        pass
    return trickle(k, b"GET /" + b"a" * 300)


FIRST_LINE = b"POST /" + b"a" * 300
s = Server(checkpoint, "--receive-timeout", 0.5)
took = together([lambda: trickle(dial(s), FIRST_LINE), lambda: trickle(dial(s), b"\r\n" * 150),
                 after_an_answer])
for what, t in zip(("a first line", "empty lines", "a first line after an answer"), took):
    claim(f"{what} that does not end is cut off", isinstance(t, float) and 0.3 < t < SOON_S, t)
s.stop()

if os.path.exists(f"{tmp}/cert.pem"):
    s = Server(checkpoint, "--receive-timeout", 0.5, "--tls-cert", f"{tmp}/cert.pem", "--tls-key",
               f"{tmp}/key.pem")
    s.host, s.port = "127.0.0.1", int(s.line.split("127.0.0.1:")[1].split(" ")[0])
    HELLO = b"\x16\x03\x01\x01\x40\x01\0\x01\x3c\x03\x03" + b"\0" * 189

    def handshake_only():
        k = ssl.create_default_context(cafile=f"{tmp}/cert.pem").wrap_socket(dial(s),
            server_hostname="localhost")
        return trickle(k, FIRST_LINE)
    took = together([lambda: trickle(dial(s), HELLO), handshake_only])
    for what, t in zip(("a handshake", "a first line over TLS"), took):
        claim(f"{what} that does not end is cut off", isinstance(t, float) and 0.3 < t < SOON_S, t)
    s.stop()
else:
    skip("no certificate was made")

# ---- more connections than there may be ----


def counter(s, name):
    return sum(float(x) for x in re.findall(rf"^{re.escape(name)}{{[^}}]*}} (\S+)$",
                                            s.request("GET", "/metrics")[1].decode(), re.M))


def one_byte(s, n, last):
    out = []
    for _ in range(n):
        out.append(dial(s, last))
        out[-1].sendall(b"G")
    return out


def health_s(s):
    begin = time.monotonic()
    return s.health() == 200 and time.monotonic() - begin


s = Server(checkpoint, "--max-connections-per-address", 40)
many = one_byte(s, 200, 1)
claim("/health is answered beside connections that send a byte", 0 < health_s(s) < SOON_S)
claim("so is a completion", s.complete(prompt="a", max_tokens=1)["object"] == "text_completion")
claim("the others are closed, and counted", counter(s, "shardline:connections_cut_total") >= 160)
claim("the one that has waited longest is closed first", many[0].recv(1) == b"")
s.stop()

s = Server(checkpoint, "--max-connections", 40)
keeps = http.client.HTTPConnection(s.host, s.port, timeout=20)
keeps.request("GET", "/health")
claim("a client is answered", keeps.getresponse().read() == b"")
own = keeps.sock
many += one_byte(s, 200, 2)
claim("/health is answered beside those of another address", 0 < health_s(s) < SOON_S)
keeps.request("GET", "/health")
claim("which has taken no place of others", keeps.getresponse().status == 200 and keeps.sock is own)
s.stop()

s = Server(checkpoint, "--max-connections", 3, "--threads", 1)
LONG = json.dumps(dict(prompt="a", max_tokens=1900, n=8, ignore_eos=True, stream=True))
busy = [http.client.HTTPConnection(s.host, s.port, timeout=20) for _ in range(3)]
for c in busy:
    c.request("POST", "/v1/completions", LONG, {"Content-Type": "application/json"})
answers = [c.getresponse() for c in busy]
claim("three clients get streams",
      all(a.status == 200 and a.readline().startswith(b"data: ") for a in answers))
status, body, h = s.request("POST", "/v1/completions", dict(prompt="a"))
claim("a fourth is a 503 that is tried again", status == 503 and b"connections" in body and "retry-after" in h
      and h["connection"] == "close", (status, body, h))
claim("/health is answered all the same", 0 < health_s(s) < SOON_S)
status, text, _ = s.request("GET", "/metrics")
claim("and what is counted", status == 200, status)
many += one_byte(s, 200, 1)
claim("beside connections that send a byte, too", 0 < health_s(s) < SOON_S)
claim("the streams go on", all(a.readline() == b"\n" and a.readline().startswith(b"data: ") for a in answers))
for c in busy + many:
    c.close()
s.stop()

# ---- bodies that do not end ----
HEAD = POST + HOST + JSON


def rss(s):
    return int(re.search(r"VmHWM:\s+(\d+)", open(f"/proc/{s.ranks()[0]}/status").read()).group(1)) >> 10


def part_of_body(s, last, n, sent):
    """Sends the head of a body of n bytes, and some of it when the server has read the head."""
    k = dial(s, last)
    k.sendall(HEAD + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % n)
    answer = k.recv(4096)
    if answer.startswith(b"HTTP/1.1 100"):
        k.sendall(b" " * sent)
    return k, answer[9:12].decode()


def whole_body(s, last, n):
    with dial(s, last) as k:
        k.sendall(HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % n + BODY +
                  b" " * (n - len(BODY)))
        answer = b"".join(iter(lambda: k.recv(65536), b""))
        return int(answer[9:12]), answer


def refused(last, status):
    """Waits until the head of a body of 2 MB has this status: what others sent may not have been read yet.
    Such a head holds nothing."""
    end, got = time.monotonic() + 20, None
    while got != status and time.monotonic() < end:
        k, got = part_of_body(s, last, 2 * MB, 0)
        k.close()
    return got == status


MB = 1 << 20
s = Server(checkpoint, "--max-body-memory", 8 * MB)
claim("a body of 3 MB is taken", whole_body(s, 1, 3 * MB)[0] == 200)
claim("one of 5 MB is a 413", (got := whole_body(s, 1, 5 * MB))[0] == 413 and b"4096 KiB" in got[1], got)
before = rss(s)
held = []


def send_some(last):
    k, _ = part_of_body(s, last, 4 * MB, 7 * MB // 2)
    held.append(k)


together([lambda: send_some(1)] * 30)
claim("an address has a limit, known before the body is sent", refused(1, "429"))
got = whole_body(s, 1, 2 * MB)
claim("an address has half of the memory", got[0] == 429 and b"address" in got[1]
      and b"Retry-After" in got[1], got)
claim("another address has its own half", whole_body(s, 2, 3 * MB)[0] == 200)
send_some(2)
claim("so have all together", refused(3, "503"))
got = whole_body(s, 3, 2 * MB)
claim("all together have the whole", got[0] == 503 and b"--max-body-memory" in got[1], got)
claim("short requests are answered all the same",
      whole_body(s, 1, 8000)[0] == whole_body(s, 3, 8000)[0] == 200)
claim("100 MB were sent, a few are held", rss(s) - before < 45, (before, rss(s)))
for k in held:
    k.close()
claim("what is not sent any more holds nothing", refused(1, "100") and whole_body(s, 1, 2 * MB)[0] == 200)
s.stop()

with open(f"{tmp}/keys", "w") as f:
    f.write("key-1\nkey-2\n")
s = Server(checkpoint, "--api-key-file", f"{tmp}/keys", "--max-requests-per-key", 1, "--max-body-memory",
           8 * MB)
HEAD = POST + HOST + JSON + b"Authorization: Bearer key-1\r\n"
k, status = part_of_body(s, 1, 100, 10)
claim("a body may be sent", status == "100", status)
claim("a key's request counts from its head on", (got := whole_body(s, 1, 100))[0] == 429
      and b"this key" in got[1], got)
HEAD = HEAD.replace(b"key-1", b"key-2")
claim("not for another key", whole_body(s, 1, 100)[0] == 200)
k.close()
s.stop()
s = Server(checkpoint, "--api-key-file", f"{tmp}/keys", "--max-body-memory", 8 * MB)
k, _ = part_of_body(s, 1, 4 * MB, 3 * MB)
claim("a key has a limit", refused(2, "429"))
got = whole_body(s, 2, 2 * MB)
claim("a key has half of the memory, whatever its addresses", got[0] == 429 and b"this key" in got[1], got)
HEAD = HEAD.replace(b"key-2", b"key-1")
claim("another key has its own half", whole_body(s, 2, 2 * MB)[0] == 200)
k.close()
rc, err = s.stop()
claim("it ends well", rc == 0, (rc, err))
finish()
