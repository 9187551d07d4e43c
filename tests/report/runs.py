"""Logs and traces as runs write them, with numbers that are easy to follow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from distgnn.report.trace import COMPUTE, EPOCHS, UNDER_WAY, WAITED


def log(
    path: Path, epochs: int = 3, ended: bool = True, *, seconds: float = 0.25, hosts: str = "node",
    ranks: int = 4, words: float = 1.0, grid: dict[str, int] | None = None, **config: Any,
) -> Path:  # fmt: skip
    """Write the log of four ranks; rank 1 sends rank 0 three million words and receives one."""
    path.parent.mkdir(exist_ok=True)
    config = {"algorithm": "1.5d", "widths": [8, 16, 4], "seed": 0} | config
    told = [{"host": hosts, "nnz": 10 * (rank + 1)} for rank in range(ranks)]
    grid = grid or {"rows": 2, "reps": 2}
    lines: list[dict[str, Any]] = [{"event": "run", "config": config, "grid": grid, "ranks": told}]
    for epoch in range(1, epochs + 1):
        phases = {"spmm": 0.1 * epoch, "gemm": 0.2, "comm": 0.3, "other": 0.0}
        told_now = {"event": "epoch", "epoch": epoch, "loss": 2.0 / epoch, "val_acc": 0.5, "seconds": seconds}
        lines.append(told_now | {"phases": phases, "flight": 0.5 * epoch})
    if ended:
        lines.append({"event": "end"} | _end(ranks, words))
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    return path


def _end(ranks: int, words: float) -> dict[str, Any]:
    traffic = [[0] * ranks for _ in range(ranks)]
    received = [0] * ranks
    if ranks > 1:
        traffic[0][1], traffic[1][0] = round(1e6 * words), round(3e6 * words)
        received[:2] = [round(3e6 * words), round(1e6 * words)]
    held = [{"layers": 2**22}, {"layers": 2**21, "panel 0": 2**19}, {}, {}, *[{}] * ranks][:ranks]
    spent = [{"rank": rank, "phase": "spmm", "seconds": 1.5 * (rank + 1)} for rank in range(ranks)]
    costs = {"words": received, "bytes": [4 * count for count in received]}
    costs |= {"messages": [*range(5, 5 + ranks)], "peak_bytes": [2**20] * ranks}
    return costs | {"test_acc": 0.75, "buffer_bytes": held, "traffic": traffic, "ledger": spent}  # fmt: skip


def traced(path: Path) -> Path:
    tracks = [
        (EPOCHS, "epoch", "epoch 1", 0, 50),
        (EPOCHS, "epoch", "epoch 2", 60, 40),
        (COMPUTE, "spmm", "in the epoch before", 10, 5),
        (COMPUTE, "spmm", "spmm", 61, 10),
    ]
    tracks += [
        (WAITED, "comm", "bcast", 75, 5),
        (UNDER_WAY, "comm", "bcast", 62, 18),
        (UNDER_WAY + 1, "comm", "bcast", 63, 18),
    ]
    found = [{"ph": "X", "pid": rank, "tid": tid, "cat": cat, "name": name, "ts": ts, "dur": dur, "args": {}}
             for rank in (0, 1) for tid, cat, name, ts, dur in tracks]  # fmt: skip
    path.write_text(json.dumps({"traceEvents": found}))
    return path
