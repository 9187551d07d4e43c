"""GPUs to run the CUDA kernels on: the emulation everywhere a C++ compiler is, CuPy where a GPU is."""

from __future__ import annotations

import importlib.util
import itertools
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from distgnn.arrays import backend
from distgnn.local.cuda import Variant, launch
from distgnn.local.cuda.launch import kernels_folder


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
}


def names_of(dtype: str, way: Variant, index: str = "int") -> list[str]:
    """The three kernels of a variant."""
    element = launch.C_TYPES[dtype]
    return [
        f"spmm<{element},{index},{way.arguments}>",
        f"spmm_segments<{element},{index},{replace(way, P=way.L).arguments}>",
        f"spmm_combine<{element},{way.V},{way.G}>",
    ]


def spmm_names(variants: dict[str, list[Variant]] = VARIANTS) -> list[str]:
    """Names of all kernels of these variants, and of each dtype's first one with wide indices."""
    names = []
    for dtype, ways in variants.items():
        for way in ways:
            names += names_of(dtype, way)
        names += names_of(dtype, ways[0], index="int64")
    return list(dict.fromkeys(names))


LANES = (1, 2, 4, 8, 16, 32)
ELEMENTS = ("float", "double")

#: All kernels besides csr_spmm.cu, by file.
OTHER_KERNELS = {
    "rows.cu": [
        *(f"gather_rows<{unit},{lanes}>" for unit in ("uint4", "uint2", "unsigned") for lanes in LANES),
        *(f"add_rows<{element},{lanes}>" for element in ELEMENTS for lanes in LANES),
    ],
    "activation.cu": [
        "dropout_keys",
        *(f"{name}<{element}>" for name in ("dropout", "keep_positive") for element in ELEMENTS),
    ],
    "softmax_cross_entropy.cu": [f"softmax_cross_entropy<{element}>" for element in ELEMENTS],
    "sample.cu": ["sample_weighted", "sample_ones"],
    str(Path(__file__).parents[2] / "benchmarks" / "ceilings.cu"): ["read_repeatedly"],
    "optimizers.cu": [f"adam<{element}>" for element in ELEMENTS],
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
    """A GPU for :mod:`distgnn.local.cuda`; emulated ones start in forward order."""
    if any_gpu.emulated:
        monkeypatch.setattr(launch, "_library", lambda array: any_gpu.xp)
        any_gpu.xp.order = 0
    return any_gpu
