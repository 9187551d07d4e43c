"""Ranks, coordinates and sub-communicators."""

from __future__ import annotations

import itertools
import os

import numpy as np
import pytest
from mpi4py import MPI

import distgnn as dg
from chosen_grids import some_grids
from distgnn.arrays import backend as backends
from distgnn.comm import launch
from distgnn.comm.devices import Sight, assign, is_near
from distgnn.errors import DisagreementError
from distgnn.operators import grids, make_grid
from distgnn.operators.split_3d import Split3D


@pytest.mark.ranks(1, 4, 6, 12)
def test_coordinates_count_the_last_axis_fastest(comm, backend):
    for shape in some_grids("3d", comm.Get_size()):
        grid = dg.Grid(comm, backend=backend, **shape)
        everyone = grid.world.gather_objects(tuple(grid.coords.values()))
        assert everyone == list(itertools.product(*map(range, shape.values())))
        assert grid.index(*shape) == grid.rank
        grid.along("y"), grid.along("x", "z")
        for axes in (("x",), ("z", "x"), ("y", "x", "z"), ()):
            group = grid.along(*axes)
            assert group is grid.along(*axes)
            assert (group.rank, group.size) == (grid.index(*axes), grid.count(*axes))
            fixed = {axis: place for axis, place in grid.coords.items() if axis not in axes}
            members = group.gather_objects(grid.coords)
            assert all(member | fixed == member for member in members)
            assert list(group.ranks) == group.gather_objects(grid.rank)


@pytest.mark.ranks(1, 3, 4, 12)
def test_sizes_must_multiply_to_the_ranks(comm):
    size = comm.Get_size()
    for axes in ({"rows": size + 1}, {"rows": size, "cols": 2}, {"rows": -size, "cols": -1}):
        with pytest.raises(dg.UserError, match=f"the {size} ranks"):
            dg.Grid(comm, **axes)


@pytest.mark.ranks(4, 12)
def test_an_impossible_grid_lists_the_possible_ones(comm):
    size = comm.Get_size()
    with pytest.raises(dg.UserError) as error:
        make_grid(comm, "2d", {"rows": 5})
    assert f"1x{size}" in str(error.value) and f"2x{size // 2}" in str(error.value)
    with pytest.raises(dg.UserError, match="replication=5") as error:
        make_grid(comm, "1.5d", replication=5)
    assert f"{size // 2}x2" in str(error.value)
    with pytest.raises(dg.UserError, match="replication=2: 2d keeps no copies"):
        make_grid(comm, "2d", replication=2)
    with pytest.raises(
        dg.UserError, match=r"grid=fibers=2: not for algorithm 2d .* possible \(rows x cols\)"
    ):
        make_grid(comm, "2d", {"fibers": 2})
    with pytest.raises(dg.UserError, match="algorithm=4d: no such algorithm; expected one of 1d"):
        make_grid(comm, "4d")


@pytest.mark.ranks(4)
def test_replication_and_grid_must_agree(comm):
    assert make_grid(comm, "1.5d", {"rows": 2, "reps": 2}, replication=2).shape == {"rows": 2, "reps": 2}
    with pytest.raises(dg.UserError, match=r"replication=2: the grid has reps=1"):
        make_grid(comm, "1.5d", {"rows": 4, "reps": 1}, replication=2)


