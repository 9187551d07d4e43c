#!/bin/bash
# What needs a GPU, on a bare machine with one: see --help. Also as `make gpu-check`.
# Cost: one GPU, shared by up to 4 ranks and their memory pools, and a core for each; 10 minutes for each of part 1 and 2, up to an hour for
# part 3.
#
#   jobs/gpu-check.sh [--part 1|2|3] [--only STEP,...] [RESULTS]     PYTHON=python3 names the Python, MPI_HOME an MPI
# Slurm runs a copy of this script: launch.sh is beside the original, or in jobs/ where the job was submitted.
original() { scontrol show job "${SLURM_JOB_ID:-}" 2>/dev/null | sed -n 's|^ *Command=\(/[^ ]*\)/.*|\1|p'; }
for jobs in "$(dirname "$0")" "$(original)" "${SLURM_SUBMIT_DIR:-.}/jobs"; do [[ -f $jobs/launch.sh ]] && break; done
cd "$jobs/.." && exec "${PYTHON:-python3}" jobs/gpu_check.py "$@"
