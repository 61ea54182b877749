#!/usr/bin/env bash
# quick sanitize
# hf_folder.sh - `--format hf` makes a folder that can be uploaded: config, tokenizer, chat template, model card,
# license and code come along from every kind of source and through a native checkpoint, shards and index as
# transformers writes them; the same at s3:// URLs, adapters too.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../lib/lib.bash"
command -v python3 >/dev/null || { skip "no python3 here"; finish; }
. "$here/../lib/s3_lib.bash"
s3_server

python3 "$here/../lib/reshard_make.py" hf 'auto_map={"AutoConfig":"configuration_nova.NovaConfig"}'
kept="LICENSE NOTICE README.md added_tokens.json chat_template.jinja configuration_nova.py generation_config.json
merges.txt modules.json preprocessor_config.json special_tokens_map.json tokenizer.json tokenizer.model tokenizer_config.json vocab.json"
for file in $kept; do
    echo "{\"what\": \"$file\"}" >hf/$file
done
echo '{}' >hf/trainer_state.json
mkdir hf/onnx hf/1_Pooling
echo '{"pooling_mode": "mean"}' >hf/1_Pooling/config.json

# same_files WHAT FOLDER: every small file of hf is there, byte for byte
same_files() {
    local file missing=
    for file in $kept; do
        cmp -s hf/$file "$2/$file" || missing+=" $file"
    done
    claim "$1: all small files are there" [ -z "$missing" ]
    file=1_Pooling/config.json
    [ "$1" != native ] || file=1_Pooling.config.json
    claim "$1: the pooling, too" cmp -s hf/1_Pooling/config.json "$2/$file"
}
run reshard --tp 2 hf native
same_files "native" native
run reshard verify native
claim "native: verified" [ $rc = 0 ]
run reshard --format hf --shard-size 20000 native out
claim "hf from native" [ $rc = 0 ]
same_files "hf" out
claim "and nothing else but shards and the index" [ "$(ls out | grep -v '^model' | sort)" = \
    "$(printf '%s\n' $kept config.json 1_Pooling | sort)" ]
python3 - <<'PY'
import glob, json, os, re, struct
index = json.load(open("out/model.safetensors.index.json"))
files, total = sorted(glob.glob("out/model-*.safetensors")), 0
for i, path in enumerate(files):
    assert os.path.basename(path) == "model-%05d-of-%05d.safetensors" % (i + 1, len(files)), path
    with open(path, "rb") as f:
        head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    assert head.pop("__metadata__") == {"format": "pt"}
    size = max(t["data_offsets"][1] for t in head.values())
    assert size <= 20000 or len(head) == 1, (path, size)
    total += size
    for name in head:
        assert index["weight_map"].pop(name) == os.path.basename(path), name
assert not index["weight_map"] and index["metadata"]["total_size"] == total, (index, total)
assert len(files) > 3
PY
rc=$?
claim "shards, their names, format pt, the index and its total_size" [ $rc = 0 ]
run reshard --format hf native one
claim "one file needs no index" [ -e one/model.safetensors -a ! -e one/model.safetensors.index.json ]
run reshard --format hf --dtype bf16 native half
claim "config.json says the dtype" grep -q '"torch_dtype": *"bfloat16"' half/config.json

# URLs
run reshard --format hf --shard-size 20000 native s3://ok/out
claim "to s3" [ $rc = 0 ]
run reshard fetch s3://ok/out fetched
claim "the same folder" diff -r out fetched
run reshard --format hf s3://ok/out from
same_files "from s3" from
python3 -B "$here/../lib/adapter_make.py" make a
echo "a card" >a/README.md
run reshard --tp 2 --config hf/config.json a a2
run reshard --format hf a2 s3://ok/adapter
claim "an adapter to s3" [ $rc = 0 ]
run reshard fetch s3://ok/adapter adapter
claim "the bytes of the adapter" diff -r a adapter
run reshard --format hf --merge s3://ok/adapter s3://ok/out s3://ok/merged
claim "merged, all at URLs" [ $rc = 0 ]
run reshard --format hf --merge a hf merged
run reshard diff merged s3://ok/merged
claim "as on disk" [ $rc = 0 ]

# torch.save's files have the same neighbours
plain=${FIXTURES:-}/foreign/plain/hf_fp32_bin
if [ -d "$plain" ]; then
    cp -r "$plain" bin && chmod -R u+w bin
    for file in $kept; do [ -e bin/$file ] || cp hf/$file bin/; done
    run reshard --format hf bin safe
    claim "hf from pytorch_model.bin" [ $rc = 0 ]
    claim "with all small files" [ "$(ls bin | grep -v -e '^pytorch' -e 'py$')" = "$(ls safe | grep -v '^model')" ]
else
    skip "FIXTURES is not set"
fi
finish
