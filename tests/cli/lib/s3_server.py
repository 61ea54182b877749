"""s3_server.py LOG - a stand-in for S3 in memory, path style, whose buckets misbehave as their names say; prints its port.

    ok         as it should be; every bucket checks signatures (key "id", secret "key"), Content-MD5 and hashes of bodies
    busy       503 with Retry-After: 0.05 every second time       cut       every third body is cut off in the middle, once a request
    forbid     403 AccessDenied for what writes                skew      403 RequestTimeTooSkewed
    lost      joining succeeds, the answer is lost
    late       joining answers 200 with an error, once         flip      one byte of the second part is stored wrong
    kms        ETags that are no MD5                           full      QuotaExceeded from the second part on
    old        501 for If-None-Match                           down      parts after the second: no answer at all
    unsure     403 for manifest.json, the first time
    none       404 NoSuchBucket                                race      another program puts manifest.json just before
GET /_hold/N: after N more parts the next ones wait, until /_hold/-1 drops them; LOG gets a line "held" for each.
Lists have pages of three. GET /_state/BUCKET: {"objects": {name: [bytes, md5]}, "uploads": [[name, parts]]}. A line a request to LOG: method, path, status.
"""

import base64
import collections
import hashlib
import hmac
import http.server
import json
import sys
import threading
import urllib.parse
from xml.sax.saxutils import escape

log = open(sys.argv[1], "a", buffering=1)
lock = threading.RLock()
objects = collections.defaultdict(dict)  # bucket -> name -> (data, etag)
uploads = collections.defaultdict(dict)  # bucket -> id -> [name, {number: (data, etag)}]
count = collections.Counter()
PAGE = 3


def signature(h, method, path, query, now, day, region, names):
    def key(k, word):
        return hmac.new(k, word.encode(), hashlib.sha256).digest()

    pairs = sorted(urllib.parse.parse_qsl(query, keep_blank_values=True))
    canonical_query = "&".join(
        urllib.parse.quote(k, safe="-_.~") + "=" + urllib.parse.quote(v, safe="-_.~") for k, v in pairs
    )
    lines = [method, path, canonical_query]
    lines += ["%s:%s" % (n, h[n].strip()) for n in names] + ["", ";".join(names), h["x-amz-content-sha256"]]
    text = "\n".join(
        [
            "AWS4-HMAC-SHA256",
            now,
            "%s/%s/s3/aws4_request" % (day, region),
            hashlib.sha256("\n".join(lines).encode()).hexdigest(),
        ]
    )
    k = key(b"AWS4key", day)
    for word in (region, "s3", "aws4_request"):
        k = key(k, word)
    return key(k, text).hex()


class Fault(Exception):
    pass


