"""``train --check``: a training on one rank beside every kind of run, bounded, and errors that it finds."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import distgnn as dg
from distgnn import cli, local
from distgnn.arrays.csr import CSR
from distgnn.layout import Range, written
from distgnn.nn import GCN, NETWORKS, CustomLayer, gatv2
from distgnn.nn.dropout import Dropout
from distgnn.nn.optim import Optimizer
from distgnn.operators import ALGORITHMS, edge_products, grids, strips
from distgnn.operators.weights import ReplicatedWeights
from distgnn.store import prepare
from distgnn.store.read.order import Order
from distgnn.train import Run, Settings, data
from distgnn.train.check import FACTOR, TOLERANCES, CheckFailedError, SerialCheck

from .stores import Communities, events, made, run, small_store
from .test_multilabel_job import several

DEEP = "--hidden 9,9 --residual --layer-norm --bias --dropout 0.3 --lr 0.1"
BATCHES = "--hidden 9 --dropout 0.3 --batch-size 4 --batches-per-update 2 --lr 0.1 --bias"
OWN = f"{BATCHES} --hidden 9,9 --residual --layer-norm"
#: With SGD for attention: where scores of a row have one sign, gradients of one end's weights are nothing but
#: rounding, of which Adam would make whole steps.
SAMPLED = f"--sampler sage {OWN} --fanout 2,2,3"
KINDS = {
    "deep": f"{DEEP} --algorithm 2d",
    "sage": f"--model sage {DEEP} --algorithm 1d --sparsity-aware",
    "sage-features": f"--model sage {DEEP} --algorithm 2d --train-features --normalize-features",
    "gat": f"--model gat --heads 3,3,2 --attention-dropout 0.4 --weight-decay 0.1 {DEEP} --algorithm 3d",
    "gatv2": f"--model gatv2 --heads 3 --attention-dropout 0.4 {DEEP} --algorithm 2d --train-features",
    "sampled-gat": f"--model gat --heads 9 --attention-dropout 0.3 {SAMPLED} --optimizer sgd",
    "sampled-gatv2": f"--model gatv2 --heads 3,1,2 {SAMPLED} --optimizer sgd --activation relu",
    "elu": f"{DEEP} --algorithm 1d --activation elu",
    "plateau": "--algorithm 3d --schedule plateau:1,0.5 --lr 0.9 --optimizer sgd --momentum 0.9",
    "sampled-sage": f"--sampler sage {OWN} --fanout 2,2,3 --clip 0.1",
    "sampled-gcn": f"--sampler sage --model gcn {OWN} --fanout 2,2,3",
    "ladies": f"--sampler ladies {BATCHES} --fanout 8,6 --partition-graph --optimizer adamw",
    "ladies-counts": f"--sampler ladies {BATCHES} --fanout 8,6 --importance counts --no-rescale",
    "fastgcn": f"--sampler fastgcn {BATCHES} --fanout 20,20 --schedule cosine --warmup 2",
    "saint": f"--sampler saint {BATCHES} --fanout 12 --partition-graph --optimizer sgd --momentum 0.5",
}


def checked(comm: Any, *words: Any) -> None:
    """Run in float64; the losses must have changed, and must be those of one rank."""
    whole = made(comm, *words, "--check", "all", "--dtype", "float64", "--force")
    losses = [record["loss"] for record in whole.train()]
    assert len(set(losses)) == len(losses)
    found = whole.end["check"]
    assert (found["epochs"], found["allowed"]) == ((1, len(losses)), 1e-11)
    assert found["updates"] >= len(losses) and comm.bcast(found["largest_difference"]) < 1e-13


@pytest.mark.ranks(4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_every_kind_of_run_is_that_of_one_rank(comm, kind, shared_tmp_path) -> None:
    words = small_store(shared_tmp_path, comm), *KINDS[kind].split(), "--epochs", 3, "--seed", 3
    assert run(comm, *words, "--check", "all", "--quiet") == 0
    checked(comm, *words)


@pytest.mark.ranks(4)
@pytest.mark.slow
def test_directed_graphs_and_several_classes(comm, shared_tmp_path) -> None:
    path = shared_tmp_path / "directed.dg"
    if comm.Get_rank() == 0:
        prepare(Communities(directed=True), path)
    comm.Barrier()
    other = several(shared_tmp_path, comm)
    for kind in ("sage", "gat", "sampled-gatv2", "ladies", "sampled-sage", "saint"):
        store = other if kind in ("sampled-sage", "saint") else path
        words = KINDS[kind].replace("--batch-size 4", "--batch-size 5").split()
        checked(comm, store, *words, "--order", "random", "--epochs", 2)


@pytest.mark.ranks(4)
@pytest.mark.parametrize("kind", ["deep", "sage-features", "sampled-sage", "gatv2", "plateau"])
@pytest.mark.slow
def test_a_resumed_run_is_checked_from_its_checkpoint_on(comm, kind, shared_tmp_path) -> None:
    """With other step sizes, too."""
    store, saved = small_store(shared_tmp_path, comm), shared_tmp_path / "saved"
    words = [store, *KINDS[kind].split(), "--dtype", "float64", "--checkpoint", saved]
    run(comm, *words, "--epochs", 2, "--quiet")
    again = made(comm, *words, "--epochs", 5, "--resume", "--check", 2, "--lr", 0.03)
    assert len(list(again.train())) == 3
    found = again.end["check"]
    assert (found["updates"], found["epochs"]) == (2, (3, 3 if "sampler" in KINDS[kind] else 4))
    assert comm.bcast(found["largest_difference"]) < 1e-13


@pytest.mark.ranks(3)
@pytest.mark.parametrize(("kind", "per_epoch"), [("deep", 1), ("ladies", 3)])
def test_the_first_updates_are_compared(comm, kind, per_epoch, shared_tmp_path) -> None:
    store, log = small_store(shared_tmp_path, comm), shared_tmp_path / "log"
    words = [store, *KINDS[kind].split(), "--epochs", 7, "--log", log, "--force"]
    for flags, updates in (
        (["--check"], 5),
        (["--check", 2], 2),
        (["--check", "all"], 7 * per_epoch),
        ([], 0),
    ):
        assert run(comm, *words, *flags) == 0
        if comm.Get_rank() == 0:
            (end,) = events(log, "end")
            found = end.get("check", {"updates": 0, "epochs": [1, 0]})
            assert found["updates"] == updates
            assert found["epochs"] == [1, -(-updates // per_epoch)]
        comm.Barrier()


def planted(broadcast: Any, rows: slice) -> Any:
    """Make panels of which rank 0 has stale rows: the rows of the panel before."""

    def stale(self: ReplicatedWeights, panels: Iterable[Any]) -> Iterator[Any]:
        before = None
        for number, block, panel in panels:
            received = panel.copy()
            if before is not None and self.grid.rank == 0 and before.shape == panel.shape:
                panel = received.copy()
                panel[rows] = before[rows]
            before = received
            yield number, block, panel

    @contextmanager
    def wrong(self: ReplicatedWeights, X: Any) -> Iterator[Iterator[Any]]:
        with broadcast(self, X) as panels:
            yield stale(self, panels)

    return wrong


@pytest.mark.ranks(4, 6)
def test_a_panel_with_a_stale_row_is_found(comm, shared_tmp_path, capsys, monkeypatch) -> None:
    """A buffer is written again before MPI has sent it: a row of 2,000 is another's on a rank."""
    store = shared_tmp_path / "graph.dg"
    if comm.Get_rank() == 0:
        r = np.random.default_rng(2)
        labels = r.integers(0, 4, 2000)
        X = (np.eye(4, 24)[labels] + r.random((2000, 24))).astype(np.float32)
        edges = r.integers(0, 2000, (2, 8000))
        dg.prepare(edges, X, labels, "0.6/0.2/0.2", out=store, directed=False)
    comm.Barrier()
    words = [store, "--algorithm", "2d", "--grid", f"2x{comm.Get_size() // 2}", "--hidden", 24, "--check"]
    assert run(comm, *words, "--epochs", 6) == 0
    monkeypatch.setattr(ReplicatedWeights, "_broadcast", planted(ReplicatedWeights._broadcast, slice(7, 8)))
    assert run(comm, *words, "--epochs", 6) == 1
    if comm.Get_rank() == 0:
        said = capsys.readouterr()
        assert "equal those of a serial training" in said.out
        assert said.err.startswith("distgnn: error: --check: epoch ") and said.err.count("\n") == 1
        assert ", expected " in said.err and "allowed 2e-05" in said.err


