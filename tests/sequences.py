"""Random sequences of operations on one grid, with overlap and messages at their worst, against what they are
without.

A sequence is drawn from a number, alike on all ranks. Without overlap each operation is compared with SciPy
and NumPy; with overlap, several times, with what it was without, to the bit. See ``mpi_helpers/late.py`` for
the messages and ``sequence_steps.py`` for the operations.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import scipy.sparse as sp

import distgnn as dg
import edge_steps
import sequence_steps
from distgnn.arrays.tuning import TUNING
from distgnn.operators import ALGORITHMS, SPARSITY_AWARE, grids, make_grid
from mpi_helpers.communicators import free_children, on_nodes
from mpi_helpers.late import LateComm, Lateness, late
from sequence_steps import Field, Step, array_of

#: Of each value of TUNING what is drawn: what cuts everything small, and defaults.
SMALL: dict[str, tuple[float, ...]] = {
    "flops_between_polls": (64, 4096), "gemm_rows": (4, 512), "relay_segments": (2, 8),
    "relay_segment": (64, 1024), "largest_segment": (1024, 4 << 20), "relay_at_a_time": (1, 2, 8),
    "relay_buffers": (2, 3), "exchange_sends": (1, 8), "sum_chunk": (1024, 8192, 4 << 20),
    "sums_under_way": (1, 3), "small_sum": (0, 0, 1 << 16), "smallest_sum_block": (256, 4096, 512 << 10),
    "sum_blocks": (2, 8), "panel_nonzeros": (0.5, 16), "most_panels": (1, 4), "group_nonzeros": (0.5, 16),
    "most_groups": (1, 4), "column_parts": (1, 2, 4), "part_columns": (1, 16),
    "cached_numbers": (64, 1 << 16), "halved_block": (1, 16 << 20), "packed_numbers": (64, 1 << 16),
    "packed_at_a_time": (1, 4), "joined_panels": (0, 1 << 30), "joined_panels_on_device": (0, 1 << 30),
}  # fmt: skip


#: By name, what sequences are made of.
DRAWN = {"all": sequence_steps.STEPS + edge_steps.STEPS, "edges": edge_steps.STEPS}


class SequenceError(AssertionError):
    """A sequence is wrong; the message has what repeats it."""


@dataclass(frozen=True)
class Case:
    """Grid, algorithm and settings of a sequence."""

    algorithm: str
    sizes: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        return f"{self.algorithm} {'x'.join(str(size) for _, size in self.sizes)}"


def cases(ranks: int) -> list[Case]:
    """List every grid of every algorithm; algorithms that can send needed rows are there twice."""
    return [
        Case(name, tuple(sizes.items()))
        for name in ALGORITHMS
        for sizes in grids(name, ranks)
        for _ in range(1 + (name in SPARSITY_AWARE))
    ]


class Sequence:
    """A sequence of 3 to 8 operations on one grid. Collective, as is all that it does.

    Args:
        comm: the ranks; number: from which everything is drawn; case: by default the number's turn of all.
        nodes: of the matrices at most; longest: operations at most; steps: what is drawn.
    """

    def __init__(
        self, comm: Any, number: int, case: Case | None = None, nodes: int = 150, longest: int = 8,
        steps: str = "all",
    ) -> None:  # fmt: skip
        ranks = comm.Get_size()
        dealt = cases(ranks)
        self.comm, self.number, self.case = comm, number, case or dealt[number % len(dealt)]
        rng = self.rng = np.random.default_rng([number, ranks])
        self.nodes, self.longest, self.drawn = nodes, longest, DRAWN[steps]
        self.tuning = {name: rng.choice(values).item() for name, values in SMALL.items()}
        self.dtype = np.dtype(rng.choice(["float32", "float64"]))
        self.aware: Any = False
        if self.case.algorithm in SPARSITY_AWARE:
            self.aware = (False, True, "auto", "cover")[int(rng.integers(4))]
        wire = (None, None, "bfloat16", "float16")[int(rng.integers(4))]
        self.wire = wire if self.dtype == np.float32 else None
        self.on_a_node = int(rng.choice([ranks, 1, 2, 3]))
        self.dealt = ("in a row", "in turns")[int(rng.integers(2))]
        self.steps: list[Step] = []

    def __str__(self) -> str:
        aware = f", sparsity_aware={self.aware}" if self.case.algorithm in SPARSITY_AWARE else ""
        head = f"sequence {self.number} on {self.comm.Get_size()} ranks: {self.case}{aware}, {self.dtype}, "
        head += f"wire={self.wire}, nodes of {self.on_a_node} ranks {self.dealt}"
        steps = (f"{place}: {step.name}" for place, step in enumerate(self.steps))
        return "\n".join([head, f"TUNING: {self.tuning}", *steps])

    def run(self, repeats: int = 2, seconds: float = 0.001) -> int:
        """Run the sequence; return the number of its operations. SequenceError, on every rank: a result was
        wrong.
        """
        looks = int(self.rng.choice([1, 3, 6]))
        with mock.patch.multiple(TUNING, **self.tuning), self._field() as field:
            self._draw(field)
            field.grid.overlap = False
            alone = [self._checked(field.grid, place) for place in range(len(self.steps))]
            field.grid.overlap = True
            for repeat in range(repeats):
                seed = hash((self.number, self.comm.Get_rank(), repeat))
                with late(Lateness(seed, looks, 0.1, seconds)) as lateness:
                    self._agree([*self._repeated(alone, lateness)])
        return len(self.steps) * (1 + repeats)

    def _repeated(self, alone: list[list[Any]], lateness: Lateness) -> Iterator[tuple[int, str]]:
        """Run the operations with overlap, one after another; no rank waits for others between them.

        Yields the place of each operation that is wrong here, and the fault.
        """
        for place, same in enumerate(alone):
            found = self._done(place)
            differ = [i for i, pair in enumerate(zip(found, same, strict=True)) if not _same(*pair)]
            problems = [f"results {differ} have other bits than without overlap"] if differ else []
            problems += lateness.misused[:1]
            if lateness.under_way:
                problems += [f"{lateness.under_way} messages were left under way"]
            if problems:
                yield place, "; ".join(problems)

    @contextmanager
    def _field(self) -> Iterator[Field]:
        rng, case = self.rng, self.case
        axes = [case.sizes[i] for i in rng.permutation(len(case.sizes))]
        make = partial(make_grid, LateComm(self.comm), case.algorithm, dict(axes), wire=self.wire)
        grid = on_nodes(make, self.on_a_node, self.dealt)
        grid.block_rows = [None, 1, 7][int(rng.integers(3))]
        n = int(rng.choice([rng.integers(1, 20), rng.integers(20, max(self.nodes, 21))]))
        widths = np.array([1, 2, 3, 8, 17, 64, *rng.integers(1, 65, 4), rng.integers(64, 200)])
        widths = np.minimum(widths, self.nodes)
        shapes = [(n, n) if rng.random() < 0.8 else (n, int(rng.integers(1, 90)))]
        shapes += [(int(rng.integers(1, 90)), int(rng.integers(1, 90)))] if rng.random() < 0.5 else [(n, n)]
        matrices = [self._matrix(grid, *shape) for shape in shapes]
        yield Field(grid, case.algorithm, matrices, self.dtype, widths, rng, self.aware, self.wire)
        grid.free()
        free_children()

    def _matrix(self, grid: dg.Grid, n: int, m: int) -> tuple[dg.DistSparse, sp.csr_array]:
        rng, options = self.rng, {"sparsity_aware": self.aware} if self.aware else {}
        A = sp.random_array((n, m), density=min(rng.uniform(0, 12) / m, 1), format="csr", rng=rng)
        A.data[:] = rng.uniform(0.1, 1, A.nnz)
        A = A.astype(self.dtype)
        if n == m and rng.random() < 0.4:
            A = sp.csr_array(A + A.T)
        if n == m and rng.random() < 0.25:
            options["parts"] = rng.integers(0, grid.shape.get("rows", 2), n)
        elif rng.random() < 0.5:
            options |= _parts(rng, self.case.algorithm, grid, n, m)
        return dg.distribute(A, grid, self.case.algorithm, **options), A.astype(np.float64)

    def _draw(self, field: Field) -> None:
        count = int(self.rng.integers(3, self.longest + 1))
        while len(self.steps) < count:
            if (step := self.drawn[int(self.rng.integers(len(self.drawn)))](field)) is not None:
                self.steps.append(step)

    def _checked(self, grid: dg.Grid, place: int) -> list[Any]:
        """Return the results of a step without overlap, checked against one process."""
        step, results, problems = self.steps[place], self._done(place), []
        expected = None
        if step.alike and grid.rank > 0:
            expected = grid.world.share(None)
        else:
            expected = step.expected()
            expected = grid.world.share(expected) if step.alike else expected
        for index, (Y, whole) in enumerate(zip(results, expected, strict=True)):
            problems += _far(Y, whole, self.tolerance, index)
        self._agree([(place, f"{problem}, without overlap") for problem in problems])
        return results

    @property
    def tolerance(self) -> float:
        """The error allowed, in the largest number of a result: an epoch of training rounds many times."""
        return 1e-9 if self.dtype == np.float64 else 1e-3 if self.wire is None else 0.1

    def _done(self, place: int) -> list[Any]:
        try:
            return self.steps[place].results()
        except Exception as error:
            raised = f"operation {place} raised {type(error).__name__}: {error}"
            raise SequenceError(f"{self}\n{raised}") from error

    def _agree(self, wrong: list[tuple[int, str]]) -> None:
        """Raise SequenceError on every rank if an operation is wrong on some rank."""
        first = {rank: told[0] for rank, told in enumerate(self.comm.allgather(wrong)) if told}
        if first:
            place = min(place for place, _ in first.values())
            told = {rank: problem for rank, (at, problem) in first.items() if at == place}
            raise SequenceError(f"{self}\nthe first wrong operation is {place}, by rank: {told}")


def _parts(rng: np.random.Generator, algorithm: str, grid: dg.Grid, n: int, m: int) -> dict[str, np.ndarray]:
    """Partition vectors with blocks of any size, some empty; of a square matrix alike where they must be."""

    def cut(length: int, blocks: int) -> np.ndarray:
        inner = sorted(rng.integers(0, length + 1, blocks - 1).tolist())
        return np.array([0, *inner, length])

    if algorithm == "3d":
        parts = {"row_parts": (n, "z"), "col_parts": (m, "x"), "y_parts": (n, "y")}
        return {name: cut(length, grid.shape[axis]) for name, (length, axis) in parts.items()}
    blocks = grid.shape["rows"] * (grid.shape["fibers"] if algorithm == "3d-split" else 1)
    rows = cut(n, blocks)
    found = {"row_parts": rows, "col_parts": rows if n == m else cut(m, blocks)}
    if algorithm == "2d" and rng.random() < 0.5:
        found["inner_parts"] = cut(m, grid.shape["cols"])
    return found


def _same(Y: Any, Z: Any) -> bool:
    one, other = array_of(Y), array_of(Z)
    return one.shape == other.shape and one.tobytes() == other.tobytes()


def _far(Y: Any, whole: Any, tolerance: float, index: int) -> list[str]:
    """Return the problem with a result that is not close to the numbers expected."""
    if isinstance(Y, str):
        return [] if whole in Y and "\n" not in Y else [f"the error says {Y!r}, not {whole!r}"]
    block = array_of(Y)
    if isinstance(Y, dg.DistDense):
        rows, cols = Y.layout.ranges(Y.shape)
        whole = whole[Y.layout.rows.ids(*rows), slice(*cols)]
    if isinstance(Y, dg.DistEdges):
        whole = whole[Y.pattern.ends()]
    if block.shape != whole.shape:
        return [f"result {index} is {block.shape}, not {whole.shape}"]
    with np.errstate(invalid="ignore"):  # infinite numbers may be the same
        error = np.where(block == whole, 0, np.abs(block - whole))
    largest = max(np.abs(whole[np.isfinite(whole)]).max(initial=0), 1)
    allowed = 0 if block.dtype.kind in "iu" else tolerance * largest
    return [] if (error <= allowed).all() else [f"result {index} is off by {np.nanmax(error):.2g}"]
