"""reshard_server.py FOLDER LOG - a file server that misbehaves as the first part of the path says; prints its
port. A line a request to LOG.

    /ok/…  ranges, strong etag   /plain/…  no ranges       /date/…  no etag, Last-Modified      /busy/…  503
           with Retry-After, every second time
    /cut/… connections end early /wrong/…  other bytes     /first/… wrong Content-Range         /change/…
                                           another etag after the tables
    /stall/… sends nothing more  /gone/…   403             /to/HOST:PORT/… redirects there      /gzip/… says
                                 Content-Encoding: gzip
    /later/… 429, Retry-After: 1, the first time (/laterdate/: as a date)     /closed/…  503 with a
    Retry-After of an hour and more
    /swap/…  another version of the file after two large parts                  /plaincut/… no ranges, cut the
             first time
    /hub/owner/name/resolve/REV/…  like the hub: X-Linked-Etag (/hubbad: a wrong one), redirects to /ok/;
                                   wants the token
    /move/owner/name/resolve/REV/… like the hub, whose branch main moves on after three requests: commits are
    folders
    /republish/… another etag of every file from the first request for weights on
    /endless-WHAT/… an answer without an end: probe, redirect, slow (redirect), error (page), hints, header,
    line, trailer
A line a request: the first part, the rest, Range, auth=yes|no, sent=N, early when Retry-After was not waited
for, session=… of S3"""
import email.utils
import hashlib
import http.server
import os
import sys
import threading
import time
import urllib.parse

