#!/usr/bin/env bash
# quick
# serve_connections.sh - connections that no good client makes: see serve_connections.py.
. "$(dirname "$0")/../lib/serve_lib.bash"
trained --steps 2
openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost \
    -keyout "$TMP/key.pem" -out "$TMP/cert.pem" 2>"$TMP/openssl.log" || rm -f "$TMP/cert.pem"
for n in 0 -1; do
    run pserve "$TMP/run/step-2" --max-connections $n
    claim "--max-connections $n is wrong usage" [ $rc = 2 -a "$(wc -l <"$TMP/.err")" = 1 ]
done
asked serve_connections.py "$TMP"
finish
