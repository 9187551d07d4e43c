"""A caller's own arrays on a GPU: taken where they are, in the order of the caller's streams, or one line."""

from __future__ import annotations

import re
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
from mpi4py import MPI

import distgnn as dg
from distgnn.arrays import backend as backends
from distgnn.arrays import foreign
from distgnn.arrays import streams as streams_of_ours
from distgnn.comm.transport import STAGED, Means, lacking_nccl, transport
from distgnn.errors import ArgumentError
from distgnn.operators import ALGORITHMS, grids
from loops import each
from mpi_helpers import gpu
from own_arrays import Interface, SparseTensor, Tensor, filled, forms, spoil

N, F = 23, 5
RNG = np.random.default_rng(3)
MATRIX = sp.random_array((N, N), density=0.3, rng=RNG, format="csr").astype(np.float32)
X = RNG.standard_normal((N, F)).astype(np.float32)
PARTS = RNG.integers(0, 3, N)


@pytest.fixture
def on_gpu(monkeypatch):
    """Yield the backend of a GPU, or of its stand-in."""
    with gpu.backend(gpu.AWARE, monkeypatch) as chosen:
        yield chosen


def grid_of(comm, algorithm: str = "1d") -> dg.Grid:
    return dg.Grid(comm, backend="cupy", **grids(algorithm, comm.size)[0])


def streams(xp) -> list:
    """Return streams of a caller: two of its own, of which one takes turns with the null stream, and that."""
    return [xp.cuda.Stream(non_blocking=True), xp.cuda.Stream(), xp.cuda.Stream.null]


@pytest.mark.ranks(1)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_products_of_own_arrays_are_those_of_a_host(comm, on_gpu, algorithm) -> None:
    xp, grid = on_gpu.xp, grid_of(comm, algorithm)
    A = dg.distribute(MATRIX, grid, algorithm)
    for number, stream in enumerate(streams(xp)):
        for name in forms(xp, X, stream):
            for op, expected in ((A, MATRIX @ X), (A.T, MATRIX.T @ X)):
                if number or name != "cupy":  # of which nobody knows the stream
                    given = forms(xp, X, stream)[name]
                    Y = op @ given
                    spoil(given, stream)  # the caller goes on at once
                    assert type(Y) is xp.ndarray, name
                    np.testing.assert_allclose(Y.get(), expected, rtol=1e-5, atol=1e-6, err_msg=name)
    grid.free()


def test_an_error_leaves_the_streams_in_order(stand_in) -> None:
    """Work that is queued before the error still reads the caller's array."""
    import cupy

    grid, own = grid_of(MPI.COMM_SELF), cupy.cuda.Stream(non_blocking=True)
    with own, stand_in.observed() as seen:
        given = cupy.ones(4)
        with pytest.raises(MemoryError), streams_of_ours.at_home(grid.backend):
            read = given + 1
            raise MemoryError
        given += 1
    assert not seen.hazards and read.size == 4
    grid.free()


def test_nothing_goes_through_the_host(stand_in) -> None:
    import cupy

    for parts in (None, PARTS):
        grid = grid_of(MPI.COMM_SELF)
        A = dg.distribute(MATRIX, grid, "1d", parts=parts)
        given = [*forms(cupy, X, cupy.cuda.Stream()).values()]
        given += forms(cupy, X[:, 0], grid.backend.home).values()
        A @ given[0], A.T @ given[0]  # places of rows, Aᵀ and what kernels need are made once
        with stand_in.observed() as seen:
            for own in given:
                A @ own, A.T @ own
            H = dg.scatter(given[0], A.input_layout) if parts is None else None
        assert seen.counts["host to device bytes"] == 0 and not seen.counts["pinned"]
        assert seen.counts["device to host bytes"] < 8 * N  # numbers that say how many
        spoil(given[0], grid.backend.home)
        assert H is None or (H.block.get() == X).all()
        grid.free()


def test_a_matrix_stays_on_the_gpu(stand_in) -> None:
    import cupy
    from cupyx.scipy.sparse import csr_matrix

    grid = grid_of(MPI.COMM_SELF)
    stream = cupy.cuda.Stream()
    parts = [filled(cupy, part, stream) for part in (MATRIX.data, MATRIX.indices, MATRIX.indptr)]
    given = csr_matrix(tuple(parts), shape=MATRIX.shape)
    own = filled(cupy, X, stream)
    with stand_in.observed() as seen:
        A = dg.distribute(given, grid, "1d")
        products = A @ own, A.T @ own
    assert seen.counts["host to device bytes"] == 0
    assert seen.counts["device to host bytes"] < MATRIX.data.nbytes / 4
    for product, expected in zip(products, (MATRIX @ X, MATRIX.T @ X), strict=True):
        np.testing.assert_allclose(product.get(), expected, rtol=1e-5, atol=1e-6)
    grid.free()


