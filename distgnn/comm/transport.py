"""Transport of a backend's arrays between ranks: MPI on the arrays or on host copies, or NCCL.

``DISTGNN_TRANSPORT`` names one. Without it, arrays of a device travel by an MPI that takes their pointers,
else by NCCL, else as host copies.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mpi4py import MPI

from distgnn.arrays.backend import Backend
from distgnn.comm.agree import ranges, together
from distgnn.errors import UserError

log = logging.getLogger(__name__)

VARIABLE, FORMERLY = "DISTGNN_TRANSPORT", "DISTGNN_NCCL"
CHOICES = ("mpi", "host", "nccl")
INSTALL = "pip install nvidia-nccl-cu13, or nvidia-nccl-cu12 with CUDA 12"

#: How arrays move (see ``wires.py``), as logs say it.
HOST, DIRECT, STAGED, NCCL = "host", "CUDA-aware MPI", "host copies", "NCCL"


class Means(NamedTuple):
    """The means of a rank to move arrays of its device.

    Attributes:
        aware: its MPI takes device pointers; nccl: CuPy finds NCCL; device: node and PCI bus id.
    """

    aware: bool
    nccl: bool
    device: tuple[int, str]


def transport(backend: Backend, mpi: Any, node: int, environ: Mapping[str, str] = os.environ) -> str:
    """Choose how arrays of a backend move between the ranks of ``mpi``: HOST, DIRECT, STAGED or NCCL.

    The same on all ranks. Collective. The process is bound to its device.

    Args:
        node: the lowest rank on this rank's node.

    Raises:
        UserError: on every rank: a variable has another value, or NCCL is asked for and cannot be.
    """
    asked = wanted(environ)  # the same everywhere: ranks have agreed on variables
    if environ.get(FORMERLY) and mpi.Get_rank() == 0:
        log.warning("%s is not read any more: it is %s=nccl now, or mpi, or host", FORMERLY, VARIABLE)
    if not backend.on_device:
        if asked == "nccl" and mpi.Get_rank() == 0:
            log.warning("%s=nccl is for arrays of a GPU; those of NumPy travel by MPI", VARIABLE)
        return HOST
    with together(mpi):
        devices = backend.devices()
        device = node, devices[backend.bound or 0] if devices else ""
        means = Means(_cuda_aware_once(), backend.nccl() is not None, device)
    everybody = mpi.allgather(means)
    way = choose(asked, everybody)
    if not asked and way == STAGED and mpi.Get_rank() == 0 and (gpus := lacking_nccl(everybody)):
        what = "arrays of %d GPUs travel by way of the host, as CuPy finds no NCCL: %s"
        log.warning(what, gpus, INSTALL)
    return way


def lacking_nccl(everybody: Sequence[Means]) -> int:
    """Count the GPUs of ranks, each of which has its own, that NCCL would serve and does not; else 0."""
    gpus = len({rank.device for rank in everybody})
    without = not all(rank.nccl for rank in everybody)
    return gpus if without and gpus == len(everybody) > 1 else 0


def wanted(environ: Mapping[str, str] = os.environ) -> str:
    """Return what the variable says, or an empty text. UserError: that is no transport."""
    asked = environ.get(VARIABLE, "").lower()
    if asked and asked not in CHOICES:
        raise UserError(f"{VARIABLE}={asked}: expected {', '.join(CHOICES[:-1])} or {CHOICES[-1]}")
    return asked


def choose(asked: str, everybody: Sequence[Means]) -> str:
    """Choose between DIRECT, STAGED and NCCL, from what all ranks have.

    UserError: NCCL is asked for, and a rank lacks the library or a device of its own.
    """
    if asked in ("", "mpi") and all(rank.aware for rank in everybody):
        return DIRECT
    problem = why_not_nccl(everybody)
    if asked == "nccl" and problem:
        raise UserError(f"{VARIABLE}=nccl: {problem}")
    return STAGED if asked in ("mpi", "host") or problem else NCCL


def why_not_nccl(everybody: Sequence[Means]) -> str:
    """Return what keeps these ranks from NCCL, in words, or an empty text."""
    lacking = [rank for rank, means in enumerate(everybody) if not means.nccl]
    if lacking:
        return f"CuPy finds no NCCL library on {ranges(lacking)}; {INSTALL}; or unset {VARIABLE}"
    users: dict[tuple[int, str], list[int]] = {}
    for rank, means in enumerate(everybody):
        users.setdefault(means.device, []).append(rank)
    for (_, device), sharing in users.items():
        if len(sharing) > 1:
            return f"each rank needs a GPU of its own; {ranges(sharing)} share {device}; unset {VARIABLE}"
    return ""


def cuda_aware(environ: Mapping[str, str] = os.environ) -> tuple[bool, str]:
    """Tell whether this MPI takes device pointers, and the reason.

    ``DISTGNN_CUDA_AWARE`` decides. Without it any yes does, of MPI's ``mpi_memory_alloc_kinds``,
    ``MPIX_Query_cuda_support`` or ``MPICH_GPU_SUPPORT_ENABLED``: a query may say no where the variable is
    what switches support on.

    Raises:
        UserError: ``DISTGNN_CUDA_AWARE`` is neither yes nor no.
    """
    override = environ.get("DISTGNN_CUDA_AWARE", "").lower()
    if override:
        if override not in ("0", "1", "true", "false", "yes", "no"):
            raise UserError(f"DISTGNN_CUDA_AWARE={override}: expected 0 or 1")
        return override in ("1", "true", "yes"), "DISTGNN_CUDA_AWARE"
    info = MPI.COMM_WORLD.Get_info()
    kinds = info.Get("mpi_memory_alloc_kinds")
    info.Free()
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


def by_mpi(backend: Backend) -> str:
    """Return how MPI moves arrays of a backend in this process."""
    return HOST if not backend.on_device else DIRECT if _cuda_aware_once() else STAGED
