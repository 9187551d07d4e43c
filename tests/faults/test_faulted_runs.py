"""A few of the faulted runs, at moments that are worth a test: see the program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from . import faulted_runs

pytestmark = [pytest.mark.programs, pytest.mark.slow]

RUNS: list[tuple[str, str, dict[str, Any]]] = [
    ("save", "SIGKILL", {"rank": 0, "where": "os.rename", "nth": 1}),
    ("prepare, text", "EIO write", {"rank": 1, "where": "write", "nth": 3}),
]


@pytest.mark.timeout(300)
def test_faulted_runs_end_and_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faulted_runs, "RANKS", 2)
    runs = faulted_runs.Trial(tmp_path, [command for command, _, _ in RUNS])
    for command in dict.fromkeys(runs.commands):
        runs.make(command)
    for number, (command, fault, spec) in enumerate(RUNS):
        if fault.endswith(" write") and not (tmp_path / "failing_write.so").exists():
            continue  # no compiler here
        row = runs.run(str(number), command, fault, spec)
        assert row is not None and not row.wrong, row


def test_what_is_wrong_is_seen() -> None:
    """A program that finds no fault must be known to find planted ones."""

    def wrong(fault: str, **ended: Any) -> list[str]:
        job = faulted_runs.Job(**{"code": 1, "said": "", "seconds": 1.0} | ended)
        return list(faulted_runs.ending(job, fault))

    assert wrong("SIGKILL") == []
    assert wrong("SIGKILL", code=0) == ["code 0"] == wrong("SIGTERM", code=0)
    assert [*faulted_runs.ending(faulted_runs.Job(0, "", 1.0), "SIGTERM", trains=True)] == []
    log = faulted_runs.Job(0, "distgnn: warning: log: this log is incomplete (No space left)", 1.0)
    assert [*faulted_runs.ending(log, "ENOSPC", trains=True)] == []
    assert "code 0" in [*faulted_runs.ending(log, "ENOSPC")]
    assert wrong("SIGKILL", hangs=True) == ["hangs: not over after 30 s"]
    assert wrong("exit 3", processes=["1"]) == ["1 processes left"]
    assert wrong("SIGTERM", said="\0") == ["says what does not print"]
    line = "distgnn: error: cannot write g.dg: No space left on device\n"
    assert wrong("ENOSPC write", said=line) == []
    assert wrong("EIO", said=line) == ["the line does not say which disk error"]
    assert wrong("ENOSPC", said=f"Traceback\n{line}") == ["a disk error is not one line"]
    assert wrong("RuntimeError", said="Traceback\n") == ["names no rank and host"]
    assert wrong("RuntimeError", said="distgnn: rank 1 on host vm failed: RuntimeError: planted\n") == []
