"""Dense products in every form that BLAS knows (Plexus section 5.3).

``C = A B`` is *NN* where both operands lie in memory row by row, *TN* where A lies column by column, and so
on; *reversed* is ``C = (Bᵀ Aᵀ)ᵀ``. Results differ by rounding, the speed of a BLAS by more: Plexus found Hᵀ Q
far slower than (Qᵀ H)ᵀ on one machine. An operand that lies the other way is copied first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from distgnn.arrays.backend import Backend

Array = Any


@dataclass(frozen=True)
class Form:
    """A form of a product: each operand "N" or "T" as said above, and whether reversed."""

    a: str
    b: str
    reversed: bool = False

    def __str__(self) -> str:
        return f"{self.a}{self.b}{' reversed' if self.reversed else ''}"

    def as_they_lie(self, A: Array, B: Array) -> bool:
        """Tell whether :meth:`multiply` copies nothing of these, nor turns the product around."""
        lie = ((A, self.a), (B, self.b))
        return not self.reversed and all(
            X.flags.c_contiguous if letter == "N" else X.flags.f_contiguous for X, letter in lie
        )

    def multiply(self, on: Backend, A: Array, B: Array, out: Array, accumulate: bool = False) -> None:
        """Compute ``out = A B``, or ``out += A B``.

        A (m, k) and B (k, n) lie in memory as they like, ``out`` row by row.
        """
        A, B = laid(on.xp, A, self.a), laid(on.xp, B, self.b)
        if not self.reversed:
            on.matmul(A, B, out, accumulate)
        elif accumulate:
            out += on.matmul(B.T, A.T).T
        else:
            out[...] = on.matmul(B.T, A.T).T


FORMS = [Form(a, b, backwards) for backwards in (False, True) for a in "NT" for b in "NT"]


def laid(xp: Any, X: Array, letter: str) -> Array:
    """Lay X row by row (N) or column by column (T); return X itself where it lies so."""
    return xp.ascontiguousarray(X) if letter == "N" else xp.asfortranarray(X)


def as_given(trans_a: bool, trans_b: bool) -> Form:
    """Return the form without copies for operands that are row by row before they are transposed."""
    return Form("T" if trans_a else "N", "T" if trans_b else "N")
