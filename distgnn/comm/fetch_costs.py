"""Costs by which ``sparsity_aware="auto"`` chooses between whole blocks and packed rows.

Of a rank's h rows another one needs k. Sent alone they must be packed first, unless they are consecutive.
With b bytes per row, β seconds per byte sent, π per byte packed, and λ seconds for packing anything at all,

    packed rows take  λ + k b (β + π),    the whole block takes  h b β.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass

import numpy as np

from distgnn import local
from distgnn.arrays import timing
from distgnn.arrays.tuning import TUNING
from distgnn.comm.grid import Grid
from distgnn.comm.group import Comm


@dataclass(frozen=True)
class FetchCosts:
    """Seconds: `sent` β and `packed` π per byte, `call` λ."""

    sent: float
    packed: float
    call: float

    def choose(self, rows: np.ndarray, height: int) -> np.ndarray:
        """Return these (rising) rows of a block of this height, or all of its rows where that is cheaper."""
        if rows.size == 0 or rows[-1] - rows[0] + 1 == rows.size:
            return rows  # nothing has to be packed
        b = TUNING.fetched_row_bytes
        alone = self.call + rows.size * b * (self.sent + self.packed)
        return np.arange(height) if height * b * self.sent < alone else rows


def measure(grid: Grid, comm: Comm) -> FetchCosts:
    """Measure the costs between the ranks of ``comm``: medians over all ranks of ``grid``. Collective.

    Cost: 1 + TUNING.probes messages of TUNING.probe_rows rows to a neighbour, and as many of one; about 20 ms
    at 200 Mbit/s.
    """
    on, height, width = grid.backend, TUNING.probe_rows, TUNING.fetched_row_bytes // 4
    X, rows, back = (on.zeros((n * height, width), np.float32) for n in (16, 1, 1))
    scattered = on.asarray(np.arange(height) * 16)

    def send(count: int) -> None:
        with comm.exchange([((comm.rank + 1) % comm.size, back[:count])], "probe") as exchange:
            exchange.send(rows[:count], (comm.rank - 1) % comm.size)

    def pack(count: int) -> None:
        local.gather_rows(X, scattered[:count], rows[:count])

    def seconds(work: Callable[[int], None], count: int) -> float:
        return timing.best(lambda: work(count), on, TUNING.probes)

    latency, sending = (seconds(send, count) if comm.size > 1 else 0.0 for count in (1, height))
    call, packing = (seconds(pack, count) for count in (1, height))
    nbytes = (height - 1) * width * 4
    mine = FetchCosts(max(sending - latency, 0) / nbytes, max(packing - call, 0) / nbytes, call)
    return FetchCosts(
        *np.median([astuple(costs) for costs in grid.world.gather_objects(mine)], axis=0).tolist()
    )
