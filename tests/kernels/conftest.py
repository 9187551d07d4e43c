"""GPUs to run the CUDA kernels on: the emulation everywhere a C++ compiler is, CuPy where a GPU is."""

from __future__ import annotations

import importlib.util
import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from distgnn.arrays import backend
from distgnn.local.cuda import Variant, csr, launch
from distgnn.local.cuda.launch import kernels_folder


def load(path: Path) -> Any:
    """Load a module that lies outside of the package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
emulator = load(kernels_folder() / "emulation" / "emulator.py")


class GPU(SimpleNamespace):
    """``xp`` (CuPy or its stand-in), ``emulated``, and arrays to and from it."""

    def asarray(self, x: Any) -> Any:
        """Copy an array to the GPU, C-contiguous."""
        return self.xp.array(x, order="C")

    def to_host(self, x: Any) -> np.ndarray:
        return np.asarray(x) if self.emulated else self.xp.asnumpy(x)

    def nan(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Return an array of NaN, which a kernel must overwrite."""
        return self.asarray(np.full(shape, np.nan, dtype))

    def misaligned(self, x: np.ndarray) -> Any:
        """Copy an array to one element behind a multiple of 256 bytes."""
        room = self.xp.empty(x.size + 1, x.dtype)
        view = room[1:].reshape(x.shape)
        view[...] = self.xp.asarray(x)
        return view


#: Variants of every kind: all numbers of teams, groups that fill a warp and that don't, bundles of short rows
#: and of all. Rows over S are cut.
GROUPS = [(G, P) for G, P in itertools.product((1, 2, 4, 8, 16, 32), repeat=2) if G * P <= 32]
VARIANTS = {
    "float32": [
        *(Variant(V=4, G=G, P=P, S=32 * P, sorted=P > 1) for G, P in GROUPS),
        *(Variant(V=4, G=G, P=P, S=100) for G, P in ((3, 2), (5, 1), (10, 1), (11, 2), (25, 1), (7, 4))),
        Variant(V=4, G=32, P=1, S=2000, sorted=True),
        Variant(V=2, G=16, P=2, S=100),
        Variant(V=2, G=9, P=1, S=100),
        Variant(V=1, G=32, P=1, S=100),
        Variant(V=1, G=4, P=8, S=700),
        *(Variant(V=4, G=G, P=1, S=32, K=8) for G in (2, 10, 32)),
        *(Variant(V=4, G=G, P=1, S=S, K=4, sorted=True) for G, S in ((4, 5), (10, 64), (32, 2000))),
        Variant(V=2, G=8, P=1, S=3, K=2),
        Variant(V=1, G=32, P=1, S=32, K=8),
    ],
    "float64": [
        Variant(V=2, G=4, P=4, S=64),
        Variant(V=2, G=32, P=1, S=64),
        Variant(V=1, G=1, P=32, S=512, sorted=True),
        Variant(V=2, G=8, P=1, S=32, K=8),
        Variant(V=1, G=12, P=1, S=32, K=8, sorted=True),
    ],
}


def spmm_names() -> list[str]:
    """List all kernels of csr_spmm.cu."""
    return csr.kernel_names()


LANES = (1, 2, 4, 8, 16, 32)
ELEMENTS = ("float", "double")
HALVES = ("Bfloat16", "Float16")

#: All kernels besides csr_spmm.cu, by file.
OTHER_KERNELS = {
    "rows.cu": [
        *(f"gather_rows<{unit},{lanes}>" for unit in ("uint4", "uint2", "unsigned") for lanes in LANES),
        *(f"add_rows<{element},{lanes}>" for element in ELEMENTS for lanes in LANES),
    ],
    "aggregate.cu": [
        f"{name}<{element},{index}>"
        for name in ("best", "best_back")
        for element in ELEMENTS
        for index in ("int", "int64")
    ],
    "narrow.cu": [
        *(f"{name}<{kind}>" for name in ("narrow", "narrow_padded", "widen") for kind in HALVES),
        *(f"narrow_rows<{kind},{lanes}>" for kind in HALVES for lanes in LANES),
    ],
    "activation.cu": [
        "dropout_keys",
        *(f"{name}<{element}>" for name in ("activate", "keep_positive") for element in ELEMENTS),
    ],
    "layer_norm.cu": [
        *(f"{name}<{element}>" for name in ("layer_norm", "layer_norm_backward") for element in ELEMENTS),
    ],
    "softmax_cross_entropy.cu": [f"softmax_cross_entropy<{element}>" for element in ELEMENTS],
    "scores.cu": [f"count_hits<{element}>" for element in ELEMENTS],
    "binary_cross_entropy.cu": [f"binary_cross_entropy<{element}>" for element in ELEMENTS],
    "sample.cu": ["sample_weighted", "sample_ones", "ring_times", "inclusion"],
    "extract.cu": [
        "row_lengths", "row_keys", "row_entries", "compact", "enter_ids", "mark_first", "number_ids",
        *(f"find_columns<{index}>" for index in ("int", "int64")),
        *(f"{name}<{element}>" for name in ("sum_runs", "keep_entries") for element in ELEMENTS),
        *(f"expand_products<{element},{index}>" for element in ELEMENTS for index in ("int", "int64")),
    ],
    "edges.cu": [
        f"{name}<{element},{index}{lanes}>"
        for element, V in (("float", 4), ("double", 2))
        for name, ways in (("edge_softmax", [""]), ("edge_softmax_back", [""]),
                           ("edge_dots", [",1,1", f",1,{V}", ",8,1", f",8,{V}"]),
                           ("edge_products", [",8,1", ",32,1", f",16,{V}", f",32,{V}"]))
        for index in ("int", "int64") for lanes in ways
    ] + [f"edge_fold<{element}>" for element in ELEMENTS],
    "additive.cu": [
        f"{name}<{element},{index}{lanes}>"
        for name, ways in (("edge_signs", [""]), ("edge_scores", [",1,8", ",8,8", ",8,1"]),
                           ("edge_slopes", [",8,8", ",32,8", ",32,1"]))
        for element in ELEMENTS for index in ("int", "int64") for lanes in ways
    ],
    str(BENCHMARKS / "ceilings.cu"): ["read_repeatedly", "gather_randomly"],
    "optimizers.cu": [
        f"{name}<{element}>" for name in ("adam", "sgd", "sum_squares") for element in ELEMENTS
    ],
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
    """Return a GPU for :mod:`distgnn.local.cuda`; emulated ones start in forward order."""
    if any_gpu.emulated:
        monkeypatch.setattr(launch, "_library", lambda array: any_gpu.xp)
        any_gpu.xp.order = 0
    return any_gpu


def built_from(file: str) -> Any:
    """Make a fixture: each GPU there is, with the kernels of this file; the emulation builds all at once."""

    @pytest.fixture
    def built(gpu, any_gpu):
        if gpu.emulated:
            gpu.xp.build(launch.source(file), OTHER_KERNELS[file])
        return gpu

    return built


def in_orders(gpu: Any, orders: Any, times: int = 1) -> Any:
    """Yield each of these orders of blocks in the emulation; on a GPU its own order, ``times`` times."""
    for order in orders if gpu.emulated else [0] * times:
        if gpu.emulated:
            gpu.xp.order = order
        yield order
