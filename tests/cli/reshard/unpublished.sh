#!/usr/bin/env bash
# quick
# unpublished.sh - folders of unfinished work: a source is never removed, nor what no save made; a checkpoint
# that is whole and was not published is rescued by the command that `reshard verify` prints.
. "$(dirname "$0")/../lib/train_lib.bash"
text 1 20000 >"$TMP/text"
config "$TMP/model.json" vocab_size=256
common=(--data "$TMP/text" --model "$TMP/model.json" --seq-len 31 --global-batch 4 --threads 1)
train a --steps 2
claim "a checkpoint to begin with" [ $rc = 0 ]
cd "$TMP" || exit 1
good=a/step-2
same_files() { diff -r "$1" "$2" >/dev/null; }
# unpublished NAME MARKED: what a save leaves that is killed just before the rename (MARKED: with its marker)
unpublished() {
    rm -rf "$1"
    cp -r $good "$1"
    [ "$2" = 0 ] || : >"$1/.shardline-tmp"
}

for marked in 0 1; do
    # ---- the source has the name of the folder that the target is written in ----
    unpublished X.tmp-save $marked
    run reshard X.tmp-save X
    claim "reshard X.tmp-save X (marked $marked) works" [ $rc = 0 ] &&
        claim "the target is whole" same_files X $good
    claim "the source stays" [ -f X.tmp-save/manifest.json ] &&
        claim "which is said" has "$err" "X.tmp-save stays: "
    rm -rf X X.tmp-save

    for how in --init --resume; do
        rm -rf out
        mkdir out
        unpublished out/step-3.tmp-save $marked
        run ptrain "${common[@]}" --out out --steps 3 $how out/step-3.tmp-save
        claim "ptrain $how OUT/step-3.tmp-save (marked $marked) works" [ $rc = 0 ]
        claim "its step 3 is whole" "$BIN/reshard" verify out/step-3 >/dev/null
        claim "the source stays" [ -f out/step-3.tmp-save/manifest.json ] &&
            claim "which is said" has "$err" "step-3.tmp-save stays: "
    done
done

# ---- the only trained state is an unpublished one: a run that finds no other does not remove it ----
rm -rf out
mkdir out
unpublished out/step-2.tmp-save 1
run ptrain "${common[@]}" --out out --steps 1 --resume auto
claim "a whole save stays" [ -f out/step-2.tmp-save/manifest.json ] &&
    claim "with a word about its rescue" has "$err" "\`reshard verify\` says how to publish it"
run reshard verify out/step-2.tmp-save
claim "verify prints it" has "$out" "out/step-2.tmp-save: whole, but not published"
eval "$(sed -n 's/.*publish it with: //p' <<<"$out")"
claim "and the command works: every byte, and nothing else" same_files out/step-2 $good
claim "the folder is gone" [ ! -e out/step-2.tmp-save ]
# the name is taken, and has a quote and spaces
mkdir "it's here"
unpublished "it's here/step-2.3.tmp-save" 1
mkdir "it's here/step-2"
run reshard verify "it's here/step-2.3.tmp-save"
eval "$(sed -n 's/.*publish it with: //p' <<<"$out")"
claim "a name that is taken is not touched" same_files "it's here/step-2.rescued" $good
run reshard verify $good
claim "a published one needs none of it" eval '[ $rc = 0 ] && ! has "$out" published'
unpublished Y.tmp-save 1
(flock -x 8 && exec sleep 60) 8<Y.tmp-save/.shardline-tmp &
holder=$!
for _ in {1..500}; do flock -n -x Y.tmp-save/.shardline-tmp true || break; sleep 0.02; done
run reshard verify Y.tmp-save
claim "while a process works in it there is no rescue" has "$out" "not published yet: another process uses it"
run reshard $good Y
claim "and no other writer" [ $rc = 1 ] &&
    claim "which is said" has "$err" "another process is writing Y.tmp-save"
kill $holder

# ---- a user's folder ----
mkdir -p Z.tmp-save out/step-9.tmp-save
echo notes | tee Z.tmp-save/notes.txt >out/step-9.tmp-save/notes.txt
run reshard --format hf --weights-only $good Z
claim "a folder without our marker is in nobody's way" [ $rc = 0 ] &&
    claim "and stays" [ "$(cat Z.tmp-save/notes.txt)" = notes ]
run ptrain "${common[@]}" --out out --steps 9 --resume auto
claim "so in a run's folder" [ $rc = 0 ] &&
    claim "and stays" [ "$(cat out/step-9.tmp-save/notes.txt)" = notes ]
claim "which is said" has "$err" "step-9.tmp-save stays: it has no .shardline-tmp"
run reshard verify out/step-9
claim "the run saved all the same" [ $rc = 0 ]

# ---- --keep removes checkpoints, and nothing that lies in them ----
rm -rf out
mkdir -p out/step-1
echo notes >out/step-1/notes.txt
run ptrain "${common[@]}" --out out --steps 5 --save-every 2 --keep 1
claim "--keep passes over a folder that is no checkpoint" [ "$rc/$(cat out/step-1/notes.txt)" = 0/notes ] &&
    claim "and says so" has "$err" "--keep 1: "
claim "and still keeps one" [ "$(cd out && echo *)" = "step-1 step-5" ]
finish
