"""Devices, streams, events and memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from cupy._graphs import Graph
from cupy._memory import (
    MemoryPointer,
    MemoryPool,
    PinnedMemory,
    PinnedMemoryPointer,
    PinnedMemoryPool,
    alloc_pinned_memory,
    using_allocator,
)  # fmt: skip
from cupy._streams import Event, ExternalStream, Stream, current, get_elapsed_time
from cupy.cuda import cusparse, nccl, nvrtc, runtime

__all__ = [
    "Device", "Event", "ExternalStream", "Graph", "MemoryPointer", "MemoryPool", "PinnedMemory",
    "PinnedMemoryPointer",
    "PinnedMemoryPool", "Stream", "alloc_pinned_memory", "cusparse", "device", "get_current_stream",
    "get_elapsed_time", "is_available", "nccl", "nvrtc", "runtime", "set_allocator",
    "set_pinned_memory_allocator",
    "using_allocator",
]  # fmt: skip


class Device:
    """One of the devices; as a context, the current one."""

    def __init__(self, device: int | Device | None = None) -> None:
        self.id = runtime.getDevice() if device is None else getattr(device, "id", device)
        self._before: list[int] = []

    def use(self) -> Device:
        runtime.setDevice(self.id)
        return self

    def __enter__(self) -> Device:
        self._before.append(runtime.getDevice())
        return self.use()

    def __exit__(self, *_: object) -> None:
        runtime.setDevice(self._before.pop())

    def synchronize(self) -> None:
        runtime.deviceSynchronize()

    @staticmethod
    def from_pci_bus_id(pci_bus_id: str) -> Device:
        return Device(runtime.deviceGetByPCIBusId(pci_bus_id))

    @property
    def pci_bus_id(self) -> str:
        return runtime.deviceGetPCIBusId(self.id)

    @property
    def compute_capability(self) -> str:
        return "90"

    @property
    def attributes(self) -> dict[str, int]:
        return {"MultiProcessorCount": 3, "MaxSharedMemoryPerBlockOptin": 227 << 10}

    @property
    def mem_info(self) -> tuple[int, int]:
        return runtime.memGetInfo()


def get_current_stream(device_id: int = -1) -> Stream:
    return current()


def is_available() -> bool:
    return True


def set_allocator(allocator: Any = None) -> None:
    """Ignore the allocator: memory always comes from the same place."""


set_pinned_memory_allocator = set_allocator
device = SimpleNamespace(
    Device=Device,
    get_cublas_handle=lambda: 1,
    get_cusparse_handle=lambda: 1,
    get_compute_capability=lambda: "90",
    get_device_id=runtime.getDevice,
)