def matrices(xp, stream) -> dict:
    """Return matrices on a GPU, each with SciPy's form of it."""
    from cupyx.scipy.sparse import csr_matrix

    def given(matrix, kind=lambda parts, shape: csr_matrix(tuple(parts), shape=shape)):
        parts = [filled(xp, part, stream) for part in (matrix.data, matrix.indices, matrix.indptr)]
        with stream:
            return kind(parts, matrix.shape), matrix

    shuffled = MATRIX.copy()
    for first, last in zip(MATRIX.indptr[:-1], MATRIX.indptr[1:], strict=True):
        order = first + RNG.permutation(last - first)
        shuffled.indices[first:last], shuffled.data[first:last] = MATRIX.indices[order], MATRIX.data[order]
    twice = sp.csr_array((np.r_[1.0, 2, 4, 8, 16], [2, 0, 2, 1, 1], [0, 3, 3, 5]), shape=(3, 3))
    symmetric = (MATRIX + MATRIX.T).tocsr()
    tensor = lambda parts, shape: SparseTensor(parts, shape, stream)  # noqa: E731
    dense = MATRIX.toarray()
    return {
        "csr": given(MATRIX), "unsorted": given(shuffled), "duplicates": given(twice),
        "symmetric": given(symmetric), "wide": given(sp.csr_array(MATRIX[:7])),
        "empty": given(sp.csr_array((4, 3)), tensor), "no columns": given(sp.csr_array((4, 0)), tensor),
        "stored zeros": given(sp.csr_array(([0.0, 1], [1, 0], [0, 1, 2]), shape=(2, 2))),
        "tensor": given(MATRIX, tensor), "dense": (Tensor(filled(xp, dense, stream), stream), MATRIX),
    }  # fmt: skip


@pytest.mark.ranks(1)
def test_matrices_on_a_gpu_are_those_of_a_host(comm, on_gpu) -> None:
    grid = grid_of(comm)
    for name, (given, matrix) in matrices(on_gpu.xp, on_gpu.xp.cuda.Stream()).items():
        A, expected = dg.distribute(given, grid, "1d"), dg.distribute(matrix, grid, "1d")
        assert (A.shape, A.dtype, A.nnz, A.symmetric) == (
            expected.shape, expected.dtype, expected.nnz, expected.symmetric,
        ), name  # fmt: skip
        for op, other in ((A, matrix), (A.T, matrix.T)):
            H = RNG.standard_normal((op.shape[1], 3)).astype(A.dtype)
            np.testing.assert_allclose(op @ H, other @ H, rtol=1e-5, atol=1e-6, err_msg=name)
        if matrix.shape[0] == matrix.shape[1]:
            assert (dg.gather(A.diagonal())[:, 0] == dg.gather(expected.diagonal())[:, 0]).all()
            double = dg.distribute(given, grid, "1d", root=0, dtype=np.float64, parts=[0] * matrix.shape[0])
            assert double.dtype == np.float64 and double.nnz == A.nnz
    grid.free()


