"""The stand-in for CuPy: what it refuses, what it calls a hazard, and its NCCL."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from mpi4py import MPI

from distgnn.arrays import backend

SEVERAL_BLOCKS = """
__global__ void scaled(int size, float factor, const float* from, float* to) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < size) to[i] = factor * from[i];
}
"""
ONE_WAY = pytest.mark.parametrize("stand_in", ["cupy"], indirect=True)


@pytest.fixture
def cupy(stand_in):
    import cupy

    return cupy


def test_it_is_there_only_where_it_is_asked_for():
    assert importlib.util.find_spec("cupy") is None
    assert backend.get().name == "numpy"


@ONE_WAY
@pytest.mark.parametrize(
    "mistake",
    [
        lambda cupy, x: np.asarray(x),
        lambda cupy, x: x + np.ones(4),
        lambda cupy, x: np.ones(4) * x,
        lambda cupy, x: cupy.add(x, x, out=np.ones(4)),
        lambda cupy, x: cupy.concatenate([x, np.ones(4)]),
        lambda cupy, x: cupy.sum(x, where=True),
        lambda cupy, x: x.sum(initial=0),
        lambda cupy, x: x.partition_by(3),
        lambda cupy, x: cupy.nanargmax_of(x),
        lambda cupy, x: cupy.ascontiguousarray(np.ones(4)),
        lambda cupy, x: x.get(out=np.ones(4, np.float32)),
        lambda cupy, x: x.set([1, 2, 3, 4]),
        lambda cupy, x: bool(x),
    ],
)
def test_what_cupy_refuses(cupy, mistake):
    with pytest.raises((TypeError, AttributeError)):
        mistake(cupy, cupy.ones(4))


@ONE_WAY
def test_arrays_are_given_in_the_type_that_is_asked_for(cupy):
    """A type of NumPy equals None where it is float64."""
    for kind in (np.float64, np.dtype(np.float64), "float64", np.dtype(np.float32), None):
        x = cupy.ones(4, np.float32)
        for given in (cupy.asarray(x, kind), cupy.ascontiguousarray(x, kind), cupy.array(x, kind)):
            assert given.dtype == np.dtype(kind or np.float32)


@ONE_WAY
@pytest.mark.parametrize("ordered", ["by an event", "by the host", "by a look at an event", "by turns", None])
def test_streams_are_in_order_only_where_somebody_says_so(cupy, stand_in, ordered):
    """Stream 0 takes turns with others, but for those that do not block."""
    side = cupy.cuda.Stream(non_blocking=ordered != "by turns")
    x = cupy.ones(4)
    event = cupy.cuda.get_current_stream().record()
    if ordered == "by an event":
        side.wait_event(event)
    elif ordered == "by the host":
        event.synchronize()
    elif ordered == "by a look at an event":
        while not event.done:
            pass
    with side, stand_in.observed() as seen:
        x += 1
    assert bool(seen.hazards) == (ordered is None)
    stand_in.reset()


@ONE_WAY
def test_work_of_two_streams_runs_beside_each_other(cupy, stand_in):
    side = cupy.cuda.Stream(non_blocking=True)
    x, y = cupy.ones(4), cupy.ones(4)
    cupy.cuda.Device().synchronize()
    with stand_in.observed() as seen:
        x += 1
        with side:
            y *= 2
        cupy.cuda.get_current_stream().wait_event(side.record())
        x -= y
    first, beside, last = seen.log
    assert stand_in.beside(first, beside)
    assert not stand_in.beside(first, last) and not stand_in.beside(beside, last)


@ONE_WAY
@pytest.mark.parametrize("waits", [True, False])
def test_memory_is_lent_again_while_another_stream_reads_it(cupy, stand_in, waits):
    side = cupy.cuda.Stream(non_blocking=True)
    x, y = cupy.ones(1000), cupy.empty(1000)
    cupy.cuda.Device().synchronize()
    with side:
        cupy.add(x, 1, out=y)
    if waits:
        cupy.cuda.get_current_stream().wait_event(side.record())
    del x
    with stand_in.observed() as seen:
        cupy.ones(1000)
    assert bool(seen.hazards) != waits
    stand_in.reset()


@pytest.mark.ranks(2)
@ONE_WAY
def test_memory_that_a_message_is_in(comm, cupy, stand_in):
    """Memory being sent may be read, but not written; memory being received may not be touched."""
    x, y = cupy.ones(4), cupy.zeros(4)
    pinned = np.frombuffer(cupy.cuda.alloc_pinned_memory(32), np.float64, 4)
    x.get(out=pinned)
    cupy.cuda.get_current_stream().synchronize()
    comm.Barrier()
    requests = [comm.Irecv(y, 1 - comm.rank, 1), comm.Isend(x, 1 - comm.rank, 1)]
    requests.append(comm.Isend(pinned, 1 - comm.rank, 2))
    found = []
    for touch in (lambda: x + 1, lambda: x.fill(2), lambda: y + 1, lambda: x.get(out=pinned)):
        with stand_in.observed() as seen:
            touch()
        found.append(len(seen.hazards))
    comm.Recv(np.empty(4), 1 - comm.rank, 2)
    MPI.Request.Waitall(requests)
    with stand_in.observed() as seen:
        y += 1
    assert found == [0, 1, 1, 1] and not seen.hazards
    stand_in.reset()


@ONE_WAY
@pytest.mark.parametrize("sanitized", [False, True])
def test_kernels_are_emulated(cupy, stand_in, sanitized):
    stand_in.EMULATION.sanitized = sanitized
    x, y = cupy.arange(600, dtype=np.float32), cupy.empty(600, np.float32)
    kernel = cupy.RawModule(code=SEVERAL_BLOCKS).get_function("scaled")
    with stand_in.observed() as seen:
        kernel((3,), (256,), (np.int32(600), np.float32(2), x, y))
    np.testing.assert_array_equal(y.get(), 2 * np.arange(600, dtype=np.float32))
    assert seen.launches == {"scaled": 1} and stand_in.EMULATION.kernels == ["scaled"]


@ONE_WAY
@pytest.mark.parametrize("ahead", [1, 16])
def test_what_kernels_write_beside_arrays_is_seen(cupy, ahead):
    x, y = cupy.ones(600, np.float32), cupy.empty(600 - ahead, np.float32)
    kernel = cupy.RawModule(code=SEVERAL_BLOCKS).get_function("scaled")
    with pytest.raises(RuntimeError, match="scaled has written beside an array"):
        kernel((3,), (256,), (np.int32(600), np.float32(2), x, y))


@ONE_WAY
def test_kernels_that_no_gpu_was_compiled_for_are_refused(stand_in):
    from distgnn.local.cuda import launch

    on, numbers = backend.get("cupy"), np.zeros(4, np.float32)
    with pytest.raises(RuntimeError, match=r"add_rows<float,64>: not in distgnn/local/cuda/instances.py"):
        arguments = on.asarray(np.arange(2)), on.asarray(numbers), np.int32(1), on.asarray(numbers)
        launch.launch(on.xp, "rows.cu", "add_rows<float,64>", 1, np.int64(2), *arguments)


@pytest.mark.ranks(1, 3)
@ONE_WAY
def test_nccl(comm, cupy, stand_in):
    nccl, rank, size = cupy.cuda.nccl, comm.rank, comm.size
    ours = nccl.NcclCommunicator(size, comm.bcast(nccl.get_unique_id()), rank)
    stream = cupy.cuda.get_current_stream().ptr
    mine = cupy.arange(size * 2, dtype=np.float32) + 10 * rank
    everybodys = np.arange(size * 2, dtype=np.float32) + 10 * np.arange(size)[:, None]
    total, part, whole = cupy.empty_like(mine), mine[:2].copy(), cupy.empty((size, size * 2), np.float32)
    at = lambda x: x.data.ptr  # noqa: E731
    kind = nccl.NCCL_FLOAT32

    ours.allReduce(at(mine), at(total), size * 2, kind, nccl.NCCL_SUM, stream)
    np.testing.assert_array_equal(total.get(), everybodys.sum(axis=0))
    ours.reduceScatter(at(mine), at(part), 2, kind, nccl.NCCL_MAX, stream)
    np.testing.assert_array_equal(part.get(), everybodys.max(axis=0)[2 * rank : 2 * rank + 2])
    ours.allGather(at(mine), at(whole), size * 2, kind, stream)
    np.testing.assert_array_equal(whole.get(), everybodys)
    ours.broadcast(at(mine), at(total), size * 2, kind, size - 1, stream)
    np.testing.assert_array_equal(total.get(), everybodys[size - 1])
    nccl.groupStart()
    ours.send(at(mine), size * 2, kind, (rank + 1) % size, stream)
    ours.recv(at(total), size * 2, kind, (rank - 1) % size, stream)
    nccl.groupEnd()
    np.testing.assert_array_equal(total.get(), everybodys[rank - 1])
    ours.destroy()


@ONE_WAY
def test_a_graph_does_again_what_was_captured(cupy, stand_in):
    """Nothing is done in the capture. Numbers stay as they were then, what is in memory is read anew."""
    x, number, pool = cupy.arange(4.0), 2.0, cupy.cuda.MemoryPool()
    stream = cupy.cuda.Stream(non_blocking=True)
    kernel = cupy.RawModule(code=SEVERAL_BLOCKS, options=("--std=c++17",)).get_function("scaled")
    y, z = cupy.ones(4, np.float32), cupy.zeros(4, np.float32)
    cupy.cuda.Device().synchronize()
    with stream, cupy.cuda.using_allocator(pool.malloc):
        stream.begin_capture()
        doubled = x * number
        x += 1
        kernel((1,), (32,), (np.int32(4), np.float32(number), y, z))
        graph = stream.end_capture()
    number = 3.0
    assert x.get().tolist() == [0, 1, 2, 3] and np.isnan(doubled.get()).all() and not z.get().any()
    with stream, stand_in.observed() as seen:
        graph.launch()
        y += 1
        graph.launch()
    stream.synchronize()
    assert doubled.get().tolist() == [2, 4, 6, 8] and x.get().tolist() == [2, 3, 4, 5]
    assert z.get().tolist() == [4] * 4 and number == 3.0
    assert seen.counts["launches"] == 3 and seen.counts["replayed"] == 6


@ONE_WAY
def test_a_graph_keeps_no_memory(cupy):
    stream = cupy.cuda.Stream(non_blocking=True)
    x = cupy.ones(4)
    cupy.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        y = x + 1
        x[...] = y
        graph = stream.end_capture()
        graph.launch()
        assert y.get().tolist() == [2] * 4
        del y
        with pytest.raises(RuntimeError, match="a graph uses memory that was freed"):
            graph.launch()


@ONE_WAY
@pytest.mark.parametrize(
    "mistake",
    [
        lambda cupy, stream, x: float(x[0]),
        lambda cupy, stream, x: x.get(),
        lambda cupy, stream, x: x.set(np.ones(4)),
        lambda cupy, stream, x: cupy.asarray(np.ones(4)),
        lambda cupy, stream, x: stream.synchronize(),
        lambda cupy, stream, x: cupy.cuda.Event().record(),
        lambda cupy, stream, x: x.reshape(2, 2) @ x.reshape(2, 2),
        lambda cupy, stream, x: cupy.bincount(x.astype(np.int64)),
        lambda cupy, stream, x: stream.begin_capture(),
    ],
)
def test_what_a_capture_refuses(cupy, mistake):
    stream = cupy.cuda.Stream(non_blocking=True)
    x = cupy.ones(4)
    cupy.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        with pytest.raises((RuntimeError, NotImplementedError, ValueError)):
            mistake(cupy, stream, x)
        stream.end_capture()
