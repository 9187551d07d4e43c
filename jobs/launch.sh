# Sourced by the job scripts: which distgnn, and how to start it on many ranks.
#
#   DISTGNN   the program: as set, else that of .venv, else the one on the path
#   launch RANKS COMMAND...   as MPIEXEC says, else by srun where it speaks to MPI (SRUN_MPI=pmi2|pmix|... forces how), else by mpiexec.
#                             In a Slurm job with GPUs, the job must have as many tasks as these. Fewer ranks than the job has tasks
#                             fill one node after the other; PER_NODE=1 puts so many on each
#   train_job RANKS STORE [flags]   in a Slurm job with a checkpoint (default: train-JOBID.checkpoint), from which a job that is requeued
#                             goes on; one that was asked to stop (code 75) is put back into the queue, RESTARTS times at most (100). A
#                             signal that the batch shell alone gets (--signal=B:USR1@SECONDS) is passed on to the training. Tasks of an
#                             array (--array=0-9) train with their numbers as seeds; %a in a flag is that number
#   DRY_RUN=1   print the command instead

TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
if [[ -z ${DISTGNN:-} ]]; then
  if [[ -x $TOP/.venv/bin/distgnn ]]; then
    DISTGNN=$TOP/.venv/bin/distgnn
  else
    DISTGNN=$(command -v distgnn) || { echo "distgnn is not installed: run 'make install' or set DISTGNN" >&2; exit 2; }
  fi
fi
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} OPENBLAS_NUM_THREADS=${OPENBLAS_NUM_THREADS:-1}

# Set `flags` to the defaults before --, each "--flag value", without those that the flags behind it give, and to these.
flags_over() {
  local default defaults=()
  while [[ $1 != -- ]]; do defaults+=("$1"); shift; done
  shift
  local given=" $* "
  flags=()
  for default in "${defaults[@]}"; do
    [[ ${given//=/ } == *" ${default%% *} "* ]] || flags+=($default)
  done
  flags+=("$@")
}

# The value of a flag among these words.
value_of() {
  local flag=$1 word before=
  for word in "${@:2}"; do
    [[ $before != "$flag" ]] || echo "$word"
    [[ $word != "$flag="* ]] || echo "${word#*=}"
    before=$word
  done
}

# The mpiexec beside distgnn belongs to the MPI that its mpi4py uses (mpich wheel).
beside() { [[ -x ${DISTGNN%/*}/mpiexec ]] && echo "${DISTGNN%/*}/mpiexec"; }

start() {
  if [[ -n ${DRY_RUN:-} ]]; then printf '%q ' "$@"; echo; exit; fi
  exec "$@"
}

# How srun spreads the ranks, where the job has more tasks or PER_NODE says how many a node gets.
spread() {
  local tasks=${SLURM_NTASKS:-$1} nodes=${SLURM_NNODES:-1}
  local each=${PER_NODE:-$(((tasks + nodes - 1) / nodes))}
  if [[ -n ${PER_NODE:-} ]] || (($1 < tasks)); then
    echo "--nodes=$((($1 + each - 1) / each)) --ntasks-per-node=$each"
  fi
}

launch() {
  local ranks=$1 kind program
  shift
  # Waiting ranks of MPICH poll. Where they outnumber the cores they must sleep between polls, or they starve those that work.
  if ((ranks > $(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1) * ${SLURM_NNODES:-1})); then
    export MPIR_CVAR_ENABLE_HEAVY_YIELD=${MPIR_CVAR_ENABLE_HEAVY_YIELD:-1}
  fi
  local tasks=${SLURM_NTASKS:-$ranks} gpus=$((${SLURM_GPUS_ON_NODE:-0} * ${SLURM_NNODES:-1}))
  if ((gpus && gpus != tasks)); then
    echo "$tasks ranks for $gpus GPUs, but each rank has a GPU of its own: sbatch --ntasks-per-node=$SLURM_GPUS_ON_NODE ..." >&2
    exit 2
  fi
  if [[ -n ${MPIEXEC:-} ]]; then
    start $MPIEXEC -n "$ranks" "$@"         # unquoted: it may bring flags of its own
  fi
  if [[ -n ${SLURM_JOB_ID:-} ]] && command -v srun >/dev/null; then
    # since Slurm 22.05 srun does not take over the job's cores per task by itself
    [[ -z ${SLURM_CPUS_PER_TASK:-} ]] || export SRUN_CPUS_PER_TASK=${SRUN_CPUS_PER_TASK:-$SLURM_CPUS_PER_TASK}
    for kind in ${SRUN_MPI:-pmi2 pmix}; do  # pmi2 is spoken by every MPICH, pmix by Open MPI and newer MPICH
      if [[ -n ${SRUN_MPI:-} ]] || srun --mpi=list 2>&1 | grep -qw "$kind"; then
        start srun --mpi="$kind" --kill-on-bad-exit=1 --ntasks="$ranks" $(spread "$ranks") "$@"  # a rank may die before MPI is up
      fi
    done
  fi
  program=$(beside || command -v mpiexec || command -v mpirun) || { echo "no mpiexec found: set MPIEXEC" >&2; exit 2; }
  start "$program" -n "$ranks" "$@"
}

# In a batch job, signals that ask to stop reach the shell alone where the job says --signal=B:...; bash would end by them.
asked=
if [[ -n ${SLURM_JOB_ID:-} && ! -t 0 ]]; then
  for name in USR1 USR2 TERM; do trap "asked=$name; [[ -z \${step:-} ]] || kill -s USR1 \$step 2>/dev/null || true" $name; done
fi

# Run a launch to its end, beside a shell that takes signals; set `code`. On a terminal, Ctrl-C goes to the launch itself.
run_step() {
  code=0
  if [[ -t 0 ]]; then (launch "$@") || code=$?; return; fi
  if [[ -n $asked ]]; then code=75; return; fi
  (launch "$@") & step=$!
  while code=0; wait "$step" || code=$?; ((code > 128)) && kill -s 0 "$step" 2>/dev/null; do :; done
  [[ -z $asked ]] || ((code <= 128)) || code=75   # by a rank that had not yet begun
}

# Whether this job runs: not, where TERM was that of scancel, or of a preemption that requeues it by itself.
runs() { [[ $(scontrol show job "$SLURM_JOB_ID" 2>/dev/null) == *JobState=RUNNING* ]]; }

train_job() {
  local ranks=$1 kept code restarts=${SLURM_RESTART_COUNT:-0} task=${SLURM_ARRAY_TASK_ID:-}
  shift
  [[ -n ${SLURM_JOB_ID:-} ]] || launch "$ranks" "$DISTGNN" train "$@"
  if [[ -n $task ]]; then
    set -- "${@//%a/$task}"
    [[ -n $(value_of --seed "$@") ]] || set -- "$@" --seed "$task"
  fi
  kept=$(value_of --checkpoint "$@")
  [[ -n $kept ]] || { kept=train-$SLURM_JOB_ID.checkpoint; set -- "$@" --checkpoint "$kept"; }
  if ((restarts)); then                     # what is there is this job's own
    local goes_on=--force
    [[ ! -e $kept/manifest.json ]] || goes_on=--resume
    flags_over "$goes_on" -- "$@"
    set -- "${flags[@]}"
  fi
  run_step "$ranks" "$DISTGNN" train "$@"
  if ((code == 75 && restarts < ${RESTARTS:-100})) && { [[ $asked != TERM ]] || runs; }; then
    scontrol requeue "$SLURM_JOB_ID" || true
  fi
  exit "$code"
}
