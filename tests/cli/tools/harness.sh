#!/usr/bin/env bash
# quick
# harness.sh - the harness itself: it reports a crash, a hang, a missing last line; the checks of the source
# report what they must.
. "$(dirname "$0")/../lib/lib.bash"
top=$(cd "$(dirname "$0")/../../.." && pwd)

# ---- tests/run over programs that are shell scripts ----
mkdir -p "$TMP/t/unit" "$TMP/t/ranks" "$TMP/t/cli" "$TMP/b/tests/unit" "$TMP/b/tests/ranks"
program() {                 # program NAME TEXT: a source and what stands for its program
    echo "${3:-}" >"$TMP/t/$1.c"
    printf '#!/bin/bash\n%s\n' "$2" >"$TMP/b/tests/$1"
    chmod +x "$TMP/b/tests/$1"
}
go() { run "$top/tests/run" --bin "$TMP/b" --tests "$TMP/t" --timeout 2 "$@"; last=$(tail -1 <<<"$out"); }

program unit/good_test 'echo "3 passed, 0 failed, 1 skipped"'
go quick
claim "sums are added and success is 0" [ "$rc/$last" = "0/3 passed, 0 failed, 1 skipped" ]

program unit/bad_test 'echo "x.c:1: wrong"; echo "1 passed, 2 failed, 0 skipped"; exit 1'
go quick
claim "failures are added and the status is 1" [ "$rc/$last" = "1/4 passed, 2 failed, 1 skipped" ]
claim "what failed is shown" has "$out" "    | x.c:1: wrong"
claim "and named at the end" has "$out" "failed: unit/bad_test"

program unit/bad_test 'echo "5 passed, 0 failed, 0 skipped"; kill -SEGV $$'
go quick --only bad
claim "a crash is a failure" [ "$rc/$last" = "1/5 passed, 1 failed, 0 skipped" ]
claim "and the signal is named" has "$out" "crashed: SIGSEGV"

program unit/bad_test 'exit 0'
go quick --only bad
claim "a program without its last line failed" has "$out" "ended without its last line"

program unit/bad_test 'echo "5 passed, 0 failed, 0 skipped"; sleep 60'
go quick --only bad
claim "a program that hangs is stopped" has "$out" "hung: stopped after 2 s"
claim "and failed" [ "$last" = "5 passed, 1 failed, 0 skipped" ]

rm "$TMP/b/tests/unit/bad_test"
go quick --only bad
claim "a program that was not built failed" [ "$rc/$last" = "1/0 passed, 1 failed, 0 skipped" ]
claim "and the report asks" has "$out" "was it built"
rm "$TMP/t/unit/bad_test.c"

if command -v mpirun >/dev/null; then
    program ranks/r_test '[ $OMPI_COMM_WORLD_RANK = 0 ] && echo "2 passed, 0 failed, 0 skipped"; exit 0' \
        '/* ranks: 1 3 */'
    go quick --only ranks/
    claim "a ranks test runs once for every number of ranks" [ "$rc/$last" = \
        "0/4 passed, 0 failed, 0 skipped" ]
    claim "and says it" has "$out" "ranks/r_test, 3 ranks"
    program ranks/r_test '[ $OMPI_COMM_WORLD_RANK = 0 ] && echo "2 passed, 0 failed, 0 skipped" && exit 0
                          echo "1 passed, 1 failed, 0 skipped"; exit 1' '/* ranks: 2 */'
    go quick --only ranks/
    claim "one rank that fails is enough" [ "$rc/$last" = "1/1 passed, 1 failed, 0 skipped" ]
    rm "$TMP/t/ranks/r_test.c"
else
    skip "no mpirun here"
fi

