"""serve_connections.py CHECKPOINT - what a connection may do before a request is there: ambiguous heads, foreign Host names."""
import json
import socket
import sys
from serve_server import Server, claim, finish

checkpoint = sys.argv[1]
BODY = json.dumps(dict(prompt="a", max_tokens=1)).encode()
POST, HOST, JSON, LENGTH = b"POST /v1/completions HTTP/1.1\r\n", b"Host: 127.0.0.1\r\n", b"Content-Type: application/json\r\n", b"Content-Length: %d\r\n" % len(BODY)
CHUNKED, IN_CHUNKS = b"Transfer-Encoding: chunked\r\n", b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)


def dial(s):
    k = socket.create_connection((s.host, s.port))
    k.settimeout(20)
    return k


def ask(s, text):
    """Sends bytes and half a request behind them. The status and body of the answer; whether the server closed the connection, and took nothing for a request."""
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
claim("a good request is answered, and the next one", ask(s, POST + HOST + JSON + LENGTH + b"\r\n" + BODY)[::2] == (200, False))
claim("in chunks, too", ask(s, POST + HOST + JSON + CHUNKED + b"\r\n" + IN_CHUNKS)[::2] == (200, False))
for what, text, part in (
        ("the same length twice", POST + HOST + JSON + LENGTH + LENGTH + b"\r\n" + BODY, "Content-Length"),
        ("two lengths", POST + HOST + JSON + LENGTH + b"Content-Length: 3\r\n\r\n" + BODY, "Content-Length"),
        ("two lengths of nothing", b"GET /health HTTP/1.1\r\n" + HOST + b"Content-Length: 0\r\n" * 2 + b"\r\n", "Content-Length"),
        ("a length and chunks", POST + HOST + JSON + LENGTH + CHUNKED + b"\r\n" + IN_CHUNKS, "Transfer-Encoding"),
        ("chunks and a length", POST + HOST + JSON + CHUNKED + LENGTH + b"\r\n" + IN_CHUNKS, "Transfer-Encoding"),
        ("another coding", POST + HOST + JSON + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + IN_CHUNKS, "Transfer-Encoding"),
        ("two codings", POST + HOST + JSON + CHUNKED * 2 + b"\r\n" + IN_CHUNKS, "Transfer-Encoding"),
        ("chunks in HTTP/1.0", POST.replace(b"1.1", b"1.0") + HOST + JSON + CHUNKED + b"\r\n" + IN_CHUNKS, "Transfer-Encoding"),
        ("a blank before the colon", POST + HOST + JSON + b"Content-Length : %d\r\n\r\n" % len(BODY) + BODY, "name"),
        ("a folded line", POST + HOST + JSON + b"X: a\r\n Content-Length: 3\r\n" + LENGTH + b"\r\n" + BODY, "name"),
        ("no Host", POST + JSON + LENGTH + b"\r\n" + BODY, "Host"),
        ("two Hosts", POST + HOST + HOST + JSON + LENGTH + b"\r\n" + BODY, "Host")):
    status, body, closed = ask(s, text)
    claim(f"{what}: 400, closed", status == 400 and part in body and closed, (status, body, closed))
claim("HTTP/1.0 needs no Host", ask(s, b"GET /health HTTP/1.0\r\n\r\n")[0] == 200)

# ---- names that a page of another site could have ----
GET = b"GET /v1/models HTTP/1.1\r\nHost: %s\r\n\r\n"
for host in (b"localhost", b"LocalHost:80", b"localhost.", b"a.localhost:1", b"127.0.0.1:%d" % s.port, b"127.8.9.1", b"[::1]", b"[::1]:8000"):
    claim(f"Host: {host.decode()} is taken", ask(s, GET % host)[0] == 200)
for host in (b"evil.example", b"evil.example:%d" % s.port, b"127.0.0.1.evil.example", b"localhost.evil.example", b"evillocalhost", b"10.0.0.1", b"0.0.0.0", b"[::2]", b"[::1]x",
             b"localhost:80@evil.example", b"", b"[", b"a" * 300):
    status, body, closed = ask(s, GET % host)
    claim(f"Host: {host.decode():.30} is a 403", status == 403 and "--allow-host" in body and closed, (status, body, closed))
status, body, _ = ask(s, POST + HOST + LENGTH + b"\r\n" + BODY)
claim("a body of no type is a 400", status == 400 and "Content-Type" in body, (status, body))
rc, err = s.stop()
claim("it ends well", rc == 0, (rc, err))

s = Server(checkpoint, "--allow-host", "pserve.lan,other.lan")
claim("--allow-host adds names", [ask(s, GET % h)[0] for h in (b"pserve.lan", b"OTHER.lan:80", b"localhost", b"lan", b"pserve.lan.evil")] == [200, 200, 200, 403, 403])
s.stop()
finish()
