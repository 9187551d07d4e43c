#!/bin/bash
# GraphSAGE on minibatches as in Tripathy et al. (MLSys 2024, Table 4): three layers, fanout 15, 10, 5, batches of 1024. The paper names no
# hidden width and no number of epochs: here 256 and 10, and accuracies at the end.
# Cost: 4 ranks (RANKS=64 for more), 1 core each. Memory of a rank is that of the graph to sample from, 8 bytes per non-zero, unless it is
# told to --partition-graph; and of all ranks together 4 bytes x nodes x (2 x features + about 4 x 256), for the evaluation on the
# full graph, times --replication. Minutes: an epoch of 100,000 training nodes takes seconds on 4 cores, loading and evaluating take longer.
#
#   jobs/minibatches.sh STORE [flags of train]      e.g. graph.dg --partition-graph --replication 2 --log run.jsonl
#   sbatch -n 8 jobs/minibatches.sh STORE [flags]
#
#SBATCH --ntasks=4
# Two minutes before its time is over, a training saves, and its job goes back into the queue; see docs/cluster.md.
#SBATCH --signal=USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail
(($# >= 1)) || { echo "usage: jobs/minibatches.sh STORE [flags of distgnn train]" >&2; exit 2; }
# Slurm runs a copy of this script: launch.sh is beside the original, or in jobs/ where the job was submitted.
original() { scontrol show job "${SLURM_JOB_ID:-}" 2>/dev/null | sed -n 's|^ *Command=\(/[^ ]*\)/.*|\1|p'; }
for jobs in "$(dirname "$0")" "$(original)" "${SLURM_SUBMIT_DIR:-.}/jobs"; do [[ -f $jobs/launch.sh ]] && break; done
source "$jobs/launch.sh"

flags_over "--recipe plain" "--sampler sage" "--fanout 15,10,5" "--layers 3" "--hidden 256" "--batch-size 1024" "--epochs 10" "--eval-every 0" \
    -- "${@:2}"
train_job "${RANKS:-${SLURM_NTASKS:-4}}" "$1" "${flags[@]}"
