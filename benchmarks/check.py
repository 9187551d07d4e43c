"""Rounding and cost of `train --check`: relative differences to the serial training by update, and seconds.

distgnn generate sbm graph --nodes 5000 --features 64 --classes 16
distgnn prepare graph graph.dg --order random,double
mpiexec -n 4 python benchmarks/check.py graph.dg --out benchmarks/results/check.md
"""

from __future__ import annotations

import dataclasses
import functools
import time
from typing import Any

from mpi4py import MPI

import table
from distgnn.train import Run, Settings
from distgnn.train.check import SerialCheck, apart, taken

plain = functools.partial(Settings, recipe="plain")
UPDATES, EPOCHS = (1, 2, 5, 6, 10, 20, 50), 20
NETWORKS: dict[str, Settings] = {
    "2d, two layers": plain(algorithm="2d", hidden=[64], dropout=0.5),
    "1d, lr 0.1": plain(algorithm="1d", hidden=[64, 64], dropout=0.5, lr=0.1),
    "3d-split, SGD with momentum, lr 1": plain(
        algorithm="3d-split", hidden=[64], optimizer="sgd", lr=1.0, momentum=0.9
    ),
    "3d double, trained features": plain(
        algorithm="3d", order="double", hidden=[128, 128], optimizer="adamw", train_features=True
    ),
    "1.5d sage, six layers, residual, layer norm": plain(
        algorithm="1.5d", model="sage", hidden=[64] * 5, residual=True, layer_norm=True, lr=0.05
    ),
    "2d, width 500": plain(algorithm="2d", hidden=[500]),
    "minibatches sage": plain(sampler="sage", hidden=[64], batch_size=256),
    "minibatches sage, three layers, lr 0.03": plain(
        sampler="sage", hidden=[32, 32], batch_size=64, batches_per_update=4, lr=0.03
    ),
    "minibatches ladies": plain(sampler="ladies", hidden=[64], dropout=0.3, batch_size=256),
}


def main() -> None:
    parser = table.arguments(__doc__)
    parser.add_argument("store", help="with the orders random and double")
    args = parser.parse_args()
    rows = [row(args.store, name, settings) for name, settings in NETWORKS.items()]
    if MPI.COMM_WORLD.rank == 0:
        dtypes = [f"float32, {updates}" for updates in UPDATES] + [f"float64, {UPDATES[-1]}"]
        lines = [table.heading(args, MPI.COMM_WORLD.size) + f"; {EPOCHS} epochs.", ""]
        lines += table.columns("network", *dtypes, "seconds with check / without")
        table.publish(args, "\n".join(lines + rows))


def row(store: str, name: str, settings: Settings) -> str:
    """Return a line of the table. Collective."""
    single = differences(store, dataclasses.replace(settings, dtype="float32"))
    double = differences(store, dataclasses.replace(settings, dtype="float64"))
    cells = [f"{max(single[:updates]):.1e}" for updates in UPDATES] + [f"{max(double[: UPDATES[-1]]):.1e}"]
    spent = [seconds(store, dataclasses.replace(settings, check=check)) for check in (True, False)]
    return f"| {name} | {' | '.join(cells)} | {spent[0] / spent[1]:.2f} |"


def differences(store: str, settings: Settings) -> list[float]:
    """Return the relative difference of the loss of every update, on rank 0; zeros elsewhere. Collective."""
    found: list[float] = []
    differs = SerialCheck._differs

    def each(self: SerialCheck, epoch: int, lr: float, losses: Any, whole: bool) -> str | None:
        assert self._reference is not None
        expected, _ = taken(self._reference.epoch(epoch, lr), len(losses), whole)
        found.extend(map(apart, losses, expected))
        return None

    SerialCheck._differs = each  # type: ignore[method-assign]
    epochs = 3 if settings.sampler else UPDATES[-1]
    list(Run(store, dataclasses.replace(settings, epochs=epochs, check="all", eval_every=0)).train())
    SerialCheck._differs = differs  # type: ignore[method-assign]
    return found or [0.0]


def seconds(store: str, settings: Settings) -> float:
    """Return wall seconds of a run from its start. Collective."""
    MPI.COMM_WORLD.Barrier()
    start = time.perf_counter()
    list(Run(store, dataclasses.replace(settings, epochs=EPOCHS)).train())
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