@pytest.mark.ranks(2, 3)
def test_ranks_get_blocks_of_what_the_first_has_or_bring_their_own(comm, on_gpu) -> None:
    from cupyx.scipy.sparse import csr_matrix

    xp, grid = on_gpu.xp, grid_of(comm)
    given = csr_matrix(tuple(map(xp.asarray, (MATRIX.data, MATRIX.indices, MATRIX.indptr))), shape=(N, N))
    first = comm.rank == 0
    for root in (0, None):
        A = dg.distribute(given if first or root is None else None, grid, "1d", root=root)
        stream = xp.cuda.Stream()
        for own in forms(xp, X, stream).values():
            H = dg.scatter(own if first else None, A.input_layout)
            if first:
                spoil(own, stream)
            product = dg.gather(A @ H)
            assert not first or np.allclose(product, MATRIX @ X, rtol=1e-5, atol=1e-6)
    rows, stream = slice(*A.input_layout.rows.range(grid, N)), xp.cuda.Stream()
    for kind in (Tensor, Interface):
        H = dg.DistDense(kind(filled(xp, X[rows], stream), stream), A.input_layout, (N, F))
        product = dg.gather(A @ H)
        assert not first or np.allclose(product, MATRIX @ X, rtol=1e-5, atol=1e-6)
    block = csr_matrix(tuple(map(xp.asarray, (MATRIX[rows].data, MATRIX[rows].indices, MATRIX[rows].indptr))),
                       shape=MATRIX[rows].shape)  # fmt: skip
    B = dg.distribute(dg.LocalBlocks((N, N), [((rows.start, rows.stop), (0, N), block)]), grid, "1d")
    product = dg.gather(B @ H)
    assert not first or np.allclose(product, MATRIX @ X, rtol=1e-5, atol=1e-6)
    with pytest.raises(TypeError, match="scatter.*, got .*; it takes an array that rank 0 has"):
        A @ Tensor(xp.asarray(X), stream)
    grid.free()


@pytest.mark.ranks(1, 2)
def test_a_sparse_matrix_is_no_operand_wherever_it_is(comm, on_gpu) -> None:
    from cupyx.scipy.sparse import csr_matrix

    xp, grid = on_gpu.xp, grid_of(comm)
    A, parts = dg.distribute(MATRIX, grid, "1d"), (MATRIX.data, MATRIX.indices, MATRIX.indptr)
    there = csr_matrix(tuple(map(xp.asarray, parts)), shape=(N, N))
    tensor = SparseTensor([*map(xp.asarray, parts)], (N, N), xp.cuda.Stream())
    for sparse, name in ((MATRIX, "csr_array"), (there, "csr_matrix"), (tensor, "SparseTensor")):
        with pytest.raises(TypeError, match=rf"can multiply a DistDense \(see scatter\), got {name}$"):
            A @ sparse
    grid.free()


@pytest.mark.ranks(1)
def test_types_and_shapes_that_are_right_everywhere(comm, on_gpu) -> None:
    xp, grid = on_gpu.xp, grid_of(comm)
    for parts in (None, PARTS):
        A = dg.distribute(MATRIX, grid, "1d", parts=parts)
        kinds = X.astype(np.float64), (X * 9).astype(np.int8), np.arange(N) + 16777217, X.astype(np.float16)
        shapes = np.empty((N, 0), np.float32), X[:, :1], X[:, 0], X.reshape(N, F, 1)
        for numbers in (*kinds, *shapes, X > 0):
            product, like = A @ xp.asarray(numbers), A @ numbers
            assert product.dtype == like.dtype and product.shape == like.shape == numbers.shape
            flat = numbers.reshape(N, numbers[0].size).astype(np.float64)
            expected = (MATRIX @ flat).reshape(numbers.shape)
            np.testing.assert_allclose(product.get(), expected, rtol=1e-5, atol=1e-5)
    none = dg.distribute(sp.csr_array((0, 4), dtype=np.float32), grid, "1d")
    assert (none @ xp.zeros((4, 2), np.float32)).shape == (0, 2)
    assert (none.T @ xp.zeros((0, 2), np.float32)).get().tolist() == [[0, 0]] * 4
    grid.free()


