"""NCCL in place of host copies: the same bits and charges, and errors on every rank."""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import contextmanager, nullcontext

import numpy as np
import pytest
import scipy.sparse as sp

import distgnn as dg
from distgnn import progress
from distgnn.arrays.tuning import TUNING
from distgnn.comm import nccl as of_nccl
from distgnn.comm import transport
from distgnn.comm.relay import upstream
from distgnn.comm.transport import DIRECT, NCCL, STAGED, Means
from distgnn.errors import DisagreementError, PeerError
from distgnn.operators import ALGORITHMS, SPARSITY_AWARE, grids, make_grid
from mpi_helpers import communicators, gpu

pytestmark = pytest.mark.skipif(gpu.real(), reason="tests of NCCL share one GPU, which it refuses")


@pytest.fixture
def queued():
    """Yield the stand-in for CuPy with NCCL, each rank on a device of its own."""
    with pytest.MonkeyPatch.context() as patch, gpu.backend(gpu.NCCL, patch) as chosen:
        yield chosen


@pytest.fixture
def change(queued):
    """Yield what patches the environment and the stand-in until it goes."""
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(params=[gpu.STAGED, gpu.NCCL])
def grid(request, comm, monkeypatch):
    """Yield a grid, once without and once with NCCL."""
    with gpu.backend(request.param, monkeypatch) as chosen:
        made = dg.Grid(comm, backend=chosen)
        group = made.along("rows")
        assert group.by_nccl == (request.param == gpu.NCCL and group.size > 1)
        yield made
        made.free()


def whole_numbers(on, shape, rank):
    """Return whole numbers, so that sums are exact."""
    return on.asarray((np.arange(np.prod(shape)).reshape(shape) % 11 + 100.0 * rank).astype(np.float32))


@pytest.mark.ranks(3, 4)
@pytest.mark.parametrize("parts", ["even", "uneven", "empty"])
def test_collectives(grid, parts):
    """Blocks of one size, of sizes 0, 1, 2 ..., and of none."""
    group, on, P = grid.along("rows"), grid.backend, grid.size
    cut = {"even": np.arange(P + 1) * 3, "uneven": np.r_[0, np.cumsum(np.arange(P))], "empty": [0] * (P + 1)}
    bounds = np.array(cut[parts], np.int64)
    height, (first, last) = int(bounds[-1]), bounds[group.rank : group.rank + 2]
    everybodys = [on.to_host(whole_numbers(on, (height, 5), rank)) for rank in range(P)]
    mine = lambda: on.asarray(everybodys[group.rank])  # noqa: E731
    with dg.Ledger(timing=True) as told:
        for op in ("sum", "max", "min"):
            combined = getattr(np.array(everybodys), op)(axis=0)
            np.testing.assert_array_equal(on.to_host(group.allreduce(mine(), op)), combined)
        np.testing.assert_array_equal(on.to_host(group.bcast(mine(), P - 1)), everybodys[-1])
        kept = group.reduce_scatter_rows(mine(), bounds)
        np.testing.assert_array_equal(on.to_host(kept), sum(everybodys)[first:last])
        whole = on.to_host(group.allgather_rows(kept, bounds))
        np.testing.assert_array_equal(whole, sum(everybodys))
    size, share = height * 5, (P - 1) * height * 5 / P
    words = {entry["operation"]: entry["words"] for entry in told.entries()}
    assert words == {
        "allreduce": round(3 * 2 * share), "bcast": size * (group.rank != P - 1),
        "reduce_scatter": round(share), "allgather": size - 5 * int(last - first),
    }  # fmt: skip


