"""The compiled kernels of ``kernels/host``."""

from typing import Any

def __getattr__(name: str) -> Any: ...
