"""Collectives on arrays: values, in parts, staged, added on the device, charged, and errors on every rank."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest

import distgnn as dg
from distgnn.arrays.tuning import TUNING
from distgnn.comm.group import Comm
from distgnn.comm.transport import cuda_aware
from distgnn.layout import partition

pytestmark = pytest.mark.ranks(1, 3, 4, 6)


class StagedBackend(dg.backend.Backend):
    """Host arrays that pretend to be on a device, so that their paths run where there is no GPU."""

    on_device = True

    def __init__(self):
        self.copies = 0

    def pinned(self, shape, dtype):
        self.copies += 1
        return super().pinned(shape, dtype)


@pytest.fixture(params=["plain", "pieces", "staged", "direct", "direct in pieces"])
def group(request, comm, backend, monkeypatch):
    """Make a Comm, once for each way in which it can move arrays."""
    direct = {"staged": False, "direct": True, "direct in pieces": True}.get(request.param)
    made = Comm(comm, backend if backend.on_device or direct is None else StagedBackend())
    if not backend.on_device:
        made.direct = direct is not False
    elif direct not in (None, made.direct):
        pytest.skip("this MPI moves device arrays in the other way")
    if request.param.startswith("direct") or (request.param == "pieces" and backend.on_device):
        monkeypatch.setattr(TUNING, "small_sum", 0)
        monkeypatch.setattr(TUNING, "sum_chunk", 64)
    if "pieces" in request.param:
        monkeypatch.setattr(Comm, "count_limit", 3)
    return made


def mine(group, shape, dtype=np.float64):
    """Return small integers that differ from rank to rank, so that sums are exact."""
    values = np.arange(int(np.prod(shape))).reshape(shape) % 11 + 100 * group.rank
    return group.backend.asarray(values.astype(dtype))


def test_bcast(group):
    for dtype in (np.float32, np.float64, np.int32, np.int64, np.uint8):
        for root in {0, group.size - 1}:
            for shape in ((0,), (1,), (7, 3)):
                array = group.backend.asarray(np.full(shape, group.rank + 1, dtype))
                assert group.bcast(array, root) is array
                np.testing.assert_array_equal(group.backend.to_host(array), np.full(shape, root + 1, dtype))


def test_allreduce(group):
    for op in ("sum", "max", "min"):
        for shape in ((0, 4), (1,), (5, 3)):
            array = mine(group, shape)
            everyone = np.stack(
                [np.arange(int(np.prod(shape))).reshape(shape) % 11 + 100 * r for r in range(group.size)]
            )
            assert group.allreduce(array, op) is array
            np.testing.assert_array_equal(group.backend.to_host(array), getattr(everyone, op)(axis=0))


def test_allreduce_is_bitwise_equal_everywhere(group):
    array = group.backend.asarray(np.random.default_rng(group.rank).standard_normal(97))
    group.allreduce(array)
    copies = group.gather_objects(group.backend.to_host(array).tobytes())
    assert len(set(copies)) == 1


def uneven(size):
    """Return a partition with row counts 0, 1, 2, …: the first block is empty."""
    return np.concatenate([[0], np.cumsum(np.arange(size))]).astype(np.int64)


def test_allgather_rows(group):
    for width in (0, 1, 3):
        for parts in (uneven(group.size), partition(7, group.size)):
            height = int(parts[group.rank + 1] - parts[group.rank])
            whole = group.backend.to_host(group.allgather_rows(mine(group, (height, width)), parts))
            for rank in range(group.size):
                rows = whole[parts[rank] : parts[rank + 1]]
                np.testing.assert_array_equal(
                    rows, np.arange(rows.size).reshape(rows.shape) % 11 + 100 * rank
                )


def test_reduce_scatter_rows(group):
    for width in (0, 1, 3):
        for parts in (uneven(group.size), partition(7, group.size)):
            height = int(parts[-1])
            kept = group.backend.to_host(group.reduce_scatter_rows(mine(group, (height, width)), parts))
            base = np.arange(height * width).reshape(height, width) % 11
            expected = sum(base + 100 * r for r in range(group.size)) if height else base
            np.testing.assert_array_equal(kept, expected[parts[group.rank] : parts[group.rank + 1]])


def test_large_sums_are_scattered_a_chunk_at_a_time(group, monkeypatch):
    """In the order of the ranks, to the bit, not by an MPI that takes room for a whole part."""
    for limit in ("sum_chunk", "small_sum"):
        monkeypatch.setattr(TUNING, limit, 64)
    monkeypatch.setattr(group, "_reduce_scatter", None)
    height, rng = 40 * group.size, np.random.default_rng(0)
    for dtype in (np.float32, np.float64):
        numbers = rng.standard_normal((group.size, height, 3)).astype(dtype)
        expected = numbers[0]
        for other in numbers[1:]:
            expected = expected + other
        for parts in (partition(height, group.size), np.r_[np.zeros(group.size, int), height]):
            array = group.backend.asarray(numbers[group.rank].copy())
            part = group.backend.to_host(group.reduce_scatter_rows(array, parts))
            np.testing.assert_array_equal(part, expected[parts[group.rank] : parts[group.rank + 1]])


def test_send_and_receive(group):
    if group.rank == 0:
        for rank in range(1, group.size):
            group.send(mine(group, (rank, 2)), rank)
    else:
        array = group.receive(group.backend.empty((group.rank, 2), np.float64), 0)
        np.testing.assert_array_equal(
            group.backend.to_host(array), np.arange(2 * group.rank).reshape(-1, 2) % 11
        )


def test_ledger_charges_the_bandwidth_optimal_form(group):
    p, rank = group.size, group.rank
    parts = uneven(p)
    own, total = int(parts[rank + 1] - parts[rank]), int(parts[-1])
    cases = {
        "bcast": (lambda: group.bcast(mine(group, (5, 3)), 0), 15 * (rank != 0), int(rank != 0)),
        "allreduce": (
            lambda: group.allreduce(mine(group, (5, 3))),
            Fraction(2 * (p - 1), p) * 15,
            2 * (p - 1),
        ),
        "allgather": (lambda: group.allgather_rows(mine(group, (own, 3)), parts), (total - own) * 3, p - 1),
        "reduce_scatter": (
            lambda: group.reduce_scatter_rows(mine(group, (total, 3)), parts),
            Fraction(p - 1, p) * total * 3,
            p - 1,
        ),
    }
    for name, (run, words, messages) in cases.items():
        with dg.Ledger() as ledger:
            run()
        assert ledger.words == round(words), name
        assert ledger.bytes == round(words * 8), name
        assert (ledger.calls, ledger.messages) == (1, messages), name
        assert [entry["operation"] for entry in ledger.entries()] == [name]


def test_every_array_is_counted_in_parts_and_an_empty_one_in_one(group):
    """Both ends of a message must agree on how many there are."""
    for size, limit in ((0, 3), (3, 3), (7, 3)):
        group.count_limit = limit
        parts = list(group.countable(group.backend.asarray(np.arange(size))))
        assert len(parts) == max(1, -(-size // limit)) and sum(part.size for part in parts) == size


def test_waiting_is_timed_once(group, monkeypatch):
    """A collective of two buffers is one region of time: seconds never exceed the wall clock, and bear the
    collective's name.
    """
    monkeypatch.setattr(TUNING, "small_sum", 1 << 16)  # whoever waits for messages reads the clock more often
    parts = partition(6, group.size)
    runs = {
        "bcast": lambda: group.bcast(mine(group, (6, 2)), 0),
        "allreduce": lambda: group.allreduce(mine(group, (6, 2))),
        "allgather": lambda: group.allgather_rows(mine(group, (int(np.diff(parts)[group.rank]), 2)), parts),
        "reduce_scatter": lambda: group.reduce_scatter_rows(mine(group, (6, 2)), parts),
    }
    for name, run in runs.items():
        ticks = iter(range(1000))
        clock = SimpleNamespace(perf_counter=lambda ticks=ticks: float(next(ticks)))
        monkeypatch.setattr("distgnn.ledger.regions.time", clock)
        with dg.Ledger(timing=True) as ledger:
            run()
        assert ledger.seconds["comm"] == (group.size > 1), name
        assert [entry["operation"] for entry in ledger.entries()] == [name]


def test_staged_arrays_take_a_pinned_copy(comm):
    group = Comm(comm, StagedBackend())
    group.direct = False
    array = mine(group, (4, 2))
    group.allreduce(array)
    assert group.backend.copies == (group.size > 1)


def test_arrays_in_fortran_order_are_refused(group):
    if group.size == 1:
        pytest.skip("nothing travels")
    wrong = group.backend.asarray(np.zeros((4, 3))).T
    for run in (lambda: group.bcast(wrong, 0), lambda: group.allreduce(wrong)):
        with pytest.raises(ValueError, match="C-contiguous"):
            run()


@pytest.mark.parametrize("operation", ["allgather_rows", "reduce_scatter_rows"])
def test_rows_that_do_not_fit_the_partition_are_refused(group, operation):
    with pytest.raises(ValueError, match="rows given"):
        getattr(group, operation)(mine(group, (5, 2)), np.arange(group.size + 1) * 4)


def test_together_raises_everywhere(group):
    last = group.size - 1
    with pytest.raises(RuntimeError if last else KeyError) as caught, group.together():
        if group.rank == last:
            raise KeyError("lost") if last == 0 else RuntimeError("lost")
    assert "lost" in str(caught.value)


def test_together_keeps_user_errors(group):
    with pytest.raises(dg.UserError, match="wrong flag"), group.together():
        if group.rank == group.size - 1:
            raise dg.UserError("wrong flag")
    with group.together():
        pass  # and nothing is left over
    assert group.share(group.rank, root=0) == 0


def test_together_after_a_failure_communicates_again(group):
    with pytest.raises(dg.UserError), group.together():
        raise dg.UserError("everybody")
    assert group.gather_objects(group.rank) == list(range(group.size))


@pytest.mark.parametrize(("value", "answer"), [("1", True), ("yes", True), ("0", False), ("false", False)])
def test_cuda_awareness_can_be_overridden(value, answer):
    assert cuda_aware({"DISTGNN_CUDA_AWARE": value}) == (answer, "DISTGNN_CUDA_AWARE")


def test_cuda_awareness_override_must_make_sense():
    with pytest.raises(dg.UserError, match="DISTGNN_CUDA_AWARE=maybe"):
        cuda_aware({"DISTGNN_CUDA_AWARE": "maybe"})


def test_cuda_awareness_gives_its_reason():
    answer, reason = cuda_aware({})
    assert isinstance(answer, bool) and reason


@pytest.mark.parametrize("query", [0, 1, None])
def test_a_yes_to_device_pointers_counts_whoever_says_it(monkeypatch, query):
    """MPICH_GPU_SUPPORT_ENABLED=1 where the query says no, or is not there; the override wins over all."""
    library = SimpleNamespace() if query is None else SimpleNamespace(MPIX_Query_cuda_support=lambda: query)
    monkeypatch.setattr("ctypes.CDLL", lambda path: library)
    assert cuda_aware({})[0] == bool(query)
    assert cuda_aware({"MPICH_GPU_SUPPORT_ENABLED": "0"})[0] == bool(query)
    assert cuda_aware({"MPICH_GPU_SUPPORT_ENABLED": "1"})[0]
    assert not cuda_aware({"MPICH_GPU_SUPPORT_ENABLED": "1", "DISTGNN_CUDA_AWARE": "0"})[0]
