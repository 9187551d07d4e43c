"""Sequences of different operations on one grid, with messages that are late and complete in any order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from distgnn.operators import ALGORITHMS
from mpi_helpers.late import LateComm, Lateness, late
from sequences import Sequence, cases


@pytest.mark.ranks(3, 4)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_no_operation_changes_another(comm: Any, name: str) -> None:
    """On one or two grids of each algorithm; ``tests/faults/sequences.py`` runs on all."""
    grids = list(dict.fromkeys(case for case in cases(comm.size) if case.algorithm == name))
    for number, case in enumerate(grids[:2]):
        steps = ("all", "edges")[(number + comm.size) % 2]
        sequence = Sequence(comm, number, case, nodes=40, longest=5, steps=steps)
        assert sequence.run(seconds=0.0005) >= 9


@pytest.mark.ranks(3)
@pytest.mark.parametrize("early", ["write what is sent", "read what is received", "write there", None])
def test_late_messages_show_who_uses_their_memory_early(comm: Any, early: str | None) -> None:
    late_comm = LateComm(comm).Dup()
    sent, received = np.full(5, 1.0 + comm.rank), np.zeros(5)
    successor, predecessor = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    with late(Lateness(comm.rank, looks=3)) as lateness:
        requests = [late_comm.Isend(sent, successor), late_comm.Irecv(received, predecessor)]
        if early == "write what is sent":
            sent[...] = 7
        if early == "read what is received":
            assert np.isnan(received).all()
        if early == "write there":
            received[0] = 7
        assert lateness.under_way == 2
        while requests:
            for place in sorted(requests[0].Testsome(requests), reverse=True):
                requests.pop(place)
    assert lateness.under_way == 0
    assert len(lateness.misused) == ("write" in (early or ""))
    assert (received == (7 if early == "write what is sent" else 1 + predecessor)).all()
