"""A dry run is charged what a run is, on every rank, whatever the algorithm."""

import resource
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest

from chosen_grids import some_grids, wide
from distgnn import ledger, local
from distgnn.arrays.tuning import TUNING
from distgnn.comm import grid as comm_grid
from distgnn.comm.group import Comm
from distgnn.errors import ArgumentError
from distgnn.layout import Cut, Layout, partition
from distgnn.operators import ALGORITHMS, SPARSITY_AWARE
from distgnn.operators.algorithm import Algorithm
from distgnn.operators.loading import load
from distgnn.operators.weights import ReplicatedWeights
from distgnn.plan import Graph, Histogram, count, dry_run
from distgnn.plan.dry.backend import SHAPES
from distgnn.plan.dry.shapes import ShapeMatrix
from distgnn.plan.formulas import epoch
from distgnn.store import Store, prepare
from distgnn.train import Run
from distgnn.train.settings import Settings
from mpi_helpers.communicators import await_all, on_nodes

from ..nn.problem import Problem
from ..train.stores import Communities

HIDDEN = {"hidden": (8, 7)}
ALL = {"dropout": 0.5, "bias": True, "train_features": True}
CASES = {
    "symmetric": {"weight_decay": 0.1},
    "transform first": {"product_order": "transform-first", "overlap": False, "train_features": True},
    "aggregate first": {"product_order": "aggregate-first", "optimizer": "sgd", "dtype": "float64",
                        "eval_every": 2, "keep_aggregate": False},
    "sage": {"model": "sage", "bias": True},
    "residual": {"residual": True, "layer_norm": True, "clip": 1.0, "hidden": (8, 7, 7)},
    "recompute": {"recompute": 2, "layer_norm": True, "hidden": (8, 7, 9, 6), "dropout": 0.3},
}  # fmt: skip


WAYS = [(name, False) for name in ALGORITHMS]
WAYS += [(name, aware) for name in SPARSITY_AWARE for aware in (True, "cover")]


def graph(symmetric=False, dtype=np.float32):
    p = Problem()
    A = abs(p.A + p.A.T) if symmetric else abs(p.A)
    return Graph.known(A, p.width, p.classes, p.labels, p.split, dtype)


def entries(book):
    """Return the counts by key, without those of a rank alone, where nothing travels."""
    counted = "phase operation group matrix calls messages words far bytes flops".split()
    return [tuple(entry[name] for name in counted) for entry in book.entries() if entry["group"] != "self"]


def sent(book):
    """Count bytes and messages of exchanges, by key."""
    found = {}
    for step in getattr(book, "steps", []):
        if step.phase == "sent":
            nbytes, messages = found.get(step[1:4], (0, 0))
            found[step[1:4]] = nbytes + step.nbytes, messages + step.messages
    return found


def summary(costs, rank=0):
    books = {"setup": costs.setup, "first": costs.first, "epoch": costs.epoch, "evaluation": costs.evaluation}
    return {
        name: (entries(book), sent(book), book.touched, book.traffic(rank)) for name, book in books.items()
    }


def run(comm, *what):
    """Return the real ranks' costs, in books of their own: other tests hold memory, too.

    Every rank has a copy of A: a dry run knows no nodes, and a plan divides what it counts.
    """
    with ledger.apart(), mock.patch.object(comm_grid, "available", lambda world, node: False):
        return count(comm, "numpy", *what)


def compare(comm, settings, graph, node=None):
    """Compare costs of this real rank and of the virtual one of its number: equal, memory within 5 %."""
    planned = None
    with Comm(comm, SHAPES).together():
        try:
            if comm.Get_rank() == 0:
                ranks = dry_run(settings, graph, comm.Get_size(), node=node).ranks
                planned = [(summary(costs, rank), costs.peak) for rank, costs in enumerate(ranks)]
        finally:
            await_all(comm)
    expected, peak = comm.bcast(planned)[comm.Get_rank()]
    real = on_nodes(lambda: run(comm, settings, graph), node or comm.Get_size())
    assert summary(real, comm.Get_rank()) == expected
    total = sum(real.peak.values())
    assert abs(sum(peak.values()) - total) <= 0.05 * total
    assert {name for name, size in peak.items() if size} == {name for name, size in real.peak.items() if size}


