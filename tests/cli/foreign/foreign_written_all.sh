#!/usr/bin/env bash
# all
# foreign_written_all.sh - foreign_written.sh for every family.
export ALL=1
. "$(dirname "$0")/foreign_written.sh"
