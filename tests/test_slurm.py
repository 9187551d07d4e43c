"""The jobs under a real Slurm of one node, which the tests start: demo, training, a study of each paper.

Needs Debian's slurm-wlm and munge, and to be root, as slurmd does.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from mpi_helpers import clean_environment

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = "munged", "slurmctld", "slurmd", "sbatch", "srun", "sinfo", "scancel", "squeue", "scontrol"
PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"])
HOST = socket.gethostname().partition(".")[0]

CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,bf_interval=1
ReturnToService=2
FirstJobId={first}
KillWait=2
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 RealMemory=65536 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
"""

ENDED = "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"

pytestmark = [
    pytest.mark.programs,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        os.geteuid() != 0 or not all(shutil.which(name, path=PATH) for name in PROGRAMS),
        reason="needs slurm-wlm and munge, and to be root",
    ),
]


@dataclass
class Job:
    """Outcome of a job."""

    code: int
    output: str


class Slurm:
    """Daemons of one node with four cores, which know each other by a configuration in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.daemons = folder, list[subprocess.Popen[bytes]]()
        self.conf = folder / "slurm.conf"
        self.env = clean_environment(PATH=PATH, SLURM_CONF=str(self.conf), PYTHON=sys.executable)

    def start(self) -> None:
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        self.conf.write_text(
            CONF.format(host=HOST, folder=self.folder, ports=free_ports(2), first=os.getpid())
        )
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        files = {"socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        own = [f"--{flag}={self.folder}/munge.{name}" for flag, name in files.items()]
        self.daemon("munged", "--foreground", "--force", f"--key-file={key}", *own)
        wait(lambda: (self.folder / "munge.socket").exists(), "munged")
        self.daemon("slurmctld", "-D", "-i")
        self.daemon("slurmd", "-D")
        wait(lambda: "idle" in self.ask("sinfo", "--noheader", "--format=%T"), "idle node", told=self.logs)

    def daemon(self, *words: str) -> None:
        with (self.folder / f"{words[0]}.out").open("wb") as out:
            process = subprocess.Popen(
                words, env=self.env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        self.daemons.append(process)

    def ask(self, *words: str) -> str:
        return subprocess.run(words, env=self.env, capture_output=True, text=True, check=False).stdout

    def logs(self) -> str:
        return "\n".join(
            path.read_text(errors="replace")[-1500:] for path in sorted(self.folder.glob("*.out"))
        )

    def sbatch(self, *words: str | Path, cwd: Path, **env: str) -> Job:
        """Run a job and wait for its end."""
        name, output = self.submit(*words, cwd=cwd, **env)
        return self.end(name, output)

    def submit(self, *words: str | Path, cwd: Path, **env: str) -> tuple[str, Path]:
        """Queue a job; return its number and its output."""
        output = self.folder / f"job-{time.monotonic_ns()}"
        command = ["sbatch", "--parsable", f"--output={output}", *map(str, words)]
        done = subprocess.run(
            command, cwd=cwd, env=self.env | env, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip(), output

    def end(self, name: str, output: Path) -> Job:
        """Wait for the end of a job."""
        told = ["scontrol", "--oneliner", "show", "job", name]
        wait(lambda: self.state(told) in ENDED, "end of the job", 300, output.read_text)
        code = int(self.ask(*told).split(" ExitCode=")[1].split(":")[0])
        return Job(code, output.read_text(errors="replace"))

    def state(self, told: list[str]) -> str:
        return self.ask(*told).split(" JobState=")[1].split()[0]

    def stop(self) -> None:
        """End the jobs, the daemons, and whatever of them is left."""
        self.ask("scancel", "--user=root")
        with contextlib.suppress(AssertionError):
            wait(lambda: not self.ask("squeue", "--noheader").strip(), "end of the jobs")
        for process in reversed(self.daemons):
            process.terminate()
        for process in self.daemons:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
        for process in self.left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        for process in self.daemons:
            process.wait(10)

    def left(self) -> list[int]:
        """List the processes that were started with this configuration."""
        mine = f"SLURM_CONF={self.conf}".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if mine in path.read_bytes().split(b"\0"):
                    found.append(int(path.parent.name))
        return found


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def wait(reached, what: str, seconds: float = 60, told=str) -> None:
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline, f"no {what} in {seconds} s\n{told()}"
        time.sleep(0.2)


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder:
        started = Slurm(Path(folder))
        try:
            started.start()
            yield started
        finally:
            started.stop()
            left = started.left()
        assert not left, f"processes {left} outlive the tests"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Make a command that runs the distgnn of this working tree."""
    path = tmp_path_factory.mktemp("bin") / "distgnn"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -m distgnn "$@"\n')
    path.chmod(0o755)
    return str(path)