@pytest.mark.ranks(1, 3, 4)
@pytest.mark.parametrize(("algorithm", "aware"), WAYS)
def test_a_run_is_charged_what_was_planned(comm, algorithm, aware):
    for grid in some_grids(algorithm, comm.Get_size())[:1]:
        network = ALL | HIDDEN
        compare(comm, Settings(algorithm=algorithm, grid=grid, sparsity_aware=aware, **network), graph())


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("case", [{"dropout": 0.5, "bias": True}, {"train_features": True}], ids=str)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_so_is_a_run_on_sparse_features(comm, algorithm, case):
    """Trained ones become dense."""
    known = replace(graph(), feature_nnz=44)
    for grid in some_grids(algorithm, comm.Get_size())[:1]:
        compare(comm, Settings(algorithm=algorithm, grid=grid, **HIDDEN, **case), known)
    p = Problem()
    assert known.grown(2.0).feature_nnz == 88 and known.feature_nnz < 0.1 * p.n * p.width


@pytest.mark.parametrize("grid", ["4x2", "2x4", "1x8"])
def test_sparse_features_stay_sparse_for_a_rank_that_stands_for_all(grid, caplog):
    """The share of entries is the graph's, whatever the blocks of this rank are of it."""
    known, network = replace(graph(), feature_nnz=44), Settings(algorithm="1.5d", grid=grid, **HIDDEN)
    busiest, every = (dry_run(network, known, 8, alone).ranks for alone in (True, False))
    flops = [sum(entry.get("flops", 0) for entry in costs.epoch.entries()) for costs in [busiest[0], *every]]
    assert 0 < flops[0] <= 1.2 * max(flops[1:]) and not caplog.records


@pytest.mark.ranks(6)
@pytest.mark.parametrize(("algorithm", "aware"), WAYS)
def test_what_crosses_the_network_was_planned(comm, algorithm, aware, monkeypatch):
    """Nodes of four ranks and of two."""
    node = 4
    monkeypatch.setattr(TUNING, "small_sum", 64)
    for grid in some_grids(algorithm, comm.Get_size()):
        settings = Settings(algorithm=algorithm, grid=grid, sparsity_aware=aware, **HIDDEN)
        compare(comm, settings, graph(), node)


@pytest.mark.ranks(4)
@pytest.mark.parametrize(("algorithm", "aware"), WAYS)
def test_so_is_a_run_whose_messages_have_16_bits(comm, algorithm, aware):
    """To the byte, with residual connections and norms, which travel as they are."""
    how = {"wire": "bfloat16", "residual": True, "layer_norm": True, "hidden": (8, 8), "dropout": 0.5}
    grid = some_grids(algorithm, comm.Get_size())[-1]
    compare(comm, Settings(algorithm=algorithm, grid=grid, sparsity_aware=aware, **how), graph())


@pytest.mark.parametrize(("algorithm", "aware"), WAYS)
def test_a_rank_that_stands_for_all_counts_16_bits_too(algorithm, aware):
    uniform, books = Graph.of_size(1200, 24_000, 24, 24), {}
    for wire in (None, "float16"):
        settings = Settings(wire=wire, algorithm=algorithm, sparsity_aware=aware, hidden=(24, 24))
        every, (alone, *_) = (dry_run(settings, uniform, 12, busiest).ranks for busiest in (False, True))
        one, itself = alone.epoch, every[alone.model.grid.rank].epoch
        assert one.bytes == pytest.approx(itself.bytes, rel=0.02)
        books[wire] = one
    halved = {
        wire: sum(e["bytes"] for e in book.entries() if e["matrix"] in ("H", "G", "T", "sums"))
        for wire, book in books.items()
    }
    assert 2 * halved["float16"] == pytest.approx(halved[None], abs=20) and halved[None]
    assert books["float16"].words == books[None].words


@pytest.mark.parametrize("name", SPARSITY_AWARE)
def test_what_some_ranks_send_is_what_others_receive(name):
    """In 1.5D, ranks whose stages their copy has send more than any rank receives."""
    grid = {"1d": "8", "1.5d": "4x2", "rdm": "4x2"}[name]
    settings = Settings(algorithm=name, grid=grid, sparsity_aware=True, **HIDDEN)
    ranks = dry_run(settings, graph(symmetric=True), 8).ranks
    gone = [sum(nbytes for nbytes, _ in sent(costs.epoch).values()) for costs in ranks]
    came = [sum(entry["bytes"] for entry in costs.epoch.entries() if "alltoall" in entry["operation"])
            for costs in ranks]  # fmt: skip
    assert sum(gone) == sum(came) > 0
    assert name != "1.5d" or max(gone) > 1.2 * max(came)


