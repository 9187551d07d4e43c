"""Running programs under mpiexec from a (serial) test."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Finished:
    """Outcome of a program."""

    code: int
    out: str
    err: str


def clean_environment(**extra: str) -> dict[str, str]:
    """Return this environment without a launcher's variables, with the working tree importable."""
    launcher = ("PMI", "OMPI_", "PRTE_", "MPI_LOCAL", "MPIR_CVAR", "HYDI_", "HYDRA_", "SLURM_", "DISTGNN_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(launcher)}
    paths = [str(ROOT), *filter(None, [kept.get("PYTHONPATH")])]
    return (
        kept
        | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
        | extra
    )


def mpiexec(
    ranks: int,
    *command: str | Path,
    timeout: float = 60,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Finished:
    """Run ``python *command`` on ``ranks`` ranks (without a launcher for 0) and wait for it.

    Fails the test, and ends the program, when it takes longer than ``timeout`` seconds.
    """
    words = [sys.executable, *map(str, command)]
    settings = dict(env or {})
    if ranks > (os.cpu_count() or 1):  # as in the Makefile: ranks that wait must not starve those that work
        settings.setdefault("MPIR_CVAR_ENABLE_HEAVY_YIELD", "1")
    if ranks:
        words = [launcher(), "-n", str(ranks), *words]
    process = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment(**settings),
        cwd=cwd or ROOT,
        start_new_session=True,
    )
    code, out, err = ended(process, timeout)
    if code is None:
        pytest.fail(f"{' '.join(words)} still ran after {timeout} s\n{out}\n{err}")
    return Finished(code, out, err)


def ended(process: subprocess.Popen[str], timeout: float) -> tuple[int | None, str, str]:
    """Wait for a program that leads its session; return its code, None if it was ended, and its outputs."""
    try:
        out, err = process.communicate(timeout=timeout)
        return process.returncode, out, err
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)  # mpiexec ends its ranks
    try:
        out, err = process.communicate(timeout=5)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
    return None, out, err


def scratch() -> Path:
    """Make a folder that many tests of this process share; it goes when the process ends."""
    folder = tempfile.mkdtemp(prefix="distgnn-tests-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def launcher() -> str:
    """Return the mpiexec of this Python: ``$MPIEXEC``, the one beside it, or the one on the path.

    The one beside it is the mpich wheel's.
    """
    beside = Path(sys.executable).parent / "mpiexec"
    return os.environ.get("MPIEXEC") or (
        str(beside) if beside.exists() else shutil.which("mpiexec") or "mpiexec"
    )
