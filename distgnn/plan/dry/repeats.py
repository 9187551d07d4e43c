"""Products that a dry run has run before: what they were charged is charged again, and nothing runs.

A product of the same matrix with as many columns takes the same steps. As long as its rooms are there, it
takes no memory but what it borrows, which has its place among what layers borrow, and so is borrowed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from distgnn.arrays.workspace import Note
from distgnn.nn.gcn import GCN
from distgnn.operators.algorithm import Algorithm
from distgnn.plan.dry.busiest import algorithms
from distgnn.plan.dry.recorder import Recorder, add, aside

PRODUCTS = ("multiply", "multiply_adjoint")


class Repeats:
    """Products of one kind of a matrix, as its algorithm computes them.

    Attributes:
        known: by the shapes of the operands, what was charged, bytes of the rooms that were there then, and
            what was borrowed.
    """

    def __init__(self, algorithm: Any, product: Callable[..., None]) -> None:
        self.workspace, self.product = algorithm.grid.workspace, product
        self.known: dict[Any, tuple[Recorder, dict[str, int], list[Note]]] = {}

    def __call__(self, X: Any, Y: Any, then: Any = None) -> None:
        key, there = (X.shape, X.dtype, Y.shape), self.workspace.named()
        charged, rooms, notes = self.known.get(key, (None, {}, []))
        if charged is None or any(there.get(name, 0) < size for name, size in rooms.items()):
            with aside() as charged, self.workspace.noted() as notes:
                self.product(X, Y, then)
            self.known[key] = charged, self.workspace.named(), notes
        else:
            self.workspace.lend_again(notes)
        add(charged)


@contextmanager
def repeats(model: GCN) -> Iterator[None]:
    """Repeat products of a network's matrices inside."""
    matrices = [A for A in algorithms(model) if isinstance(A, Algorithm)]
    for algorithm in matrices:
        for name in PRODUCTS:
            setattr(algorithm, name, Repeats(algorithm, getattr(algorithm, name)))
    try:
        yield
    finally:
        for algorithm in matrices:
            for name in PRODUCTS:
                delattr(algorithm, name)
