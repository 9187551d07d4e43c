"""The compiled kernels for the host (``kernels/host/``): whether they are there, and which instruction set they use."""

from __future__ import annotations

import functools
import logging
import os
from types import ModuleType
from typing import Any

from distgnn.errors import UserError

log = logging.getLogger(__name__)


@functools.cache
def module() -> ModuleType | None:
    """The extension module, or None (said once in the log) where it was not or could not be built."""
    try:
        from distgnn import _host
    except ImportError as error:
        log.warning("no compiled host kernels (%s): products on the host use SciPy", error)
        return None
    log.info("host kernels: %s of %s", _host.isas()[isa()], ", ".join(_host.isas()))
    return _host


@functools.cache
def isa() -> int:
    """The instruction set to use, as a position in ``isas()``: the best of this machine, or what ``DISTGNN_HOST_ISA`` says.

    Raises:
        UserError: it names none that this machine has.
    """
    from distgnn import _host

    wanted, there = os.environ.get("DISTGNN_HOST_ISA", "auto"), _host.isas()
    if wanted != "auto" and wanted not in there:
        raise UserError(f"DISTGNN_HOST_ISA={wanted}: this machine runs {', '.join(['auto', *there])}")
    return 0 if wanted == "auto" else there.index(wanted)


@functools.cache
def threads() -> int:
    """OpenMP threads of a product: ``OMP_NUM_THREADS``, or one, because ranks are the parallelism here."""
    words = os.environ.get("OMP_NUM_THREADS", "").split(",")
    return max(int(words[0]), 1) if words[0].strip().isdecimal() else 1


def multiply(indptr: Any, indices: Any, values: Any, B: Any, out: Any, **options: Any) -> None:
    """``out = A B`` for a CSR matrix whose row pointers and indices have been checked, as those of a ``CSR`` have.

    Args:
        indptr, indices: int32 or int64. values: like `out`, or None for ones.
        B: (k, f) float32, float64, or uint16 holding bfloat16. Rows are contiguous and may lie apart, those of `out` too.
        out: (m, f) float32, or float64 where B is; overlaps no other array.
        options: `row_scale` (m), `column_scale` (k): diagonal matrices to the left and the right of A. `accumulate`, `bias` (f),
            `relu`, `mask` (m, f): in this order, add what `out` holds, add the bias, cut off what is negative, zero what is
            not positive in `mask`. `prefetch`: non-zeros to look ahead, 0 for none. `threads`, `isa`: not this module's.

    Raises:
        TypeError, ValueError: types or shapes that don't fit, or an array that C cannot walk.
    """
    kernels = module()
    if kernels is None:
        raise UserError("the host kernels are not built here: install distgnn with a C compiler at hand")
    kernels.multiply(indptr, indices, values, B, out, **{"threads": threads(), "isa": isa(), **options})