@pytest.mark.slow
@pytest.mark.ranks(5, 8)
def test_so_is_a_run_on_more_ranks(comm):
    for algorithm, aware in WAYS[comm.size % 2 :: 2]:
        grid = some_grids(algorithm, comm.Get_size())[0]
        settings = Settings(algorithm=algorithm, grid=grid, sparsity_aware=aware, hidden=6, **ALL)
        compare(comm, settings, graph())


@pytest.mark.slow
@pytest.mark.ranks(4)
@pytest.mark.parametrize(("algorithm", "aware"), [way for way in WAYS if way[0] != "1d"])
def test_so_it_is_with_the_axes_in_another_order(comm, algorithm, aware):
    grid = dict(reversed(wide(algorithm, comm.Get_size()).items()))
    compare(comm, Settings(algorithm=algorithm, grid=grid, sparsity_aware=aware, hidden=6, **ALL), graph())


@pytest.mark.slow
@pytest.mark.ranks(4)
@pytest.mark.parametrize(
    ("algorithm", "aware", "case"),
    [
        ("1d", False, "symmetric"), ("1d", True, "transform first"), ("1d", True, "aggregate first"),
        ("1.5d", False, "transform first"), ("1.5d", False, "sage"), ("1.5d", True, "symmetric"),
        ("1.5d", True, "sage"), ("2d", False, "symmetric"), ("2d", False, "transform first"),
        ("2d", False, "aggregate first"), ("2d", False, "sage"), ("3d-split", False, "symmetric"),
        ("3d-split", False, "transform first"), ("3d-split", False, "aggregate first"),
        ("3d", False, "symmetric"), ("3d", False, "aggregate first"),
        ("1.5d", True, "residual"), ("2d", False, "residual"), ("3d-split", False, "residual"),
        ("3d", False, "residual"), ("rdm", False, "transform first"), ("rdm", True, "aggregate first"),
        ("rdm", False, "symmetric"), ("rdm", True, "residual"), ("rdm", False, "sage"),
    ],
)  # fmt: skip
def test_so_is_every_other_way_to_train(comm, algorithm, aware, case):
    grid = wide(algorithm, comm.Get_size())
    settings = Settings(algorithm=algorithm, grid=grid, sparsity_aware=aware, **(HIDDEN | CASES[case]))
    compare(comm, settings, graph(case == "symmetric", settings.dtype))


@pytest.mark.ranks(6)
@pytest.mark.parametrize(
    ("algorithm", "aware", "grid"),
    [
        ("1.5d", False, "3x2"), ("1.5d", True, "2x3"), ("1.5d", "cover", "3x2"), ("3d-split", False, "1x2x3"),
        ("rdm", False, "1x6"), ("rdm", True, "1x6"),
    ],
)  # fmt: skip
def test_so_are_shared_blocks_layers_that_are_no_squares_and_ranks_without_columns(
    comm, algorithm, aware, grid
):
    compare(comm, Settings(algorithm=algorithm, grid=grid, sparsity_aware=aware, **HIDDEN), graph())


def test_norms_and_residual_connections_cost_what_they_say():
    uniform, hidden = Graph.of_size(1200, 24_000, 8, 4), (8, 8)
    asked = {"layer_norm": True, "clip": 1.0}
    planned = dry_run(Settings(algorithm="2d", grid="2x2", hidden=hidden, **asked), uniform, 4).ranks[0]
    # of 600 rows two sums each forward, one of two words backward, in two layers; and one of one word
    assert planned.words["norm"] == pytest.approx(2 * (2 * 600 + 1200) + 2 * 3 / 4, abs=1)
    asked = {"algorithm": "3d", "grid": "2x2x1", "hidden": hidden}
    plain, more = (dry_run(Settings(residual=r, **asked), uniform, 4).ranks for r in (False, True))
    moved = [one.words.get("H", 0) - other.words.get("H", 0) for one, other in zip(more, plain, strict=True)]
    assert all(0 <= words <= 2 * 2 * 1200 * 8 / 2 for words in moved) and any(moved)


