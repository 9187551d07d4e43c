"""The first ten minutes on a GPU, on a bare machine with one; started by jobs/gpu-check.sh.

Right first, then fast: all kernels compiled; tests on CuPy arrays, a training beside NumPy's, ranks that
share the GPU and send through the host, by NCCL and by device pointers, all side by side on the cores; then,
one after the other, products beside cuSPARSE, epochs beside PyTorch's, a cold start, minibatches sampled per
second, a calibration, counts of Nsight Compute; last, kernels under compute-sanitizer. docs/gpu-check.md says
of each result what it decides.

A step over its limit is ended, one that fails is named at the end, and the others run all the same; one that
needs what is not here is skipped and says why. Without MPI the kernels are compiled, tested and timed; MPI
gets device pointers only where it says that it takes them. What steps print goes to RESULTS/STEP.log,
outcomes and tables to RESULTS/gpu-check.md. Exit status: 0 nothing failed, 1 something failed or was left out
for lack of time, 2 there is no GPU or no CuPy.

The Python that runs this needs CuPy 14.2 and SciPy, and mpi4py, h5py and pytest for most steps; pytest-xdist
spreads tests over cores. PyTorch and PyG are what epochs are compared with. MPI_HOME names an MPI with CUDA
support: a folder, or an archive; without, it is .mpi/ at the top of the repository, a folder or one with such
an archive, or else, as with an empty MPI_HOME, the mpiexec beside Python or on the path.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from gpu_steps import ROOT, Check, Command, Machine, Step, end, started

SECONDS = 560.0  # from the beginning to the end of the last step, but for the time that this takes to end
SUBJECTS = "spmm narrow_spmm gemm edges elementwise aggregate optimizers extract sampling".split()
KERNELS = [f"tests/kernels/test_cuda_{name}.py" for name in SUBJECTS]
ROOMS = [f"tests/{room}" for room in ("local", "operators", "nn", "arrays", "comm", "sampling", "train")]
RANK_TESTS = ["tests/operators/test_products.py", "tests/comm", "tests/nn"]
#: How ranks send, by the step's name: the transport, and what stands in the Python program's place.
SENDING = {
    "staged": ("host", ""), "nccl": ("nccl", "tests/mpi_helpers/nccl_on_one_gpu.py"), "aware": ("mpi", ""),
}  # fmt: skip
GRAPHS = {
    "spmm": ("rmat-20", "uniform-20", "reddit-15", "rmat-18", "road-19"),
    "epochs": ("rmat-14-16", "rmat-20-16", "rmat-16-492"),
    "attention": ("rmat-16-32",),
    "profile": ("rmat-20-16", "rmat-16-32"),
    "counts": ("rmat-20", "reddit-15"),
    "sampling": ("rmat-20-16",),
}
IN_PARTS = "--recipe plain --sampler sage --partition-graph --eval-every 0 --epochs 2 --check"
#: PyG by an edge index takes twenty times as long as ours where graphs are large: ask for it by name.
EPOCHS = "--warm-up 16 --epochs 12 --peers torch EdgeIndex CSR"
ATTENTION = "--graphs rmat-16-32 --networks gat-8-1 gat-8-8 gatv2-8-1 gatv2-8-8"
#: By step, what its program does where there is no GPU.
TINY = {
    "spmm": "--graphs rmat-6 --widths 8 --rounds 1 --least-ms 0.01 --scale 1e-5",
    "epochs": "--epochs 1 --warm-up 10 --graphs rmat-6-4",
    "attention": "--epochs 1 --warm-up 10 --graphs rmat-6-4 --networks gat-8-1 --ways plain",
    "profile": "--epochs 1 --warm-up 1 --graphs rmat-6-4",
    "counts": "--graphs rmat-6 --widths 8",
    "start": "--nodes 300 --epochs 2",
    "sampling": "--graph rmat-6-4 --batch 8 --bulk 2 --turns 1",
    "compile": "optimizers.cu",
}
TINY_TESTS = ["tests/operators/test_products.py", "tests/comm/test_beside.py"]

# CuPy's memory pool hides accesses just behind an array, so the sanitizer runs without it.
WITHOUT_POOL = "import sys, cupy, pytest; cupy.cuda.set_allocator(None); sys.exit(pytest.main(sys.argv[1:]))"

GPU_PROBE = """
import importlib.util, platform, cupy, numpy, scipy
runtime = cupy.cuda.runtime
name = runtime.getDeviceProperties(0)["name"].decode()
print(f"{name}, CUDA {runtime.runtimeGetVersion()}, driver {runtime.driverGetVersion()};", end=" ")
print(*(f"{module.__name__} {module.__version__}" for module in (cupy, numpy, scipy)), sep=", ", end=", ")
print(f"Python {platform.python_version()}")
lacking = [name for name in ("pytest", "h5py", "torch") if importlib.util.find_spec(name) is None]
try:
    from cupy.cuda import nccl
    nccl.get_version()
