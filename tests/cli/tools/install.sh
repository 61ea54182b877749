#!/usr/bin/env bash
# all
# install.sh - what `make install`, `make deb` and `make dist` produce, and the files of examples/ as far as
# they can be checked without a cluster.
. "$(dirname "$0")/../lib/lib.bash"
top=$(cd "$(dirname "$0")/../../.." && pwd)
programs="ptrain reshard pserve ptok memplan pbench plot shardline-plot"

run "$top/tools/package" install "$BIN" "$TMP/root" /opt/x
claim "installed" [ $rc = 0 ]
at=$TMP/root/opt/x
for p in $programs; do
    claim "$p runs" eval '"$at/bin/$p" --version >/dev/null'
    claim "$p is stripped" [ -z "$(nm "$at/bin/$p" 2>/dev/null)" ]
    claim "$p has its man page" eval 'zcat "$at/share/man/man1/$p.1.gz" | grep -q "^.SH EXAMPLES"'
    claim "$p has its completion" [ -s "$at/share/bash-completion/completions/$p" -a -s \
        "$at/share/zsh/site-functions/_$p" -a -s "$at/share/fish/vendor_completions.d/$p.fish" ]
done
if command -v man >/dev/null; then
    run env MANWIDTH=100 man --warnings -M "$at/share/man" ptrain
    claim "man ptrain" has "$out" "--lr-schedule" && claim "without a warning" [ -z "$err" ]
else
    skip "no man"
fi
claim "bash-completion finds it by the file's name" bash -c \
    ". '$at/share/bash-completion/completions/ptrain'; complete -p ptrain >/dev/null"

if command -v dpkg-deb >/dev/null && command -v dpkg-shlibdeps >/dev/null; then
    copy=$TMP/copy                                    # build/ of the tree is not touched
    mkdir -p "$copy/build" &&
        (cd "$top" && cp -r tools base README.md LICENSE CHANGELOG.md format examples "$copy")
    [ ! -d "$top/docs" ] || cp -r "$top/docs" "$copy"
    export SOURCE_DATE_EPOCH=1700000000
    run "$copy/tools/package" deb "$BIN"
    deb=$copy/$out
    claim "a package" [ $rc = 0 -a -s "$deb" ]
    first=$(sha256sum <"$deb")
    run "$copy/tools/package" deb "$BIN"
    claim "the same bytes again" [ "$(sha256sum <"$deb")" = "$first" ]
    unset SOURCE_DATE_EPOCH
    run dpkg-deb -f "$deb" Depends
    claim "it depends on its libraries and on mpirun" eval \
        '[[ $out == *libopenmpi3* && $out == *libmicrohttpd12* && $out == *openmpi-bin* ]]'
    mkdir "$TMP/deb" && dpkg-deb -x "$deb" "$TMP/deb"
    claim "no file of plotutils" [ ! -e "$TMP/deb/usr/bin/plot" -a ! -e \
        "$TMP/deb/usr/share/man/man1/plot.1.gz" ]
    claim "plot has another name there" eval \
        '"$TMP/deb/usr/bin/shardline-plot" --help | grep -q "^usage: shardline-plot "'
    claim "its page and completion, too" eval \
        'zcat "$TMP/deb/usr/share/man/man1/shardline-plot.1.gz" | grep -q "^.SH EXAMPLES" && grep -q "complete .* shardline-plot" "$TMP/deb/usr/share/bash-completion/completions/shardline-plot"'
    claim "the scripts of the guide" [ -x "$TMP/deb/usr/share/shardline/follow-log" -a -x \
        "$TMP/deb/usr/share/shardline/parquet-to-jsonl" ]
    claim "md5sums hold" eval '(dpkg-deb -I "$deb" md5sums | (cd "$TMP/deb" && md5sum -c --quiet -))'
    if command -v lintian >/dev/null; then
        run lintian --allow-root --fail-on error,warning "$deb"
        claim "lintian finds no error and no warning" [ $rc = 0 ]
    else
        skip "no lintian"
    fi
else
    skip "no dpkg-dev: no package is made"
fi
if git -C "$top" rev-parse -q --verify HEAD >/dev/null 2>&1; then
    run "$top/tools/package" dist
    claim "a tarball" [ $rc = 0 ] &&
        claim "it holds the sources" eval \
            'tar tzf "$top/$out" | grep -q "^shardline-[0-9.]*/train/ptrain_main.c$"'
    mkdir "$TMP/dist" && tar xzf "$top/$out" -C "$TMP/dist"
    claim "the Makefile works in it" eval 'make -C "$TMP"/dist/shardline-* help >/dev/null'
    run "$(echo "$TMP"/dist/shardline-*)/tools/package" dist
    claim "outside of git: an error of one line" [ $rc = 1 ] && claim "it says why" has "$err" "is not in git"
else
    skip "not in git: no tarball is made"
fi

for f in "$top"/examples/*.sbatch; do claim "$(basename "$f") is a script" bash -n "$f"; done
if command -v systemd-analyze >/dev/null; then
    sed "s|/usr/bin/|$at/bin/|" "$top/examples/pserve.service" >"$TMP/pserve.service"
    run systemd-analyze verify --man=no "$TMP/pserve.service"
    claim "systemd takes the unit" [ $rc = 0 -a -z "$(grep pserve.service <<<"$err")" ]
else
    skip "no systemd-analyze"
fi
# every option of the examples is one of the program
for p in ptrain reshard pserve; do
    run "$BIN/$p" --help
    for o in $(grep -hE "(^|[ /[])$p[ ,]" -A4 "$top"/examples/* "$top"/serve/*Dockerfile |
        grep -o -- '--[a-z][a-z-]*' |
            grep -vxE -- '--(mpi|kill-on-bad-exit|cpu-bind|map-by|bind-to|host|now)' | sort -u); do
        claim "an option of the examples: $o" grep -qhE -- "^  $o( |\$)" \
            <("$BIN/ptrain" --help; "$BIN/reshard" --help; "$BIN/pserve" --help)
    done
done
finish
