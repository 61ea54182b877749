#!/usr/bin/env bash
# quick
# fake_device.sh - the programs on a device whose memory the host cannot touch (tests/devices/fake): a direct
# access ends a rank by SIGSEGV, a wrong pointer is named, and the numbers are the CPU's. The reference of
# every line is a run with --device cpu.
device=fake
. "$(dirname "$0")/../lib/device_cases.bash"