@pytest.mark.slow
@pytest.mark.ranks(1, 4, 7)
@pytest.mark.parametrize("name", ["sage", "ladies", "fastgcn", "saint"])
def test_minibatches_are_charged_what_was_planned(comm, name):
    fanout = [9] if name == "saint" else [4, 3, 2]
    settings = Settings(sampler=name, fanout=fanout, batch_size=3, bulk=2, dropout=0.5, **HIDDEN)
    replication = 2 if comm.Get_size() == 4 else 1
    for partitioned in (False, True) if comm.Get_size() == 4 else (True,):
        compare(comm, replace(settings, replication=replication, partition_graph=partitioned), graph())


@pytest.mark.ranks(4, 6)
@pytest.mark.parametrize("name", ["sage", "ladies"])
def test_what_samples_of_a_cut_graph_send_over_the_network_was_planned(comm, name):
    """Nodes of three ranks and of one; three nodes of two ranks, whose sums are made in tiers."""
    how = {"sampler": name, "fanout": [4, 3, 2], "batch_size": 3, "partition_graph": True, "replication": 2}
    compare(comm, Settings(**how, **HIDDEN), graph(), {4: 3, 6: 2}[comm.Get_size()])


@pytest.mark.parametrize("busiest", [False, True])
def test_arrays_too_long_for_one_call_of_mpi_travel_in_several(monkeypatch, busiest):
    settings = Settings(algorithm="3d", grid="2x1x2", train_features=True, **HIDDEN)
    whole = dry_run(settings, graph(), 4, busiest)
    monkeypatch.setattr(Comm, "count_limit", 64)
    parts = dry_run(settings, graph(), 4, busiest)
    assert [costs.words for costs in parts.ranks] == [costs.words for costs in whole.ranks]


def test_arrays_of_a_shape_are_packed_once_in_an_exchange(monkeypatch):
    """A plan of many ranks does not pack rows for each of the 127 or 255 that they go to."""
    pack, packed, counts = local.gather_rows, [], []
    monkeypatch.setattr(local, "gather_rows", lambda *arrays: packed.append(arrays) or pack(*arrays))
    for ranks in (128, 256):
        packed.clear()
        graph = Graph.of_size(1000 * ranks, 20_000 * ranks, 16, 4)
        costs = dry_run(Settings(algorithm="1d", sparsity_aware=True), graph, ranks, evaluation=False).ranks[
            0
        ]
        assert costs.epoch.touched["spmm"] > 0
        counts.append(len(packed))
    assert 0 < counts[1] <= counts[0]


SMALL = {
    "panels": (
        [("1d", False), ("1.5d", True)], {"panel_nonzeros": 1, "group_nonzeros": 1, "joined_panels": 0},
    ),
    "pieces": ([("rdm", False), ("1d", True)], {"packed_numbers": 50, "packed_at_a_time": 2}),
    "halves": ([("1d", False), ("1.5d", False)], {"halved_block": 1}),
    "joined": ([("1d", False), ("rdm", False)], {"joined_panels": 1 << 30}),
    "blocks": (
        [("1.5d", False), ("2d", False), ("3d", False)],
        {"small_sum": 256, "smallest_sum_block": 512, "sum_chunk": 1024, "gemm_rows": 8},
    ),
    "messages": (
        [("1d", False), ("2d", False)],
        {"relay_segment": 256, "largest_segment": 512, "flops_between_polls": 100},
    ),
}


@pytest.mark.slow
@pytest.mark.ranks(4)
@pytest.mark.parametrize("case", SMALL)
def test_small_panels_row_blocks_and_messages_count_alike(comm, monkeypatch, case):
    ways, thresholds = SMALL[case]
    for name, value in thresholds.items():
        monkeypatch.setattr(TUNING, name, value)
    for algorithm, aware in ways:
        grid = wide(algorithm, comm.Get_size())
        settings = Settings(algorithm=algorithm, grid=grid, sparsity_aware=aware, bias=True, **HIDDEN)
        compare(comm, settings, graph())


