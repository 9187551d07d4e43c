"""Tests of kernels alone are left out while all that they depend on is as it was when they passed.

They compile every kernel for real GPUs, run each under sanitizers, and test the emulation. `make
test-kernels` runs them in any case and, if none fails, writes `passed.txt`: the hash of what they depend on,
which is sources, tests and the flags of compilers, and the tests that were skipped, which run elsewhere.
Nothing else writes that file.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

ROOT, FILE = Path(__file__).resolve().parents[2], Path(__file__).with_name("passed.txt")
#: Files and folders on which the outcome depends. Flags are in setup.py, kernels/emulation and tests/kernels.
DEPENDS_ON = ("kernels", "tests/kernels", "tests/fake_cupy", "tests/mpi_helpers/gpu.py", "tests/loops.py",
              "distgnn/local", "distgnn/arrays", "distgnn/layout", "distgnn/sampling", "distgnn/errors.py",
              "distgnn/ledger", "distgnn/progress.py", "distgnn/rng.py", "setup.py",
              "benchmarks/ceilings.cu", "benchmarks/ptxas.py", "benchmarks/gpu_spmm.py",
              "benchmarks/gpu_timing.py")  # fmt: skip
SOURCES = {".py", ".pyx", ".c", ".cpp", ".cu", ".cuh", ".h", ".json"}


def digest(root: Path = ROOT) -> str:
    """Return the hash of the names and contents of all sources that the tests depend on."""
    found = hashlib.sha256()
    for path in sorted(file for name in DEPENDS_ON for file in [root / name, *(root / name).rglob("*")]):
        if path.suffix in SOURCES:
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            found.update(f"{path.relative_to(root).as_posix()} {content}\n".encode())
    return found.hexdigest()


def but_for(file: Path = FILE, root: Path = ROOT) -> set[str] | None:
    """Return the tests that were skipped when all others passed, with all as it is now; None if never."""
    kept, *skipped = file.read_text().splitlines() if file.exists() else [""]
    return set(skipped) if kept == digest(root) else None


class Notes:
    """A run of all tests of kernels, noted if it passes. A plugin of pytest.

    Args:
        file: what is written, beneath ``root``.
    """

    def __init__(self, file: Path = FILE, root: Path = ROOT) -> None:
        self.file, self.root, self.before = file, root, digest(root)
        self.passed, self.skipped = 0, set[str]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.passed += report.passed and report.when == "call"
        self.skipped |= {report.nodeid} if report.skipped else set()

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Write the file if the whole folder ran, none failed and no file was changed meanwhile."""
        config, folder = session.config, str(self.file.parent.relative_to(self.root))
        chosen = [config.getoption(name, None) for name in ("keyword", "markexpr", "quick", "deselect", "lf")]
        whole = [argument.rstrip("/") for argument in config.args] == [folder] and not any(chosen)
        if exitstatus == 0 and self.passed and whole and self.before == digest(self.root):
            self.file.write_text("\n".join([self.before, *sorted(self.skipped)]) + "\n")
