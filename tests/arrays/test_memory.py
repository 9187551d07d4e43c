"""Memory that a process may fill: of the node, its control groups, its own limit."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import numpy as np
import pytest

from distgnn.arrays import memory
from distgnn.comm.grid import Grid
from loops import each

TOTAL = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
FIRST, SECOND = "sys/fs/cgroup/memory/", "sys/fs/cgroup/"
V2, V1 = "0::/job/step\n", "3:cpu,memory:/job/step\n2:cpu:/other\n"


@each(
    "groups, files, limit",
    [
        (None, {}, TOTAL),
        (V2, {}, TOTAL),
        (V2, {f"{SECOND}job/step/memory.max": "max\n"}, TOTAL),
        (V2, {f"{SECOND}job/step/memory.max": "5000\n", f"{SECOND}memory.max": "6000"}, 5000),
        (V2, {f"{SECOND}job/memory.max": "4000\n", f"{SECOND}job/step/memory.max": "max"}, 4000),
        (V2, {f"{SECOND}memory.max": "3000\n"}, 3000),  # in a container
        (V2, {f"{SECOND}job/step/memory.max": f"{2 * TOTAL}\n"}, TOTAL),
        (V1, {f"{FIRST}job/step/memory.limit_in_bytes": "7000\n"}, 7000),
        (
            V1,
            {f"{FIRST}other/memory.limit_in_bytes": "2000\n", f"{FIRST}memory.limit_in_bytes": "9000"},
            9000,
        ),
        ("nonsense", {f"{SECOND}memory.max": "3000\n"}, 3000),
    ],
)
def test_the_narrowest_control_group_counts(groups, files, limit, tmp_path_factory) -> None:
    root = tmp_path_factory.mktemp("root")
    for name, text in ({"proc/self/cgroup": groups} if groups else {}).items():
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text(text)
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    assert memory.of_node(root) == limit


@pytest.mark.ranks(1, 4)
def test_a_rank_has_its_share_and_no_more_than_its_limit(comm, monkeypatch) -> None:
    grid = Grid(comm, backend="numpy", rows=comm.size)
    monkeypatch.setattr(memory, "of_node", lambda root=Path("/"): 1000)
    before = resource.getrlimit(resource.RLIMIT_AS)
    assert before[0] != resource.RLIM_INFINITY or memory.of_process() is None
    monkeypatch.setattr(memory, "of_process", lambda: 100 if comm.rank == 1 else None)
    shares = comm.allgather(grid.share_of_memory())
    assert shares == [100 if rank == 1 else 1000 // comm.size for rank in range(comm.size)]
    try:
        resource.setrlimit(resource.RLIMIT_AS, (1 << 46, before[1]))
        monkeypatch.undo()
        assert memory.of_process() == 1 << 46
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def resident() -> int:
    """Return the bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc")
def test_pages_go_back_with_the_last_view_of_them():
    before = resident()
    pages = memory.mapped(64 << 20)
    assert pages.size == 64 << 20 and not pages.any()
    pages[...] = 1
    view = pages[5:].view(np.uint8)
    assert resident() > before + (60 << 20)
    del pages
    assert int(view[7]) == 1 and resident() > before + (60 << 20)
    del view
    assert resident() < before + (4 << 20)
    assert memory.mapped(0).size == 0
    memory.trim()