except Exception:
    lacking.append("NCCL")
print(*lacking)
"""
MPI_PROBE = """
import json
from mpi4py import MPI, __version__
from distgnn.comm.transport import cuda_aware
library = MPI.Get_library_version().split(",")[0].splitlines()[0]
print(json.dumps([f"mpi4py {__version__}, {library}", *cuda_aware()]))
"""
# In one piece: of a print without a buffer, another rank's line may come before the end of the line.
LAUNCH_PROBE = "import sys; from mpi4py import MPI; sys.stdout.write(f'{MPI.COMM_WORLD.Get_size()}\\n')"


@dataclass
class Plan:
    """The steps.

    Args:
        tiny: sizes for a machine without a GPU; stretch: by how much more time there is.
    """

    report: Path
    scratch: Path
    launcher: str
    tiny: bool = False
    stretch: float = 1.0

    def steps(self) -> list[Step]:
        """List them: what must be right first, side by side; then what is timed, alone; the slowest last."""
        return [
            self.step("compile", 60, python(f"-m distgnn compile {self.words('compile', '')}")),
            self.kernels(),
            self.tests("layers", 90, TINY_TESTS if self.tiny else ROOMS, "--quick", workers=6),
            self.train(),
            self.sanitizer("synccheck", 60, "cupy and epilogue", KERNELS[:1]),
            *(self.ranks(count, way) for count in (2, 4) for way in SENDING),
            self.table("spmm", 90, "gpu_spmm.py", ""),
            self.table("attention", 60, "gpu_epoch.py", f"{ATTENTION} --ways plain graphs fit", "mpi"),
            self.table("start", 60, "gpu_start.py", "", "mpi", "h5py"),
            self.sampling(),
            self.table("epochs", 110, "gpu_epoch.py", EPOCHS, "mpi"),  # may take all that others leave
            *self.profile(),
            self.calibrate(),
            self.table("counts", 60, "gpu_count.py", "--graphs rmat-20 reddit-15", "ncu"),
            *(self.sanitizer(tool, 140) for tool in ("memcheck", "racecheck", "initcheck")),
        ]

    def step(
        self, name: str, seconds: float, *commands: Command, cores: int = 0, needs: tuple[str, ...] = ()
    ) -> Step:  # fmt: skip
        return Step(name, seconds * self.stretch, list(commands), cores, needs=needs)

    def kernels(self) -> Step:
        """Test the kernels without MPI, which all other tests need."""
        command = pytest(["tests/kernels/test_cuda_optimizers.py"] if self.tiny else KERNELS, 6)
        command += ["--confcutdir=tests/kernels", "-o", "addopts=--import-mode=importlib"]
        command += ["-k", "cupy and not matrix_of_scipy"]
        return self.step("kernels", 150, command, cores=6, needs=("pytest",))

    def tests(self, name: str, budget: float, paths: list[str], *options: str, workers: int) -> Step:
        """Run tests on CuPy arrays until the budget is spent; the last may take some more."""
        command = [*pytest(paths, workers), f"--budget={budget * self.stretch:.0f}", "-k", "cupy", *options]
        step = self.step(name, budget + 30, command, cores=max(workers, 1), needs=("pytest", "mpi", "h5py"))
        step.env["DISTGNN_BACKEND"] = "cupy"
        return step

    def train(self) -> Step:
        """Generate, prepare and train, on the full graph and on minibatches (--check: beside NumPy)."""
        graph, nodes, epochs = self.scratch / "graph", *((300, 2) if self.tiny else (20_000, 10))
        train = f"train {graph}.dg --backend cupy --recipe plain --layers 3 --hidden 128"
        words = [
            f"generate sbm {graph} --nodes {nodes}",
            f"prepare {graph} {graph}.dg",
            f"{train} --epochs {epochs} --check",
            f"{train} --sampler sage --eval-every 0 --epochs 2 --check",
        ]
        commands = [python(f"-m distgnn {line}") for line in words]
        return self.step("train", 90, *commands, cores=1, needs=("mpi", "h5py"))

    def ranks(self, count: int, way: str) -> Step:
        """Train by every algorithm on ranks that share the GPU, and on minibatches of a graph in parts.

        Losses are compared with serial ones. Then run tests.
        """
        name, (transport, program) = f"ranks-{count}-{way}", SENDING[way]
        nodes, epochs = (300, 1) if self.tiny else (4_000, 3)
        options = "--quick", "--only-mpi", f"--ranks-above={count // 2}"
        step = self.tests(name, 15, TINY_TESTS if self.tiny else RANK_TESTS, *options, workers=0)
        made = self.scratch / name
        demo = python(f"-m distgnn demo -v --out {made} --nodes {nodes} --epochs {epochs}")
        parts = python(f"-m distgnn train {made}/graph.dg --backend cupy {IN_PARTS}")
        programs = ([words[0], *program.split(), *words[1:]] for words in (demo, parts, *step.commands))
        step.commands = [[self.launcher, "-n", str(count), *words] for words in programs]
        step.seconds, step.cores, step.env["DISTGNN_TRANSPORT"] = 75 * self.stretch, count, transport
        step.needs += ("launcher", *{"aware": ("device pointers",), "nccl": ("NCCL",)}.get(way, ()))
        return step

    def sanitizer(
        self, tool: str, seconds: float, chosen: str = "cupy and not tuning and not cusparse",
        paths: list[str] = KERNELS,
    ) -> Step:  # fmt: skip
        """Run tests of kernels under a tool of compute-sanitizer, as many as there is time for."""
        tests = self.tests(tool, seconds / 2, paths, "--quick", "--timeout=0", workers=0)
        words = ["compute-sanitizer", "--error-exitcode", "9", "--tool", tool]
        words += [sys.executable, "-c", WITHOUT_POOL]
        tests.commands = [[*words, *tests.commands[0][3:], "-k", chosen]]  # the last -k counts
        tests.seconds, tests.needs = seconds * self.stretch, (*tests.needs, "compute-sanitizer")
        return tests

    def table(self, name: str, seconds: float, program: str, words: str, *needs: str) -> Step:
        """Time something alone; the program appends its tables to the report."""
        command = python(f"benchmarks/{program} {self.words(name, words)}", "--out", str(self.report))
        if name in GRAPHS:
            command += ["--kept-in", str(self.scratch)]
        return self.step(name, seconds, command, needs=needs)

    def sampling(self) -> Step:
        """Sample on one rank, and on two that share the GPU."""
        alone = self.table("sampling", 60, "gpu_sampling.py", "", "mpi", "launcher")
        alone.commands.append([self.launcher, "-n", "2", *alone.commands[0]])
        return alone

    def profile(self) -> list[Step]:
        gcn = self.table("profile", 90, "gpu_kernels.py", "--graphs rmat-20-16", "mpi", "torch")
        gat = "--graphs rmat-16-32 --networks gat-8-1 gat-8-8"
        gcn.commands += self.table("profile", 0, "gpu_kernels.py", gat).commands
        return [gcn]

    def calibrate(self) -> Step:
        seconds = 1 if self.tiny else 12
        out = self.report.with_name("machine.toml")
        words = f"-m distgnn calibrate --backend cupy --seconds {seconds} --name measured --force"
        return self.step("calibrate", 40, python(words, "--out", str(out)), needs=("mpi", "h5py"))

    def words(self, name: str, words: str) -> str:
        return TINY[name] if self.tiny else words

    def graphs(self, steps: list[Step], cores: int) -> list[Command]:
        """List the commands that make the graphs of these steps while others run, on half of the cores."""
        names = list(dict.fromkeys(name for step in steps for name in GRAPHS.get(step.name, ())))
        hands = max(1, min(len(names), cores // 2))
        make = python("benchmarks/gpu_graphs.py --kept-in", str(self.scratch))
        return [[*make, *names[hand::hands]] for hand in range(hands) if names and not self.tiny]


def python(words: str, *more: str) -> Command:
    return [sys.executable, *words.split(), *more]


def pytest(paths: list[str], workers: int) -> Command:
    """Return the command that runs tests, in so many processes where pytest-xdist is there."""
    spread = ["-n", str(workers)] if workers and importlib.util.find_spec("xdist") else []
    return python("-m pytest -p no:cacheprovider --tb=short -r fE --color=no", *paths, *spread)


def mpi(where: Path | None, scratch: Path) -> tuple[str, dict[str, str]]:
    """Return the launcher, and the environment that it needs.

    Args:
        where: folder or archive of an MPI; None: the mpiexec beside this Python or on the path.
    """
    env = {
        **{name: os.environ.get(name, "1") for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")},
        "PYTHONPATH": joined(ROOT, "PYTHONPATH"),
        "PYTHONUNBUFFERED": "1",
        # Open MPI: root may start ranks, and more of them than cores
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    }
    if not (shutil.which("ssh") or shutil.which("rsh")):  # Open MPI wants one of them to start ranks here too
        env |= {"OMPI_MCA_plm": "isolated", "OMPI_MCA_ess_singleton_isolated": "1"}
    if (os.cpu_count() or 1) < 4:
        env["MPIR_CVAR_ENABLE_HEAVY_YIELD"] = "1"  # as in the Makefile
    if where is None:
        beside = shutil.which("mpiexec", path=str(Path(sys.executable).parent))
        return beside or shutil.which("mpiexec") or "mpiexec", env
    home = unpacked(where, scratch).absolute()
    env |= {"OPAL_PREFIX": str(home), "MPI4PY_LIBMPI": str(home / "lib")}
    env |= {"LD_LIBRARY_PATH": joined(home / "lib", "LD_LIBRARY_PATH"), "PATH": joined(home / "bin", "PATH")}
    return str(home / "bin" / "mpiexec"), env


def joined(first: Path, name: str) -> str:
    """Return a path variable with one more folder in front."""
    return os.pathsep.join(filter(None, [str(first), os.environ.get(name)]))


def unpacked(where: Path, scratch: Path) -> Path:
    """Return the folder with bin/mpiexec: `where`, or in the archive that `where` is or holds."""
    archives = [where] if where.is_file() else sorted(where.glob("*.t*z*"))
    if archives:
        with tarfile.open(archives[0]) as archive:
            archive.extractall(scratch / "mpi")
        where = scratch / "mpi"
    found = sorted(where.glob("bin/mpiexec")) + sorted(where.glob("*/bin/mpiexec"))
    if not found:
        raise SystemExit(f"gpu-check: {where} has no bin/mpiexec")
    return found[0].parents[1]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "gpu-check.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    results = os.environ.get("RESULTS") or f"gpu-check-{datetime.now():%Y%m%d-%H%M%S}"
    add("results", nargs="?", default=results, metavar="RESULTS", help="folder (default: by date)")
    add("--only", default="", metavar="STEP,...", help="these steps; names begin like this")
    add("--seconds", type=float, default=SECONDS, help="for all of it (default: %(default)g)")
    add("--stretch", type=float, default=1, metavar="X", help="so many times all limits")
    add("--tiny", action="store_true", help="sizes for a machine without a GPU, and few tests")
    add("--dry-run", action="store_true", help="print the commands")
    return parser.parse_args()


def main() -> int:
    begun = time.monotonic()
    args, named = arguments(), os.environ.get("MPI_HOME")
    home = Path(named) if named else ROOT / ".mpi" if named is None else None
    report = Path(args.results).absolute() / "gpu-check.md"
    with tempfile.TemporaryDirectory(prefix="gpu-check-", ignore_cleanup_errors=True) as scratch:
        given = named or (home and home.exists())
        launcher, env = mpi(home if given else None, Path(scratch))
        plan = Plan(report, Path(scratch), launcher, args.tiny, args.stretch)
        steps = [step for step in plan.steps() if step.name.startswith(tuple(args.only.split(",")))]
        if args.dry_run:
            for step in steps:
                print(*(f"{step.name} {step.seconds:.0f}: {shlex.join(c)}" for c in step.commands), sep="\n")
            return 0
        env = os.environ | env
        machine = look(launcher, env)
        if machine is None:
            return 2
        report.parent.mkdir(parents=True, exist_ok=True)
        checked = Check(report, env, machine, begun + args.seconds * args.stretch)
        checked.say(f"# gpu-check, {datetime.now():%Y-%m-%d %H:%M}\n", *machine.about)
        possible = [step for step in steps if not set(step.needs) & set(machine.missing)]
        with beside(plan.graphs(possible, checked.cores), env, report):
            return checked.run(steps)


def look(launcher: str, env: dict[str, str]) -> Machine | None:
    """Find out what there is; None, and why on stderr, without a GPU or without CuPy."""
    gpu = probe(python("-c", GPU_PROBE), env)
    if gpu.returncode:
        print(f"{gpu.stderr}gpu-check: no GPU or no CuPy here, see above", file=sys.stderr)
        return None
    about, lacking = gpu.stdout.split("\n")[:2]
    missing = {name: f"no {name} for this Python" for name in lacking.split()}
    for tool in ("compute-sanitizer", "ncu"):
        if shutil.which(tool, path=env.get("PATH")) is None:
            missing[tool] = f"no {tool}"
    found = probe(python("-c", MPI_PROBE), env)
    if found.returncode:
        why = (found.stderr.strip().splitlines() or ["it ended without a word"])[-1]
        return Machine([about], missing | dict.fromkeys(("mpi", "launcher"), f"no MPI: {why}"))
    library, taken, why = json.loads(found.stdout)
    if not taken:
        home = "MPI_HOME may name one that does"
        missing["device pointers"] = f"this MPI takes no device pointers ({why}); {home}"
    if problem := launches(launcher, env):
        missing["launcher"] = problem
    takes = f"device pointers for MPI: {'yes' if taken else 'no'}, {why}"
    return Machine([about, f"{library}; {takes}; launcher: {problem or launcher}"], missing)


def launches(launcher: str, env: dict[str, str]) -> str:
    """Return why a launcher can't start two ranks that MPI connects; "" if it can."""
    if shutil.which(launcher, path=env.get("PATH")) is None:
        return f"no launcher: there is no {launcher}"
    two = probe([launcher, "-n", "2", *python("-c", LAUNCH_PROBE)], env)
    if two.returncode == 0 and two.stdout.split() == ["2", "2"]:
        return ""
    said = (two.stderr.strip() or two.stdout.strip() or "nothing").splitlines()[-1]
    return f"{launcher} starts no two ranks that this Python's MPI connects: {said}"


def probe(command: Command, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command for at most a minute; what it printed, and why it can't be run, as its stderr."""
    quietly = {"capture_output": True, "text": True, "check": False, "timeout": 60}
    try:
        return subprocess.run(command, env=env, cwd=ROOT, stdin=subprocess.DEVNULL, **quietly)
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, "", f"{error}\n")


@contextmanager
def beside(commands: list[Command], env: dict[str, str], report: Path) -> Iterator[None]:
    """Run commands at low priority while the context lasts; what they print goes to graphs.log."""
    file = report.with_name("graphs.log") if commands else os.devnull
    with open(file, "ab") as log, ExitStack() as stack:
        for command in commands:
            process, _ = started(["nice", *command], env, log.fileno())
            if process is not None:
                stack.callback(lambda process=process: process.poll() is None and end(process))
        yield


if __name__ == "__main__":
    sys.exit(main())
