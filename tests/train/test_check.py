"""``train --check``: a serial training beside every kind of run, bounded, and a wrong panel that it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import distgnn as dg
from distgnn import cli
from distgnn.arrays.csr import CSR
from distgnn.layout import Range
from distgnn.nn import GCN, NETWORKS, gatv2
from distgnn.nn.dropout import Dropout
from distgnn.operators import edge_products
from distgnn.operators.weights import ReplicatedWeights
from distgnn.store import prepare
from distgnn.store.read.order import Order
from distgnn.train import Run, Settings
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


def checked(comm: Any, *words: Any) -> dict[str, Any]:
    """Run in float64, and return its check; the losses must have fallen, and float32 must agree, too."""
    assert run(comm, *words, "--check", "all", "--quiet") == 0
    whole = made(comm, *words, "--check", "all", "--dtype", "float64", "--force")
    losses = [record["loss"] for record in whole.train()]
    assert len(set(losses)) == len(losses)
    return whole.end["check"]


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_every_kind_of_run_is_that_of_one_process(comm, kind, shared_tmp_path) -> None:
    store = small_store(shared_tmp_path, comm)
    found = checked(comm, store, *KINDS[kind].split(), "--epochs", 4, "--seed", 3)
    assert (found["epochs"], found["allowed"]) == ((1, 4), 1e-11) and found["updates"] >= 4
    assert comm.bcast(found["largest_difference"]) < 1e-13


@pytest.mark.ranks(4)
@pytest.mark.slow
def test_directed_graphs_and_several_classes(comm, shared_tmp_path) -> None:
    path = shared_tmp_path / "directed.dg"
    if comm.Get_rank() == 0:
        prepare(Communities(directed=True), path)
    comm.Barrier()
    for store in (path, several(shared_tmp_path, comm)):
        for kind in ("sage", "sampled-sage", "gat", "sampled-gatv2", "ladies", "saint"):
            words = KINDS[kind].replace("--batch-size 4", "--batch-size 5").split()
            found = checked(comm, store, *words, "--order", "random", "--epochs", 3)
            assert comm.bcast(found["largest_difference"]) < 1e-13


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("kind", ["deep", "sage-features", "sampled-sage", "gatv2", "plateau"])
@pytest.mark.slow
def test_a_resumed_run_is_checked_from_its_checkpoint_on(comm, kind, shared_tmp_path) -> None:
    """With other step sizes, too."""
    store, saved = small_store(shared_tmp_path, comm), shared_tmp_path / "saved"
    words = [store, *KINDS[kind].split(), "--dtype", "float64", "--checkpoint", saved]
    run(comm, *words, "--epochs", 3, "--quiet")
    again = made(comm, *words, "--epochs", 6, "--resume", "--check", 2, "--lr", 0.03)
    assert len(list(again.train())) == 3
    found = again.end["check"]
    assert (found["updates"], found["epochs"]) == (2, (4, 4 if "sampler" in KINDS[kind] else 5))
    assert comm.bcast(found["largest_difference"]) < 1e-13


@pytest.mark.ranks(1, 4)
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


def transposed(block: sp.csr_array, rows: Range, cols: Range) -> sp.csr_array:
    square = block.shape[0] == block.shape[1]
    return block.T.tocsr() if square and rows[0] == 0 and cols != rows else block


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


WRONG = {
    "a lost edge": (
        partial(changed_blocks, without_an_edge),
        "deep sage gat gatv2 ladies saint sampled-sage sampled-gcn sampled-gat sampled-gatv2",
    ),
    "a transposed block": (partial(changed_blocks, transposed), "deep gat gatv2"),
    "dropout at another rate": (at_another_rate, "deep sage gatv2 sampled-gat saint"),
    "GATv2's gradient of the wrong sign": (partial(of_the_wrong_sign, gatv2), "gatv2 sampled-gatv2"),
    "GAT's gradient of the wrong sign": (partial(of_the_wrong_sign, edge_products), "sampled-gat"),
}


@pytest.mark.ranks(4)
@pytest.mark.parametrize(("wrong", "kind"), [(w, kind) for w in WRONG for kind in WRONG[w][1].split()])
@pytest.mark.slow
def test_what_is_wrong_is_found_and_what_is_right_is_not(
    comm, wrong, kind, shared_tmp_path, monkeypatch
) -> None:
    """Adam makes rounding grow in float32, and hides an edge that the first minibatches do not draw."""
    store = shared_tmp_path / "directed.dg"
    if comm.rank == 0:
        prepare(Communities(directed=True), store, order=("random",))
    comm.Barrier()
    own = KINDS[kind].replace("--optimizer sgd", "") if "gat" in kind else KINDS[kind]
    words = [store, *own.split(), "--epochs", 6, "--seed", 1]
    words += ["--algorithm", "2d"] if "block" in wrong else []
    assert run(comm, *words, "--check", "all", "--quiet") == 0
    words += ["--optimizer", "sgd"] if "sampled" in kind and "edge" in wrong else []
    monkeypatch.setattr(*WRONG[wrong][0]())
    assert run(comm, *words, "--check", "all", "--quiet") == 1


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


@pytest.mark.ranks(1, 2)
def test_what_cannot_be_compared_is_refused(comm, shared_tmp_path, monkeypatch) -> None:
    store = small_store(shared_tmp_path, comm)
    monkeypatch.setitem(NETWORKS, "own", GCN)
    with pytest.raises(dg.UserError, match=r"check=True: there is no serial reference of model=own"):
        Run(store, Settings(model="own", check=True), comm)
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
