#!/bin/bash
# Plexus's experiment (sections 5 and 6.2) on a graph of yours: double permutation, three layers, hidden width 128, AdamW, features
# trained too, 10 epochs on a 3D grid.
# Cost: 8 ranks (RANKS=64 for more), 1 core each. Memory of all ranks together is about 48 bytes per non-zero (three shards and their
# transposes) times the cube root of the ranks, and 4 x (5 features + 5 x 128 x the same root) bytes per node; preparing needs a few
# hundred MB and twice the graph's size on disk. Minutes for ten million edges on 8 cores.
#
#   jobs/plexus.sh SOURCE STORE [flags of train]      e.g. graph graph.dg --grid 2x2x2 --log run.jsonl
#   sbatch jobs/plexus.sh SOURCE STORE [flags]       -n 64 for more ranks
#
#SBATCH --ntasks=8
# Two minutes before its time is over, a training saves, and its job goes back into the queue; see docs/cluster.md.
#SBATCH --signal=USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail
(($# >= 2)) || { echo "usage: jobs/plexus.sh SOURCE STORE [flags of distgnn train]" >&2; exit 2; }
source=$1 store=$2
shift 2
# Slurm runs a copy of this script: launch.sh is beside the original, or in jobs/ where the job was submitted.
original() { scontrol show job "${SLURM_JOB_ID:-}" 2>/dev/null | sed -n 's|^ *Command=\(/[^ ]*\)/.*|\1|p'; }
for jobs in "$(dirname "$0")" "$(original)" "${SLURM_SUBMIT_DIR:-.}/jobs"; do [[ -f $jobs/launch.sh ]] && break; done
source "$jobs/launch.sh"

[[ -e $store ]] || (launch "${RANKS:-${SLURM_NTASKS:-8}}" "$DISTGNN" prepare "$source" "$store" --order double)
flags_over "--recipe plain" "--algorithm 3d" "--order double" "--layers 3" "--hidden 128" "--optimizer adamw" --train-features "--epochs 10" -- "$@"
train_job "${RANKS:-${SLURM_NTASKS:-8}}" "$store" "${flags[@]}"