def changed_blocks(change: Callable[[sp.csr_array, Range, Range], sp.csr_array]) -> Any:
    """Return what puts blocks of a store together, and changes them on their way."""
    assemble = Order.assemble

    def changed(self: Order, rows: Range, cols: Range, backend: Any, readers: Any) -> CSR:
        block = assemble(self, rows, cols, backend, readers).to_scipy()
        return CSR.from_scipy(change(block, rows, cols), backend)

    return Order, "assemble", changed


def without_an_edge(block: sp.csr_array, rows: Range, cols: Range) -> sp.csr_array:
    entries = block.tocoo()
    lost = np.flatnonzero(entries.row + rows[0] != entries.col + cols[0])[: rows[0] == 0]
    parts = (np.delete(x, lost) for x in (entries.data, entries.row, entries.col))
    data, *places = parts
    return sp.csr_array((data, tuple(places)), shape=block.shape)


def transposed() -> Any:
    """Return what puts blocks together of the rows that ranks share, transposed off the diagonal."""
    together = strips._together

    def wrong(group: Any, source: Any, rows: Range, columns: Range) -> sp.csr_array:
        block = together(group, source, rows, columns)
        return block.T.tocsr() if block.shape[0] == block.shape[1] and columns != rows else block

    return strips, "_together", wrong


