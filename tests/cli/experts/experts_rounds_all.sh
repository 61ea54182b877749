#!/usr/bin/env bash
# all
# experts_rounds_all.sh - experts_rounds.sh with both dtypes, latent attention, more schedules and recompute
# policies.
EXPERTS_ROUNDS=all exec bash "$(dirname "$0")/experts_rounds.sh"
