#!/bin/bash
# Everything that needs a GPU, in one go, on a bare machine with one: all tests on CuPy arrays, the kernels under compute-sanitizer,
# the benchmark tables. Called by `make gpu-check`.
# Cost: one GPU, shared by up to 4 ranks (RANKS) and their memory pools, and a core for each. For how long has not been measured:
# allow some hours, of which compute-sanitizer takes the most; --quick does less of that and of the tables, --only leaves steps out.
#
#   jobs/gpu-check.sh [--quick] [--dry-run] [--only STEP,...] [RESULTS]     steps: environment tests ranks cusparse sanitizer benchmark
#
#   PYTHON=python3       the Python that has CuPy, mpi4py, h5py, SciPy and pytest
#   WHEELS=FOLDER        wheels of whatever it lacks; installed from there, and from nowhere else, into RESULTS/packages
#   MPI_HOME=FOLDER      an MPI to use instead of the one that mpi4py finds; with CUDA support, it is tested with and without
#   RANKS="2 4"          how many ranks share the GPU; MPIEXEC names another launcher
#
# What is missing is said, left out and counted as skipped. Output goes to RESULTS (default gpu-check-DATE), one log per step, and
# summary.txt. Exit status: 0 all that ran passed, 1 something failed, 2 there is no GPU or no CuPy.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2

DRY_RUN='' QUICK='' ONLY='' RESULTS=''
while (($#)); do
  case $1 in
    --dry-run) DRY_RUN=1 ;;
    --quick) QUICK=1 ;;
    --only) ONLY=${2:?--only needs a step}; shift ;;
    -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
    -*) echo "gpu-check: unknown option $1 (see --help)" >&2; exit 2 ;;
    *) RESULTS=$1 ;;
  esac
  shift
done

PYTHON=${PYTHON:-python3}
RANKS=${RANKS:-2 4}
RESULTS=${RESULTS:-gpu-check-$(date +%Y%m%d-%H%M%S)}
PASSED=0 FAILED=0 SKIPPED=0
# One thread per rank; tests of ranks that share a GPU leave each a part of it.
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} OPENBLAS_NUM_THREADS=${OPENBLAS_NUM_THREADS:-1}

if [[ -n $DRY_RUN ]]; then
  SUMMARY=/dev/null
else
  mkdir -p "$RESULTS" || exit 2
  RESULTS=$(cd "$RESULTS" && pwd)
  SUMMARY=$RESULTS/summary.txt
  : >"$SUMMARY"
fi

say() { echo "gpu-check: $*" | tee -a "$SUMMARY"; }
wanted() { [[ -z $ONLY || ,$ONLY, == *,$1,* ]]; }
skip() { SKIPPED=$((SKIPPED + 1)); say "skipped  $1: $2"; }
python_has() { "$PYTHON" -c "import $1" 2>/dev/null; }

# step NAME COMMAND...: run it, keep its output, count the outcome. A dry run only prints the command.
step() {
  local name=$1 status start=$SECONDS
  shift
  if [[ -n $DRY_RUN ]]; then
    echo "$name: $*"
    return
  fi
  echo "gpu-check: --- $name: $*"
  { echo "\$ $*"; "$@" 2>&1; } | tee "$RESULTS/$name.log"
  status=${PIPESTATUS[0]}
  if ((status == 0)); then
    PASSED=$((PASSED + 1))
    say "passed   $name ($((SECONDS - start)) s)"
  else
    FAILED=$((FAILED + 1))
    say "FAILED   $name (status $status, $((SECONDS - start)) s; $RESULTS/$name.log)"
  fi
}

