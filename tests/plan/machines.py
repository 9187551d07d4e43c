"""A machine for tests: hosts of four ranks on a slow network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from distgnn.plan.machine import Machine, of

RATES = {"nonzero": 1e-9, "nonzero_column": 2e-10, "row": 1e-9, "row_column": 1e-10}


def slow(bandwidth: float = 1e8, nonzero: float = 1e-9, **changed: Any) -> Machine:
    """Make a machine with these bytes per second between hosts, and seconds per non-zero of a product."""
    link = {"alpha": 2e-6, "bandwidth": 5e9}
    rates = RATES | {"nonzero": nonzero}
    tables = {
        "name": "slow", "title": "a machine of tests", "memory": 1e10, "update": 0.0,
        "levels": [
            link | {"name": "node", "ranks": 4},
            {"name": "network", "alpha": 5e-5, "bandwidth": bandwidth, "injection": bandwidth},
        ],
        "spmm": {"call": 1e-6, "cache": 1e6, "cached": rates, "uncached": rates},
        "gemm": {"call": 1e-6, "flops": 2e10, "bandwidth": 1e10},
        "passes": {"call": 1e-6, "bandwidth": 5e9},
        "overlap": {"progress": 0.5, "slowdown": 0.1},
    }  # fmt: skip
    return of(tables | changed)


def written(folder: Path, machine: Machine) -> str:
    """Write the machine to a file; return its path."""
    path = folder / f"{machine.name}.toml"
    path.write_text(machine.toml())
    return str(path)
