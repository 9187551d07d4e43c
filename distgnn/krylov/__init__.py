"""Krylov methods on vectors that are cut over the ranks: conjugate gradients, LOBPCG and Lanczos.

They take every operator, sums and multiples included, and have SciPy's names and stopping rules. A product
costs ``A.prices.product(k)``; all-reduces of sums, and small arrays that rank 0 makes, are ``reductions`` in
the ledger. Eigenproblems of small matrices are solved on rank 0, so that all ranks have the same bits, on
whatever processors.
"""

from distgnn.krylov.conjugate_gradients import cg
from distgnn.krylov.lanczos import lanczos
from distgnn.krylov.lobpcg import lobpcg

__all__ = ["cg", "lanczos", "lobpcg"]