install_wheels() {
  [[ -n ${WHEELS:-} ]] || return 0
  if [[ ! -d $WHEELS ]]; then
    say "WHEELS=$WHEELS is no folder"
    exit 2
  fi
  local module missing=() cupy=("$WHEELS"/cupy_cuda*.whl)
  for module in numpy scipy h5py mpi4py tqdm pytest iniconfig pluggy packaging pygments pytest_timeout pytest_mpi; do
    python_has "$module" || missing+=("${module//_/-}")
  done
  if ! python_has cupy && [[ -e ${cupy[0]} ]]; then
    missing+=("${cupy[0]}")
  fi
  ((${#missing[@]})) || return 0
  export PYTHONPATH=$RESULTS/packages:$PYTHONPATH
  # --no-deps: what is there already must not be installed a second time, in another version.
  step packages "$PYTHON" -m pip install --quiet --no-index --no-deps --find-links "$WHEELS" --target "$RESULTS/packages" "${missing[@]}"
}

use_mpi() {
  [[ -n ${MPI_HOME:-} ]] || return 0
  if [[ ! -x $MPI_HOME/bin/mpiexec && ! -x $MPI_HOME/bin/mpirun ]]; then
    say "MPI_HOME=$MPI_HOME has no bin/mpiexec"
    exit 2
  fi
  export PATH=$MPI_HOME/bin:$PATH LD_LIBRARY_PATH=$MPI_HOME/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  export MPI4PY_LIBMPI=$MPI_HOME/lib OPAL_PREFIX=$MPI_HOME
}

# The command that starts N ranks, in the array LAUNCH; empty where there is none. Open MPI wants to be told that root and more
# ranks than cores are meant.
find_launcher() {
  LAUNCH=()
  local program
  if [[ -n ${MPIEXEC:-} ]]; then
    read -r -a LAUNCH <<<"$MPIEXEC"
  else
    program=$(dirname "$(command -v "$PYTHON" || echo "$PYTHON")")/mpiexec
    [[ -z ${MPI_HOME:-} && -x $program ]] || program=$(command -v mpiexec || command -v mpirun) || return 0
    LAUNCH=("$program")
  fi
  if "${LAUNCH[@]}" --version 2>&1 | grep -qE "Open MPI|OpenRTE|PRRTE"; then
    LAUNCH+=(--allow-run-as-root --oversubscribe)
  fi
}

environment() {
  nvidia-smi || true
  "$PYTHON" --version
  "$PYTHON" -c "import cupy; cupy.show_config()"
  "$PYTHON" -c "from mpi4py import MPI; print(MPI.Get_library_version())" || true
  "$PYTHON" -m pip list 2>/dev/null || true
  command -v nvcc compute-sanitizer "${LAUNCH[@]:0:1}" || true
  git rev-parse HEAD 2>/dev/null || true
}

# CuPy's memory pool hides accesses just behind an array, so the sanitizer runs without it.
PYTEST_WITHOUT_POOL='import sys, cupy, pytest; cupy.cuda.set_allocator(None); sys.exit(pytest.main(sys.argv[1:]))'

sanitizer() {
  local tool tests=(tests/kernels/test_cuda_{spmm,elementwise,sampling}.py -k "cupy and not tuning and not cusparse")
  local plain=(-q --timeout 0 -p no:cacheprovider)
  [[ -z $QUICK ]] || tests[4]="cupy and (order or epilogue or softmax or scatter or address or hub)"
  if [[ -z $DRY_RUN ]] && ! command -v compute-sanitizer >/dev/null; then
    skip sanitizer "compute-sanitizer is not on the path (it comes with the CUDA toolkit)"
    return
  fi
  # Compiled once beforehand, so that the sanitizer does not watch the compiler.
  step sanitizer-warm-up "$PYTHON" -m pytest "${plain[@]}" "${tests[@]}"
  for tool in memcheck racecheck initcheck; do
    step "sanitizer-$tool" compute-sanitizer --tool "$tool" --error-exitcode 9 \
      "$PYTHON" -c "$PYTEST_WITHOUT_POOL" "${plain[@]}" "${tests[@]}"
  done
}

# Whether MPI takes GPU buffers, as distgnn finds out (DISTGNN_CUDA_AWARE overrides it).
CUDA_AWARE='from distgnn.comm.group import cuda_aware; print(int(cuda_aware()[0]))'

ranks() {
  local count aware mpi_tests=(-q --only-mpi --ranks-above 1 -p no:cacheprovider)
  find_launcher
  if ((${#LAUNCH[@]} == 0)); then
    skip ranks "no mpiexec found: set MPI_HOME or MPIEXEC"
    return
  fi
  if [[ -z $DRY_RUN ]] && ! python_has pytest_mpi; then
    skip ranks "pytest-mpi is missing: put its wheel into WHEELS"
    return
  fi
  for count in $RANKS; do
    step "ranks-$count-staged" \
      env DISTGNN_BACKEND=cupy DISTGNN_CUDA_AWARE=0 "${LAUNCH[@]}" -n "$count" "$PYTHON" -m pytest "${mpi_tests[@]}"
  done
  aware=1
  [[ -n $DRY_RUN ]] || aware=$("$PYTHON" -c "$CUDA_AWARE" 2>/dev/null | tail -n 1)
  if [[ $aware != 1 ]]; then
    skip ranks-cuda-aware "this MPI does not say that it takes GPU buffers (DISTGNN_CUDA_AWARE=1 tests it all the same)"
    return
  fi
  for count in $RANKS; do
    step "ranks-$count-cuda-aware" \
      env DISTGNN_BACKEND=cupy DISTGNN_CUDA_AWARE=1 "${LAUNCH[@]}" -n "$count" "$PYTHON" -m pytest "${mpi_tests[@]}"
  done
}

benchmark() {
  local small=()
  [[ -z $QUICK ]] || small=(--graphs rmat-17 uniform-17 --widths 16 41 128 --rounds 5)
  step benchmark-float32 "$PYTHON" benchmarks/gpu_spmm.py --variants --out "$RESULTS/gpu_spmm.md" "${small[@]}"
  step benchmark-float64 "$PYTHON" benchmarks/gpu_spmm.py --dtype float64 --graphs rmat-17 uniform-17 --widths 16 41 128 \
    --out "$RESULTS/gpu_spmm.md"
}

use_mpi
install_wheels
find_launcher
if [[ -z $DRY_RUN ]]; then
  if ! python_has cupy; then
    say "$PYTHON has no CuPy: PYTHON=... names another, or put the wheel of cupy-cuda12x or cupy-cuda13x into WHEELS"
    exit 2
  fi
  if ! "$PYTHON" -c "import cupy; assert cupy.cuda.runtime.getDeviceCount() > 0" 2>/dev/null; then
    say "CuPy finds no GPU here (nvidia-smi says: $(nvidia-smi -L 2>&1 | head -n 1))"
    exit 2
  fi
  if ! python_has pytest; then
    say "$PYTHON has no pytest: put its wheel into WHEELS"
    exit 2
  fi
fi

! wanted environment || step environment environment
! wanted tests || step tests env DISTGNN_BACKEND=cupy "$PYTHON" -m pytest -q -p no:cacheprovider
! wanted ranks || ranks
! wanted cusparse || step tests-cusparse \
  env DISTGNN_BACKEND=cupy DISTGNN_SPMM=cusparse "$PYTHON" -m pytest -q -p no:cacheprovider tests/local tests/operators
! wanted sanitizer || sanitizer
! wanted benchmark || benchmark

[[ -n $DRY_RUN ]] || say "$PASSED passed, $FAILED failed, $SKIPPED skipped; logs in $RESULTS"
((FAILED == 0))
