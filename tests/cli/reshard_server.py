"""reshard_server.py FOLDER LOG - a file server that misbehaves as the first part of the path says; prints its port. A line a request to LOG.

    /ok/…  ranges, strong etag   /plain/…  no ranges       /date/…  no etag, Last-Modified      /busy/…  503 with Retry-After, every second time
    /cut/… connections end early /wrong/…  other bytes     /first/… wrong Content-Range         /change/… another etag after the tables
    /stall/… sends nothing more  /gone/…   403             /to/HOST:PORT/… redirects there      /gzip/… says Content-Encoding: gzip
    /hub/owner/name/resolve/REV/…  like the hub: X-Linked-Etag (/hubbad: a wrong one), redirects to /ok/; wants the token"""
import hashlib
import http.server
import os
import sys
import threading
import time

folder, log = sys.argv[1], open(sys.argv[2], "a", buffering=1)
count = {}
lock = threading.Lock()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

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
        how, _, path = self.path.lstrip("/").partition("/")
        with lock:
            n = count[how] = count.get(how, 0) + 1
        try:
            sent = self.answer(how, path, n)
        except (BrokenPipeError, ConnectionResetError):
            sent = -1
        log.write("%s %s %s auth=%s sent=%s\n" % (how, path, self.headers.get("Range"), "yes" if self.headers.get("Authorization") else "no", sent))

    def answer(self, how, path, n):
        if how == "to":
            host, _, rest = path.partition("/")
            return self.end(302, [("Location", "http://%s/%s" % (host, rest))])
        if how == "loop":
            return self.end(302, [("Location", self.path)])
        if how == "file":
            return self.end(302, [("Location", "file:///etc/passwd")])
        if how == "gone":
            return self.end(403)
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
            extra = [("X-Linked-Etag", '"%s"' % sha), ("X-Linked-Size", str(len(data)))] if name.endswith(".safetensors") else []
            return self.end(302, extra + [("Location", "http://localhost:%d/ok/%s" % (self.server.server_port, name))])
        full = os.path.join(folder, path)
        if not os.path.isfile(full):
            return self.end(404, body=b"<html>no such file</html>")
        data = open(full, "rb").read()
        return self.file(how, data, n)

    def file(self, how, data, n):
        span, total = self.headers.get("Range"), len(data)
        etag = '"v%s"' % (2 if how == "change" and n > 30 else 1)
        if how == "busy" and n % 2:
            return self.end(503, [("Retry-After", "0.05")], b"busy")
        if how == "gzip":
            return self.end(200, [("Content-Encoding", "gzip"), ("ETag", etag)], data[:100])
        head = [("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")] if how == "date" else [("ETag", etag)]
        when = self.headers.get("If-Range")
        if how == "plain" or not span or (when and how != "date" and when != etag):
            return self.end(200, head, data) or total
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
        if how == "cut" and len(body) > 5000 and n % 3:
            self.wfile.write(body[:len(body) // 2])
            self.close_connection = True
            return len(body) // 2
        if how == "stall" and len(body) > 5000 and n % 4 == 1:
            self.wfile.write(body[:100])
            self.wfile.flush()
            time.sleep(6)
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