@pytest.mark.slow
@pytest.mark.ranks(4)
@pytest.mark.parametrize(("algorithm", "order"), [("1d", "random"), ("2d", "random"), ("3d", "double")])
def test_a_store_is_planned_as_it_is_trained(comm, shared_tmp_path, algorithm, order):
    path = str(shared_tmp_path / "small.dg")
    if comm.Get_rank() == 0:
        prepare(Communities(), path, order=(order,))
    comm.Barrier()
    settings = Settings(algorithm=algorithm, order=order, epochs=3, hidden=(6, 5), tune_gemm=False)
    words = [record["words"] for record in Run(path, settings, comm).train()]
    known = Graph.of_store(Store(path), order, settings.dtype, layers=3)
    costs = dry_run(settings, known, 4).ranks[comm.Get_rank()]
    assert words == [costs.first.words, costs.epoch.words, costs.epoch.words]
    if algorithm == "1d":  # whose words are the same for all matrices of this size
        rough = Graph.of_store(Store(path), order, settings.dtype, layers=3, exact=False)
        assert dry_run(settings, rough, 4).ranks[comm.Get_rank()].epoch.words == words[1]


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("normalize", ["gcn", "row"])
def test_graphsage_is_planned_without_the_loops_that_it_is_trained_without(comm, shared_tmp_path, normalize):
    path = str(shared_tmp_path / "small.dg")
    if comm.Get_rank() == 0:
        prepare(Communities(), path, normalize=normalize)
    comm.Barrier()
    settings = Settings(algorithm="2d", model="sage", hidden=(6, 5), epochs=1)
    run = Run(path, settings, comm)
    list(run.train())  # A X is kept then
    with ledger.Ledger() as trained:
        run.model.evaluate(run.X, run.targets, False)
    store, rank, ranks = Store(path), comm.Get_rank(), comm.Get_size()
    exact = Graph.of_store(store, layers=3)
    planned = dry_run(settings, exact, ranks).ranks[rank].evaluation
    assert entries(planned) == entries(trained)
    assert exact.neighbours.nnz == exact.nnz - store.n
    matrix = store.order().block((0, store.n), (0, store.n))
    rough = Graph.of_store(store, layers=3, exact=False)
    alike = Graph.known(matrix, store.width, store.classes, store.labels(), store.split())
    sizes = Graph.of_size(store.n, store.nnz, store.width, store.classes)
    for graph in (rough, alike, sizes):
        assert graph.neighbours.nnz == exact.neighbours.nnz and graph.nnz == exact.nnz
        assert graph.grown(2.0).neighbours.nnz == 2 * exact.neighbours.nnz


class Gathered(Algorithm):
    """Block rows; all of H on every rank. What somebody adds: the planner has never heard of it."""

    name, axes = "gathered", ("all",)

    def __init__(self, grid, source):
        super().__init__(grid, source)
        self.parts = partition(self.shape[0], grid.size)
        self.input_layout = self.output_layout = Layout(grid, Cut(("all",), self.parts), Cut())
        self.weights = ReplicatedWeights(self.output_layout)
        (self.A,) = load(grid, source, [(self.output_layout.row_range, (0, self.shape[1]))])

    def multiply(self, H, T, then=None):
        local.spmm(self.A, self.grid.world.allgather_rows(H, self.parts, matrix="H"), out=T)

    def multiply_adjoint(self, G, F, then=None):
        sums = local.spmm(self.A.transposed(self.grid.backend), G)
        self.grid.world.reduce_scatter_rows(sums, self.parts, F, "sums")

    @staticmethod
    def grids(ranks):
        return [{"all": ranks}]