def test_bad_input_is_one_line(stand_in, monkeypatch) -> None:
    import cupy

    monkeypatch.setenv("FAKE_CUPY_DEVICES", "2")
    grid, stream = grid_of(MPI.COMM_SELF), cupy.cuda.Stream()
    host = dg.Grid(MPI.COMM_SELF, backend="numpy", rows=1)
    A, B = (dg.distribute(MATRIX, on, "1d") for on in (grid, host))
    x = cupy.asarray(X)
    with cupy.cuda.Device(1):
        far = cupy.zeros((N, F), np.float32)
    class Gone(Tensor):
        def __dlpack__(self, **options):
            raise BufferError("the storage\nis gone")

    def tensor(indices, indptr) -> SparseTensor:
        return SparseTensor(map(cupy.asarray, (MATRIX.data, indices, indptr)), (N, N), stream)

    sparse = tensor(MATRIX.indices, MATRIX.indptr)
    broken = tensor(MATRIX.indices + N, MATRIX.indptr)
    falling = tensor(MATRIX.indices, MATRIX.indptr[::-1].copy())
    layout, there = A.input_layout, r"is on GPU 1, and this rank computes on GPU 0: pass a copy"
    elsewhere = "is on a GPU, and backend=numpy computes on the host: take backend=cupy, or pass "
    for kind, problem, call in (
        (ArgumentError, there, lambda: A @ far),
        (ArgumentError, there, lambda: A @ Tensor(far, stream)),
        (ArgumentError, there, lambda: A @ Interface(far, stream)),
        (ArgumentError, there, lambda: dg.scatter(far, layout)),
        (ArgumentError, there, lambda: dg.DistDense(far, layout, (N, F))),
        (ArgumentError, there, lambda: dg.distribute(far, grid, "1d")),
        (ArgumentError, rf"H=cupy.ndarray: {elsewhere}H.get\(\)", lambda: B @ x),
        (ArgumentError, rf"X=own_arrays.Tensor: {elsewhere}X.cpu\(\)",
         lambda: dg.scatter(Tensor(x, stream), B.input_layout)),
        (ArgumentError, f"matrix=.*SparseTensor: {elsewhere}", lambda: dg.distribute(sparse, host, "1d")),
        (ArgumentError, f"matrix=.*: {elsewhere}", lambda: dg.distribute(sparse, host, "1d", root=0)),
        (ArgumentError, f"block=.*: {elsewhere}", lambda: dg.DistDense(x, B.input_layout, (N, F))),
        (ArgumentError, "H=.*Gone: cannot be taken from its GPU .the storage is gone.",
         lambda: A @ Gone(x, stream)),
        (ArgumentError, "complex values", lambda: A @ x.astype(np.complex64)),
        (ArgumentError, "complex values", lambda: dg.scatter(x.astype(np.complex64), layout)),
        (ArgumentError, "complex values", lambda: dg.distribute(x.astype(np.complex64), grid, "1d")),
        (ArgumentError, "column numbers must lie in 0..22", lambda: dg.distribute(broken, grid, "1d")),
        (ArgumentError, "row pointers must rise", lambda: dg.distribute(falling, grid, "1d")),
        (ArgumentError, "expected two dimensions", lambda: dg.distribute(x[0], grid, "1d")),
        (ValueError, r"shapes \(23, 23\) and \(22, 5\) don't multiply", lambda: A @ x[1:]),
        (ValueError, "don't multiply", lambda: A @ cupy.zeros(())),
        (ValueError, "the layout cuts 23 rows, the matrix has 22", lambda: dg.scatter(x[1:], layout)),
        (ValueError, "takes a matrix or a vector", lambda: dg.scatter(x[None], layout)),
    ):  # fmt: skip
        with pytest.raises(kind, match=problem) as caught:
            pytest.fail(f"{problem}: not raised, but {call()!r}")
        assert "\n" not in str(caught.value)
    monkeypatch.setattr(type(grid.backend), "address", lambda self, array: 0)
    with pytest.raises(ArgumentError, match="H=own_arrays.Tensor: has no memory: it was freed"):
        A @ Tensor(x, stream)
    grid.free()
    host.free()


def test_where_cupy_is_missing_the_line_says_what_to_install(monkeypatch) -> None:
    on_gpu = type("Tensor", (), {"__dlpack_device__": lambda self: (2, 0), "shape": (3, 1)})()
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setattr(backends, "_has_gpu", lambda: False)
    A = dg.distribute(sp.eye_array(3), dg.Grid(MPI.COMM_SELF, backend="numpy", rows=1), "1d")
    for call in (lambda: A @ on_gpu, lambda: dg.scatter(on_gpu, A.input_layout)):
        with pytest.raises(ArgumentError, match=r"is on a GPU, where .*CuPy.*; or pass [HX].cpu\(\)"):
            call()
    with pytest.raises(ArgumentError, match="backend=cupy: .*; or use numpy"):
        backends.get("cupy")


