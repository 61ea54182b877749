#!/usr/bin/env bash
# all long
# make_targets.sh - every `make` command of README.md, docs/, CONTRIBUTING.md and `make help`: those that
# build, install, pack and show are run, in a copy of the tree with what is built; for the others the table
# says why not. A command that the table does not know fails.
. "$(dirname "$0")/../lib/lib.bash"
top=$(cd "$(dirname "$0")/../../.." && pwd)
built=$(cd "$BIN/.." && pwd)
config=$(basename "$built")
[ "$built" = "$top/build/$config" ] || { skip "the programs are not in build/CONFIG of this tree"; finish; }
copy=$TMP/copy
mkdir -p "$copy/build/$config"
(cd "$top" && git ls-files -z 2>/dev/null | xargs -0 cp -a --parents -t "$copy" 2>/dev/null)
[ -e "$copy/Makefile" ] || (cd "$top" && tar c --exclude=./build --exclude=./.git . | tar x -C "$copy")
cp -a "$built/obj" "$built/bin" "$built/libshardline.a" "$copy/build/$config"
rm -rf "$copy/build/$config/obj/tests"
cuda=()
[ ! -e "$built/obj/kernels/cuda/none.o" ] || cuda=(CUDA=)          # as it was built
in_copy() { run make -C "$copy" --no-print-directory CONFIG="$config" "${cuda[@]}" "$@"; }

# TARGET: what becomes of it here
declare -A answer=(
    [test]="this is a part of it" [test-all]="this is a part of it" [sanitize]="test-all runs it" \
        [tidy]="tests/run does the same"
    [bench]="cli/tools/bench_run tries it on little data" [bench-reshard]="needs 13 GB" \
        [bench-train]="minutes, and figures instead of claims"
    [bench-serve]="minutes, and figures instead of claims" [bench-foreign]="needs 8 GB and other frameworks" \
        [fuzz]="needs clang, a minute a target"
    [style-check]="tests/run does the same" [check]="tests/run does the same" \
        [tests]="test is this and a run" [clean]=run
    [programs]=run [install]=run [dist]=run [deb]=run [demo]=run [help]=run [check-layers]=run \
        [check-names]=run
)
mentioned=$(cd "$top" && {
    make -s help | sed -n 's/^make \([a-z-]*\) .*/\1/p'
    grep -ohE '(`|^ +|^)(FIXTURES=DIR )?make( [a-z-]+)?' README.md CONTRIBUTING.md docs/*.md |
        sed -n 's/.*make \([a-z-]*\)$/\1/p'
} | sort -u)
claim "commands are found" [ "$(wc -w <<<"$mentioned")" -ge 12 ]
for target in $mentioned; do
    claim "make $target is known to this test" [ -n "${answer[$target]:-}" ] || continue
    [ "${answer[$target]}" = run ] || echo "make $target: ${answer[$target]}"
done

in_copy
claim "make: everything is built" [ $rc = 0 ] &&
    claim "and nothing is printed when nothing is to do" [ -z "$out$err" ]
in_copy programs
claim "make programs" [ $rc = 0 ]
claim "build/bin leads to the programs" [ -x "$copy/build/bin/ptrain" ]
in_copy install DESTDIR="$TMP/root"
claim "make install DESTDIR=" [ $rc = 0 -a -x "$TMP/root/usr/local/bin/ptrain" ]
claim "what is installed runs" "$TMP/root/usr/local/bin/ptrain" --version
claim "plot under both names" eval \
    '"$TMP/root/usr/local/bin/plot" --version && "$TMP/root/usr/local/bin/shardline-plot" --version'
in_copy install DESTDIR="$TMP/other" PREFIX=/opt/x
claim "make install PREFIX=" [ $rc = 0 -a -x "$TMP/other/opt/x/bin/ptrain" ]
for target in help check-layers check-names; do
    in_copy $target
    claim "make $target" [ $rc = 0 ]
done
if command -v dpkg-deb >/dev/null && command -v dpkg-shlibdeps >/dev/null; then
    in_copy deb
    claim "make deb" [ $rc = 0 -a -s "$copy/$(tail -n 1 <<<"$out")" ]
else
    skip "no dpkg-dev: no make deb"
fi
if command -v git >/dev/null; then
    (cd "$copy" && git init -q . && git add Makefile tools base &&
        git -c user.name=t -c user.email=t@example.org commit -qm "A commit") >/dev/null 2>&1
    in_copy dist
    claim "make dist" [ $rc = 0 -a -s "$copy/$(tail -n 1 <<<"$out")" ]
else
    skip "no git: no make dist"
fi

# the demo: few steps; its commands can be copied from the tree's folder, and nothing in a file is coloured
export DEMO_STEPS=12
in_copy demo
claim "make demo" [ $rc = 0 ] && claim "no escape codes in a file" eval '[[ $out$err != *$'"'\\033'"'* ]]'
shown=$(sed -n 's/^   \$ //p' <<<"$out" | grep -E '^build/bin/(reshard digest|plot) ')
claim "commands are shown" [ "$(wc -l <<<"$shown")" -ge 4 ]
while IFS= read -r command; do
    claim "copied: $command" eval '(cd "$copy" && bash -c "$command") >"$TMP/.out" 2>"$TMP/.err"'
done <<<"$shown"
in_copy demo DATA=LICENSE
claim "make demo DATA=FILE" [ $rc = 0 ]
in_copy clean
claim "make clean" [ $rc = 0 -a ! -e "$copy/build" ]
rm -rf "$copy"
finish
