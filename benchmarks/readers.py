"""Processor time and memory of opening lists of edges, and of a pass over their edges.

`python benchmarks/readers.py FOLDER` writes the lists into FOLDER, unless they are there, and reads each in a
process of its own; PYTHONPATH=CLONE before it measures the readers of another clone.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from distgnn.store.importers import open_source


def write(folder: Path) -> list[Path]:
    """Write 0.8 M edges between 50,000 words, and 5 M edges between half a million numbers."""
    rng = np.random.default_rng(0)
    words = np.array([f"user_{k:x}" for k in rng.permutation(50_000)])[rng.integers(0, 50_000, (2, 800_000))]
    paths = []
    for name, ends in (("words", words), ("numbers", rng.integers(0, 500_000, (2, 5_000_000)))):
        table = pa.table(dict(zip(("source", "target"), ends, strict=True)))
        csv, parquet = folder / f"{name}.csv", folder / f"{name}.parquet"
        if not csv.exists():
            pa.csv.write_csv(table, csv)
            pa.parquet.write_table(table, parquet)
        paths += [csv, parquet]
    return paths


def least(call: Callable[[], object]) -> float:
    """Return the least processor time of three calls, in seconds."""
    times = []
    for _ in range(3):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return min(times)


def read(path: Path) -> None:
    """Print the times of one list and the peak of this process, as a row of a table."""
    opened, source = least(lambda: open_source(path)), open_source(path)
    passed = least(lambda: sum(len(edges[0]) for edges in source.edges()))
    status = Path("/proc/self/status").read_text()
    peak = int(status.partition("VmHWM:")[2].split()[0]) >> 10
    print(f"| {path.name} | {opened:.2f} | {passed:.2f} | {peak} |", flush=True)


if __name__ == "__main__":
    if (given := Path(sys.argv[1])).is_dir():
        print("| list | open, s | pass, s | peak, MiB |\n|---|---:|---:|---:|", flush=True)
        for path in write(given):
            subprocess.run([sys.executable, __file__, str(path)], check=True)
    else:
        read(given)
