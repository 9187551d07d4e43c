#!/bin/bash
# The demo with mpiexec on this machine, or by sbatch: a generated graph, trained with several algorithms, their losses and words side by side.
# Cost: 4 ranks (RANKS=8 for more); about 1 minute; 2 GB of memory together. No GPU needed.
#
#   jobs/demo.sh                             after `make install` or with distgnn on the path; MPIEXEC names another launcher
#   RANKS=8 jobs/demo.sh --help              what follows goes to `distgnn demo`
#
#SBATCH --ntasks=4
set -euo pipefail
# Slurm runs a copy of this script: launch.sh is beside the original, or in jobs/ where the job was submitted.
original() { scontrol show job "${SLURM_JOB_ID:-}" 2>/dev/null | sed -n 's|^ *Command=\(/[^ ]*\)/.*|\1|p'; }
for jobs in "$(dirname "$0")" "$(original)" "${SLURM_SUBMIT_DIR:-.}/jobs"; do [[ -f $jobs/launch.sh ]] && break; done
source "$jobs/launch.sh"

launch "${RANKS:-${SLURM_NTASKS:-4}}" "$DISTGNN" demo "$@"
