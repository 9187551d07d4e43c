"""Products with whole arrays by node on one rank: ``A @ X`` of an array, which is where X is."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from distgnn import local
from distgnn.arrays import foreign, streams
from distgnn.arrays.backend import as_array, of
from distgnn.arrays.canonical import check_real, value_type
from distgnn.arrays.csr import CSR
from distgnn.layout import Layout
from distgnn.operators.dense import DistDense


class WholeArrays:
    """Facts for the products of an operator and of its adjoint with arrays on one rank, made once.

    They are the nodes of rows and, for wider arrays, the matrix in double precision.
    """

    def __init__(self) -> None:
        self._rows: dict[tuple[bool, Layout[Any]], Any] = {}
        self._double: dict[str, CSR] = {}

    def product(self, A: Any, X: Any) -> Any:
        """Compute ``A X`` of an array, n x ... by node, of NumPy or on a GPU; X is only read.

        The product is of NumPy for an array of the host, else of CuPy, and of the wider type.
        """
        on = A.grid.backend
        with foreign.borrowed("H", X, on) as given:
            given = as_array(given)
            kind = check_real("H", given.dtype)
            if given.ndim == 0 or len(given) != A.shape[1]:
                raise ValueError(f"{A.name}: shapes {A.shape} and {given.shape} don't multiply")
            flat = given.reshape(A.shape[1], math.prod(given.shape[1:]))
            wide = value_type(kind).itemsize > A.dtype.itemsize
            ids = self._nodes(A.input_layout, flat)
            block = on.asarray(flat if ids is None else flat[ids], np.float64 if wide else A.dtype)
            made = self._wide(A, block) if wide else self._narrow(A, block)
            made = made if on is of(flat) else on.to_host(made)
            ids = self._nodes(A.output_layout, made)
            whole = made
            if ids is not None:
                whole = of(made).empty(made.shape, made.dtype)
                whole[ids] = made
        whole = streams.handed(on, whole) if of(whole).on_device else whole
        return whole.reshape(A.shape[0], *given.shape[1:])

    def _narrow(self, A: Any, block: Any) -> Any:
        H = DistDense(block, A.input_layout, (A.shape[1], block.shape[1]))
        return (A @ H).block

    def _wide(self, A: Any, block: Any) -> Any:
        """Compute the product in double precision, of a shorter A."""
        if A.name not in self._double:
            self._double[A.name] = CSR.from_scipy(A._one_piece, A.grid.backend, np.float64)
        room = A.grid.backend.empty((A.shape[0], block.shape[1]), np.float64)
        return local.spmm(self._double[A.name], block, room)

    def _nodes(self, layout: Layout[Any], like: Any) -> Any:
        """Return the node of each row, where ``like`` is; None where row i is node i's."""
        if layout.rows.order is None:
            return None
        on = of(like)
        if (key := (on.on_device, layout)) not in self._rows:
            self._rows[key] = on.asarray(layout.row_ids)
        return self._rows[key]
