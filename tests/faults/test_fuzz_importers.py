"""A short run of the program that damages files for the importers."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from mpi_helpers import clean_environment

pytestmark = pytest.mark.programs

PROGRAM = Path(__file__).with_name("fuzz_importers.py")
RUNS = 35  # of each case


@pytest.mark.slow
def test_no_importer_crashes_or_shows_a_traceback():
    words = [sys.executable, str(PROGRAM), "--runs", str(RUNS)]
    done = subprocess.run(words, capture_output=True, text=True, env=clean_environment())
    assert done.returncode == 0, done.stdout + done.stderr
    heads, *rows, _, _ = map(str.split, done.stdout.splitlines())
    assert heads == ["case", "runs", "accepted", "refused", "faults", "seconds"]
    assert {row[0].split("-")[0] for row in rows} - {"parquet"} == {
        *("edges", "features", "mtx", "npz", "generated", "ogb", "planetoid", "reddit"),
        *("words", "integers", "folder"),
    }
    accepted, refused = Counter[str](), Counter[str]()
    for name, *numbers in rows:
        runs, accepts, refuses, faults = map(int, numbers[:4])
        assert (runs, faults) == (RUNS, 0), name
        accepted[name.split("-")[0]] += accepts
        refused[name.split("-")[0]] += refuses
    # mutants that an importer always accepts, or always refuses, would test little
    assert all(accepted.values()) and all(refused.values()), done.stdout
