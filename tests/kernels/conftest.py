"""GPUs to run the CUDA kernels on: CuPy where a GPU is, else its stand-in, with a C++ compiler."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distgnn.arrays import backend
from distgnn.local.cuda import Variant, instances
from distgnn.local.cuda.launch import kernels_folder
from kernels import passed


def load(path: Path) -> Any:
    """Load a module that lies outside of the package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
emulator = load(kernels_folder() / "emulation" / "emulator.py")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kernels", action="store_true", help="run all tests of kernels; note it if they pass")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "kernels: depends on nothing but what kernels/passed.py hashes")
    if config.getoption("--kernels", False) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(passed.Notes(), "kernels passed")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests of kernels alone that passed with all as it is, but on a GPU."""
    skipped = None if config.getoption("--kernels", False) else passed.but_for()
    if skipped is not None and "cupy" not in backend.available():
        left_out = {item for item in items if _of_kernels(item) and item.nodeid not in skipped}
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=[*left_out])


def _of_kernels(item: pytest.Item) -> bool:
    here = Path(__file__).parent in item.path.parents
    return here and bool(item.get_closest_marker("kernels") or "gpu" in getattr(item, "fixturenames", ()))


def tolerance(dtype: Any) -> dict[str, float]:
    """Return how far results may be from a reference in double precision."""
    return {"rtol": 2e-5, "atol": 1e-6} if dtype == np.float32 else {"rtol": 1e-12, "atol": 1e-13}


def normal(shape: int | tuple[int, ...], dtype: Any, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@dataclass
class GPU:
    """CuPy or its stand-in, ``xp``; the emulation that runs the kernels, or None; arrays to and from it."""

    xp: Any
    emulation: Any = None

    def asarray(self, x: Any) -> Any:
        """Copy an array to the GPU, C-contiguous."""
        return self.xp.array(x, order="C")

    def to_host(self, x: Any) -> np.ndarray:
        return self.xp.asnumpy(x)

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


#: All kernels, by file: the package's, and those that its benchmarks compare with.
KERNELS = {**instances.KERNELS, str(BENCHMARKS / "ceilings.cu"): ["read_repeatedly"]}


@pytest.fixture(params=["cupy" if "cupy" in backend.available() else "emulated"])
def gpu(request: pytest.FixtureRequest) -> Iterator[GPU]:
    """Yield a GPU for :mod:`distgnn.local.cuda`: the one here, or the stand-in with sanitized kernels."""
    if request.param == "cupy":
        yield GPU(backend.get("cupy").xp)
        return
    from mpi_helpers.gpu import stand_in  # needs MPI, unlike tests on a GPU

    with stand_in() as asked:
        asked.EMULATION.sanitized = True
        yield GPU(backend.get("cupy").xp, asked.EMULATION)


def in_orders(gpu: GPU, orders: Iterable[int], times: int = 1) -> Iterator[int]:
    """Yield each of these orders of blocks in the emulation; on a GPU its own order, ``times`` times."""
    for order in orders if gpu.emulation else [0] * times:
        if gpu.emulation:
            gpu.emulation.order = order
        yield order