held = threading.Condition(lock)
free_parts = [-1]  # parts that are taken before the others are held; -1: all


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version, disable_nagle_algorithm = "HTTP/1.1", True

    def log_message(self, *a):
        pass

    def end(self, status, body=b"", headers=()):
        if isinstance(body, str):
            body = body.encode()
        self.status = status
        self.send_response(status)
        for k, v in headers:
            self.send_header(k, v)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def error(self, status, code, more=""):
        self.end(status, '<?xml version="1.0"?><Error><Code>%s</Code>%s</Error>' % (code, more))

    def xml(self, root, inner):
        self.end(
            200,
            '<?xml version="1.0" encoding="UTF-8"?>\n<%s xmlns="http://s3.amazonaws.com/doc/2006-03-01/">%s</%s>'
            % (root, inner, root),
        )

    def do_GET(self):
        self.status = 0
        path, _, query = self.path.partition("?")
        try:
            self.answer(path, query)
        except (BrokenPipeError, ConnectionResetError):
            self.status = -1
        except Fault:
            self.close_connection = True
        log.write("%s %s %s\n" % (self.command, self.path, self.status))

    do_PUT = do_POST = do_DELETE = do_GET

    def body(self, bucket, query):
        n = int(self.headers.get("Content-Length") or 0)
        if bucket == "cut" and n > 10000:
            with lock:
                count["cut"] += 1
                cut = count["cut"] % 3 == 1
            if cut:
                self.rfile.read(n // 2)
                raise Fault()
        return self.rfile.read(n)

    def refuse(self, path, query, data):
        """Sends an error and returns 1 where the request is not signed, or its body damaged."""
        h = {k.lower(): v for k, v in self.headers.items()}
        auth = h.get("authorization", "")
        if not auth.startswith("AWS4-HMAC-SHA256 "):
            return self.error(403, "AccessDenied") or 1
        f = dict(x.strip().split("=", 1) for x in auth[17:].split(","))
        key, day, region = f["Credential"].split("/")[:3]
        names = f["SignedHeaders"].split(";")
        if key != "id":
            return self.error(403, "InvalidAccessKeyId") or 1
        if "host" not in names or ("content-md5" in h and "content-md5" not in names):
            return self.error(403, "AccessDenied") or 1
        if f["Signature"] != signature(h, self.command, path, query, h["x-amz-date"], day, region, names):
            return self.error(403, "SignatureDoesNotMatch") or 1
        want = h["x-amz-content-sha256"]
        if want != "UNSIGNED-PAYLOAD" and want != hashlib.sha256(data).hexdigest():
            return self.error(400, "XAmzContentSHA256Mismatch") or 1
        if "content-md5" in h and base64.b64decode(h["content-md5"]) != hashlib.md5(data).digest():
            return self.error(400, "BadDigest") or 1
        return 0

    def answer(self, path, query):
        bucket, _, name = urllib.parse.unquote(path).lstrip("/").partition("/")
        if bucket == "_state":
            with lock:
                o = {n: [len(d), hashlib.md5(d).hexdigest()] for n, (d, _) in objects[name].items()}
                u = [[n, len(p)] for n, p in uploads[name].values()]
            return self.end(200, json.dumps({"objects": o, "uploads": u}))
        if bucket == "_hold":
            with held:
                free_parts[0] = int(name)
                held.notify_all()
            return self.end(200)
        data = self.body(bucket, query)
        if self.refuse(path, query, data):
            return None
        q = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
        if bucket == "none":
            return self.error(404, "NoSuchBucket")
        if bucket == "skew":
            return self.error(403, "RequestTimeTooSkewed", "<ServerTime>2020-01-01T00:00:00Z</ServerTime>")
        if bucket == "forbid" and self.command != "GET":
            return self.error(403, "AccessDenied")
        with lock:
            count[bucket] += 1
            n = count[bucket]
        if bucket == "busy" and n % 2:
            return self.end(503, b"busy", [("Retry-After", "0.05")])
        if self.command == "GET" and name == "":
            return self.list_uploads(bucket, q) if "uploads" in q else self.list_objects(bucket, q)
        how = {"GET": self.get, "PUT": self.put, "POST": self.post, "DELETE": self.delete}[self.command]
        return how(bucket, name, q, data)

    def list_objects(self, bucket, q):
        with lock:
            names = sorted(
                n
                for n in objects[bucket]
                if n.startswith(q["prefix"]) and n > q.get("continuation-token", "")
            )
            items = "".join(
                "<Contents><Key>%s</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>&quot;%s&quot;</ETag><Size>%d</Size></Contents>"
                % (escape(n), objects[bucket][n][1], len(objects[bucket][n][0]))
                for n in names[:PAGE]
            )
        more = len(names) > PAGE
        self.xml(
            "ListBucketResult",
            "<IsTruncated>%s</IsTruncated>%s%s"
            % (
                "true" if more else "false",
                items,
                "<NextContinuationToken>%s</NextContinuationToken>" % escape(names[PAGE - 1]) if more else "",
            ),
        )

    def list_uploads(self, bucket, q):
        mark = (q.get("key-marker", ""), q.get("upload-id-marker", ""))
        with lock:
            all = sorted(
                (n, i) for i, (n, _) in uploads[bucket].items() if n.startswith(q["prefix"]) and (n, i) > mark
            )
        more = len(all) > PAGE
        items = "".join(
            "<Upload><Key>%s</Key><UploadId>%s</UploadId><Initiated>2026-01-01T00:00:00.000Z</Initiated></Upload>"
            % (escape(n), escape(i))
            for n, i in all[:PAGE]
        )
        tail = (
            "<NextKeyMarker>%s</NextKeyMarker><NextUploadIdMarker>%s</NextUploadIdMarker>"
            % tuple(map(escape, all[PAGE - 1]))
            if more
            else ""
        )
        self.xml(
            "ListMultipartUploadsResult",
            "<IsTruncated>%s</IsTruncated>%s%s" % ("true" if more else "false", items, tail),
        )

    def get(self, bucket, name, q, data):
        if "uploadId" in q:
            with lock:
                if q["uploadId"] not in uploads[bucket]:
                    return self.error(404, "NoSuchUpload")
                parts = uploads[bucket][q["uploadId"]][1]
                after = sorted(k for k in parts if k > int(q.get("part-number-marker", 0)))
                items = "".join(
                    '<Part><PartNumber>%d</PartNumber><ETag>"%s"</ETag><Size>%d</Size></Part>'
                    % (k, parts[k][1], len(parts[k][0]))
                    for k in after[:PAGE]
                )
            more = len(after) > PAGE
            return self.xml(
                "ListPartsResult",
                "<IsTruncated>%s</IsTruncated>%s%s"
                % (
                    "true" if more else "false",
                    items,
                    "<NextPartNumberMarker>%d</NextPartNumberMarker>" % after[PAGE - 1] if more else "",
                ),
            )
        with lock:
            if name not in objects[bucket]:
                return self.error(404, "NoSuchKey")
            data, etag = objects[bucket][name]
        head = [("ETag", '"%s"' % etag)]
        span = self.headers.get("Range")
        if not span:
            return self.end(200, data, head)
        lo, hi = span[6:].split("-")
        lo, hi = int(lo), min(int(hi) if hi else len(data) - 1, len(data) - 1)
        if lo >= len(data):
            return self.end(416, b"", [("Content-Range", "bytes */%d" % len(data))])
        self.end(206, data[lo : hi + 1], head + [("Content-Range", "bytes %d-%d/%d" % (lo, hi, len(data)))])

    def hold(self):
        with held:
            if free_parts[0] != 0:
                free_parts[0] -= free_parts[0] > 0
                return
            log.write("held\n")
            while free_parts[0] == 0:
                held.wait()
        raise Fault()

    def put(self, bucket, name, q, data):
        etag = hashlib.md5(data).hexdigest()
        if bucket == "kms":
            etag = hashlib.md5(etag.encode()).hexdigest()
        if "uploadId" in q:
            k = int(q["partNumber"])
            self.hold()
            if bucket == "full" and k > 1:
                return self.error(403, "QuotaExceeded")
            if bucket == "down" and k > 2:
                raise Fault()
            if bucket == "flip" and k == 2:
                data = data[:100] + bytes([data[100] ^ 1]) + data[101:]
            with lock:
                if q["uploadId"] not in uploads[bucket]:
                    return self.error(404, "NoSuchUpload")
                uploads[bucket][q["uploadId"]][1][k] = (data, etag)
            return self.end(200, b"", [("ETag", '"%s"' % etag)])
        with lock:
            new = self.headers.get("If-None-Match")
            count[bucket, name] += 1
            if bucket == "unsure" and "manifest" in name and count[bucket, name] == 1:
                return self.error(403, "AccessDenied")
            if new and bucket == "old":
                return self.error(501, "NotImplemented")
            if new and bucket == "race":
                objects[bucket][name] = (b"theirs", "0" * 32)
            if new and name in objects[bucket]:
                return self.error(412, "PreconditionFailed")
            objects[bucket][name] = (data, etag)
        return self.end(200, b"", [("ETag", '"%s"' % etag)])

    def post(self, bucket, name, q, data):
        if "uploads" in q:
            with lock:
                count["id"] += 1
                id = "up/%d+%s&=" % (count["id"], bucket)
                uploads[bucket][id] = [name, {}]
            return self.xml(
                "InitiateMultipartUploadResult",
                "<Bucket>%s</Bucket><Key>%s</Key><UploadId>%s</UploadId>"
                % (bucket, escape(name), escape(id)),
            )
        import re

        listed = re.findall(
            r"<Part><PartNumber>(\d+)</PartNumber><ETag>\"?([^<\"]*)\"?</ETag></Part>", data.decode()
        )
        with lock:
            if q["uploadId"] not in uploads[bucket]:
                return self.error(404, "NoSuchUpload")
            if bucket == "late" and not count["late200"]:
                count["late200"] = 1
                return self.error(200, "InternalError")
            parts = uploads[bucket][q["uploadId"]][1]
            for i, (k, etag) in enumerate(listed):
                k = int(k)
                if k not in parts or parts[k][1] != etag:
                    return self.error(400, "InvalidPart")
                if i + 1 < len(listed) and len(parts[k][0]) < 5 << 20:
                    return self.error(400, "EntityTooSmall")
            whole = b"".join(parts[int(k)][0] for k, _ in listed)
            etag = "%s-%d" % (
                hashlib.md5(b"".join(bytes.fromhex(e) for _, e in listed)).hexdigest(),
                len(listed),
            )
            objects[bucket][name] = (whole, etag)
            del uploads[bucket][q["uploadId"]]
        if bucket == "lost":
            raise Fault()
        self.xml("CompleteMultipartUploadResult", '<ETag>"%s"</ETag>' % etag)

    def delete(self, bucket, name, q, data):
        with lock:
            if "uploadId" in q:
                if not uploads[bucket].pop(q["uploadId"], None):
                    return self.error(404, "NoSuchUpload")
            else:
                objects[bucket].pop(name, None)
        self.end(204)


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.daemon_threads = True
server.request_queue_size = 64
print(server.server_port, flush=True)
server.serve_forever()
