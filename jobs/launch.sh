# Sourced by the job scripts, at the top of the repository: which distgnn, and how to start it on many ranks.
#
#   DISTGNN   the program: as set, else that of .venv, else the one on the path
#   launch RANKS COMMAND...   as MPIEXEC says, else by srun where it speaks to MPI (SRUN_MPI=pmi2|pmix|... forces how), else by mpiexec;
#                             in a Slurm job with GPUs, with as many ranks as these

if [[ -z ${DISTGNN:-} ]]; then
  if [[ -x .venv/bin/distgnn ]]; then
    DISTGNN=$PWD/.venv/bin/distgnn
  else
    DISTGNN=$(command -v distgnn) || { echo "distgnn is not installed: run 'make install' or set DISTGNN" >&2; exit 2; }
  fi
fi
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} OPENBLAS_NUM_THREADS=${OPENBLAS_NUM_THREADS:-1}

# The mpiexec beside distgnn belongs to the MPI that its mpi4py uses (mpich wheel).
beside() { [[ -x ${DISTGNN%/*}/mpiexec ]] && echo "${DISTGNN%/*}/mpiexec"; }

launch() {
  local ranks=$1 kind program
  shift
  # Waiting ranks of MPICH poll. Where they outnumber the cores they must sleep between polls, or they starve those that work.
  if [[ -z ${SLURM_JOB_ID:-} ]] && ((ranks > $(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1))); then
    export MPIR_CVAR_ENABLE_HEAVY_YIELD=${MPIR_CVAR_ENABLE_HEAVY_YIELD:-1}
  fi
  local gpus=$((${SLURM_GPUS_ON_NODE:-0} * ${SLURM_NNODES:-1}))
  if ((gpus && gpus != ranks)); then
    echo "$ranks ranks for $gpus GPUs, but each rank has a GPU of its own: sbatch --ntasks-per-node=$SLURM_GPUS_ON_NODE ..." >&2
    exit 2
  fi
  if [[ -n ${MPIEXEC:-} ]]; then
    exec $MPIEXEC -n "$ranks" "$@"          # unquoted: it may bring flags of its own
  fi
  if [[ -n ${SLURM_JOB_ID:-} ]] && command -v srun >/dev/null; then
    for kind in ${SRUN_MPI:-pmi2 pmix}; do  # pmi2 is spoken by every MPICH, pmix by Open MPI and newer MPICH
      if [[ -n ${SRUN_MPI:-} ]] || srun --mpi=list 2>&1 | grep -qw "$kind"; then
        exec srun --mpi="$kind" --kill-on-bad-exit=1 --ntasks="$ranks" "$@"  # a rank may die before MPI is up
      fi
    done
  fi
  program=$(beside || command -v mpiexec || command -v mpirun) || { echo "no mpiexec found: set MPIEXEC" >&2; exit 2; }
  exec "$program" -n "$ranks" "$@"
}