@pytest.mark.ranks(4)
@pytest.mark.parametrize("overlap", [True, False])
def test_sums_under_way(grid, overlap, monkeypatch):
    monkeypatch.setattr(of_nccl, "MOST", 100)
    group, on, grid.overlap = grid.along("rows"), grid.backend, overlap
    roots = [*range(group.size), None, 0, None]
    arrays = [whole_numbers(on, (40, 8), group.rank + number) for number in range(len(roots))]
    with dg.Ledger(timing=True) as told, group.sums(grid.workspace, grid.overlap) as sums:
        for array, root in zip(arrays, roots, strict=True):
            sums.start(array, root)
    for number, (array, root) in enumerate(zip(arrays, roots, strict=True)):
        ranks = range(group.size) if root in (None, group.rank) else [group.rank]
        total = sum(on.to_host(whole_numbers(on, (40, 8), rank + number)) for rank in ranks)
        np.testing.assert_array_equal(on.to_host(array), total)
    away = sum(root not in (None, group.rank) for root in roots)
    assert told.words == away * 320 + 2 * 2 * 320 * (group.size - 1) // group.size and told.flight > 0


WAYS = {name: [{}] for name in ALGORITHMS}
for name in ("1d", "1.5d"):
    WAYS[name] = [{}, {"sparsity_aware": True}, {"sparsity_aware": "cover"}]
WAYS["rdm"] = [{}, {"sparsity_aware": True}]


@contextmanager
def host_memory_only():
    """Fail if MPI is given an array of a device."""
    given = Counter()

    @contextmanager
    def note(name, buffer, writes):
        given[type(buffer).__module__.partition(".")[0]] += 1
        yield lambda request: None

    communicators.witness.append(note)
    try:
        yield
    finally:
        communicators.witness.remove(note)
    assert not given["cupy"], given


def products(comm, way, name, sizes, A, X, wire, monkeypatch):
    """Return the bits of products in a row, of a matrix and its transpose, with overlap and without; and what
    the ledger was charged.
    """
    found, charged = [], []
    with gpu.backend(way, monkeypatch) as on:
        grid = make_grid(comm, name, sizes, backend=on, wire=wire)
        assert grid.transport == (NCCL if way == gpu.NCCL else STAGED)
        for options in WAYS[name]:
            operator = dg.distribute(A, grid, name, **options)
            H = dg.scatter(X, operator.input_layout)
            with host_memory_only() if way == gpu.NCCL else nullcontext(), dg.Ledger() as told:
                for grid.overlap in (True, True, False):
                    F = operator.T @ (operator @ H)
                    found.append(on.to_host(F.block).tobytes())
            charged.append(told.entries())
            if wire is None:
                whole = dg.gather(F)
                if grid.rank == 0:
                    np.testing.assert_allclose(whole, A.T @ (A @ X), rtol=1e-3, atol=1e-3)
        by_nccl = any("nccl" in name for name in sys.modules["cupy.stand_in"].launches())
        assert by_nccl == (way == gpu.NCCL and any(entry["words"] for some in charged for entry in some))
        grid.free()
    return found, charged


@pytest.mark.ranks(3, 4)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_products_have_the_bits_and_charges_of_host_copies(comm, name, monkeypatch):
    """A directed matrix with empty rows, on two grids; messages of more than 8 KiB, and some in 16 bits."""
    monkeypatch.setattr(TUNING, "small_sum", 0)
    monkeypatch.setenv("DISTGNN_SPMM_TUNE", "0")
    monkeypatch.setattr(TUNING, "smallest_sum_block_on_device", 1 << 13)
    random = np.random.default_rng(1)
    A = sp.random_array((601, 601), density=0.02, rng=random, format="csr", dtype=np.float32)
    A = (sp.diags_array((np.arange(601) % 7 > 2).astype(np.float32)) @ A).tocsr()
    X = random.standard_normal((601, 24)).astype(np.float32)
    for number, sizes in enumerate(grids(name, comm.size)[-2:]):
        wire = "bfloat16" if number else None
        for joined in (0, 1 << 30)[: 2 if name in SPARSITY_AWARE else 1]:
            monkeypatch.setattr(TUNING, "joined_panels_on_device", joined)
            both = (gpu.STAGED, gpu.NCCL)
            ways = [products(comm, way, name, sizes, A, X, wire, monkeypatch) for way in both]
            assert ways[0] == ways[1], (sizes, wire, joined)


