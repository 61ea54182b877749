#!/usr/bin/env bash
# all
# serve_structured_all.sh - 10,000 constrained answers of a model that knows next to nothing: all are valid.
SERVE_STRUCTURED=10000 exec bash "$(dirname "$0")/serve_structured.sh"