def at_another_rate() -> Any:
    """Return masks of half the rate, of which passes of their own and epilogues of products make dropout."""
    mask = Dropout.mask

    def wrong(self: Dropout, epoch: Any) -> Any:
        key, nodes, cols, _ = mask(self, epoch)
        return key, nodes, cols, 1 - self.rate / 2

    return Dropout, "mask", wrong


def of_the_wrong_sign(module: Any) -> Any:
    back = module.attention_back

    def wrong(*given: Any, **options: Any) -> Any:
        E = back(*given, **options)
        np.negative(E.data, out=E.data)
        return E

    return module, "attention_back", wrong


def without_a_row() -> Any:
    """Return products that lack what they add to one row, which is then not summed over ranks or not sent."""
    spmm = local.spmm

    def wrong(A: Any, B: Any, out: Any = None, accumulate: bool = False, then: Any = None) -> Any:
        before = out[:1].copy() if accumulate else 0
        result = spmm(A, B, out, accumulate, then)
        result[:1] = before
        return result

    return local, "spmm", wrong


def skipped() -> Any:
    step = Optimizer.step

    def wrong(self: Optimizer, parameters: Any, gradients: Any) -> None:
        before = [p.block.copy() for p in parameters]
        step(self, parameters, gradients)
        for p, block in zip(parameters, before, strict=True):
            p.block[...] = block

    return Optimizer, "step", wrong


def in_another_order() -> Any:
    load = data.load_features

    def wrong(*given: Any, **options: Any) -> Any:
        X = load(*given, **options)
        X.block[...] = X.block[::-1].copy()
        return X

    return data, "load_features", wrong


#: Errors on all ranks but the first, where the reference is trained; of blocks on all ranks.
WRONG: dict[str, Callable[[], Any]] = {
    "a lost edge": partial(changed_blocks, without_an_edge),
    "a transposed block": transposed,
    "a lost row": without_a_row,
    "a skipped update": skipped,
    "features in another order": in_another_order,
    "dropout at another rate": at_another_rate,
    "GATv2's gradient of the wrong sign": partial(of_the_wrong_sign, gatv2),
    "GAT's gradient of the wrong sign": partial(of_the_wrong_sign, edge_products),
}
OF_BLOCKS = "a lost edge", "a transposed block"
FOUND = {
    "deep": "a lost edge, a transposed block, features in another order, dropout at another rate",
    "sage": "a lost edge, a lost row, a skipped update, dropout at another rate",
    "gat": "a lost edge",
    "gatv2": "a lost edge, a transposed block, dropout at another rate, GATv2's gradient of the wrong sign",
    "ladies": "a lost edge, a skipped update, features in another order",
    "saint": "a lost edge, dropout at another rate",
    "sampled-sage": "a lost edge, features in another order",
    "sampled-gcn": "a lost edge, a skipped update",
    "sampled-gat": "a lost edge, dropout at another rate, GAT's gradient of the wrong sign",
    "sampled-gatv2": "a lost edge, GATv2's gradient of the wrong sign",
}