def numbers(stage, size):
    return np.arange(size, dtype=np.float32) % 13 + 16 * stage


def relayed(grid, group, roots, sizes, order, takes=None, error_on=None, narrow=False):
    """Take panels, the next one under way; each is read on the device, by a kernel that the host is ahead of.

    Leave after so many of them, or by an error on a rank. Return whether they were right.
    """
    on = grid.backend
    turns = range(len(roots)) if order == "common" else upstream(group, roots)
    buffers = 2 if order == "common" else max(Counter(roots).values()) + 1
    right = on.zeros((len(roots), max(sizes) + 1), np.float32)
    with grid.workspace.rooms() as take:
        rooms = [take(f"panel {number}", (max(sizes) + 1,), np.float32) for number in range(buffers)]
        for room in rooms:
            room[...] = np.nan
        own = {k: on.asarray(numbers(k, sizes[k])) for k, root in enumerate(roots) if root == group.rank}
        panel = lambda k, buffer: own[k] if k in own else rooms[buffer][: sizes[k]]  # noqa: E731
        how = {"overlap": grid.overlap, "buffers": buffers, "narrow": narrow}
        with group.relay(roots, turns, panel, "H", **how) as panels:
            for number, (k, array) in enumerate(zip(turns, panels, strict=True)):
                right[k, : sizes[k]] = array
                if number + 1 == takes:
                    if group.rank == error_on:
                        raise ZeroDivisionError
                    break
        for room in [*rooms, *own.values()]:
            room[...] = np.nan
    numbers_of = on.to_host(right)
    seen = list(turns)[: takes or len(roots)]
    return all(np.array_equal(numbers_of[k, : sizes[k]], numbers(k, sizes[k])) for k in seen)


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize("order", ["common", "upstream"])
def test_panels(comm, queued, order):
    """Roots with several panels and with none, panels of no numbers, of few and of many, in 16 bits; ranks
    that leave after any number of them.
    """
    grid = dg.Grid(comm, backend=queued, wire="float16")
    group = grid.along("rows")
    for seed in range(6):
        random = np.random.default_rng(seed)
        uneven = np.sort(random.integers(0, group.size, 2 * group.size + 1))
        roots = (uneven if seed % 2 else np.arange(2 * group.size) % group.size).tolist()
        sizes = random.choice([0, 1, 33, 5000], len(roots)).tolist()
        grid.overlap = seed != 4
        early = int(random.integers(1, len(roots))) if group.rank == seed % group.size else None
        assert relayed(grid, group, roots, sizes, order)
        assert relayed(grid, group, roots, sizes, order, takes=early, narrow=seed < 2)
        with dg.Ledger(timing=True) as told:
            assert relayed(grid, group, roots, sizes, order)
        assert told.words == sum(n for n, root in zip(sizes, roots, strict=True) if root != group.rank)
        assert told.flight > 0 or not told.words
    grid.free()


@pytest.mark.ranks(3)
def test_nothing_is_queued_between_the_steps_of_a_relay_upstream(comm, queued):
    """Ranks with unequal numbers of panels are at different steps in the same turn."""
    grid = dg.Grid(comm, backend=queued)
    group, one = grid.along("rows"), queued.zeros((1,), np.float32)
    roots = [0, 0, 0, 1, 2]
    own = {k: queued.zeros((3,), np.float32) for k in range(5) if roots[k] == group.rank}
    rooms = [queued.zeros((3,), np.float32) for _ in range(4)]
    for order, buffers in ((range(5), 2), (upstream(group, roots), 4)):
        place = lambda k, buffer: own[k] if k in own else rooms[buffer]  # noqa: E731
        with group.relay(roots, order, place, "H", overlap=False, buffers=buffers) as panels:
            next(panels)
            if not isinstance(order, range):
                with pytest.raises(AssertionError, match="in another order than a relay's steps"):
                    grid.world.nccl.allreduce(one)
            for _ in panels:
                pass
        queued.follow(grid.world.nccl.allreduce(one))
    grid.free()


