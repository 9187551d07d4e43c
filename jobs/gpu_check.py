"""Checks that need a GPU, on a bare machine with one, the most important first; started by jobs/gpu-check.sh.

Part 1 (10 minutes): all kernels compiled, in as many processes as there are cores; a training on CuPy, its
losses beside NumPy's; tests on CuPy arrays; products beside cuSPARSE; epochs beside PyTorch's; two and four
ranks on the GPU. Part 2 (10 minutes): kernels under compute-sanitizer. Part 3 (an hour): the full tables, and
every test on CuPy arrays.

A step over its limit is ended, one that fails is named at the end, and the others run all the same; one that
needs what is not here is skipped and says why. Without MPI the kernels are compiled, tested and timed; MPI
gets device pointers only where it says that it takes them. What steps print goes to RESULTS/*.log as they go,
outcomes and tables to RESULTS/gpu-check.md. Exit status: 0 nothing failed, 1 something failed or was left out
for lack of time, 2 there is no GPU or no CuPy.

The Python that runs this needs CuPy 14.2 and SciPy, and mpi4py, h5py and pytest for most steps; PyTorch, and
PyG and DGL where they are, are what epochs are compared with. MPI_HOME names an MPI with CUDA support: a
folder, or an archive; without, it is .mpi/ at the top of the repository, a folder or one with such an
archive, or else, as with an empty MPI_HOME, the mpiexec beside Python or on the path.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
Command = list[str]

# Kernels, then products, then what is built of them: a budget that is spent leaves out the last.
TESTS = [
    *(
        f"tests/kernels/test_cuda_{name}.py"
        for name in ("spmm", "elementwise", "sampling", "extract", "benchmark")
    ),
    *(f"tests/{room}" for room in ("local", "operators", "nn", "comm", "sampling", "train")),
]
RANK_TESTS = ["tests/operators/test_products.py", "tests/comm", "tests/nn"]
SANITIZED = [f"tests/kernels/test_cuda_{name}.py" for name in ("spmm", "elementwise", "sampling", "extract")]
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")

#: Seconds of a part from the beginning to the end of the last step, but for the time that this takes to end.
DEADLINES = {1: 560.0, 2: 560.0, 3: 3500.0}
SHORTEST = 5.0  # seconds: a step that would have fewer left is not begun

TINY = {
    "gpu_spmm.py": "--graphs rmat-8 --widths 16 --rounds 1 --scale 1e-5",
    "gpu_epoch.py": "--graphs rmat-8-8 --epochs 2 --warm-up 1",
    "gpu_compile.py": "optimizers.cu",
}
TINY_TESTS = [
    f"tests/{name}.py"
    for name in ("kernels/test_cuda_elementwise", "operators/test_products", "comm/test_beside")
]

# CuPy's memory pool hides accesses just behind an array, so the sanitizer runs without it.
WITHOUT_POOL = "import sys, cupy, pytest; cupy.cuda.set_allocator(None); sys.exit(pytest.main(sys.argv[1:]))"

GPU_PROBE = """
import importlib.util, platform, cupy, numpy, scipy
runtime = cupy.cuda.runtime
name = runtime.getDeviceProperties(0)["name"].decode()
print(f"{name}, CUDA {runtime.runtimeGetVersion()}, driver {runtime.driverGetVersion()};", end=" ")
print(*(f"{module.__name__} {module.__version__}" for module in (cupy, numpy, scipy)), sep=", ", end=", ")
print(f"Python {platform.python_version()}")
print(*(name for name in ("pytest", "h5py") if importlib.util.find_spec(name) is None))
"""
MPI_PROBE = """
import json
from mpi4py import MPI, __version__
from distgnn.comm.transport import cuda_aware
library = MPI.Get_library_version().split(",")[0].splitlines()[0]
print(json.dumps([f"mpi4py {__version__}, {library}", *cuda_aware()]))
"""
LAUNCH_PROBE = "from mpi4py import MPI; print(MPI.COMM_WORLD.Get_size())"


@dataclass
class Machine:
    """Equipment of this machine.

    Attributes:
        told: lines for the report.
        missing: by what steps need, why it is not here.
    """

    told: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)


@dataclass
class Step:
    """Commands, one after the other until one fails, in `seconds` altogether.

    Attributes:
        needs: names in `Machine.missing`, without any of which the step is skipped.
        instead: the step stands in for those that need this, and runs only without it.
    """

    name: str
    seconds: float
    commands: list[Command]
    env: dict[str, str] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    instead: str = ""


@dataclass
class Plan:
    """The steps of every part.

    Args:
        tiny: sizes for a machine without a GPU; stretch: by how much more time there is.
    """

    report: Path
    scratch: Path
    launcher: str
    tiny: bool = False
    stretch: float = 1.0

    def steps(self, part: int) -> list[Step]:
        return (self.part_1, self.part_2, self.part_3)[part - 1]()

    def part_1(self) -> list[Step]:
        graphs = "--graphs rmat-16-492 rmat-20-16"
        return [
            self.compile(60),
            self.train(),
            self.kernels(),
            self.tests("tests-once", 45, TESTS, "--quick"),
            self.tests("tests-all", 75, TESTS),
            self.table("spmm", 90, "gpu_spmm.py", "--quick"),
            self.epochs(90, graphs),
            *(self.ranks(count, aware) for aware in (False, True) for count in (2, 4)),
        ]

    def part_2(self) -> list[Step]:
        """Run part 2. The first steps compile, so that the sanitizer does not watch the compiler."""
        chosen = "cupy and not tuning and not cusparse"
        tests = self.tests("tests", 60, SANITIZED, "--quick", chosen=chosen)
        watched = [sys.executable, "-c", WITHOUT_POOL, *tests.commands[0][3:], "--timeout=0"]
        sanitizer = ["compute-sanitizer", "--error-exitcode", "9", "--tool"]
        under = replace(tests, seconds=140 * self.stretch, needs=(*tests.needs, "compute-sanitizer"))
        commands = {tool: [*sanitizer, tool, *watched] for tool in TOOLS}
        return [self.compile(60), tests, *(replace(under, name=t, commands=[c]) for t, c in commands.items())]

    def part_3(self) -> list[Step]:
        cusparse = self.tests("cusparse", 300, ["tests/local", "tests/operators"])
        cusparse.env["DISTGNN_SPMM"] = "cusparse"
        float64 = "--dtype float64 --graphs rmat-17 uniform-17 --widths 16 41 128"
        return [
            self.table("spmm", 600, "gpu_spmm.py", "--variants"),
            self.table("spmm-float64", 300, "gpu_spmm.py", float64),
            self.epochs(600, "--graphs rmat-18-492 rmat-21-50 rmat-20-16"),
            cusparse,
            self.tests("tests-all", 1800, ["tests"]),
        ]

    def compile(self, seconds: float) -> Step:
        """Compile all kernels into CuPy's cache, so that no other step waits for the compiler."""
        command = python(f"jobs/gpu_compile.py {TINY['gpu_compile.py'] if self.tiny else ''}")
        return Step("compile", seconds * self.stretch, [command])

    def kernels(self) -> Step:
        """Test the kernels without MPI, which all other tests need."""
        paths = TINY_TESTS[:1] if self.tiny else SANITIZED
        command = python("-m pytest -p no:cacheprovider --tb=short -r fE --color=no", *paths)
        command += ["--confcutdir=tests/kernels", "-o", "addopts=--import-mode=importlib"]
        command += ["-k", "cupy and not matrix_of_scipy"]
        return Step("kernels", 150 * self.stretch, [command], needs=("pytest",), instead="mpi")

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
        return Step("train", 90 * self.stretch, commands, needs=("mpi", "h5py"))

    def tests(self, name: str, seconds: float, paths: list[str], *options: str, chosen: str = "cupy") -> Step:
        """Run tests until the time is spent; the last may take some more."""
        paths, seconds = (TINY_TESTS, 10) if self.tiny else (paths, seconds)
        command = python("-m pytest -p no:cacheprovider --tb=short -r fE --durations=5 --color=no", *paths)
        command += [f"--budget={seconds * self.stretch:.0f}", "-k", chosen, *options]
        needs = "pytest", "mpi", "h5py"
        return Step(name, (seconds + 20) * self.stretch, [command], {"DISTGNN_BACKEND": "cupy"}, needs)

    def ranks(self, count: int, aware: bool) -> Step:
        """Train every algorithm on ranks that share the GPU and send through the host, or give MPI device
        pointers: losses beside the serial ones, then tests.
        """
        name = f"ranks-{count}-{'cuda-aware' if aware else 'staged'}"
        nodes, epochs = (300, 1) if self.tiny else (20_000, 5)
        step = self.tests(name, 15, RANK_TESTS, "--quick", "--only-mpi", f"--ranks-above={count // 2}")
        demo = python(f"-m distgnn demo --out {self.scratch / name} --nodes {nodes} --epochs {epochs}")
        step.commands = [[self.launcher, "-n", str(count), *words] for words in (demo, *step.commands)]
        step.seconds, step.env["DISTGNN_TRANSPORT"] = 45 * self.stretch, "mpi" if aware else "host"
        step.needs += ("launcher", "device pointers") if aware else ("launcher",)
        return step

    def epochs(self, seconds: float, graphs: str) -> Step:
        """Time epochs on graphs that :meth:`graphs` has made meanwhile, or makes now."""
        step = self.table("epoch", seconds, "gpu_epoch.py", graphs)
        step.commands[0] += ["--kept-in", str(self.scratch)]
        return replace(step, needs=("mpi",))

    def graphs(self, steps: list[Step]) -> list[Command]:
        """List the commands that make the graphs of these steps while others run."""
        return [[*step.commands[0], "--make"] for step in steps if step.name == "epoch"]

    def table(self, name: str, seconds: float, program: str, words: str) -> Step:
        words = TINY[program] if self.tiny else words
        command = python(f"benchmarks/{program} {words}", "--out", str(self.report))
        return Step(name, seconds * self.stretch, [command])