folder, log = sys.argv[1], open(sys.argv[2], "a", buffering=1)
count, not_before = {}, {}
flip = bytes(b ^ 1 for b in range(256))
lock = threading.Lock()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version, disable_nagle_algorithm = "HTTP/1.1", True

    def log_message(self, *a):
        pass

    def end(self, status, headers=(), body=b""):
        self.send_response(status)
        for k, v in headers:
            self.send_header(k, v)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        how, _, path = urllib.parse.unquote(self.path).lstrip("/").partition("/")
        with lock:
            n = count[how] = count.get(how, 0) + 1
            self.early = time.time() < not_before.pop(how, 0)
        try:
            sent = self.answer(how, path, n)
        except (BrokenPipeError, ConnectionResetError):
            sent = -1
        log.write("%s %s %s auth=%s sent=%s%s%s\n" % (
            how, path, self.headers.get("Range"), "yes" if self.headers.get("Authorization") else "no", sent,
            " early" if self.early else "",
            " session=yes" if self.headers.get("x-amz-security-token") else ""))

    def endless(self, what, path):
        begin, more, nap = {
            "probe": ("206 P\r\nContent-Range: bytes 0-0/50000\r\nTransfer-Encoding: chunked\r\n\r\n",
                      "1000\r\n" + "x" * 4096 + "\r\n", 0),
            "redirect": ("302 F\r\nLocation: /ok/" + path + "\r\nTransfer-Encoding: chunked\r\n\r\n",
                         "1000\r\n" + "x" * 4096 + "\r\n", 0),
            "slow": ("302 F\r\nLocation: /ok/" + path + "\r\nTransfer-Encoding: chunked\r\n\r\n",
                     "400\r\n" + "x" * 1024 + "\r\n", 0.05),
            "error": ("403 F\r\nTransfer-Encoding: chunked\r\n\r\n", "1000\r\n" + "x" * 4096 + "\r\n", 0),
            "hints": ("103 Early Hints\r\nLink: </x>\r\n\r\n",
                      "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n", 0),
            "header": ("206 P\r\nContent-Range: bytes 0-0/50000\r\n", "A: " + "x" * 999 + "\r\n", 0),
            "line": ("206 P\r\nA: ", "x" * 999, 0),
            "trailer": ("206 P\r\nContent-Range: bytes 0-0/50000\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n", "A: " + "x" * 999 + "\r\n", 0),
        }[what]
        self.close_connection = True
        self.wfile.write(b"HTTP/1.1 " + begin.encode())
        while True:
            self.wfile.write(more.encode() * (1 if nap else 100))
            time.sleep(nap)

    def answer(self, how, path, n):
        if how.startswith("endless-"):
            return self.endless(how[8:], path)
        if how == "to":
            host, _, rest = path.partition("/")
            return self.end(302, [("Location", "http://%s/%s" % (host, rest)),
                                  ("x-amz-bucket-region", "us-east-1")])
        if how == "loop":
            return self.end(302, [("Location", self.path)])
        if how == "file":
            return self.end(302, [("Location", "file:///etc/passwd")])
        if how == "gone":
            return self.end(403)
        if how == "move":
            revision, name = path.split("/resolve/")[1].split("/", 1)
            commit = ("a" if n <= 3 else "b") * 40 if revision == "main" else revision
            full = os.path.join(folder, commit, name)
            head = [("X-Repo-Commit", commit), ("ETag", '"%s"' % commit)]
            if not os.path.isfile(full):
                return self.end(404, head)
            return self.file("ok", open(full, "rb").read(), n, head)
        if how in ("hub", "hubbad"):
            if self.headers.get("Authorization") != "Bearer secret":
                return self.end(401)
            name = path.split("/resolve/")[1].split("/", 1)[1]
            full = os.path.join(folder, name)
            if not os.path.isfile(full):
                return self.end(404)
            data = open(full, "rb").read()
            sha = hashlib.sha256(data).hexdigest()
            if how == "hubbad":
                sha = "0" * 64
            extra = [("X-Linked-Etag", '"%s"' % sha),
                     ("X-Linked-Size", str(len(data)))] if name.endswith(".safetensors") else []
            return self.end(302, extra +
                            [("Location", "http://localhost:%d/ok/%s" % (self.server.server_port, name))])
        full = os.path.join(folder, path)
        if not os.path.isfile(full):
            return self.end(404, body=b"<html>no such file</html>")
        data = open(full, "rb").read()
        return self.file(how, data, n)

    def once(self, how, times):
        with lock:
            count[how, "once"] = count.get((how, "once"), 0) + 1
            return count[how, "once"] <= times

    def later(self, how):
        s = 1 if how == "later" else 2
        with lock:
            not_before[how] = time.time() + 0.95
        return self.end(429, [("Retry-After", "1" if how == "later"
                               else email.utils.formatdate(time.time() + s, usegmt=True))], b"later")

    def file(self, how, data, n, more=()):
        span, total = self.headers.get("Range"), len(data)
        with lock:
            new = how == "swap" and count.get("large", 0) >= 2
            if how == "swap" and total > 5000 and span and int(span[6:].split("-")[1]) - int(span[6:].split("-")[0]) > 5000:
                count["large"] = count.get("large", 0) + 1
        # /republish/: with the first byte of weights every file is of a new version; so the config read
        # before is old
        if how == "republish" and total > 5000:
            with lock:
                count["republished"] = 1
        etag = '"v%s"' % (2 if new or (how == "republish" and count.get("republished"))
                          or (how == "change" and n > 30) else 1)
        if new:
            data = data[:1 << 20] + data[1 << 20:].translate(flip)
        if how in ("later", "laterdate") and total > 5000 and self.once(how, 1):
            return self.later(how)
        if how == "closed":
            return self.end(503, [("Retry-After", "4000")], b"closed")
        if how == "busy" and n % 2:
            return self.end(503, [("Retry-After", "0.05")], b"busy")
        if how == "gzip":
            return self.end(200, [("Content-Encoding", "gzip"), ("ETag", etag)], data[:100])
        head = ([("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")] if how == "date" else list(more)
                or [("ETag", etag)])
        when = self.headers.get("If-Range")
        if how == "plaincut" and n < 40 and total > 5000 and not span:
            self.send_response(200)
            for k, v in head + [("Content-Length", str(total))]:
                self.send_header(k, v)
            self.end_headers()
            self.wfile.write(data[:total // 2])
            self.close_connection = True
            with lock:
                count[how] = 40
            return total // 2
        if how in ("plain", "plaincut") or not span or (when and how != "date" and not more and when != etag):
            return self.end(200, head, data) or total
        if self.headers.get("If-Match") not in (None, etag):
            return self.end(412)
        lo, hi = span[6:].split("-")
        lo, hi = int(lo), min(int(hi) if hi else total - 1, total - 1)
        body = data[lo:hi + 1]
        if how == "wrong" and len(body) > 5000:
            body = body[:4000] + bytes([body[4000] ^ 1]) + body[4001:]
        if how == "first" and len(body) > 5000:
            head.append(("Content-Range", "bytes %d-%d/%d" % (lo + 1, hi + 1, total)))
        else:
            head.append(("Content-Range", "bytes %d-%d/%d" % (lo, hi, total)))
        self.send_response(206)
        for k, v in head + [("Content-Length", str(len(body)))]:
            self.send_header(k, v)
        self.end_headers()
        if how == "cut" and len(body) > 5000 and n % 2:
            self.wfile.write(body[:len(body) // 2])
            self.close_connection = True
            return len(body) // 2
        if how == "stall" and len(body) > 5000 and self.once(how, 3):
            self.wfile.write(body[:100])
            self.wfile.flush()
            time.sleep(4)
            self.close_connection = True
            return 100
        if how == "slow":
            for at in range(0, len(body), 65536):
                self.wfile.write(body[at:at + 65536])
                time.sleep(0.01)
            return len(body)
        self.wfile.write(body)
        return len(body)


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.daemon_threads = True
print(server.server_port, flush=True)
server.serve_forever()
