"""A few of the programs whose ranks do different things, and what they say: see the program."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .user_cases import CASES
from .user_programs import Outcome, problems, run

pytestmark = pytest.mark.programs

BY_NAME = {case.name: case for case in CASES}
LEFT = r"rank 1 on host \S+ has left the program without taking part"
STALL = r"distgnn: rank [023] on host \S+ has waited \d s for other ranks in "

#: The program, whether calls are compared, and what it says.
RUNS = [
    ("sys.exit(1) before a product", False, LEFT),
    ("sys.exit(1) before gather", False, rf"waits in vain in allreduce over world, called at .*: .*{LEFT}"),
    ("sys.exit(1) before the first fit", False, "rank 1 has left the program without taking part"),
    ("exception after a grid of some ranks", False, "rank 1 on host .* failed: ValueError: a bug"),
    ("exception before a barrier of the program", False, "rank 1 on host .* failed: ValueError: a bug"),
    ("one rank is late", False, rf"{STALL}bcast of H over rows, called at .*\.py line \d+: expect"),
    ("two operands in another order", True, r"H of call \d+ on this grid is 60 x 8 .* on ranks 0, 2-3 \("),
    ("a product and gather in another order", True, r"is gather on ranks 0, 2-3 \(called .*A @ H on rank 1"),
    ("all is well", True, "^$"),
    ("300 MB of addresses, nothing imported", False, "rank 1 on host .* failed: .*ulimit -v allows"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "check", "said"), RUNS, ids=[f"{name}-{check}" for name, check, _ in RUNS])
def test_programs_end_or_say_where_they_wait(tmp_path: Path, name: str, check: bool, said: str) -> None:
    case = BY_NAME[name]
    outcome = run(case, check, tmp_path)
    assert problems(case, check, outcome) == [], outcome
    assert re.search(said, outcome.said), outcome.said
    assert outcome.code is not None


def test_a_rank_says_once_that_it_waits(tmp_path: Path) -> None:
    outcome = run(BY_NAME["one rank is late"], False, tmp_path)
    ranks = re.findall(r"distgnn: rank (\d)", outcome.said)
    assert outcome.code == 0 and sorted(ranks) == ["0", "2", "3"], outcome.said


def test_what_is_wrong_is_seen() -> None:
    """A program that finds no fault must be known to find planted ones."""

    def wrong(name: str, check: bool, code: int | None, said: str = "") -> list[str]:
        return problems(BY_NAME[name], check, Outcome(code, said, 1.0))

    stalled = "distgnn: rank 1 on host vm has waited 3 s for other ranks in allreduce"
    assert wrong("gather on one rank", False, None) == ["hangs without a line"]
    assert wrong("gather on one rank", False, None, stalled) == []
    assert wrong("gather on one rank", False, 1) == ["names no rank"]
    assert wrong("gather on one rank", True, 0, "WRONG by 2.67") == ["code 0"]
    assert wrong("all is well", True, 0, "WRONG by 2.67") == ["a right program fails"]
    assert wrong("all is well", True, 1) == ["a right program fails"]
    assert wrong("SIGKILL", False, 9) == []