def python(words: str, *more: str) -> Command:
    return [sys.executable, *words.split(), *more]


class Check:
    """Runs steps; tells the terminal and the report what became of each.

    Args:
        end: the moment (of ``time.monotonic``) at which the last step must have ended.
    """

    def __init__(self, report: Path, env: dict[str, str], machine: Machine, end: float) -> None:
        self.report, self.env, self.machine, self.end = report, env, machine, end
        self.failed, self.skipped, self.passed = list[str](), list[str](), 0

    def run(self, step: Step) -> None:
        missing, started = self.machine.missing, time.monotonic()
        print(f"\n--- {step.name}", flush=True)
        if why := [missing[need] for need in step.needs if need in missing]:
            self.skipped.append(f"{step.name}: skipped: {why[0]}")
            self.say(f"\n## {self.skipped[-1]}\n")
            return
        if self.end - started < SHORTEST:
            self.failed.append(f"{step.name}: not run: the time of this part is over")
            self.say(f"\n## {self.failed[-1]}\n")
            return
        log = self.report.with_name(f"{step.name.partition('-')[0]}.log")
        log.touch()
        begin, problem, end = log.stat().st_size, "", min(self.end, started + step.seconds)
        for command in step.commands:
            problem = problem or follow(command, self.env | step.env, log, end - time.monotonic())
        verdict = f"{step.name}: {problem or 'passed'}, {time.monotonic() - started:.0f} s"
        self.passed += not problem
        self.failed += [f"{verdict}, {log}"] if problem else []
        self.say(f"\n## {verdict}\n", *(f"    {line}" for line in outcome(log, begin, bool(problem))))

    def say(self, *lines: str) -> None:
        text = "\n".join(lines) + "\n"
        print(text, flush=True)
        with open(self.report, "a") as file:
            file.write(text)


