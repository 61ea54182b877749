#!/usr/bin/env bash
# quick
# serve_admin.sh - weights swapped while requests run, the operators' key, TLS: see serve_admin.py.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/lib.bash"
export SHARDLINE_CACHE=$TMP/cache no_proxy=127.0.0.1,localhost
command -v python3 >/dev/null || { skip "no python3"; finish; }
for i in $(seq 700); do echo "line $i: $((i * i)) is the square of $i"; done >"$TMP/text"
run ptrain --data "$TMP/text" --out "$TMP/run" --steps 4 --save-every 2 --seq-len 64 --global-batch 4
claim "a model is trained" [ $rc = 0 ] || finish
mv "$TMP/run/step-2" "$TMP/a"
run reshard --tp 4 "$TMP/run/step-4" "$TMP/b"
sed 's/"num_hidden_layers": *[0-9]*/"num_hidden_layers": 2/' "$TMP/a/config.json" >"$TMP/small.json"
run ptrain --data "$TMP/text" --model "$TMP/small.json" --out "$TMP/other" --steps 1 --seq-len 64 --global-batch 2
cp -r "$TMP/b" "$TMP/bad"
printf '\xff' | dd of="$TMP/bad/weights-00003.safetensors" bs=1 seek=200000 conv=notrunc 2>/dev/null
printf 'api-key\n' >"$TMP/keys"
printf 'admin-key\n' >"$TMP/admin-keys"
A=$("$BIN/reshard" digest "$TMP/a" | sed -n 's/^weights_digest //p') B=$("$BIN/reshard" digest "$TMP/b" | sed -n 's/^weights_digest //p')
export A B
command -v openssl >/dev/null && openssl req -x509 -newkey rsa:2048 -nodes -keyout "$TMP/key.pem" -out "$TMP/cert.pem" -days 2 -subj /CN=localhost \
    -addext subjectAltName=DNS:localhost,IP:127.0.0.1 2>/dev/null || skip "no openssl: TLS is not tried"
run pserve "$TMP/a" --tls-cert "$TMP/cert.pem"
claim "a certificate without its key is wrong usage" [ $rc = 2 -a "$(wc -l <"$TMP/.err")" = 1 ]
run pserve "$TMP/a" --port 0 --tls-cert "$TMP/text" --tls-key "$TMP/text"
claim "what is no certificate is refused in one line" [ $rc != 0 -a "$(wc -l <"$TMP/.err")" = 1 ]
claim "that names the file" has "$err" "$TMP/text"
run pserve "$TMP/a" --port 0 --admin-key-file "$TMP/none"
claim "a key file that is not there is refused" [ $rc = 1 -a "$(wc -l <"$TMP/.err")" = 1 ]
python3 "$here/serve_admin.py" "$TMP" >"$TMP/admin" 2>&1
grep -v '^[0-9]* passed' "$TMP/admin"
read -r p f <<<"$(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed.*/\1 \2/p' "$TMP/admin")"
n_passed=$((n_passed + ${p:-0})) n_failed=$((n_failed + ${f:-1}))
finish
