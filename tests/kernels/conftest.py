"""GPUs to run the CUDA kernels on: the emulation everywhere a C++ compiler is, CuPy where a GPU is."""

from __future__ import annotations

import importlib.util
import itertools
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from distgnn.arrays import backend
from distgnn.local.cuda import Variant, launch
from distgnn.local.resources import kernels_folder


def load_emulator() -> Any:
    """The module kernels/emulation/emulator.py, which lies outside of the package."""
    spec = importlib.util.spec_from_file_location("emulator", kernels_folder() / "emulation" / "emulator.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


emulator = load_emulator()


class GPU(SimpleNamespace):
    """``xp`` (CuPy or its stand-in), ``emulated``, and arrays to and from it."""

    def asarray(self, x: Any) -> Any:
        """A copy on the GPU, C-contiguous."""
        return self.xp.array(x, order="C")

    def to_host(self, x: Any) -> np.ndarray:
        return np.asarray(x) if self.emulated else self.xp.asnumpy(x)

    def nan(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """What a kernel must overwrite."""
        return self.asarray(np.full(shape, np.nan, dtype))

    def misaligned(self, x: np.ndarray) -> Any:
        """The array, starting one element behind a multiple of 256 bytes."""
        room = self.xp.empty(x.size + 1, x.dtype)
        view = room[1:].reshape(x.shape)
        view[...] = self.xp.asarray(x)
        return view


#: Variants of every kind: all group shapes for float32, and the others with few.
GROUPS = [(G, P) for G, P in itertools.product((1, 2, 4, 8, 16, 32), repeat=2) if G * P <= 32]
VARIANTS = {
    "float32": [
        *(Variant(V=4, C=1, G=G, P=P, U=4, L=32 // G) for G, P in GROUPS),
        *(Variant(V=4, C=2, G=32, P=1, U=U, L=1) for U in (2, 4)),
        Variant(V=4, C=1, G=32, P=1, U=8, L=1),
        Variant(V=4, C=1, G=8, P=2, U=1, L=4),
        Variant(V=2, C=4, G=32, P=1, U=4, L=1),
        Variant(V=2, C=1, G=16, P=2, U=8, L=2),
        Variant(V=1, C=4, G=32, P=1, U=4, L=1),
        Variant(V=1, C=2, G=32, P=1, U=8, L=1),
        Variant(V=1, C=1, G=4, P=8, U=8, L=8),
    ],
    "float64": [
        Variant(V=2, C=1, G=4, P=4, U=4, L=8),
        Variant(V=2, C=2, G=32, P=1, U=4, L=1),
        Variant(V=1, C=1, G=1, P=32, U=8, L=32),
        Variant(V=1, C=4, G=32, P=1, U=4, L=1),
    ],
    "uint16": [
        Variant(V=8, C=1, G=16, P=2, U=4, L=2),
        Variant(V=8, C=1, G=32, P=1, U=2, L=1),
        Variant(V=4, C=2, G=32, P=1, U=4, L=1),
        Variant(V=2, C=1, G=8, P=4, U=8, L=4),
        Variant(V=1, C=1, G=2, P=1, U=8, L=16),
    ],
}


def names_of(dtype: str, way: Variant, kind: int = 1, offset: str = "int", index: str = "int") -> list[str]:
    """The three kernels of a variant."""
    element, total = launch.C_TYPES[np.dtype(dtype)], "double" if dtype == "float64" else "float"
    return [
        f"spmm<{element},{offset},{index},{kind},{way.arguments}>",
        f"spmm_segments<{element},{index},{kind},{replace(way, P=way.L).arguments}>",
        f"spmm_combine<{total},{way.V},{way.G}>",
    ]


def spmm_names(variants: dict[str, list[Variant]] = VARIANTS) -> list[str]:
    """Names of all kernels of these variants, and of each dtype's first one with other weights and index
    types.
    """
    names = []
    for dtype, ways in variants.items():
        for way in ways:
            names += names_of(dtype, way)
        for kind in (0, 2):
            names += names_of(dtype, ways[0], kind)
        names += names_of(dtype, ways[0], offset="int64") + names_of(
            dtype, ways[0], offset="int64", index="int64"
        )
    return list(dict.fromkeys(names))


UNITS = ("uint4", "uint2", "unsigned", "unsigned short")

#: All kernels besides csr_spmm.cu, by file.
OTHER_KERNELS = {
    "rows.cu": [
        *(f"gather_rows<{unit},{index},{G}>" for unit in UNITS for index in ("int", "int64") for G in (1, 2, 4, 8, 16, 32)),
        *(f"add_rows<{element},int64,{lanes}>" for element in ("float", "double") for lanes in (1, 8, 32)),
        "to_bfloat16",
    ],
    "activation.cu": [
        "dropout_keys", "activate<float>", "activate<double>", "keep_positive<float>", "keep_positive<double>",
    ],
    "softmax_cross_entropy.cu": [
        f"{name}<{element}>"
        for name in ("softmax_cross_entropy", "softmax_highest", "softmax_sums", "softmax_gradient")
        for element in ("float", "double")
    ],
    "sample.cu": ["sample_weighted", "sample_ones"],
    "ceilings.cu": ["read_repeatedly"],
    "optimizers.cu": [f"{name}<{element}>" for name in ("sgd", "adam") for element in ("float", "double")],
}  # fmt: skip


@pytest.fixture(scope="session", params=["emulated", "cupy"])
def any_gpu(request: pytest.FixtureRequest) -> Any:
    if request.param == "cupy":
        if "cupy" not in backend.available():
            pytest.skip("no GPU here, or no CuPy")
        yield GPU(xp=backend.get("cupy").xp, emulated=False)
        return
    if emulator.compiler() is None:
        pytest.skip("no C++ compiler here (g++, or what CXX names) to emulate a GPU with")
    cupy = emulator.Cupy()
    yield GPU(xp=cupy, emulated=True)
    cupy.close()


@pytest.fixture
def gpu(any_gpu: GPU, monkeypatch: pytest.MonkeyPatch) -> GPU:
    """A GPU for :mod:`distgnn.cuda`; emulated ones start in forward order."""
    if any_gpu.emulated:
        monkeypatch.setattr(launch, "_library", lambda array: any_gpu.xp)
        any_gpu.xp.order = 0
    return any_gpu
