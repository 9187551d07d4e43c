"""Where the element-wise passes of an epoch run; see ``local.elementwise``."""

from distgnn.local.elementwise import compiled, on_gpu

__all__ = ["compiled", "on_gpu"]
