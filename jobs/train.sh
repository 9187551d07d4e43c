#!/bin/bash
# Full-graph GCN training on a store that `distgnn prepare` made, with mpiexec on this machine, or by sbatch.
# Cost: 4 ranks (RANKS=8 for more), 1 core each; minutes to hours with the graph. Memory of all ranks together is about 12 bytes per
# non-zero (times the replication of 1.5d) and 4 (features + 6 x hidden) bytes per node; `distgnn info STORE` tells the sizes.
#
#   RANKS=8 jobs/train.sh STORE [flags]      e.g. reddit.dg --algorithm 1.5d --replication 2 --epochs 100 --log run.jsonl
#   sbatch -n 8 jobs/train.sh STORE [flags]
#
#SBATCH --ntasks=4
# Two minutes before its time is over, a training saves, and its job goes back into the queue; see docs/cluster.md.
#SBATCH --signal=USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail
(($#)) || { echo "usage: jobs/train.sh STORE [flags of distgnn train]" >&2; exit 2; }
# Slurm runs a copy of this script: launch.sh is beside the original, or in jobs/ where the job was submitted.
original() { scontrol show job "${SLURM_JOB_ID:-}" 2>/dev/null | sed -n 's|^ *Command=\(/[^ ]*\)/.*|\1|p'; }
for jobs in "$(dirname "$0")" "$(original)" "${SLURM_SUBMIT_DIR:-.}/jobs"; do [[ -f $jobs/launch.sh ]] && break; done
source "$jobs/launch.sh"

train_job "${RANKS:-${SLURM_NTASKS:-4}}" "$@"
