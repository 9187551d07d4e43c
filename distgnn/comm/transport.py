"""Transport of a backend's arrays between the ranks of this process: what MPI takes, and NCCL's part."""

from __future__ import annotations

import ctypes
import functools
import logging
import os
from collections.abc import Mapping

from mpi4py import MPI

from distgnn.arrays.backend import Backend
from distgnn.comm.nccl import wanted, yes

log = logging.getLogger(__name__)

#: How arrays move (see ``wires.py``), as logs say it.
HOST, DIRECT, STAGED, NCCL = "host", "CUDA-aware MPI", "host copies", "host copies, NCCL"


def cuda_aware(environ: Mapping[str, str] = os.environ) -> tuple[bool, str]:
    """Tell whether this MPI takes device pointers, and the reason.

    ``DISTGNN_CUDA_AWARE`` decides. Without it any yes does, of MPI's ``mpi_memory_alloc_kinds``,
    ``MPIX_Query_cuda_support`` or ``MPICH_GPU_SUPPORT_ENABLED``: a query may say no where the variable is
    what switches support on.

    Raises:
        UserError: ``DISTGNN_CUDA_AWARE`` is neither yes nor no.
    """
    override = environ.get("DISTGNN_CUDA_AWARE")
    if override:
        return yes("DISTGNN_CUDA_AWARE", override), "DISTGNN_CUDA_AWARE"
    kinds = MPI.COMM_WORLD.Get_info().Get("mpi_memory_alloc_kinds")
    if kinds and "cuda" in kinds:
        return True, f"mpi_memory_alloc_kinds={kinds}"
    try:
        answer = bool(ctypes.CDLL(MPI.__file__).MPIX_Query_cuda_support())
    except (AttributeError, OSError):
        answer = None
    if answer:
        return True, "MPIX_Query_cuda_support"
    if environ.get("MPICH_GPU_SUPPORT_ENABLED") == "1":
        return True, "MPICH_GPU_SUPPORT_ENABLED"
    return False, "nothing says so" if answer is None else "MPIX_Query_cuda_support"


@functools.cache
def _cuda_aware_once() -> bool:
    answer, reason = cuda_aware()
    log.info("CUDA-aware MPI: %s (%s)", answer, reason)
    return answer


def direct(backend: Backend) -> bool:
    """Tell whether MPI is given arrays of a backend as they are."""
    return not backend.on_device or _cuda_aware_once()


def transport(backend: Backend) -> str:
    """Return how arrays of a backend move in this process: HOST, DIRECT, STAGED or NCCL.

    Raises:
        UserError: an environment variable is neither yes nor no, or NCCL is asked for and not there.
    """
    if wanted(backend, direct(backend)):
        return NCCL
    return HOST if not backend.on_device else DIRECT if direct(backend) else STAGED