@pytest.mark.ranks(1, 4)
@pytest.mark.slow
def test_an_algorithm_is_added_without_a_word_to_the_planner(comm, monkeypatch):
    monkeypatch.setitem(ALGORITHMS, "gathered", Gathered)
    compare(comm, Settings(algorithm="gathered", **ALL, **HIDDEN), graph())
    uniform = Graph.of_size(1200, 24_000, 8, 4)
    for ranks in (6, 600):
        settings = Settings(recipe="plain", algorithm="gathered", hidden=8)
        costs = dry_run(settings, uniform, ranks, True).ranks[1]
        words = sum(e["words"] for e in costs.epoch.entries() if e["matrix"] == "H")
        assert costs.words["H"] == words
        assert words == (1200 - 1200 // ranks) * (4 + 4)  # A X is kept; then A (H W1) and Aᵀ G, A being Aᵀ


@pytest.mark.parametrize(("algorithm", "aware"), WAYS)
@pytest.mark.slow
def test_one_rank_alone_takes_the_same_steps(monkeypatch, algorithm, aware):
    """A relay without messages posts and waits in the same order; one row block stands for all."""
    for name, value in SMALL["blocks"][1].items():
        monkeypatch.setattr(TUNING, name, value)
    uniform = Graph.of_size(2304, 2304 * 40, 24, 12)
    settings = Settings(algorithm=algorithm, sparsity_aware=aware, hidden=(24, 24), **ALL)
    everybody, alike = (dry_run(settings, uniform, 4, busiest) for busiest in (False, True))
    one = alike.ranks[0]
    other = everybody.ranks[one.model.grid.rank]
    assert [step[:6] for step in one.epoch.steps] == [step[:6] for step in other.epoch.steps]
    assert [e[:8] for e in entries(one.epoch)] == [e[:8] for e in entries(other.epoch)]
    assert one.epoch.flops == pytest.approx(other.epoch.flops, rel=1e-3) and one.peak == other.peak


@pytest.mark.parametrize(("algorithm", "aware"), WAYS)
@pytest.mark.slow
def test_the_busiest_rank_is_one_that_no_other_outdoes(algorithm, aware):
    """The busiest is charged as among all ranks, but for a non-zero more or less in blocks and covers."""
    ranks, uniform = 12 if algorithm == "3d-split" else 6, Graph.of_size(2311, 2311 * 40, 25, 13)
    for grid in ALGORITHMS[algorithm].grids(ranks):
        settings = Settings(algorithm=algorithm, grid=grid, sparsity_aware=aware, hidden=(23, 26))
        everybody = dry_run(settings, uniform, ranks, False, evaluation=False)
        busiest = dry_run(settings, uniform, ranks, True, evaluation=False)
        (costs,) = {id(costs): costs for costs in busiest.ranks}.values()
        assert (len(busiest.ranks), busiest.grid) == (ranks, everybody.grid)
        assert costs.evaluation.entries() == []
        itself = everybody.ranks[costs.model.grid.rank]
        near = 0.02 if aware else 2e-4
        # Only ranks that are stages of their copy make partial products for the others of it.
        lopsided = 0.35 if (algorithm, aware) == ("1.5d", "cover") else near
        assert costs.epoch.messages == itself.epoch.messages
        assert costs.epoch.words == pytest.approx(itself.epoch.words, rel=near)
        assert sum(costs.peak.values()) == pytest.approx(sum(itself.peak.values()), rel=max(lopsided, 0.05))
        flops = max(costs.epoch.flops for costs in everybody.ranks)
        assert costs.epoch.flops == pytest.approx(flops, rel=max(lopsided, 0.02))


#: About what ogbn-products is.
N, NNZ, P = 2_400_000, 124_000_000, 1024


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "aware"), WAYS)
def test_a_thousand_ranks_fit_into_a_gigabyte(algorithm, aware):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    settings = Settings(recipe="plain", algorithm=algorithm, sparsity_aware=aware, hidden=(128, 128))
    planned = dry_run(settings, Graph.of_size(N, NNZ, 128, 47), P)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20  # KiB
    assert len(planned.ranks) == P and len({id(costs) for costs in planned.ranks}) == 1
    words, even = planned.ranks[0].words, N // P
    # A X is kept; then forward and backward of both other layers, transform first where that can be
    widths = 2 * (128 + 47)
    if algorithm == "1d" and not aware:
        assert words["H"] == (N - even - 1) * widths
    if algorithm == "2d":
        assert words["A"] == 31 * (2 * round(NNZ / P) + N // 32 + 1) * 4
    price = epoch(planned.ranks[0].model, False)
    assert {matrix: words[matrix] for matrix in price.by_matrix()} == pytest.approx(price.by_matrix(), abs=2)


def test_a_histogram_counts_the_non_zeros_of_windows():
    cells = Histogram(
        np.array([0, 4, 10]), np.array([0, 5, 10]), np.array([[8, 2], [30, 0]]), np.float32, True
    )
    assert cells.shape == (10, 10) and cells.block((0, 10), (0, 10)).nnz == 40
    assert [cells.block((0, 4), cols).nnz for cols in ((0, 5), (5, 10))] == [8, 2]
    assert cells.block((5, 10), (0, 5)).nnz == 25
    assert cells.block((2, 7), (0, 5)).nnz == 4 + 15 and cells.block((7, 7), (0, 5)).nnz == 0
    assert cells.block((2, 7), (0, 5)).T.shape == (5, 5)


def test_columns_read_are_those_of_non_zeros_drawn_at_random():
    r = np.random.default_rng(5)
    for width, nnz in ((1, 1), (1, 9), (5, 0), (0, 0), (300, 1), (300, 200), (300, 900), (40, 4000)):
        counts = [len(np.unique(r.integers(0, width, nnz))) if width else 0 for _ in range(400)]
        A = ShapeMatrix((7, width), nnz, np.dtype(np.float32))
        assert A.columns_read().size == pytest.approx(np.mean(counts), abs=1)
        assert A.columns_read().dtype == np.int64


def test_of_means_the_busiest_rank_is_that_of_the_sums():
    """Ranks receive rows that multiply other blocks than their own; the last of 4 x 4 does not."""
    settings = Settings(algorithm="1.5d", grid={"rows": 4, "reps": 4}, sparsity_aware=True, model="sage")
    uniform = Graph.of_size(1600, 64_000, 25, 13)
    everybody = [costs.epoch.words for costs in dry_run(settings, uniform, 16, False).ranks]
    (busiest,) = {costs.epoch.words for costs in dry_run(settings, uniform, 16, True).ranks}
    assert busiest == pytest.approx(max(everybody), rel=0.02) and everybody[-1] < 0.9 * busiest


def test_of_uneven_blocks_the_fullest_is_the_busiest():
    ends, cells = partition(400, 4), np.full((4, 4), 100)
    cells[1] = cells[:, 1] = 3000
    source = Histogram(ends, ends, cells, np.dtype(np.float32), True)
    uneven, asked = replace(Graph.of_size(400, 1, 8, 4), source=source), Settings(algorithm="1d", hidden=8)
    flops = [costs.epoch.flops for costs in dry_run(asked, uneven, 4).ranks]
    (busiest,) = {costs.epoch.flops for costs in dry_run(asked, uneven, 4, busiest=True).ranks}
    assert busiest == flops[1] > max(flops[0], *flops[2:])


def test_memory_has_what_the_optimizer_keeps():
    """Adam two numbers for each that is trained, plain SGD none."""
    settings = Settings(recipe="plain", algorithm="1d", train_features=True)
    uniform = Graph.of_size(4000, 60_000, 100, 8)
    peaks = {
        name: dry_run(replace(settings, optimizer=name), uniform, 4, busiest=True).ranks[0].peak
        for name in ("adam", "sgd")
    }
    weights = 100 * 16 + 16 * 8
    assert peaks["adam"].pop("optimizer") == 2 * 4 * (1000 * 100 + weights)
    assert peaks["sgd"].pop("optimizer", 0) == 0 and peaks["adam"] == peaks["sgd"]


def test_what_a_run_would_refuse_is_refused():
    for wanted, argument in (
        (Settings(algorithm="4d"), "algorithm"),
        (Settings(algorithm="2d", grid={"rows": 3}), "grid"),
        (Settings(algorithm="2d", sparsity_aware=True), "sparsity_aware"),
        (Settings(algorithm="3d", product_order="transform-first"), "product_order"),
        (Settings(algorithm="1d", sparsity_aware="auto"), "sparsity_aware"),
        (Settings(algorithm="1d", dtype="float64"), "dtype"),
    ):
        for busiest in (False, True):
            with pytest.raises(ArgumentError) as caught:
                dry_run(wanted, graph(), 4, busiest)
            assert caught.value.argument == argument
    with pytest.raises(ArgumentError, match="sampler=sage"):
        dry_run(Settings(sampler="sage"), Graph.of_size(60, 300, 8, 4), 4)


def test_a_dry_run_charges_nothing_to_who_asks_for_it():
    with ledger.Ledger() as own:
        for busiest in (False, True):
            dry_run(Settings(algorithm="2d"), graph(), 4, busiest)
    assert own.entries() == [] and not own.touched
