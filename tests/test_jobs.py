"""The job scripts start the right program with the right launcher; the programs are stand-ins that print how
they were called.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mpi_helpers import clean_environment

pytestmark = pytest.mark.programs

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, str]:
    """Make an environment whose distgnn, srun and mpiexec print their names and arguments."""
    for name in ("distgnn", "mpiexec", "srun", "other-mpiexec"):
        speaks = (
            'if [ "$1" = --mpi=list ]; then echo "none pmix pmi2" >&2; exit; fi\n' if name == "srun" else ""
        )
        (tmp_path / name).write_text(f'#!/bin/sh\n{speaks}echo "{name} $*"\n')
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    return clean_environment(PATH=path, DISTGNN=str(tmp_path / "distgnn")) | {"MPIEXEC": ""}


def run(script: str, *words: str, env: dict[str, str]) -> str:
    command = ["bash", f"jobs/{script}", *words]
    result = subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=False
    )
    return (result.stdout + result.stderr).replace(env["DISTGNN"], "DISTGNN").strip()


def test_mpiexec_beside_the_program(machine: dict[str, str]) -> None:
    assert run("demo.sh", env=machine) == "mpiexec -n 4 DISTGNN demo"
    assert run("demo.sh", "--seed", "3", env=machine | {"RANKS": "8"}) == "mpiexec -n 8 DISTGNN demo --seed 3"


def test_train_with_the_launcher_of_the_user(machine: dict[str, str], tmp_path: Path) -> None:
    expected = f"other-mpiexec -bind-to core -n 2 DISTGNN train {tmp_path} --epochs 3"
    environ = machine | {"MPIEXEC": "other-mpiexec -bind-to core", "RANKS": "2"}
    assert run("train.sh", str(tmp_path), "--epochs", "3", env=environ) == expected
    assert run("train.sh", env=environ) == "usage: jobs/train.sh STORE [flags of distgnn train]"


def test_plexus_prepares_what_is_not_there(machine: dict[str, str], tmp_path: Path) -> None:
    source, store = tmp_path / "graph", tmp_path / "graph.dg"
    environ = machine | {"MPIEXEC": "other-mpiexec", "RANKS": "4"}
    network = (
        "--recipe plain --algorithm 3d --order double --layers 3 --hidden 128 --optimizer adamw "
        "--train-features --epochs 10"
    )
    prepares = f"other-mpiexec -n 4 DISTGNN prepare {source} {store} --order double"
    trains = f"other-mpiexec -n 4 DISTGNN train {store} {network} --grid 2x2x1"
    given = (str(source), str(store), "--grid", "2x2x1")
    assert run("plexus.sh", *given, env=environ).splitlines() == [prepares, trains]
    store.mkdir()
    assert run("plexus.sh", *given, env=environ) == trains
    assert (
        run("plexus.sh", str(source), env=environ)
        == "usage: jobs/plexus.sh SOURCE STORE [flags of distgnn train]"
    )


def test_minibatches(machine: dict[str, str], tmp_path: Path) -> None:
    network = "--recipe plain --sampler sage --fanout 15,10,5 --layers 3 --hidden 256 --batch-size 1024"
    expected = f"mpiexec -n 4 DISTGNN train {tmp_path} {network} --eval-every 0 --epochs 3"
    assert run("minibatches.sh", str(tmp_path), "--epochs", "3", env=machine) == expected
    assert run("minibatches.sh", env=machine) == "usage: jobs/minibatches.sh STORE [flags of distgnn train]"


@pytest.mark.parametrize(("ranks", "asleep"), [(1, ""), (1 << 16, "1")])
def test_ranks_that_outnumber_the_cores_sleep_while_they_wait(
    machine: dict[str, str], ranks: int, asleep: str
) -> None:
    Path(machine["DISTGNN"]).with_name("mpiexec").write_text(
        '#!/bin/sh\necho "$MPIR_CVAR_ENABLE_HEAVY_YIELD"\n'
    )
    environ = {name: value for name, value in machine.items() if name != "MPIR_CVAR_ENABLE_HEAVY_YIELD"}
    assert run("demo.sh", env=environ | {"RANKS": str(ranks)}) == asleep


SLURM = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_SUBMIT_DIR": str(ROOT)}


def test_slurm(machine: dict[str, str]) -> None:
    environ = machine | SLURM
    assert run("demo.sbatch", env=environ) == "srun --mpi=pmi2 --kill-on-bad-exit=1 --ntasks=4 DISTGNN demo"
    assert (
        run("demo.sbatch", env=environ | {"SRUN_MPI": "pmix"})
        == "srun --mpi=pmix --kill-on-bad-exit=1 --ntasks=4 DISTGNN demo"
    )
    trained = run("train.sbatch", "graph.dg", "--epochs", "3", env=environ)
    started = "srun --mpi=pmi2 --kill-on-bad-exit=1 --ntasks=4"
    kept = "--checkpoint train-7.checkpoint"
    assert trained == f"{started} DISTGNN train graph.dg --log train-7.jsonl --epochs 3 {kept}"


TRAINS = "train.sbatch", "train.sh", "generic.sbatch", "minibatches.sh", "plexus.sh"


@pytest.mark.parametrize("script", TRAINS)
def test_a_training_that_is_preempted_is_requeued_and_resumed(
    machine: dict[str, str], tmp_path: Path, script: str
) -> None:
    folder, kept, store = tmp_path / "bin", tmp_path / "my kept", tmp_path / "g.dg"
    folder.mkdir(), store.mkdir()
    for name, does in (("srun", 'echo "$*" >&2; exit ${CODE:-75}'), ("scontrol", 'echo "scontrol $*" >&2')):
        (folder / name).write_text(f"#!/bin/sh\n{does}\n")
        (folder / name).chmod(0o755)
    environ = machine | SLURM | {"PATH": f"{folder}:{machine['PATH']}", "SRUN_MPI": "pmi2"}
    words = [*["train"] * (script == "generic.sbatch"), *["source"] * (script == "plexus.sh"), str(store)]
    words += ["--checkpoint", str(kept), "--log=log"]

    def launched(**more: str) -> tuple[int, str, list[str]]:
        done = subprocess.run(
            ["bash", f"jobs/{script}", *words], cwd=ROOT, env=environ | more, text=True, timeout=60,
            capture_output=True, check=False,
        )  # fmt: skip
        said = [line for line in done.stderr.splitlines() if "Command" not in line]
        return done.returncode, said[0], said[1:]

    code, command, then = launched()
    assert (code, then) == (75, ["scontrol requeue 7"]) and f"--checkpoint {kept}" in command
    assert "--resume" not in command and "--force" not in command
    code, command, _ = launched(SLURM_RESTART_COUNT="1")  # stopped before its first update
    assert code == 75 and command.count("--force") == 1 and "--resume" not in command
    kept.mkdir()
    (kept / "manifest.json").touch()
    for given in ([], ["--resume"]):
        words += given
        code, command, then = launched(SLURM_RESTART_COUNT="2")
        assert (code, then) == (75, ["scontrol requeue 7"])
        assert command.count("--resume") == 1 and "--force" not in command
    assert launched(SLURM_RESTART_COUNT="3", RESTARTS="3")[::2] == (75, [])
    assert launched(SLURM_RESTART_COUNT="2", CODE="0")[::2] == (0, [])
    assert launched(CODE="2")[::2] == (2, [])


SIGNALLED = """#!/bin/sh
trap 'echo "srun got USR1" >&2; exit ${CODE:-75}' USR1
echo begun
while :; do sleep 0.05; done
"""
QUEUE = {"srun": SIGNALLED, "scontrol": '#!/bin/sh\n[ $1 != show ] || echo JobState=$STATE\necho "$1" >&2\n'}
RUNNING, CANCELLED = {"STATE": "RUNNING"}, {"STATE": "CANCELLED"}


@pytest.mark.parametrize(("name", "more", "requeued"), [
    (signal.SIGUSR1, CANCELLED, True), (signal.SIGUSR2, CANCELLED, True), (signal.SIGTERM, RUNNING, True),
    (signal.SIGTERM, CANCELLED, False), (signal.SIGUSR1, {"CODE": "138"}, True),
    (signal.SIGUSR1, {"CODE": "1"}, False),
])  # fmt: skip
def test_a_signal_to_the_batch_shell_alone_goes_on_to_the_training(
    machine: dict[str, str], tmp_path: Path, name: signal.Signals, more: dict[str, str], requeued: bool
) -> None:
    """Slurm does that by ``--signal=B:USR1@60``. After the TERM of scancel no job comes back."""
    for program, does in QUEUE.items():
        (tmp_path / program).write_text(does)
        (tmp_path / program).chmod(0o755)
    environ = machine | SLURM | {"SRUN_MPI": "pmi2"} | more
    job = subprocess.Popen(
        ["bash", "jobs/train.sbatch", "graph.dg"], cwd=ROOT, env=environ, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert job.stdout is not None and job.stdout.readline() == "begun\n"
    job.send_signal(name)
    said = job.communicate(timeout=60)[1].splitlines()
    assert "srun got USR1" in said and ("requeue" in said) == requeued, said
    assert job.returncode == (1 if more == {"CODE": "1"} else 75)


def test_tasks_of_an_array_are_seeds(machine: dict[str, str]) -> None:
    environ = machine | SLURM | {"SLURM_ARRAY_TASK_ID": "3"}
    plain = run("train.sbatch", "graph.dg", env=environ)
    assert plain.endswith("graph.dg --log train-7.jsonl --seed 3 --checkpoint train-7.checkpoint")
    named = run("generic.sbatch", "train", "graph.dg", "--log", "run-%a.jsonl", "--seed=9", env=environ)
    assert named.endswith("graph.dg --log run-3.jsonl --seed=9 --checkpoint train-7.checkpoint")


def test_scripts_ask_for_one_node_and_for_memory_in_one_way() -> None:
    """Memory by core, which holds for any number of ranks; sites like Perlmutter give whole nodes."""
    asked = {path.name: re.findall("^#SBATCH --(?:nodes|mem).*", path.read_text(), re.MULTILINE)
             for path in (ROOT / "jobs").glob("*.sbatch")}  # fmt: skip
    for name, lines in asked.items():
        whole = name in ("perlmutter.sbatch", "frontier.sbatch")
        assert lines[0] == "#SBATCH --nodes=1" and len(lines) == (1 if whole else 2)
        assert whole or lines[1].startswith("#SBATCH --mem-per-cpu=")


def test_scripts_that_train_ask_for_a_signal() -> None:
    asked = "#SBATCH --signal=USR1@120\n#SBATCH --requeue\n#SBATCH --open-mode=append\n"
    asking = {path.name for path in (ROOT / "jobs").glob("*.s*") if asked in path.read_text()}
    assert asking == {*TRAINS, "perlmutter.sbatch", "frontier.sbatch"}


def test_as_many_ranks_as_gpus(machine: dict[str, str]) -> None:
    environ = machine | SLURM | {"SLURM_NNODES": "2", "SLURM_GPUS_ON_NODE": "2"}
    assert "--ntasks=4 DISTGNN train" in run("train.sbatch", "graph.dg", env=environ)
    refused = run("train.sbatch", "graph.dg", env=environ | {"SLURM_GPUS_ON_NODE": "8"})
    assert refused.startswith("4 ranks for 16 GPUs") and "--ntasks-per-node=8" in refused


def test_fewer_ranks_than_tasks_fill_nodes_one_after_the_other(machine: dict[str, str]) -> None:
    environ = machine | SLURM | {"SLURM_NTASKS": "8", "SLURM_NNODES": "2"}
    for ranks, spread in (
        ("3", "--nodes=1 --ntasks-per-node=4 "),
        ("5", "--nodes=2 --ntasks-per-node=4 "),
        ("8", ""),
    ):
        started = f"srun --mpi=pmi2 --kill-on-bad-exit=1 --ntasks={ranks} {spread}DISTGNN demo"
        assert run("demo.sh", env=environ | {"RANKS": ranks}) == started
    one_each = run("demo.sh", env=environ | {"RANKS": "2", "PER_NODE": "1"})
    assert "--ntasks=2 --nodes=2 --ntasks-per-node=1 DISTGNN" in one_each
    gpus = environ | {"SLURM_GPUS_ON_NODE": "4"}
    assert "--ntasks=2 --nodes=1" in run("demo.sh", env=gpus | {"RANKS": "2"})
    assert run("demo.sh", env=gpus | {"SLURM_GPUS_ON_NODE": "2"}).startswith("8 ranks for 4 GPUs")


def test_a_dry_run_starts_nothing(machine: dict[str, str]) -> None:
    environ = machine | {"MPIEXEC": "no-such-mpiexec", "DRY_RUN": "1"}
    assert run("train.sh", "my graph.dg", env=environ) == r"no-such-mpiexec -n 4 DISTGNN train my\ graph.dg"
    study = run("study.sh", "cagnet-1", "--ranks", "2", "--out", "there", env=environ)
    assert "no-such-mpiexec -n 2 DISTGNN train" in study and "FAILED" not in study


SCRIPTS = {
    "demo.sh": "DISTGNN demo",
    "train.sh": "DISTGNN train a b",
    "plexus.sh": "DISTGNN train b --recipe plain --algorithm 3d",
    "minibatches.sh": "DISTGNN train a --recipe plain --sampler sage",
    "study.sh": "a: no such study",
    "gpu-check.sh": "unrecognized arguments: b",
}


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("known_by", ["directory", "scontrol"])
def test_slurm_runs_copies_of_scripts(
    machine: dict[str, str], tmp_path: Path, script: str, known_by: str
) -> None:
    """Submitted from the top of the repository, or from anywhere with what scontrol says of the job."""
    copy, where = tmp_path / "slurm_script", ROOT if known_by == "directory" else tmp_path
    copy.write_bytes((ROOT / "jobs" / script).read_bytes())
    if known_by == "scontrol":
        program = tmp_path / "scontrol"
        program.write_text(f"#!/bin/sh\necho '   Command={ROOT}/jobs/{script} some/words'\n")
        program.chmod(0o755)
    (tmp_path / "b").mkdir()
    environ = machine | SLURM | {"SLURM_SUBMIT_DIR": str(where), "DRY_RUN": "1", "PYTHON": sys.executable}
    done = subprocess.run(
        ["bash", copy, *([] if script == "demo.sh" else ["a", "b"])],
        cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    told = (done.stdout + done.stderr).replace(environ["DISTGNN"], "DISTGNN").replace(f"{tmp_path}/", "")
    assert SCRIPTS[script] in told


@pytest.mark.parametrize("site", ["generic", "perlmutter", "frontier"])
def test_a_site_starts_any_job(machine: dict[str, str], site: str) -> None:
    environ = machine | SLURM
    kind = "pmi2" if site == "generic" else "cray_shasta"
    started = f"srun --mpi={kind} --kill-on-bad-exit=1 --ntasks=4 DISTGNN train graph.dg --epochs 3"
    started += " --checkpoint train-7.checkpoint"
    assert run(f"{site}.sbatch", "train", "graph.dg", "--epochs", "3", env=environ) == started
    for words in ((), ("launch",), ("run",)):
        usage = f"usage: sbatch jobs/{site}.sbatch demo|train|plexus|minibatches|study [arguments]"
        assert run(f"{site}.sbatch", *words, env=environ) == usage


@pytest.mark.parametrize("site", ["perlmutter", "frontier"])
def test_a_site_asks_for_one_rank_per_gpu(machine: dict[str, str], site: str) -> None:
    Path(machine["DISTGNN"]).with_name("srun").write_text(
        '#!/bin/sh\necho "$SRUN_CPUS_PER_TASK $SLURM_CPU_BIND $MPICH_GPU_SUPPORT_ENABLED $DISTGNN_BACKEND"\n'
    )
    text = (ROOT / "jobs" / f"{site}.sbatch").read_text()
    asked = dict(
        line[len("#SBATCH --") :].partition("=")[::2]
        for line in text.splitlines()
        if line.startswith("#SBATCH")
    )
    assert asked["ntasks-per-node"] == asked["gpus-per-node"]
    environ = machine | SLURM | {"SLURM_CPUS_PER_TASK": asked["cpus-per-task"]}
    expected = "32 cores 1" if site == "perlmutter" else "7 cores 0 numpy"
    assert run(f"{site}.sbatch", "train", "graph.dg", env=environ) == expected


def test_a_slurm_job_says_how_it_is_started(machine: dict[str, str], tmp_path: Path) -> None:
    outside = run("train.sbatch", "graph.dg", env=machine)
    assert (
        outside == "usage: sbatch jobs/train.sbatch STORE [flags of distgnn train]; without Slurm: "
        "jobs/train.sh STORE"
    )
    assert run("demo.sbatch", env=machine).startswith("usage: sbatch jobs/demo.sbatch")
    elsewhere = run("demo.sbatch", env=machine | SLURM | {"SLURM_SUBMIT_DIR": str(tmp_path)})
    assert elsewhere == f"submit this job from the top of the repository: {tmp_path} has no jobs/launch.sh"
    assert (
        run("train.sbatch", env=machine | SLURM)
        == "usage: sbatch jobs/train.sbatch STORE [flags of distgnn train]"
    )


def test_slurm_without_a_fitting_srun(machine: dict[str, str]) -> None:
    Path(machine["DISTGNN"]).with_name("srun").write_text("#!/bin/sh\necho none\n")
    assert run("demo.sbatch", env=machine | SLURM) == "mpiexec -n 4 DISTGNN demo"


@pytest.mark.parametrize(
    "script", sorted(path.name for path in (ROOT / "jobs").glob("*.s*") if path.name != "launch.sh")
)
def test_every_job_tells_its_cost(script: str) -> None:
    cost = (ROOT / "jobs" / script).read_text().split("\n# Cost: ")[1].split("\n#\n")[0].lower()
    for unit in ("ranks", "memory"):
        assert unit in cost
    assert "minute" in cost or "hour" in cost