printf '#!/bin/bash\n# quick sanitize\n[ -d "$TMP" ] && [ "$BIN" = %q ] && echo "1 passed, 0 failed, 0 skipped"\n' "$TMP/b/bin" >"$TMP/t/cli/a.sh"
printf '# all\necho "1 passed, 0 failed, 0 skipped"\n' >"$TMP/t/cli/b.sh"
go quick --only cli
claim "quick runs the quick scripts, with BIN and TMP" [ "$rc/$last" = "0/1 passed, 0 failed, 0 skipped" ]
go all --only cli
claim "all runs both" [ "$last" = "2 passed, 0 failed, 0 skipped" ]
go sanitize --only cli
claim "sanitize those that say so" [ "$last" = "1 passed, 0 failed, 0 skipped" ]
rm "$TMP"/t/cli/*.sh
printf '#!/bin/bash\n# quick\n[ -e %q ] && echo "3 passed, 0 failed, 0 skipped" && exit\n: >%q\necho "1 passed, 2 failed, 0 skipped"\nexit 1\n' \
    "$TMP/once" "$TMP/once" >"$TMP/t/cli/once.sh"
go quick --only cli
claim "a script that failed runs again, and that run counts" [ "$rc/$last" = "0/3 passed, 0 failed, 0 skipped" ]
claim "which is said" has "$out" "unsteady: cli/once"
printf '#!/bin/bash\n# quick\necho "1 passed, 2 failed, 0 skipped"\nexit 1\n' >"$TMP/t/cli/once.sh"
go quick --only cli
claim "one that fails twice failed" [ "$rc/$last" = "1/1 passed, 2 failed, 0 skipped" ]
claim "and is not called unsteady" [ "${out/unsteady/}" = "$out" ]
rm "$TMP/t/cli/once.sh"
go
claim "no set is wrong usage" [ $rc = 2 ]

# ---- tools/check-layers over a small tree ----
layers() {                  # layers FILE TEXT: the findings in a tree with this one file
    rm -rf "$TMP/l"
    mkdir -p "$TMP/l/$(dirname "$1")"
    printf '%b' "$2" >"$TMP/l/$1"
    run "$top/tools/check-layers" "$TMP/l"
}
function_of() { printf 'int f(void)\\n{\\n'; printf '    x();\\n%.0s' $(seq "$1"); printf '}\\n'; }
while IFS='|' read -r file text finding; do
    layers "$file" "$text"
    if [ -z "$finding" ]; then
        claim "nothing to say about $file: $text" [ "$rc/$out" = 0/ ]
    else
        claim "$file: $text: $finding" [ "$rc/${out/"$finding"/found}" != "$rc/$out" ]
        claim "$file: the status is 1" [ $rc = 1 ]
    fi
done <<'TABLE'
model/a.c|#include "kernels/k.h"\n#include "comm/c.h"\n#include "model/m.h"\n#include <stdio.h>\n|
model/a.c|\n#include "format/f.h"\n|model/a.c:2: model may not include format
base/a.h|#include "kernels/k.h"\n|base may not include kernels
format/a.c|#include "comm/c.h"\n|format may not include comm
kernels/x86/a.c|#include "comm/c.h"\n|kernels may not include comm
train/train_main.c|#include "serve/s.h"\n|train may not include serve
reshard/reshard_main.c|#include "model/m.h"\nint main(void)\n{\n    io_begin();\n    exit(1);\n}\n|
tests/unit/a_test.c|#include "serve/s.h"\n#include "train/t.h"\n|
tools/x_main.c|#include "reshard/s.h"\nio_begin();\n|
tools/x_main.c|int main(void)\n|main calls io_begin
train/a.c|int fd = open(path, O_RDONLY);\n|open: ask base/io.h
train/a.c|f = fopen(o->log, "w");\n|open: ask base/io.h
train/a.c|f = fopen("/proc/self/statm", "r");\nrc = c->open(d, O_X);\n|
base/io.c|int fd = open(path, O_RDONLY);\n|
train/a.c|#include "other.h"\n|say room/other.h
train/a.c|#include "libfoo/other.h"\n|libfoo is no room
format/a.c|#include <mpi.h>\n|MPI belongs to comm
comm/a.c|#include <mpi.h>\n#ifdef WITH_CUDA\n#endif\n|
train/a.c|#if WITH_CUDA\n#endif\n|belongs to kernels or comm
train/a.c|    exit(1);\n|no exit() below main
train/a.c|    _exit(1);\n    do_exit(1);\n * exit(1)\n|
train/a.c|int x; \n|train/a.c:1: blanks at the end
train/a.c|\tint x;\n|a tab at the beginning
TABLE
layers train/a.c "$(function_of 121)"
claim "a function of 121 lines is too long" has "$out" "train/a.c:2: a function of 121 lines"
layers train/a.c "$(function_of 120)"
claim "one of 120 is not" [ $rc = 0 ]
layers train/a.c "$(printf '\\n%.0s' $(seq 801))"
claim "a file of 801 lines is too long" has "$out" "more than 800 lines"
layers train/a.c "$(printf '\\n%.0s' $(seq 800))"
claim "one of 800 is not" [ $rc = 0 ]

# ---- tools/check-names over a small tree ----
mkdir -p "$TMP/n/tools" "$TMP/n/base"
cp "$top/tools/check-names" "$TMP/n/tools/"
names() {                   # names HEADER-TEXT: the findings in a tree with this one header
    printf '%b' "$1" >"$TMP/n/base/a.h"
    run "$TMP/n/tools/check-names" "$TMP/n/base"
}
while IFS='|' read -r text finding; do
    names "$text"
    if [ -z "$finding" ]; then
        claim "check-names accepts: $text" [ $rc = 0 ]
    else
        claim "check-names: $text: $finding" has "$out" "$finding" && claim "the status is 1" [ $rc = 1 ]
    fi
done <<'TABLE'
int bare_one(void);\n|base/a.h:1: bare_one: the prototype has no comment
/* Above. */\nint one(int a,\n        int b);\nint two(void);\n|
/* Above. */\nint one(void);\n\nint two(void);\n|base/a.h:4: two: the prototype has no comment
int one(void); /* beside,\n               * on two lines */\nint two(void);\n|base/a.h:3: two: the prototype has no comment
/* Above. */\n#define A 1\nint one(void);\nstruct s {\n    int x;\n};\nint two(void);\n|base/a.h:7: two: the prototype has no comment
/* See a.h, base/a.h, one(), ONE_MACRO. */\nint one(void);\n#define ONE_MACRO 1\n|
/* See b.h. */\n|base/a.h:1: b.h: no such file
/* See base/other. */\n|base/a.h:1: base/other: no such file or folder
/* See\n * vanish() and some_call(x). */\n|base/a.h:2: some_call(): no such function
/* See\n * vanish() and some_call(x). */\n|base/a.h:2: vanish(): no such function
/* See OTHER_MACRO. */\n|base/a.h:1: OTHER_MACRO: no such macro or variable
/* See OMPI_COMM_WORLD_RANK and NAME_test.c. */\n|
TABLE