@pytest.mark.ranks(4, 12)
def test_axes_stand_in_the_order_in_which_they_are_named(comm):
    """Named axes take the places of one another; the others stay."""
    P = comm.Get_size()

    def order(name, sizes, replication=None):
        return ",".join(make_grid(comm, name, sizes, replication, "numpy").shape)

    for named in itertools.permutations({"z": 1, "x": P, "y": 1}.items()):
        assert order("3d", dict(named)) == ",".join(axis for axis, _ in named)
    assert order("3d", {"z": 2, "x": 2}) == "z,y,x" and order("3d", {"z": 2, "y": 2}) == "x,z,y"
    assert order("3d", {"x": 2}) == order("3d", None) == "x,y,z"
    assert order("2d", {"cols": 2, "rows": P // 2}) == "cols,rows" and order("2d", {"cols": 2}) == "rows,cols"
    assert order("1.5d", {"reps": 2, "rows": P // 2}, replication=2) == "reps,rows"
    assert order("1.5d", {"rows": P // 2}, replication=2) == order("1.5d", None, 2) == "rows,reps"


@pytest.mark.ranks(2)
def test_ranks_that_order_axes_differently_are_refused(comm):
    sizes = {"rows": 1, "cols": 2} if comm.Get_rank() else {"cols": 2, "rows": 1}
    for make in (lambda: make_grid(comm, "2d", sizes), lambda: dg.Grid(comm, **sizes)):
        with pytest.raises(DisagreementError, match="grid is cols=2,rows=1 on rank 0 and rows=1,cols=2"):
            make()


@pytest.mark.ranks(2, 6)
def test_a_grid_that_an_algorithm_cannot_use_is_refused_by_its_operator(comm, monkeypatch):
    """An algorithm of a user's own may leave grids out."""
    fibers = staticmethod(lambda ranks: [{"rows": 1, "cols": 1, "fibers": ranks}])
    monkeypatch.setattr(Split3D, "grids", fibers)
    grid = dg.Grid(comm, rows=comm.Get_size(), cols=1, fibers=1)
    with pytest.raises(dg.UserError, match=rf"not for algorithm 3d-split.*1x1x{comm.Get_size()}"):
        dg.distribute(np.eye(12), grid, "3d-split")


@pytest.mark.ranks(2)
@pytest.mark.slow
def test_grids_do_not_use_up_communicators(comm):
    """MPICH has room for about two thousand: all but 60 are taken here."""
    taken = []
    try:
        with pytest.raises(MPI.Exception):
            while True:
                taken.append(comm.Dup())
        for _ in range(60):
            taken.pop().Free()
        for _ in range(60):
            grid = dg.Grid(comm, rows=comm.Get_size(), cols=1)
            grid.along("rows"), grid.along("cols"), grid.along()
            grid.free()
    finally:
        for communicator in taken:
            communicator.Free()


@pytest.mark.ranks(1, 4)
def test_a_grid_has_a_communicator_of_its_own(comm):
    """A message of the caller's with any tag is not taken for one of ours."""
    if comm.Get_size() > 1 and comm.Get_rank() == 0:
        pending = comm.isend("the caller's", dest=1, tag=0)
    grid = dg.Grid(comm, rows=comm.Get_size())
    H = dg.scatter(np.arange(24.0).reshape(12, 2), dg.Layout(grid, dg.Cut(("rows",)), dg.Cut()))
    whole = dg.gather(H)
    if comm.Get_size() > 1 and comm.Get_rank() == 0:
        np.testing.assert_array_equal(whole, np.arange(24.0).reshape(12, 2))
        pending.wait()
    elif comm.Get_rank() == 1:
        assert comm.recv(source=0, tag=0) == "the caller's"


@pytest.mark.ranks(2, 3)
def test_ranks_that_move_arrays_differently_are_refused_together(comm, monkeypatch):
    monkeypatch.setattr("distgnn.arrays.backend.Backend.name", "numpy" if comm.Get_rank() == 0 else "other")
    with pytest.raises(dg.UserError, match="ranks disagree: backend is .*numpy on rank"):
        dg.Grid(comm, rows=comm.Get_size())


def test_every_rank_of_a_node_takes_another_gpu():
    """Devices are told apart by PCI bus id: each rank may be shown one device only, as number 0."""
    node = ["0000:07:00.0", "0000:0f:00.0", "0000:47:00.0", "0000:4e:00.0"]
    taken = lambda *seen: assign([Sight(rank, *one) for rank, one in enumerate(seen)])  # noqa: E731
    assert taken(*[(node, None)] * 6) == [0, 1, 2, 3, 0, 1]
    assert taken(*(([device], None) for device in node)) == [0, 0, 0, 0]
    assert taken((node[2:], None), (node, None), (node[:1], None)) == [0, 1, 0]
    assert taken((node[:2], None), (node[1:], None), (node[:2], 0)) == [1, 1, 0]


def test_a_rank_takes_a_gpu_near_its_cores(tmp_path):
    """Nodes count GPUs against the order of cores, for one; a rank near one GPU alone chooses first."""
    node, left, right = ["a", "b", "c", "d"], [True, True, False, False], [False, False, True, True]
    taken = lambda *near: assign([Sight(rank, node, None, one) for rank, one in enumerate(near)])  # noqa: E731
    assert taken(right, right, left, left) == [2, 3, 0, 1]
    assert taken(right, right, right) == [2, 3, 0]
    assert taken(left, [True, False, False, False], [True] * 4, []) == [1, 0, 2, 3]
    core, device = min(os.sched_getaffinity(0)), tmp_path / "0000:0f:00.0"
    device.mkdir()
    lists = {f"{core}": True, f"0-{core},5000-5003": True, "5000-5003,6000": False, "": True}
    for cores, near in lists.items():
        (device / "local_cpulist").write_text(f"{cores}\n")
        assert is_near("0000:0F:00.0", tmp_path) == is_near("00000000:0F:00.0", tmp_path) == near
    assert is_near("0000:10:00.0", tmp_path), "nobody says"


@pytest.mark.ranks(4)
def test_devices_are_bound_once_and_shared_ones_are_named(comm, monkeypatch, caplog):
    """Ranks 0 and 1 are shown the same one; a grid of some ranks binds nobody anew."""

    class Cards(dg.backend.Backend):
        def devices(self):
            return [f"0000:{max(comm.Get_rank(), 1):02x}:00.0"] * 2

        def bind(self, device):
            self.bound = device
            return f"cuda:{device}"

    cards = Cards()
    cards.bound = 1 if comm.Get_rank() else None
    assert dg.Grid(comm, backend=cards).device == f"cuda:{int(comm.Get_rank() > 0)}"
    said = ["ranks 0-1 share the GPU 0000:01:00.0"] if comm.Get_rank() == 0 else []
    assert [record.getMessage() for record in caplog.records] == said
    assert dg.Grid(MPI.COMM_SELF, backend=cards).device == f"cuda:{int(comm.Get_rank() > 0)}"


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.timeout(60)
def test_a_rank_without_a_gpu_or_whose_gpu_fails_keeps_nobody_waiting(comm):
    """The last rank has arrays of the host; its device cannot be asked for; or it cannot be bound."""
    last = comm.Get_rank() == comm.Get_size() - 1

    class Cards(dg.backend.Backend):
        name, broken = "cards", ""

        def devices(self):
            if last and self.broken == "devices":
                raise OSError("no answer")
            return ["0000:01:00.0"]

        def bind(self, device):
            if last and self.broken == "bind":
                raise OSError("in use")
            return f"cuda:{device}"

    cards = Cards()
    with pytest.raises(DisagreementError, match=r"backend is cards on ranks? .* and numpy on rank"):
        dg.Grid(comm, backend="numpy" if last else cards)
    for cards.broken, problem in (("devices", "no answer"), ("bind", "in use")):
        with pytest.raises(OSError if last else RuntimeError, match=problem):
            dg.Grid(comm, backend=cards)


@pytest.mark.ranks(1, 2)
def test_a_driver_that_is_too_old_is_said_once(comm, monkeypatch, capfd):
    """A grid and a fit warn that would have taken a GPU; not where the host was asked for."""
    monkeypatch.setattr(backends, "_has_gpu", lambda: False)
    monkeypatch.setattr(backends, "old_driver", lambda: "the driver is too old")
    monkeypatch.setattr(launch, "is_first", lambda: comm.Get_rank() == 0)
    ring, few = np.array([range(4), [1, 2, 3, 0]]), {"comm": comm, "epochs": 1}
    calls = {
        "grid": lambda backend: dg.Grid(comm, backend=backend),
        "fit": lambda backend: dg.fit(ring, np.eye(4), [0, 1, 0, 1], ["train"] * 4, backend=backend, **few),
    }
    for call, (asked, variable, said) in itertools.product(
        calls, [(None, "", 1), ("auto", "", 1), ("numpy", "", 0), (None, "numpy", 0), ("auto", "numpy", 1)]
    ):
        with monkeypatch.context() as patch:
            if variable:
                patch.setenv("DISTGNN_BACKEND", variable)
            launch.warn.cache_clear()
            calls[call](asked), calls[call](asked)
        words = "distgnn: warning: arrays are on the host: the driver is too old"
        assert capfd.readouterr().err.count(words) == (said if comm.Get_rank() == 0 else 0), (call, asked)
    launch.warn.cache_clear()


def test_defaults_are_the_best_grids():
    assert grids("2d", 12)[0] == {"rows": 3, "cols": 4}
    assert grids("3d", 8)[0] == {"x": 2, "y": 2, "z": 2}
    assert grids("3d-split", 12)[0] == {"rows": 2, "cols": 2, "fibers": 3}
    copies = {P: grids("1.5d", P)[0]["reps"] for P in (4, 8, 16, 64, 256, 1024, 2048)}
    assert copies == {4: 1, 8: 2, 16: 2, 64: 4, 256: 8, 1024: 16, 2048: 32}
    for name in ("1d", "1.5d", "2d", "3d-split", "3d"):
        for ranks in range(1, 17):
            shapes = grids(name, ranks)
            assert shapes and len({tuple(s.items()) for s in shapes}) == len(shapes)
            for shape in shapes:
                product = 1
                for size in shape.values():
                    product *= size
                assert product == ranks


def test_an_operator_names_the_axes_it_needs():
    with pytest.raises(
        dg.UserError, match=r"grid=rows=1: not for algorithm 2d on 1 ranks; possible \(rows x cols\)"
    ):
        dg.distribute([[1.0]], dg.Grid(MPI.COMM_SELF, rows=1), "2d")


@pytest.mark.ranks(3, 4)
def test_ranks_of_a_node_that_want_the_same(comm):
    """Numbers and sequences are compared by what they are, whatever their types."""
    grid, rank = dg.Grid(comm), comm.Get_rank()
    same = ("A", [(0, 5), (1, 2)]) if rank % 2 else ["A", (range(0, 10, 5), (np.int64(1), 2))]
    for nodes, wanted, expected in (
        ([0] * 4, same, [*range(comm.Get_size())]),
        ([0, 1, 0, 1], same, [r for r in range(comm.Get_size()) if r % 2 == rank % 2]),
        ([0] * 4, rank < 2, [r for r in range(comm.Get_size()) if (r < 2) == (rank < 2)]),
        ([0] * 4, (rank,), [rank]),
        ([0] * 4, np.where(np.arange(3000) == 1500, rank, 0), [rank]),
    ):
        grid.node = nodes[rank]
        with grid.on_node(wanted) as group:
            assert group.mpi.allgather(rank) == expected == list(group.ranks)
    grid.free()
