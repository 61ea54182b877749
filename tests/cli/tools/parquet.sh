#!/usr/bin/env bash
# quick
# parquet.sh - tools/parquet-to-jsonl: a column of Parquet files as JSON lines that ptok reads. Needs python3
# with pyarrow (PYTHON names another python3).
. "$(dirname "$0")/../lib/lib.bash"
tool=$(cd "$lib_dir/../../.." && pwd)/tools/parquet-to-jsonl python=${PYTHON:-python3}
cd "$TMP" || exit 1
if ! "$python" -c 'import pyarrow.parquet' 2>/dev/null; then
    run "${python}" "$tool" a.parquet
    claim "without pyarrow it says what to install" eval \
        '[ $rc != 0 ] && [[ $err == *"pip install pyarrow"* ]]'
    skip "no pyarrow here"
    finish
fi
"$python" - <<'PY'
import pyarrow as a, pyarrow.parquet as p
p.write_table(a.table({"n": list(range(3000)), "text": [None if i == 7 else f"row {i} é\n" for i in range(3000)]}), "a.parquet", row_group_size=100)
p.write_table(a.table({"body": ["last"]}), "b.parquet")
PY
run "$python" "$tool" a.parquet
claim "a line a row, in order, without the null" [ \
    "$(wc -l <<<"$out")/$(head -n 1 <<<"$out")/$(tail -n 1 <<<"$out")" = \
        '2999/{"text": "row 0 é\n"}/{"text": "row 2999 é\n"}' ]
cp .out a.jsonl
run ptok prepare --tokenizer bytes a.jsonl --out a.bin
claim "ptok takes them as documents" has "$out" '"documents":2999,'
run "$python" "$tool" --column body b.parquet
claim "another column" [ "$out" = '{"text": "last"}' ]
run "$python" "$tool" b.parquet
claim "a column that is not there is named, with those that are" has "$err" \
    "parquet-to-jsonl: b.parquet: no column text: it has body"
run "$python" "$tool" --column n a.parquet
claim "numbers are no text" has "$err" "column n holds int, not text"
run "$python" "$tool" a.jsonl
claim "a file that is none is one line" [ "$rc/$(wc -l <<<"$err")" = 1/1 ]
finish
