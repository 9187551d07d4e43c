"""The part of CUDA's runtime that programs call by name."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

from cupy._memory import POOL, TOTAL, find
from cupy._streams import EVENTS
from cupy._work import DEVICE, merge

is_hip = _is_hip_environment = False


class CUDARuntimeError(RuntimeError):
    """Error of the CUDA runtime."""


def getDeviceCount() -> int:
    """Return the number of devices: the environment variable ``FAKE_CUPY_DEVICES``, by default 1."""
    return int(os.environ.get("FAKE_CUPY_DEVICES", "1"))


def getDevice() -> int:
    return DEVICE.number


def setDevice(device: int) -> None:
    if not 0 <= device < getDeviceCount():
        raise CUDARuntimeError("cudaErrorInvalidDevice: invalid device ordinal")
    DEVICE.number = device


def profilerStart() -> None:
    """Do nothing."""


profilerStop = profilerStart


def getDeviceProperties(device: int) -> dict[str, Any]:
    return {
        "name": b"stand-in", "multiProcessorCount": 132, "totalGlobalMem": TOTAL, "l2CacheSize": 50 << 20,
        "major": 9, "minor": 0, "pciBusID": device + 1, "pciDeviceID": 0, "pciDomainID": 0, "warpSize": 32,
    }  # fmt: skip


def deviceGetPCIBusId(device: int) -> str:
    return f"0000:{device + 1:02X}:00.0"


def deviceGetByPCIBusId(pciBusId: str) -> int:
    for device in range(getDeviceCount()):
        if deviceGetPCIBusId(device) == pciBusId.upper():
            return device
    raise CUDARuntimeError("cudaErrorInvalidDevice: invalid device ordinal")


def pointerGetAttributes(ptr: int) -> Any:
    memory = find(ptr)
    return SimpleNamespace(device=-1 if memory is None else memory.device, devicePointer=ptr)


def deviceCanAccessPeer(device: int, peerDevice: int) -> int:
    return int(device != peerDevice)


def deviceSynchronize() -> None:
    clock: dict[int, int] = {}
    for queue in DEVICE.queues.values():
        merge(clock, queue.clock)
    DEVICE.synchronize(clock, "device")


def streamSynchronize(stream: int) -> None:
    DEVICE.synchronize(DEVICE.known(DEVICE.queues[stream]), "stream")


def eventQuery(event: int) -> int:
    return 0 if EVENTS[event].done else 600


def memGetInfo() -> tuple[int, int]:
    return TOTAL - POOL.total_bytes(), TOTAL


def runtimeGetVersion() -> int:
    return 12090


def driverGetVersion() -> int:
    return 12090