@pytest.mark.ranks(3)
@pytest.mark.abandons
def test_panels_after_an_error(comm, queued, monkeypatch):
    """Panels that the rank has not taken come all the same: the others' devices wait for them. They learn of
    its failure in the next operation.
    """
    monkeypatch.setattr(progress, "LONG", 0.3)
    grid = dg.Grid(comm, backend=queued)
    group, roots = grid.along("rows"), [0, 1, 2, 0, 1, 2]
    for order in ("common", "upstream"):
        for error_on, takes in ((0, 1), (1, 4), (2, 6)):
            takes = takes if group.rank == error_on else None
            with pytest.raises(ZeroDivisionError) if takes else nullcontext():
                assert relayed(grid, group, roots, [4000] * 6, order, takes, error_on)
            with nullcontext() if takes else pytest.raises(PeerError):
                assert takes or relayed(grid, group, roots, [4000] * 6, order)
            assert relayed(grid, group, roots, [4000] * 6, order)
    comm.Barrier()


def rows_with_error(grid, group, fail):
    mine, rooms = grid.backend.zeros((9,), np.float32), grid.backend.zeros((group.size, 9), np.float32)
    with group.exchange([(q, rooms[q]) for q in group.others()], "H") as exchange:
        for r in reversed(group.others()):
            if fail:
                raise ZeroDivisionError
            exchange.send(mine, r)


def sums_with_error(grid, group, fail):
    array = grid.backend.zeros((9,), np.float32)
    with group.sums(grid.workspace) as sums:
        sums.start(array)
        if fail:
            raise ZeroDivisionError
        sums.start(array, 0)


def sum_with_error(grid, group, fail):
    if fail:
        group.fail()
        raise ZeroDivisionError
    group.allreduce(grid.backend.zeros((9,), np.float32))
    grid.backend.synchronize()


def panel_with_error(grid, group, fail):
    array = grid.backend.zeros((9,), np.float32)

    def panel(stage, buffer):
        if fail:
            raise ZeroDivisionError
        return array

    with group.relay([0], range(1), panel, "H"):
        pass


@pytest.mark.ranks(3)
@pytest.mark.abandons
@pytest.mark.parametrize("work", [rows_with_error, sums_with_error, sum_with_error, panel_with_error])
def test_a_rank_that_fails_before_it_queues_its_part_is_noticed(comm, queued, work, monkeypatch):
    """The others' devices would wait for it for ever."""
    monkeypatch.setattr(progress, "LONG", 0.05)
    grid = dg.Grid(comm, backend=queued)
    group = grid.along("rows")
    with pytest.raises(PeerError if group.rank else ZeroDivisionError):
        work(grid, group, group.rank == 0)
    comm.Barrier()
    for _ in range(2):
        work(grid, group, False)
    total = group.allreduce(queued.asarray([1.0 * group.rank], np.float32))
    assert queued.to_host(total).tolist() == [3.0]
    comm.Barrier()


@pytest.mark.ranks(4)
@pytest.mark.abandons
def test_a_rank_that_fails_before_a_communicator_is_made_is_noticed(comm, queued, monkeypatch):
    """Ranks that make it raise, and a group without that rank does so in the next one that it makes."""
    monkeypatch.setattr(progress, "LONG", 0.05)
    grid = dg.Grid(comm, backend=queued, rows=2, cols=2)
    group, one = grid.along("cols"), queued.zeros((3,), np.float32)
    with pytest.raises(ZeroDivisionError if grid.rank == 3 else PeerError):
        if grid.rank == 3:
            grid.links.fail()
            raise ZeroDivisionError
        group.allreduce(one)
        assert grid.rank < 2, "rank 2 waits for rank 3"
        grid.world.allreduce(one)
    comm.Barrier()
    ranks = queued.asarray([1.0 * grid.rank], np.float32)
    assert queued.to_host(grid.world.allreduce(ranks.copy())).tolist() == [6.0]
    assert queued.to_host(group.allreduce(ranks)).tolist() == [1.0 if grid.rank < 2 else 5.0]
    comm.Barrier()


