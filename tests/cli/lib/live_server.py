"""live_server.py - stands in for a trainer's --publish: the newest version of a checkpoint as plain files
with ranges, at one URL. `fault` bends what it sends. Standard library only."""
import http.server
import json
import os
import socket
import threading
import urllib.parse


def left_in_memory(url):
    """The folders in memory that servers of this URL have left."""
    root = f"/dev/shm/shardline-{os.geteuid()}"
    found = []
    for name in os.listdir(root) if os.path.isdir(root) else ():
        try:
            found += [name] * (open(f"{root}/{name}/.url").read() == url)
        except OSError:
            pass                                 # of another server, which ends
    return found


class Live:
    """publish(step, folder, digest) makes that folder the newest version. fault(path, body) may return other
    bytes, or raise ConnectionError: the connection ends in the middle of the body. hold: weights of files are
    sent only while it is set. Each version is what its folder has when it is asked for."""

    def __init__(self, port=0):
        self.changed = threading.Condition()
        self.version, self.folder, self.digest = -1, None, None
        self.fault, self.sent, self.refused, self.asked = None, 0, 0, threading.Event()
        self.hold = threading.Event()
        self.hold.set()
        self.etag_lies = False
        self.start(port)

    def start(self, port):
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version, disable_nagle_algorithm = "HTTP/1.1", True

            def log_message(self, *a):
                pass

            def do_GET(self):
                try:
                    outer.answer(self)
                except OSError:
                    self.close_connection = True

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads, allow_reuse_address, request_queue_size = True, True, 64

            def handle_error(self, *a):
                pass

        self.http = Server(("127.0.0.1", port), Handler)
        self.port = self.http.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        self.connections = []
        accept = self.http.get_request

        def get_request():
            c, a = accept()
            self.connections.append(c)
            return c, a
        self.http.get_request = get_request
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self):
        """As a trainer that is killed: connections end at once, nobody listens."""
        self.http.shutdown()
        self.http.server_close()
        for c in self.connections:
            try:
                c.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def publish(self, version, folder, digest):
        with self.changed:
            self.version, self.folder, self.digest = version, folder, digest
            self.changed.notify_all()

    def etag(self):
        return f'"{0 if self.etag_lies else self.version}-{"x" if self.etag_lies else self.digest}"'

    def end(self, h, status, body=b"", headers=()):
        h.send_response(status)
        for k, v in headers:
            h.send_header(k, v)
        if status != 204:
            h.send_header("Content-Length", str(len(body)))
        h.end_headers()
        h.wfile.write(body)

    def answer(self, h):
        at = urllib.parse.urlsplit(h.path)
        if at.path == "/version":
            self.answer_version(h, urllib.parse.parse_qs(at.query))
            return
        with self.changed:
            etag, folder = self.etag(), self.folder
        match = h.headers.get("If-Match") or h.headers.get("If-Range")
        if match and match != etag:
            self.refused += 1
            self.end(h, 412)
            return
        path = os.path.join(folder, at.path.strip("/"))
        asked = h.headers.get("Range")
        try:
            size = os.path.getsize(path)
            lo, _, hi = (asked or f"bytes=0-{size - 1}")[6:].partition("-")
            lo, hi = int(lo), min(int(hi or size - 1), size - 1)
            with open(path, "rb") as f:
                body = os.pread(f.fileno(), hi + 1 - lo, lo)
        except OSError:
            self.end(h, 404)
            return
        weights = "weights-" in at.path
        if weights and len(body) > 1:
            self.asked.set()
            self.hold.wait(60)
        cut = None
        if self.fault:
            try:
                body = self.fault(at.path, lo, body)
            except ConnectionError:
                cut = body[:len(body) // 2]
        self.sent += len(body) if weights else 0
        h.send_response(206 if asked else 200)
        for k, v in (("ETag", etag), ("Content-Range", f"bytes {lo}-{hi}/{size}"),
                     ("Content-Length", str(len(body)))):
            h.send_header(k, v)
        h.end_headers()
        h.wfile.write(body if cut is None else cut)
        if cut is not None:
            h.close_connection = True

    def answer_version(self, h, query):
        after = int(query.get("after", ["-1"])[0])
        with self.changed:
            if not self.changed.wait_for(lambda: self.version > after, float(query.get("timeout", ["0"])[0])):
                self.end(h, 204)
                return
            body = json.dumps({"version": self.version, "weights_digest": self.digest,
                               "etag": self.etag().strip('"')})
        self.end(h, 200, body.encode(), [("Content-Type", "application/json")])
