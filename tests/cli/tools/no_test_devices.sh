#!/usr/bin/env bash
# quick
# no_test_devices.sh - no program and no library of the product holds the fake device or the emulated GPU
# (tests/devices): none defines their symbols.
. "$(dirname "$0")/../lib/lib.bash"
command -v nm >/dev/null || { skip "no nm here"; finish; }
[ -e "$fake_device" ] || { skip "no $fake_device: make tests"; finish; }

# symbols FILE: the test devices' symbols that it defines
symbols() {
    nm --defined-only "$1" 2>/dev/null | awk '$NF ~ /^(fake|emu)_/ || $NF == "dev_library_open" { print $NF }'
}

claim "the fake device has such symbols" [ -n "$(symbols "$fake_device")" ]
for emulation in "$BIN"/../emu/tests/devices/emu/*.o; do
    [ ! -e "$emulation" ] || claim "so has ${emulation##*/}" [ -n "$(symbols "$emulation")" ]
done
for file in "$BIN"/* "$BIN"/../libshardline.a; do
    found=$(symbols "$file")
    claim "${file##*/} has none" [ -z "$found" ] || echo "  $found"
done
finish