OUTCOME = re.compile(
    r"FAILED |ERROR |the budget is spent|.*\d (passed|failed|errors?)\b.* in [\d.]+s"  # pytest
    r"|check: |epoch [\d.]+ s \(median|algorithm +grid|[\w.-]+ +(\dx?)+  |.* algorithms "  # train and demo
    r"|compiled \d"
)


def outcome(log: Path, begin: int, failed: bool) -> list[str]:
    """Return the lines of the log that say how it went, and the last ones where it failed."""
    with open(log, errors="replace") as file:
        file.seek(begin)
        lines = file.read().splitlines()
    kept = [line for line in lines if OUTCOME.match(line)][:40]
    return kept + [line for line in lines[-12:] if failed and line not in kept]


def follow(command: Command, env: dict[str, str], log: Path, seconds: float) -> str:
    """Run a command, its output going to the log and, from there, to the terminal; what went wrong, or ""."""
    with open(log, "ab", 0) as output, open(log, "rb") as shown:
        output.write(f"$ {shlex.join(command)}\n".encode())
        shown.seek(0, os.SEEK_END)
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=env, cwd=ROOT,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            return f"{command[0]}: {error.strerror}"
        deadline, code = time.monotonic() + seconds, None
        while code is None and time.monotonic() < deadline:
            time.sleep(0.1)
            code = process.poll()
            sys.stdout.write(shown.read().decode(errors="replace"))
            sys.stdout.flush()
        if code is None:
            end(process)
            return "over its time"
    return f"exit status {code}" if code else ""


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask it and all that it started to end, so that pytest says what failed and a launcher ends its ranks;
    then make them.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(5)
        except subprocess.TimeoutExpired:
            continue
        except ProcessLookupError:
            return


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
    add("--part", type=int, choices=(1, 2, 3), default=1)
    add("--only", default="", metavar="STEP,...", help="these steps of the part; names begin like this")
    add("--stretch", type=float, default=1, metavar="X", help="so many times the limits")
    add("--tiny", action="store_true", help="sizes for a machine without a GPU, and few tests")
    add("--dry-run", action="store_true", help="print the commands")
    return parser.parse_args()


