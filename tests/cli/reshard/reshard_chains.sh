#!/usr/bin/env bash
# all
# reshard_chains.sh - hundreds of random chains of layouts and of mutations (make test has a hundred of each).
. "$(dirname "$0")/../lib/lib.bash"
test=$BIN/../tests/unit/reshard/reshard_chain_test
[ -x "$test" ] || { skip "reshard_chain_test is not built"; finish; }
run env SHARDLINE_CHAINS=800 "$test"
claim "800 chains and 800 mutations" [ $rc = 0 ]
finish
