#!/bin/bash
# What needs a GPU, on a bare machine with one: see --help and docs/gpu-check.md. Also as `make gpu-check`.
# Cost: one GPU for 10 minutes, its memory shared by tests and up to 4 ranks, and as many cores as there are, up to 16.
#
#   jobs/gpu-check.sh [--only STEP,...] [--seconds S] [RESULTS]     PYTHON=python3 names the Python, MPI_HOME an MPI
# Slurm runs a copy of this script: launch.sh is beside the original, or in jobs/ where the job was submitted.
original() { scontrol show job "${SLURM_JOB_ID:-}" 2>/dev/null | sed -n 's|^ *Command=\(/[^ ]*\)/.*|\1|p'; }
for jobs in "$(dirname "$0")" "$(original)" "${SLURM_SUBMIT_DIR:-.}/jobs"; do [[ -f $jobs/launch.sh ]] && break; done
cd "$jobs/.." && exec "${PYTHON:-python3}" jobs/gpu_check.py "$@"