def main() -> int:
    started = time.monotonic()
    args, named = arguments(), os.environ.get("MPI_HOME")
    home = Path(named) if named else ROOT / ".mpi" if named is None else None
    report = Path(args.results).absolute() / "gpu-check.md"
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as scratch:
        given = named or (home and home.exists())
        launcher, env = mpi(home if given else None, Path(scratch))
        plan = Plan(report, Path(scratch), launcher, args.tiny, args.stretch)
        steps = [step for step in plan.steps(args.part) if step.name.startswith(tuple(args.only.split(",")))]
        if args.dry_run:
            for step in steps:
                print(*(f"{step.name} {step.seconds:.0f}: {shlex.join(c)}" for c in step.commands), sep="\n")
            return 0
        env = os.environ | env
        machine = look(launcher, env)
        if machine is None:
            return 2
        report.parent.mkdir(parents=True, exist_ok=True)
        checked = Check(report, env, machine, started + DEADLINES[args.part] * args.stretch)
        checked.say(f"# gpu-check, part {args.part}, {datetime.now():%Y-%m-%d %H:%M}\n", *machine.told)
        with beside(plan.graphs([s for s in steps if not set(s.needs) & set(machine.missing)]), env, report):
            return check(checked, steps, started)


def look(launcher: str, env: dict[str, str]) -> Machine | None:
    """Find out what there is; None, and why on stderr, without a GPU or without CuPy."""
    gpu = probe(python("-c", GPU_PROBE), env)
    if gpu.returncode:
        print(f"{gpu.stderr}gpu-check: no GPU or no CuPy here, see above", file=sys.stderr)
        return None
    about, lacking = gpu.stdout.split("\n")[:2]
    missing = {name: f"no {name} for this Python" for name in lacking.split()}
    if shutil.which("compute-sanitizer", path=env.get("PATH")) is None:
        missing["compute-sanitizer"] = "no compute-sanitizer"
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
            process = subprocess.Popen(
                ["nice", *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, cwd=ROOT,
                start_new_session=True,
            )  # fmt: skip
            stack.callback(lambda process=process: process.poll() is None and end(process))
        yield


def check(checked: Check, steps: list[Step], started: float) -> int:
    """Run the steps; returns the exit status."""
    steps = [step for step in steps if not step.instead or step.instead in checked.machine.missing]
    for step in steps:
        checked.run(step)
    passed = f"{checked.passed} of {len(steps)} steps passed"
    skipped = f", {len(checked.skipped)} skipped" if checked.skipped else ""
    problems = (f"- {line}" for line in checked.failed + checked.skipped)
    checked.say(f"\n## {passed}{skipped}, {time.monotonic() - started:.0f} s\n", *problems)
    return int(bool(checked.failed))


if __name__ == "__main__":
    sys.exit(main())
