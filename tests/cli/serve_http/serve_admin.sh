#!/usr/bin/env bash
# quick
# serve_admin.sh - weights swapped while requests run, the operators' key, TLS: see serve_admin.py.
. "$(dirname "$0")/../lib/serve_lib.bash"
trained --steps 4 --save-every 2
mv "$TMP/run/step-2" "$TMP/a"
run reshard --tp 4 "$TMP/run/step-4" "$TMP/b"
sed 's/"num_hidden_layers": *[0-9]*/"num_hidden_layers": 2/' "$TMP/a/config.json" >"$TMP/small.json"
run ptrain --data "$TMP/text" --model "$TMP/small.json" --out "$TMP/other" --steps 1 --seq-len 64 \
    --global-batch 2
cp -r "$TMP/b" "$TMP/bad"
printf '\xff' | dd of="$TMP/bad/weights-00003.safetensors" bs=1 seek=200000 conv=notrunc 2>/dev/null
printf 'api-key\n' >"$TMP/keys"
printf 'admin-key\n' >"$TMP/admin-keys"
A=$(digest "$TMP/a") B=$(digest "$TMP/b")
export A B
command -v openssl >/dev/null &&
    openssl req -x509 -newkey rsa:2048 -nodes -keyout "$TMP/key.pem" -out "$TMP/cert.pem" -days 2 -subj \
        /CN=localhost \
    -addext subjectAltName=DNS:localhost,IP:127.0.0.1 2>/dev/null || skip "no openssl: TLS is not tried"
run pserve "$TMP/a" --tls-cert "$TMP/cert.pem"
claim "a certificate without its key is wrong usage" [ $rc = 2 -a "$(wc -l <"$TMP/.err")" = 1 ]
run pserve "$TMP/a" --port 0 --tls-cert "$TMP/text" --tls-key "$TMP/text"
claim "what is no certificate is refused in one line" [ $rc != 0 -a "$(wc -l <"$TMP/.err")" = 1 ]
claim "that names the file" has "$err" "$TMP/text"
run pserve "$TMP/a" --port 0 --admin-key-file "$TMP/none"
claim "a key file that is not there is refused" [ $rc = 1 -a "$(wc -l <"$TMP/.err")" = 1 ]
asked serve_admin.py "$TMP"
finish
