"""The best neighbours in each column, and where gradients go; see ``distgnn/local/aggregate.py``."""

from __future__ import annotations

from typing import Any

import numpy as np

from distgnn.arrays.csr import CSR
from distgnn.local.cuda.csr import RowFacts
from distgnn.local.cuda.launch import Array, blocks_for, c_type, check, lanes_for, launch, library

FILE = "aggregate.cu"


def best(A: CSR, B: Array, codes: Any, how: Any, T: Array, C: Array, merge: bool) -> None:
    """Compute the best entries of B's rows that each row of A reads, and their codes."""
    (m, k), f = A.shape, B.shape[1]
    check("best", (k, f), A.dtype, B=B)
    check("best", (m, f), A.dtype, T=T)
    check("best", (m, f), np.dtype(f"int{8 * B.itemsize}"), C=C)
    check("best", (k,), C.dtype, codes=codes.table)
    if m and f:
        xp, lanes = library(B), lanes_for(f)
        plan = RowFacts.of(xp, A)
        values = None if how.combine == "pattern" else A.data
        flags = np.int32(how.combine == "plus"), np.int32(how.least), np.int32(merge)
        given = values, B, np.int32(f), codes.table, np.int64(codes.first), *flags
        ends = np.int32(lanes), B.dtype.type(-np.inf), T, C
        name = f"best<{c_type(B)},{c_type(plan.indices)}>"
        launch(xp, FILE, name, blocks_for(m * lanes), np.int32(m), plan.indptr, plan.indices, *given, *ends)


def best_back(At: CSR, G: Array, C: Array, codes: Any, how: Any, out: Array) -> None:
    """Add up the entries of G where C has the code of a row of At."""
    (k, m), f = At.shape, G.shape[1]
    check("best_back", (m, f), At.dtype, G=G)
    check("best_back", (m, f), np.dtype(f"int{8 * G.itemsize}"), C=C)
    check("best_back", (k, f), At.dtype, out=out)
    check("best_back", (k,), C.dtype, codes=codes.table)
    if k and f:
        xp, lanes = library(G), lanes_for(f)
        plan = RowFacts.of(xp, At)
        values = At.data if how.combine == "times" else None
        given = values, G, C, np.int32(f), codes.table, np.int64(codes.first)
        name = f"best_back<{c_type(G)},{c_type(plan.indices)}>"
        sizes = np.int32(k), plan.indptr, plan.indices
        launch(xp, FILE, name, blocks_for(k * lanes), *sizes, *given, np.int32(lanes), out)