@each("failure, expected", [
    (ImportError(), r"CuPy is missing; pip install -e '\.\[cuda13\]', or '\.\[cuda12\]'"),
    (35, r"driver is too old for this CuPy; pip install -e '\.\[cuda12\]'"),
    (100, "CuPy sees no GPU"),
    (0, "CuPy sees no GPU"),
])  # fmt: skip
def test_why_no_gpu_is_used(failure, expected) -> None:
    def count() -> int:
        if failure:
            error = RuntimeError("cudaError:\nsomething")
            error.status = failure
            raise error
        return 0

    runtime = SimpleNamespace(cuda=SimpleNamespace(runtime=SimpleNamespace(getDeviceCount=count)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "cupy", None if isinstance(failure, ImportError) else runtime)
        assert re.search(expected, backends.missing()) and "\n" not in backends.missing()
        patch.setattr(backends, "_has_gpu", lambda: False)
        backends.old_driver.cache_clear()
        assert bool(backends.old_driver()) == (failure == 35)
    backends.old_driver.cache_clear()


def test_gpus_without_nccl_are_said(monkeypatch, caplog) -> None:
    """Only where NCCL would serve: each rank has a GPU of its own, and nothing was asked for."""
    everybody = [Means(False, False, (0, f"0000:0{rank}:00.0")) for rank in (1, 2, 3)]
    assert lacking_nccl(everybody) == 3 and not lacking_nccl(everybody[:1])
    assert not lacking_nccl([everybody[0], everybody[0]])
    assert not lacking_nccl([means._replace(nccl=True) for means in everybody])
    monkeypatch.setattr("distgnn.comm.transport._cuda_aware_once", lambda: False)
    on = SimpleNamespace(on_device=True, devices=lambda: ["a", "b"], bound=0, nccl=lambda: None)
    mpi = SimpleNamespace(allgather=lambda mine: everybody, Get_rank=lambda: 0, Get_size=lambda: 1)
    for environ, said in (({}, True), ({"DISTGNN_TRANSPORT": "host"}, False)):
        caplog.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("distgnn.comm.transport.together", lambda mpi: nullcontext())
            assert transport(on, mpi, 0, environ) == STAGED
        assert ("arrays of 3 GPUs travel by way of the host" in caplog.text) == said


def test_the_callers_stream_is_the_current_one_again(stand_in) -> None:
    """Within it, products are ordered after what it did, and it goes on after them."""
    import cupy

    grid = grid_of(MPI.COMM_SELF)
    for stream in (cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(), grid.backend.home):
        A = dg.distribute(MATRIX, grid, "1d")
        G = dg.scatter(X, A.output_layout)
        with stream:
            x = cupy.asarray(X)
            x += 1
            y = A @ x
            A.T @ x  # makes what other products use
            x.fill(0)
            z = y + 1
            del y
            assert cupy.cuda.get_current_stream() == stream
        np.testing.assert_allclose(dg.gather(A.T @ G), MATRIX.T @ X, rtol=1e-5, atol=1e-6)
        [cupy.full(X.shape, 3, np.float32) for _ in range(3)]  # where memory of the product may lie
        np.testing.assert_allclose(z.get(stream), MATRIX @ (X + 1) + 1, rtol=1e-5, atol=1e-6)
    parts = map(cupy.asarray, (MATRIX.data, MATRIX.indices, MATRIX.indptr))
    sparse = SparseTensor(parts, (N, N), grid.backend.home)
    kept = dg.scatter(sparse, A.input_layout)
    assert isinstance(kept, dg.SparseFeatures) and (kept.to_dense().block.get() == MATRIX.toarray()).all()
    assert foreign.gpu_of(x) == 0 and foreign.gpu_of(X) is None
    grid.free()


MADE = dg.gallery.sbm(120, communities=3, features=6)
EDGES, LABELS = np.stack(MADE.A.nonzero()), MADE.labels
WIDE = (MADE.features * 3 + 1).astype(np.float32)
FAST = {"epochs": 4, "hidden": 8, "lr": 0.03, "dropout": 0.3, "eval_every": 1, "tune_gemm": False}


def on_stream(xp, kind, *arrays):
    stream = xp.cuda.Stream()
    return [kind(filled(xp, array, stream), stream) for array in arrays]


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("settings", [
    {}, {"dtype": "float64"}, {"train_features": True, "check": True},
    {"standardize_features": False, "sampler": "sage", "fanout": [4, 4], "batch_size": 32},
], ids=["plain", "double", "trained", "sampled"])  # fmt: skip
def test_a_model_of_own_arrays_is_that_of_arrays_of_the_host(comm, on_gpu, settings) -> None:
    first, xp = comm.rank == 0, on_gpu.xp
    how = FAST | settings | {"comm": comm, "backend": "cupy"}
    features = WIDE.astype(settings.get("dtype", "float32"))
    expected = dg.fit(*((EDGES, features, LABELS) if first else ()), **how)
    for kind in (lambda array, stream: array, Tensor, Interface):
        given = on_stream(xp, kind, EDGES, features, LABELS.astype(np.int64)) if first else []
        model = dg.fit(*given, **how)
        for own in given:
            spoil(own, getattr(own, "stream", xp.cuda.Stream.null))
        losses = [[record["loss"] for record in one.history] for one in (model, expected)]
        np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
        if first:
            np.testing.assert_allclose(model.scores(), expected.scores(), rtol=1e-4, atol=1e-5)
        assert model._kept.manifest["content"] == expected._kept.manifest["content"]
        hidden = [one.embeddings(1) for one in (model, expected)]
        assert not first or np.allclose(*hidden, rtol=1e-4, atol=1e-5)
        if not settings.get("train_features"):
            again = on_stream(xp, Tensor, EDGES, features) if first else (None, None)
            answers = [one.predict_proba(*again) for one in (model, expected)]
            assert not first or np.allclose(*answers, rtol=1e-4, atol=1e-5)


def test_features_of_a_model_stay_on_the_gpu(stand_in) -> None:
    """All but their graph, labels and what is counted."""
    import cupy

    wide = np.random.default_rng(1).standard_normal((120, 500)).astype(np.float32)
    given = Tensor(cupy.asarray(wide), cupy.cuda.Stream.null)
    with stand_in.observed() as seen:
        model = dg.fit(EDGES, given, LABELS, backend="cupy", **FAST)
    assert seen.counts["host to device bytes"] < wide.nbytes / 2
    assert seen.counts["device to host bytes"] < wide.nbytes / 2
    assert given.taken == 1 and (given.array.get() == wide).all() and model.test_score > 0
    dg.fit(EDGES, given, LABELS, backend="cupy", check=True, **FAST)  # beside a reference on the host


def test_graphs_and_their_parts_on_a_gpu_are_those_of_a_host(stand_in) -> None:
    import cupy
    from cupyx.scipy.sparse import csr_matrix

    stream, kept = cupy.cuda.Stream(), slice(None)
    matrix = sp.csr_array((np.linspace(1, 2, EDGES.shape[1]), (EDGES[1], EDGES[0])), shape=(120, 120))
    sparse = sp.random_array((120, 40), density=0.1, rng=np.random.default_rng(2), format="csr")
    with stream:
        graphs = csr_matrix(matrix), csr_matrix(matrix)
        parts = [filled(cupy, part, stream) for part in (matrix.data, matrix.indices, matrix.indptr)]
        tensor = SparseTensor(parts, matrix.shape, stream)
        features = csr_matrix(sparse)
    masks = [np.arange(120) % 3 == part for part in range(3)]
    own = tuple(on_stream(cupy, Tensor, *masks))
    expected = dg.fit(matrix, sparse, LABELS, tuple(masks), weights=True, backend="cupy", **FAST)
    for graph in (graphs[0], tensor):
        model = dg.fit(graph, features, *on_stream(cupy, Tensor, LABELS[kept]), own, weights=True,
                       backend="cupy", **FAST)  # fmt: skip
        assert [r["loss"] for r in model.history] == [r["loss"] for r in expected.history]


def test_features_that_a_model_cannot_have_are_one_line(stand_in, tmp_path) -> None:
    import cupy

    own, whole = cupy.asarray(WIDE), cupy.full((120, 2), (1 << 26) + 1)
    own[7, 2] = np.nan
    elsewhere = r"X=cupy.ndarray: is on a GPU, and backend=numpy .*pass X.get\(\)"
    for kind, problem, given, how in (
        (dg.UserError, "X: feature 2 of node 7 is nan; expected finite numbers", own, {}),
        (dg.UserError, "X: feature 0 of node 0 is 67108865, which float32 cannot hold", whole, {}),
        (ArgumentError, elsewhere, own, {"backend": "numpy"}),
        (ArgumentError, "X=complex64 of shape .*: expected real numbers", own.astype(np.complex64), {}),
        (ArgumentError, "do not agree in the number of nodes", own[1:], {}),
        (ArgumentError, "X=float32 of shape .*: expected real numbers, nodes by width", own[0], {}),
    ):
        with pytest.raises(kind, match=problem) as caught:
            dg.fit(EDGES, given, LABELS, **FAST | {"backend": "cupy"} | how)
        assert "\n" not in str(caught.value)
    with pytest.raises(ArgumentError, match=r"X=cupy.ndarray: is on a GPU: pass X.get\(\)"):
        dg.prepare(EDGES, own, LABELS, out=tmp_path / "g.dg")
