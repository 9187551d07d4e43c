#!/bin/bash
# The demo with mpiexec, on this machine: a generated graph, trained with several algorithms, their losses and words side by side.
# Cost: 4 ranks (RANKS=8 for more); about 1 minute; 2 GB of memory together. No GPU needed.
#
#   jobs/demo.sh                             after `make install` or with distgnn on the path; MPIEXEC names another launcher
#   RANKS=8 jobs/demo.sh --help              what follows goes to `distgnn demo`
set -euo pipefail
cd "$(dirname "$0")/.."
source jobs/launch.sh

launch "${RANKS:-4}" "$DISTGNN" demo "$@"