@pytest.mark.ranks(4)
def test_a_communicator_that_cannot_be_made_is_an_error_everywhere(comm, queued, monkeypatch):
    """One rank's library fails; the next use tries again."""
    grid, one = dg.Grid(comm, backend=queued), queued.zeros((3,), np.float32)

    def lacking():
        raise RuntimeError("NCCL_ERROR_INTERNAL_ERROR: no socket")

    with monkeypatch.context() as patch:
        if grid.rank == 0:
            patch.setattr(queued.nccl(), "get_unique_id", lacking)
        with pytest.raises(dg.UserError, match="NCCL does not connect the ranks; .* no socket"):
            grid.world.bcast(one, 0)
    grid.world.bcast(one, 0)
    grid.free()


#: By algorithm and grid: the ranks in each communicator that a product makes, that of its adjoint makes
#: beside, and in those of all groups of the grid, which were made with it before.
COMMUNICATORS = [
    ("1d", {"rows": 4}, [4], [], [4, 4]),
    ("1.5d", {"rows": 2, "reps": 2}, [2, 2], [], [4, 2, 2]),
    ("2d", {"rows": 2, "cols": 2}, [2, 2], [], [4, 2, 2]),
    ("3d", {"x": 2, "y": 1, "z": 2}, [2, 2], [], [4, 2, 2]),
]


@pytest.mark.ranks(4)
def test_communicators_are_made_when_they_are_first_used(comm, queued, change):
    library, made = queued.nccl(), []
    connect = library.NcclCommunicator
    change.setattr(library, "NcclCommunicator", lambda size, *how: made.append(size) or connect(size, *how))
    change.setattr(TUNING, "small_sum", 0)
    A = sp.random_array((61, 61), density=0.2, rng=np.random.default_rng(1), format="csr", dtype=np.float32)
    for name, sizes, forward, back, groups in COMMUNICATORS:
        made.clear()
        grid = make_grid(comm, name, sizes, backend=queued)
        operator = dg.distribute(A, grid, name)
        H = dg.scatter(np.ones((61, 5), np.float32), operator.input_layout)
        assert not made
        for _ in range(2):
            Z = operator @ H
            assert sorted(made) == forward, name
        operator.T @ Z
        assert sorted(made) == sorted(forward + back), name
        of_several = [group.size for _, _, group in grid.links._groups if group.size > 1]
        assert sorted(of_several) == sorted(groups), name
        grid.free()


@pytest.mark.ranks(2)
def test_ranks_that_ask_for_different_transports_are_refused(comm, queued, change):
    change.setenv("DISTGNN_TRANSPORT", ("nccl", "host")[comm.Get_rank()])
    with pytest.raises(DisagreementError, match="DISTGNN_TRANSPORT is nccl on rank 0 and host on rank 1"):
        dg.Grid(comm, backend=queued)


