#!/usr/bin/env bash
# all waits
# killed_trainer.sh - kill -9 of a trainer that publishes while its server reads a version: the server goes on with
# the whole one that it has, and takes the next one of a trainer that is started again.
. "$(dirname "$0")/../lib/serve_lib.bash"
asked killed_trainer.py "$TMP"
finish