# ---- tools/style-check ----
if command -v clang-format >/dev/null; then
    cp "$top/tools/style-check" "$TMP/n/tools/"
    cp "$top/.clang-format" "$TMP/n/"
    printf '/* %s */\nint x;\n' "$(printf 'ö%.0s' {1..104})" >"$TMP/n/base/a.h"
    run "$TMP/n/tools/style-check"
    claim "110 columns are not too many" [ "$rc/$out" = 0/ ]
    printf '/* %s */\nint  x;\n' "$(printf 'ö%.0s' {1..105})" >"$TMP/n/base/a.h"
    run "$TMP/n/tools/style-check"
    claim "111 are" has "$out" "base/a.h:1: 111 columns"
    claim "and what the formatter would change is found" has "$out" "base/a.h:2: clang-format"
    claim "the status is 1" [ $rc = 1 ]
else
    skip "clang-format is not installed"
fi

# ---- golden files ----
golden() {
    mkdir -p "$TMP/g"
    printf '%s\n' "$@" >"$TMP/g/a.golden"
    mkdir -p "$TMP/g.tmp"
    run env GOLDEN="$TMP/g" TMP="$TMP/g.tmp" bash "$top/tests/cli/tools/golden.sh"
    last=$(tail -1 <<<"$out")
}
golden '# text' '$ printf "a\n  b\n"; echo oops >&2; exit 3' '> a' '>   b' '! oops' '= 3' '$ true'
claim "a golden file passes" [ "$rc/$last" = "0/2 passed, 0 failed, 0 skipped" ]
golden '$ printf "a 12\nb\nc\n"' '> a ...' '> ...'
claim "dots stand for what may differ" [ "$rc/$last" = "0/1 passed, 0 failed, 0 skipped" ]
for wrong in '$ echo a|> b' '$ echo a' '$ true|> a' '$ echo a >&2|> a' '$ exit 2|= 1' '$ exit 2' \
    '$ printf "a\nb\n"|> a' '$ true|what'; do
    mapfile -t lines <<<"${wrong//|/$'\n'}"
    golden "${lines[@]}"
    claim "a golden file that differs fails: $wrong" [ $rc = 1 ]
done
finish