@pytest.mark.ranks(3)
def test_all_ranks_choose_alike(comm, queued, change, caplog):
    """One rank lacks something: none takes it. Where it is asked for, all raise the same error."""
    odd = comm.Get_rank() == 1

    def chosen(asked):
        if asked:
            change.setenv("DISTGNN_TRANSPORT", asked)
        else:
            change.delenv("DISTGNN_TRANSPORT")
        grid = dg.Grid(comm, backend=queued)
        grid.free()
        return grid.transport

    assert [chosen(asked) for asked in ("nccl", "", "mpi", "host")] == [NCCL, NCCL, STAGED, STAGED]
    change.setattr(transport, "_cuda_aware_once", lambda: not odd)
    assert [chosen(asked) for asked in ("nccl", "", "mpi", "host")] == [NCCL, NCCL, STAGED, STAGED]
    change.setattr(transport, "_cuda_aware_once", lambda: True)
    assert [chosen(asked) for asked in ("nccl", "", "mpi", "host")] == [NCCL, DIRECT, DIRECT, STAGED]
    change.setattr(transport, "_cuda_aware_once", lambda: False)
    with change.context() as patch:
        library = queued.nccl()
        patch.setattr(queued, "nccl", lambda: None if odd else library)
        assert chosen("") == STAGED
        with pytest.raises(dg.UserError, match="=nccl: CuPy finds no NCCL .* rank 1; pip install nvidia-n"):
            chosen("nccl")
    with change.context() as patch:

        def refused(size, name, rank):
            raise RuntimeError("NCCL_ERROR_SYSTEM_ERROR: no network")

        patch.setattr(library, "NcclCommunicator", refused)
        assert chosen("nccl") == NCCL
        grid = dg.Grid(comm, backend=queued)
        with pytest.raises(dg.UserError, match="DISTGNN_TRANSPORT=host does without it: .*no network"):
            grid.world.bcast(queued.zeros((3,), np.float32), 0)
    with change.context() as patch:
        patch.setattr(queued, "devices", lambda: ["0000:07:00.0"])
        assert chosen("") == STAGED
        with pytest.raises(dg.UserError, match="GPU of its own; ranks 0-2 share 0000:07:00.0; unset DIST"):
            chosen("nccl")
    with pytest.raises(dg.UserError, match="DISTGNN_TRANSPORT=nvlink: expected mpi, host or nccl"):
        chosen("nvlink")
    change.setenv("DISTGNN_TRANSPORT", "nccl")
    change.setenv("DISTGNN_NCCL", "1")
    assert dg.Grid(comm, backend="numpy").transport == "host"
    assert ("NCCL is not read any more: it is DISTGNN_TRANSPORT" in caplog.text) == (comm.Get_rank() == 0)
    assert ("is for arrays of a GPU" in caplog.text) == (comm.Get_rank() == 0)


def test_devices_are_told_apart_by_node():
    means = [Means(False, True, (node, "0000:07:00.0")) for node in (0, 8)]
    assert transport.choose("", means) == NCCL
    assert transport.choose("", [*means, means[0]]) == STAGED


@pytest.mark.ranks(2)
@pytest.mark.abandons
def test_the_stand_in_refuses_calls_that_do_not_match(comm, queued, monkeypatch):
    from cupy.cuda import nccl

    grid = dg.Grid(comm, backend=queued, rows=2, cols=1)
    one, other = grid.world.nccl, grid.along("rows").nccl
    array = queued.zeros((4,), np.float32)
    monkeypatch.setattr(nccl, "LIMIT", 0.5)
    first, second = (
        lambda one, other: (one.bcast((array, 0)), other.bcast((array, 0))),
        lambda one, other: (other.bcast((array, 0)), one.bcast((array, 0))),
    )
    for calls in (
        (lambda one, other: one.allreduce(array), lambda one, other: one.allreduce(array[:3])),
        (lambda one, other: one.bcast((array, 0)), lambda one, other: one.bcast((array, 1))),
        (lambda one, other: one.swap([(array, 1)], []), lambda one, other: one.swap([], [(array[1:], 0)])),
        (first, second),
    ):
        failed = False
        try:
            calls[grid.rank](one, other)
        except nccl.NcclError:
            failed = True
        assert any(comm.allgather(failed))
        one.abort(), other.abort()
        comm.Barrier()
        one.abort(), other.abort()
        grid.links.fail()
        comm.Barrier()
        one, other = grid.world.nccl, grid.along("rows").nccl
    comm.Barrier()
