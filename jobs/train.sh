#!/bin/bash
# Full-graph GCN training on a store that `distgnn prepare` made, with mpiexec on this machine.
# Cost: 4 ranks (RANKS=8 for more), 1 core each; minutes to hours with the graph. Memory of all ranks together is about 12 bytes per
# non-zero (times the replication of 1.5d) and 4 (features + 6 x hidden) bytes per node; `distgnn info STORE` tells the sizes.
#
#   RANKS=8 jobs/train.sh STORE [flags]      e.g. reddit.dg --algorithm 1.5d --replication 2 --epochs 100 --log run.jsonl
set -euo pipefail
(($#)) || { echo "usage: jobs/train.sh STORE [flags of distgnn train]" >&2; exit 2; }
store=$(realpath "$1")
shift
here=$PWD
cd "$(dirname "$0")/.."
source jobs/launch.sh

cd "$here"                                  # so that relative names in the flags mean what they say
launch "${RANKS:-4}" "$DISTGNN" train "$store" "$@"