@pytest.mark.ranks(4)
@pytest.mark.parametrize("kind", FOUND)
@pytest.mark.slow
def test_what_is_wrong_is_found_and_what_is_right_is_not(comm, kind, shared_tmp_path, monkeypatch) -> None:
    """Adam makes rounding grow in float32, and hides an edge that the first minibatches do not draw."""
    store = shared_tmp_path / "directed.dg"
    if comm.rank == 0:
        prepare(Communities(directed=True), store, order=("random",))
    comm.Barrier()
    own = KINDS[kind].replace("--optimizer sgd", "") if "gat" in kind else KINDS[kind]
    epochs = 6 if kind == "ladies" else 3  # few minibatches draw the edge
    words = [store, *own.split(), "--epochs", epochs, "--seed", 1, "--check", "all", "--quiet"]
    assert run(comm, *words) == 0
    for wrong in FOUND[kind].split(", "):
        plain = ["--optimizer", "sgd"] if "sampled" in kind and "edge" in wrong else []
        with monkeypatch.context() as planted:
            if comm.rank > 0 or wrong in OF_BLOCKS:
                planted.setattr(*WRONG[wrong]())
            assert run(comm, *words, *plain) == 1, wrong


@pytest.mark.ranks(4)
def test_a_lost_row_is_found_on_every_algorithm(comm, shared_tmp_path, monkeypatch) -> None:
    store = small_store(shared_tmp_path, comm)
    for algorithm in ALGORITHMS:
        sizes = max(grids(algorithm, 4), key=lambda grid: sum(size > 1 for size in grid.values()))
        words = f"--algorithm {algorithm} --grid {written(sizes)} --epochs 2 --check --quiet".split()
        with monkeypatch.context() as planted:
            if comm.rank == 3:
                planted.setattr(*without_a_row())
            assert run(comm, store, *words) == 1, algorithm


class OwnLayer(CustomLayer):
    """Z = (A H + eps H) W, eps trained."""

    def __init__(self, A: Any, index: int, shape: Any, **options: Any) -> None:
        super().__init__(A, index, shape, **options)
        self.eps = self.add_parameter("eps", [[0.5]])

    def propagate(self, A: Any, H: Any) -> Any:
        own, T = self.own(A, H), A @ H
        T.block += self.eps.block * own.block
        return self.times(A, T), (own, T)

    def propagate_back(self, A: Any, kept: Any, G: Any) -> Any:
        own, T = kept
        dW, dT = self.times_back(A, T, G)
        of_eps, dH = self.total(own, dT), A.T @ dT
        dT.block *= self.eps.block
        self.add_own(A, dT, dH)
        return [dW, of_eps], dH


class Own(GCN):
    convolution, needs_own = OwnLayer, True


class Known:
    """A serial training of known losses."""

    def __init__(self, *losses: float, spread: float = 0.0) -> None:
        self.losses, self.spread = losses, spread

    def shaken(self, seed: int, size: float) -> Known:
        return Known(*(loss * (1 + (-1) ** seed * self.spread) for loss in self.losses))

    def epoch(self, epoch: int, lr: float) -> Iterator[float]:
        yield from self.losses


@pytest.mark.ranks(1, 2)
def test_what_is_equal(comm) -> None:
    """Relative differences up to the tolerance of the dtype; of tiny losses, absolute ones."""
    world = dg.Grid(comm, backend="numpy", rows=comm.Get_size()).world
    for dtype, tolerance in TOLERANCES.items():
        check = SerialCheck(world, lambda: Known(2.0, 1e-9), dtype=dtype)
        check.compare(3, 0.1, [2 + 1.8 * tolerance, 1e-9 + 9e-4 * tolerance])
        for wrong in ([2 + 2.2 * tolerance, 1e-9], [2, 1e-9 + 1.1e-3 * tolerance], [np.nan, 0.0], [2.0]):
            expected = (
                "1 updates, expected 2" if len(wrong) == 1 else r"epoch 3, update [12]: loss .*, expected "
            )
            with pytest.raises(CheckFailedError, match=expected):
                SerialCheck(world, lambda: Known(2.0, 1e-9), dtype=dtype).compare(3, 0.1, wrong)