@pytest.fixture(scope="module")
def store(slurm: Slurm, program: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store")
    for words in ("generate sbm graph --nodes 300", "prepare graph graph.dg"):
        subprocess.run([program, *words.split()], cwd=folder, env=slurm.env, check=True, capture_output=True)
    return folder / "graph.dg"


def test_demo(slurm: Slurm, program: str, tmp_path: Path) -> None:
    words = "--nodes", "300", "--epochs", "2", "--out", tmp_path / "demo"
    job = slurm.sbatch("jobs/demo.sbatch", *words, cwd=ROOT, DISTGNN=program)
    assert job.code == 0, job.output
    assert "srun" not in job.output and len(list((tmp_path / "demo").glob("*.jsonl"))) >= 5


@pytest.mark.parametrize("script", ["train.sh", "train.sbatch", "generic.sbatch"])
def test_train(slurm: Slurm, program: str, store: Path, tmp_path: Path, script: str) -> None:
    """Slurm runs a copy of a script; a .sh finds what belongs to it from anywhere, a .sbatch from the top."""
    words: list[str | Path] = [store, "--epochs", "2", "--algorithm", "2d", "--log", tmp_path / "run.jsonl"]
    words += ["--checkpoint", tmp_path / "kept"]
    words = ["train", *words] if script == "generic.sbatch" else words
    where = ROOT if script.endswith("sbatch") else tmp_path
    job = slurm.sbatch("--nodes=1", ROOT / "jobs" / script, *words, cwd=where, DISTGNN=program)
    assert job.code == 0, job.output
    text = (tmp_path / "run.jsonl").read_text()
    assert text.count('"event": "epoch"') == 2 and text.count('"device"') == 4


@pytest.mark.parametrize(
    "asks", ["scancel --signal=USR1", "scancel --batch --signal=USR1", "scontrol requeue"]
)
def test_a_preempted_training_is_requeued_and_resumed(
    slurm: Slurm, program: str, store: Path, tmp_path: Path, asks: str
) -> None:
    """The losses of a job that was stopped and those of one that was not are equal to the bit.

    With ``--batch`` the signal reaches the batch shell alone, as by ``sbatch --signal=B:USR1@SECONDS``.
    """
    words = [
        store,
        "--epochs",
        "400",
        "--checkpoint-every",
        "20",
        "--eval-every",
        "0",
        "--algorithm",
        "2d",
        "--no-tune-gemm",
    ]
    logs = tmp_path / "whole.jsonl", tmp_path / "stopped.jsonl"
    kept = [["--log", log, "--checkpoint", log.with_suffix(".kept")] for log in logs]
    train = ["--nodes=1", ROOT / "jobs" / "train.sbatch", *words]
    assert slurm.sbatch(*train, *kept[0], cwd=ROOT, DISTGNN=program).code == 0
    name, output = slurm.submit(*train, *kept[1], cwd=ROOT, DISTGNN=program)
    wait(lambda: logs[1].exists() and logs[1].read_text().count('"event": "epoch"') > 30, "epochs")
    slurm.ask(*asks.split(), name)
    wait(lambda: "Restarts=1" in slurm.ask("scontrol", "show", "job", name), "requeue", 60, output.read_text)
    time.sleep(5)  # the first start's daemon of the step goes, and its socket of the same name
    slurm.ask("scontrol", "update", f"JobId={name}", "StartTime=now")  # else after two minutes
    job = slurm.end(name, output)
    assert job.code == 0, job.output
    assert logs[1].read_text().count('"event": "run"') == 2
    whole, stopped = (
        [(event["epoch"], event["loss"]) for event in map(json.loads, log.read_text().splitlines())
         if event["event"] == "epoch"] for log in logs
    )  # fmt: skip
    assert whole == stopped


STUDIES = {
    "plexus-10": "products-14M-Plexus",
    "cagnet-3": "amazon-2D",
    "sparsity-aware-7": "amazon-SA+GVB-c-2",
    "mg-gcn-11": "cora-MG-GCN",
    "sampling-5": "papers-SAGE-c-2",
}


@pytest.mark.parametrize("study", STUDIES)
def test_study(slurm: Slurm, program: str, tmp_path: Path, study: str) -> None:
    words = ["--at", "4", "--trials", "1", "--epochs", "3", "--scale", "1e-5", "--only", STUDIES[study]]
    job = slurm.sbatch(ROOT / "jobs" / "study.sh", study, *words, cwd=tmp_path, DISTGNN=program)
    assert job.code == 0 and f"# {study}:" in job.output, job.output
    table = (tmp_path / "studies" / f"{study}.csv").read_text().splitlines()
    assert len(table) == 2 and ",4," in table[1]
    for kind in ("md", "svg"):
        assert (tmp_path / "studies" / f"{study}.{kind}").stat().st_size


def test_a_job_that_fails_says_so_to_slurm(slurm: Slurm, program: str, tmp_path: Path) -> None:
    job = slurm.sbatch(ROOT / "jobs" / "train.sh", "nowhere.dg", cwd=tmp_path, DISTGNN=program)
    assert job.code == 2 and "nowhere.dg" in job.output
