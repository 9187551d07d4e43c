# make demo   sets everything up and runs the main job
# make test   sets everything up and runs the tests of the library, make test-programs those that start whole jobs
# make docs   builds the documentation, build/site/index.html
# make test-quick   the same for a case of every test, 3 minutes
# make faults SECONDS=300   campaigns of faults, of which make test-programs runs a few; FIRST=1000 draws others
# make gpu-check   on a machine with a GPU and CuPy, in 10 minutes: tests, training, tables, sanitizers; see docs/gpu-check.md
#
# Needs Python >= 3.11 and a C compiler; MPI comes from the mpich wheel. To use a cluster's own MPI and launcher instead:
#   make demo MPI= MPIEXEC="mpirun"     (with that MPI's mpi4py, or one built by: pip install --no-binary mpi4py mpi4py)

VENV ?= .venv
RANKS ?= 4
ARGS ?=
MPI ?= mpi
MPIEXEC ?= $(BIN)/mpiexec
BIN := $(VENV)/bin
COMMA := ,
SUITABLE = import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c '$(SUITABLE)' 2>/dev/null && echo $$p && break; done)

# One thread per rank: the ranks are the parallelism.
OMP_NUM_THREADS ?= 1
OPENBLAS_NUM_THREADS ?= 1
export OMP_NUM_THREADS OPENBLAS_NUM_THREADS

# Compiled modules are kept even where the environment says otherwise: the tests start hundreds of processes.
export PYTHONDONTWRITEBYTECODE =

PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check
PYTEST = $(BIN)/python -m pytest
# Tests on one rank, a file at a time, in as many processes as there are cores, up to 8. One that dies ends the run.
WORKERS ?= $(shell test $(CORES) -gt 8 && echo 8 || echo $(CORES))
SERIAL = $(PYTEST) -n $(WORKERS) --dist loadfile --max-worker-restart 0
LIBRARY = -m "not programs"
MPI_TESTS = --only-mpi -p no:cacheprovider
# On several ranks, cases in which each value of each parameter of a test stands once; `make test CASES=` runs all.
CASES ?= --each-value

# Waiting ranks of MPICH poll. Where they outnumber the cores they must sleep between polls, or they starve those that work.
CORES := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)
crowded = $(shell test $(1) -gt $(CORES) && echo env MPIR_CVAR_ENABLE_HEAVY_YIELD=1)
launch = $(call crowded,$(1)) $(MPIEXEC) -n $(1)
# Every message of the tests is a rendezvous, as large ones are: MPICH sends from the sender's own memory. Small messages
# are copied at once, which would hide memory that is written too early.
rendezvous = env MPIR_CVAR_CH4_IPC_CMA_P2P_THRESHOLD=1 $(call launch,$(1))

.PHONY: demo test test-quick test-serial test-4 test-12 test-programs test-kernels faults gpu-check docs lint lint-style lint-types lint-rooms lint-lines install clean
.NOTPARALLEL:

demo: $(VENV)/installed
	$(call launch,$(RANKS)) $(BIN)/distgnn demo $(ARGS)

test: test-serial test-4 test-12

# A case of every test, on up to 4 ranks, no slow tests and no programs.
test-quick: $(VENV)/installed-test
	$(SERIAL) --quick $(LIBRARY) $(ARGS)
	$(call rendezvous,4) $(PYTEST) $(MPI_TESTS) --quick --ranks-above 1 $(ARGS)

test-serial: $(VENV)/installed-test
	$(SERIAL) $(LIBRARY) $(ARGS)

# Tests that start whole jobs: commands of the pages and of the README, notebooks, the demo, job scripts, studies, campaigns.
test-programs: $(VENV)/installed-test
	$(SERIAL) -m programs $(ARGS)

# P = 2, 3, 4 (--ranks-above: one rank is covered by test-serial)
test-4: $(VENV)/installed-test
	$(call rendezvous,4) $(PYTEST) $(MPI_TESTS) $(CASES) --ranks-above 1 $(ARGS)

# P = 6, 8, 9, 12
test-12: $(VENV)/installed-test
	$(call rendezvous,12) $(PYTEST) $(MPI_TESTS) $(CASES) --ranks-above 4 $(ARGS)

# All tests of kernels: compiled for real GPUs, and under sanitizers. If they pass, make test leaves out those of kernels alone
# until something that they depend on changes: tests/kernels/passed.py.
test-kernels: $(VENV)/installed-test
	$(SERIAL) --kernels tests/kernels

# All campaigns of faults (tests/faults/campaign.py), and one table: ranks that disagree, programs of users, mixed and forged stores, SIGKILL at every
# change of a file; then at random, for so many seconds each, broken files, faulted jobs, preempted trainings and sequences of operations.
SECONDS ?= 300
FIRST ?= 0
faults: $(VENV)/installed-test
	$(BIN)/python tests/faults/campaign.py --seconds $(SECONDS) --first $(FIRST) $(ARGS)

# What needs a GPU, on a machine with one; installs nothing. See docs/gpu-check.md.
gpu-check:
	PYTHON="$(PYTHON)" jobs/gpu-check.sh $(ARGS) $(RESULTS)

lint: lint-style lint-types lint-rooms lint-lines docs

lint-style: $(VENV)/installed-dev
	$(BIN)/ruff check

lint-types: $(VENV)/installed-dev
	$(BIN)/mypy

# Who may import whom: pyproject.toml, [tool.importlinter].
lint-rooms: $(VENV)/installed-dev
	$(BIN)/lint-imports --no-cache

# Lines of code by room, beside what pyproject.toml allows, [tool.distgnn.lines].
lint-lines: $(VENV)/installed-dev
	$(BIN)/python tests/code_lines.py

# The pages of docs/ and the API reference, in build/site/; a warning is an error.
docs: $(VENV)/installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

install: $(VENV)/installed

# Each installation brings what the ones before it bring, so that a fresh clone installs (and compiles the kernels) once.
BUILT_FROM = pyproject.toml setup.py $(wildcard kernels/host/*)

$(VENV)/installed: $(BUILT_FROM)
	$(call install)
	@touch $@

$(VENV)/installed-test: $(BUILT_FROM)
	$(call install,test)
	@touch $@ $(VENV)/installed

$(VENV)/installed-dev: $(BUILT_FROM)
	$(call install,test$(COMMA)dev)
	@touch $@ $(VENV)/installed-docs $(VENV)/installed-test $(VENV)/installed

$(VENV)/installed-docs: $(BUILT_FROM)
	$(call install,docs)
	@touch $@ $(VENV)/installed

# 190 s of one core, in pieces of which the longest takes 55 s.
compiling = $(shell s=$$((190 / $(CORES))); test $$s -lt 55 && s=55; echo $$s s)

define install
	@test -n "$(PYTHON)" || { echo "distgnn needs Python 3.11 or newer; name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@echo "Installing into $(VENV) with $(PYTHON): packages from PyPI, then the kernels in C, some 3 minutes of one core or $(compiling) on the $(CORES) here ..."
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) 'pip>=21.3'
	@$(PIP) -e '.$(if $(MPI)$(1),[$(MPI)$(if $(1),$(if $(MPI),$(COMMA))$(1))])'
	@$(BIN)/python -c "import distgnn._host" 2>/dev/null || echo "The kernels in C were not compiled: is there a C compiler? Products use SciPy, slower." >&2
endef

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