@pytest.mark.ranks(1, 2)
def test_what_rounding_does_to_the_losses_is_allowed(comm) -> None:
    """Up to a few times as much, in the update where it is and after it."""
    world = dg.Grid(comm, backend="numpy", rows=comm.Get_size()).world
    for spread in (0.0, 0.001):
        check = SerialCheck(world, lambda spread=spread: Known(2.0, 2.0, spread=spread))
        check.compare(1, 0.1, [2.0, 2.0])
        if spread:
            check.compare(2, 0.1, [2.0, 2.0 * (1 + 0.99 * FACTOR * spread)])
            assert comm.bcast(check.record()["allowed"]) == pytest.approx(FACTOR * spread)
            check.compare(3, 0.1, [2.0 * (1 - 0.99 * FACTOR * spread), 2.0])
        wrong = 2.0 * (1 + 1.01 * (FACTOR * spread or check.tolerance))
        with pytest.raises(CheckFailedError, match="epoch 4, update 2: loss"):
            check.compare(4, 0.1, [2.0, wrong])


@pytest.mark.ranks(4)
def test_a_network_of_the_users_is_compared(comm, shared_tmp_path, monkeypatch) -> None:
    """On the whole graph and on minibatches; a layer that is right on one rank alone is found."""
    store = small_store(shared_tmp_path, comm)
    monkeypatch.setitem(NETWORKS, "own", Own)
    for given in ({"algorithm": "2d"}, {"sampler": "sage", "fanout": [3, 3], "batch_size": 5}):
        settings = Settings(model="own", check=True, epochs=5, dtype="float64", dropout=0.3, **given)
        job = Run(store, settings, comm)
        list(job.train())
        assert comm.bcast(job.end["check"]["largest_difference"]) < 1e-13
    monkeypatch.setattr(OwnLayer, "total", lambda self, X, Y: (X.block * Y.block).sum().reshape(1, 1))
    with pytest.raises(CheckFailedError, match="expected "):
        list(Run(store, Settings(model="own", check=True, epochs=3, algorithm="2d"), comm).train())


@pytest.mark.ranks(1, 2)
def test_memory_is_given_back_when_all_is_compared(comm, shared_tmp_path) -> None:
    job = made(comm, small_store(shared_tmp_path, comm), "--epochs", 4, "--check", 2, "--train-features")
    assert job.check is not None
    there: Any = job.check._reference and weakref.ref(job.check._reference.model.A)
    assert (there is not None) == (comm.rank == 0)
    for record in job.train():
        assert there is None or (there() is not None) == (record["epoch"] <= 2)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("kind", ["deep", "sampled-gat"])
def test_the_ledger_of_a_run_is_that_without_the_check(comm, kind, shared_tmp_path) -> None:
    store, found = small_store(shared_tmp_path, comm), []
    for check in ("no", "all"):
        job = made(comm, store, *KINDS[kind].split(), "--epochs", 2, f"--check={check}")
        with dg.Ledger(trace=True) as ledger:
            list(job.train())
        events = [event[:3] for event in ledger.events or [] if event.phase != "comm"]
        held = [ledger.peak[what] for what in ("adjacency", "features", "optimizer")]
        found.append((ledger.words, ledger.calls, ledger.flops, held, events))
        del job
        gc.collect()
    assert found[0] == found[1]


@pytest.mark.ranks(1, 2)
def test_a_number_that_is_none_is_refused(comm, shared_tmp_path) -> None:
    store = small_store(shared_tmp_path, comm)
    for check in (0.5, "some", -1):
        with pytest.raises(dg.UserError, match=rf"check={check!r}|check={check}"):
            Run(store, Settings(check=check), comm)


def test_a_number_on_the_command_line_and_in_files(tmp_path) -> None:
    values = {"--check": True, "--check=3": 3, "--check=all": "all", "--check=no": False, "": False}
    for flag, value in values.items():
        args = cli.parse(["train", "graph.dg", *filter(None, [flag])])
        assert args.check is value or args.check == value != 1
    (tmp_path / "f.toml").write_text("[train]\ncheck = true\n")
    assert cli.parse(["train", "graph.dg", "--config", str(tmp_path / "f.toml")]).check is True
