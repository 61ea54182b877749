#!/usr/bin/env bash
# all
# reshard_quant_all.sh - reshard_quant.sh at more seeds and layouts.
export QUANT_SCHEMES= QUANT_SEEDS="11 12 13" \
    QUANT_LAYOUTS="tp=1 tp=2 tp=8 dp=3,zero=3 tp=4,dp=3,zero=3 tp=8,pp=2,dp=2,zero=3 dp=4,ep=4 tp=2,dp=2,ep=4,zero=3"
exec bash "$(dirname "$0")/reshard_quant.sh"
