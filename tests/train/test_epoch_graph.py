"""Epochs launched as CUDA graphs on the stand-in: bits of epochs queued kernel by kernel, and counts."""

from __future__ import annotations

import importlib
import logging

import numpy as np
import pytest

import distgnn as dg
from distgnn import gallery
from distgnn.arrays.tuning import TUNING
from distgnn.cli.console import summary
from distgnn.errors import ArgumentError
from distgnn.local import tuner
from distgnn.local.cuda import cublas
from distgnn.nn import GCN, SGD, Adam
from distgnn.nn.finite import NotFiniteError
from distgnn.nn.networks import NETWORKS
from distgnn.nn.optim import AdamW
from distgnn.operators import make_grid
from distgnn.train import Run, Settings
from distgnn.train.full_graph import train
from distgnn.train.resolve import resolved
from loops import each

from .stores import events, run, small_store

N, WIDTH, CLASSES = 90, 12, 5
pytestmark = [pytest.mark.ranks(1), pytest.mark.parametrize("stand_in", ["cupy"], indirect=True)]


@pytest.fixture(autouse=True)
def untuned(monkeypatch):
    """Turn off the trials of products."""
    monkeypatch.setenv("DISTGNN_SPMM_TUNE", "0")


@pytest.fixture
def device(stand_in, monkeypatch):
    """Put the stand-in in the place of cuBLAS, too."""
    stand_in_of_cublas(monkeypatch)
    return stand_in


def stand_in_of_cublas(monkeypatch):
    made = importlib.import_module("cupy._cublas")
    monkeypatch.setattr(cublas, "library", lambda: made)


class Problem:
    """A network on a directed graph with rows without entries, and what is needed to train it."""

    def __init__(self, comm, model="gcn", labels="softmax", dtype=np.float32, backend="cupy", **options):
        r = np.random.default_rng(0)
        A = gallery.rmat(N, degree=6).A.astype(dtype)
        grid = make_grid(comm, "1d", backend=backend)
        self.model = NETWORKS[model](dg.distribute(A, grid, "1d"), [WIDTH, WIDTH, WIDTH, CLASSES], **options)
        known = r.integers(0, CLASSES, N).astype(np.int32)
        if labels == "binary":
            known = r.integers(0, 2, (N, CLASSES)).astype(np.int8)
        if labels == "mse":
            known = r.standard_normal((N, CLASSES))
        self.targets = self.model.targets(known, r.integers(0, 4, N).astype(np.uint8))
        X = 0.3 * r.standard_normal((N, WIDTH)).astype(dtype)
        self.X = dg.scatter(X, self.model.input_layout)
        self.on = grid.backend

    def trained(self, optimizer, epochs=6, cuda_graph=True, **how):
        """Train; return losses and scores of each epoch, and the weights."""
        wanted = ("loss", "lr", "val_acc", "val_f1", "val_r2")
        records = train(self.model, self.X, self.targets, optimizer, epochs, cuda_graph=cuda_graph, **how)
        seen = [{name: one[name] for name in wanted if name in one} for one in records]
        weights = [self.on.to_host(p.block).tobytes() for p in self.model.parameters]
        return seen, [*weights, self.on.to_host(self.X.block).tobytes()]


OPTIMIZERS = [
    lambda: Adam(0.01),
    lambda: AdamW(0.02, [0.5, 0.1], clip=0.5),
    lambda: SGD(0.1, 0.01, momentum=0.9, clip=1e-3),
    lambda: SGD(1e-3),
]


def warm(optimizer, model):
    """Return a schedule of step sizes. It lets go of memory that work without graphs has to make again."""
    first = optimizer.lr

    def before(epoch, scores):
        optimizer.lr = first / (epoch + len(scores))
        model.grid.workspace.clear()

    return before


@each(
    "options, how, make, evaluations",
    [
        ({}, {}, OPTIMIZERS[0], 0),
        ({"dropout": 0.5, "bias": True}, {"eval_every": 2}, OPTIMIZERS[1], 3),
        ({"bias": True, "residual": True, "layer_norm": True}, {"eval_every": 0}, OPTIMIZERS[2], 0),
        (
            {"dropout": 0.3, "activation": "elu", "dtype": np.float64},
            {"train_features": True},
            OPTIMIZERS[1],
            4,
        ),
        (
            {"model": "sage", "bias": True, "dropout": 0.2, "labels": "binary"},
            {"eval_every": 3},
            OPTIMIZERS[0],
            2,
        ),
        (
            {"labels": "mse", "product_order": "aggregate-first", "keep_aggregate": False},
            {},
            OPTIMIZERS[3],
            0,
        ),
        ({"model": "gat", "heads": (2, 3, 1), "bias": True}, {}, OPTIMIZERS[1], 0),
        ({"model": "gat", "heads": 4, "dropout": 0.2, "attention_dropout": 0.4}, {}, OPTIMIZERS[0], 4),
        ({"model": "gat", "heads": 4, "attention_dropout": 0.4}, {"eval_every": 5}, OPTIMIZERS[0], 1),
        ({"model": "gatv2", "heads": (4, 2, 3)}, {"train_features": True}, OPTIMIZERS[2], 0),
        (
            {"model": "gatv2", "heads": 3, "dropout": 0.3, "attention_dropout": 0.5, "dtype": np.float64},
            {"eval_every": 3},
            OPTIMIZERS[0],
            2,
        ),
    ],
)
def test_bits_are_those_of_epochs_without_graphs(comm, device, make, options, how, evaluations):
    """Step sizes change in every epoch, as do the masks of dropout. Rates and keys are read from memory.

    Epoch 1 is queued, and captured is what epochs from then on repeat; an evaluation of its own, too.
    """
    both = []
    for cuda_graph in (False, True):
        problem, optimizer = Problem(comm, **options), make()
        with device.observed() as seen:
            how["before"] = warm(optimizer, problem.model)
            both.append(problem.trained(optimizer, cuda_graph=cuda_graph, **how))
        assert optimizer.steps == 6 and seen.launches["graph"] == (10 + evaluations) * cuda_graph
    assert both[0] == both[1]


def test_attention_of_some_rows_after_others_is_captured(comm, device, monkeypatch):
    """The first epoch makes and keeps what depends on the pattern of these rows."""
    monkeypatch.setattr(TUNING, "launched_numbers", 300)
    for model in ("gat", "gatv2"):
        both = []
        for cuda_graph in (False, True):
            problem = Problem(comm, model, heads=4, dropout=0.2, attention_dropout=0.4)
            assert problem.model.A.nnz > 300
            with device.observed() as seen:
                both.append(problem.trained(Adam(0.01), cuda_graph=cuda_graph))
            assert seen.launches["graph"] == 14 * cuda_graph
        assert both[0] == both[1]


def test_what_an_epoch_launches(comm, device):
    """Two graphs, three copies. With dropout the keys are copied too; an evaluation is a graph of its own."""
    for options, every, expected, replayed in (
        ({}, 0, (2, 2, 2, 1), 18),
        ({"dropout": 0.5, "bias": True}, 0, (2, 2, 2, 2), 26),
        ({}, 1, (4, 3, 3, 1), 19),
        ({"dropout": 0.5, "bias": True}, 1, (5, 3, 3, 2), 34),
        ({"model": "gat", "heads": 2}, 1, (4, 3, 3, 1), 55),
        ({"model": "gatv2", "heads": 2, "attention_dropout": 0.5}, 1, (5, 3, 3, 2), 105),
    ):
        problem = Problem(comm, **options)
        epochs = train(
            problem.model, problem.X, problem.targets, Adam(0.01), 9, eval_every=every, cuda_graph=True
        )
        for _ in range(4):
            next(epochs)
        with device.observed() as seen:
            record = next(epochs)
        counted = ("launches", "synchronizations", "device to host", "host to device")
        assert tuple(seen.counts[name] for name in counted) == expected
        assert seen.counts["captured"] == 0
        assert seen.counts["replayed"] == replayed
        assert seen.launches["graph"] == 2 + (every > 0 and problem.model.draws)
        assert record["words"] == 0


def test_costs_are_charged_as_without(comm, device):
    charged = []
    for cuda_graph in (False, True):
        problem = Problem(comm, dropout=0.5)
        with dg.Ledger() as ledger:
            problem.trained(Adam(0.01), eval_every=0, cuda_graph=cuda_graph)
        charged.append([(e["operation"], e["calls"], e["flops"], e["words"]) for e in ledger.entries()])
    assert charged[0] == charged[1]


def test_kernels_are_chosen_before_a_capture(comm, device, monkeypatch, caplog):
    """Trials are timed by events, which a capture does not have."""
    monkeypatch.setenv("DISTGNN_SPMM_TUNE", "1")
    caplog.set_level(logging.INFO)
    problem = Problem(comm)
    epochs, trials = [], []
    given = problem.model, problem.X, problem.targets, Adam(0.01), 40
    for _ in train(*given, eval_every=0, cuda_graph=True):
        epochs.append("CUDA graphs from now on" in caplog.text)
        trials.append(tuner.trials)
    assert epochs[-1] and not epochs[3] and len(epochs) == 40
    first = epochs.index(True)
    assert trials[first - 2] == trials[-1] > trials[0]


def test_an_evaluation_chooses_kernels_before_its_capture(comm, device, monkeypatch, caplog):
    """Kernels of the first three evaluations are still tried out when epochs are graphs."""
    caplog.set_level(logging.INFO)
    problem, said, evaluations = Problem(comm, dropout=0.5), [], []
    queue = problem.model.queue_logits

    def trying(*given):
        queue(*given)
        evaluations.append(given)
        tuner.trials += len(evaluations) <= 3

    monkeypatch.setattr(problem.model, "queue_logits", trying)
    monkeypatch.setattr(tuner, "trials", tuner.trials)
    how = {"eval_every": 3, "cuda_graph": True}
    for _ in train(problem.model, problem.X, problem.targets, Adam(0.01), 16, **how):
        said.append([f"{what} from now on" in caplog.text for what in ("two CUDA graphs", "is a CUDA graph")])
    assert said[3] == [True, False] and said[11] == [True, False] and said[-1] == [True, True]
    assert "no CUDA graph" not in caplog.text


def test_numbers_that_are_not_finite_end_the_training(comm, device):
    for lr, message in (
        (1e30, "epoch [1-9], layer [0-2]: "),
        (1e38, "epoch 1, layer [0-2]: the update leaves"),
    ):
        problem = Problem(comm)
        with pytest.raises(NotFiniteError, match=message):
            problem.trained(Adam(lr), 9)
    problem = Problem(comm)
    epochs = train(problem.model, problem.X, problem.targets, Adam(0.01), 9, cuda_graph=True)
    for _ in range(5):
        next(epochs)
    problem.model.layers[1].W.block[0, 0] = np.nan
    with pytest.raises(NotFiniteError, match="^epoch 6, layer 1: .*this layer is where it begins"):
        next(epochs)


def test_what_cannot_be_captured_is_queued(comm, device, monkeypatch, caplog):
    """Epochs go on without graphs where a library fails while it is captured."""
    usual = Problem(comm, dropout=0.5).trained(Adam(0.01), cuda_graph=False)
    multiply = cublas.Cublas.matmul

    def fails(self, A, B, out, accumulate=False):
        if self.xp.cuda.get_current_stream().is_capturing():
            raise RuntimeError("cuBLAS failed with status 14")
        return multiply(self, A, B, out, accumulate)

    def mistaken(self, A, B, out, accumulate=False):
        multiply(self, A, B, out, accumulate)
        out[-1, -1] += A.flags.f_contiguous
        return out

    def missing():
        raise RuntimeError("cuBLAS is not loaded")

    for where, name, now, problem in (
        (cublas.Cublas, "matmul", fails, "cuBLAS failed with status 14"),
        (cublas.Cublas, "matmul", mistaken, "multiplies otherwise than by CuPy"),
        (cublas, "library", missing, "cuBLAS is not loaded"),
    ):
        caplog.clear()
        with monkeypatch.context() as patch, device.observed() as seen:
            patch.setattr(where, name, now)
            assert Problem(comm, dropout=0.5).trained(Adam(0.01)) == usual
        assert "no CUDA graph, epochs are queued kernel by kernel: RuntimeError: " in caplog.text
        assert problem in caplog.text and not seen.launches["graph"]


def test_small_graphs_are_captured_by_default(comm, device, shared_tmp_path, monkeypatch, caplog):
    """Epochs that cannot be captured are queued, without a warning. A trace is of operations."""
    caplog.set_level(logging.INFO)
    usual = Problem(comm).trained(Adam(0.01), cuda_graph=False)

    def missing():
        raise RuntimeError("cuBLAS is not loaded")

    for where, name, value, graphs in (
        (TUNING, "graph_rows", N, 10), (TUNING, "graph_rows", N - 1, 0), (cublas, "library", missing, 0),
    ):  # fmt: skip
        with monkeypatch.context() as patch, device.observed() as seen:
            patch.setattr(where, name, value)
            assert Problem(comm).trained(Adam(0.01), cuda_graph=None) == usual
        assert seen.launches["graph"] == graphs
    Problem(comm, "gat", heads=2).trained(Adam(0.1), cuda_graph=None)
    assert "no CUDA graph, epochs are queued kernel by kernel" in caplog.text
    assert not [record for record in caplog.records if record.levelno > logging.INFO]
    store = small_store(shared_tmp_path, comm)
    known = {"backend": "cupy", "algorithm": "1d", "hidden": (8,), "epochs": 5, "tune_gemm": False}
    for trace in (None, str(shared_tmp_path / "trace.json")):
        caplog.clear()
        made = Run(store, Settings(trace=trace, **known), comm)
        assert len(list(made.train())) == 5
        assert ("an epoch is two CUDA graphs" in caplog.text) == (trace is None)
        made.grid.free()


def test_the_end_of_a_run_says_which_epochs_were_graphs(comm, device, shared_tmp_path, monkeypatch):
    """The log's end and the summary count them, or tell why there is none."""
    store = small_store(shared_tmp_path, comm)

    def missing():
        raise RuntimeError("cuBLAS is not\nloaded")

    sampled = {"sampler": "sage", "batch_size": 20, "fanout": (2, 2), "algorithm": None}
    for number, (more, change, epochs, why_not) in enumerate((
        ({}, None, 4, "is made after the first epochs"),
        ({"dropout": 0.5, "model": "gat", "heads": (2,)}, None, 4, "is made after the first epochs"),
        ({"epochs": 1}, None, 0, "is made after the first epochs"),
        ({"cuda_graph": False}, None, 0, "was not asked for"),
        ({"trace": str(shared_tmp_path / "trace.json")}, None, 0, "or a trace of operations was"),
        ({}, (TUNING, "graph_rows", 10), 0, "has to be asked for with more than 10 nodes"),
        ({}, (cublas, "library", missing), 0, "failed: RuntimeError: cuBLAS is not loaded"),
        (sampled, None, 0, "is for training on the whole"),
        ({"backend": "numpy"}, None, None, ""),
    )):  # fmt: skip
        log = shared_tmp_path / f"{number}.jsonl"
        known = {"backend": "cupy", "algorithm": "1d", "hidden": (8,), "epochs": 5, "tune_gemm": False}
        with monkeypatch.context() as patch:
            if change:
                patch.setattr(*change)
            made = Run(store, Settings(log=str(log), **(known | more)), comm)
            list(made.train())
        made.grid.free()
        (end,) = events(log, "end")
        assert end.get("cuda_graph") == made.end.get("cuda_graph")
        if epochs is None:
            assert "cuda_graph" not in end and "CUDA" not in summary(made)
            continue
        assert end["cuda_graph"]["epochs"] == epochs and why_not in end["cuda_graph"]["why_not"]
        said = f"CUDA graphs: {epochs} epochs" if epochs else f"no epoch was a CUDA graph, which {why_not}"
        assert (said if why_not[:2] != "or" else why_not) in summary(made)


def test_what_graphs_keep_is_noticed_when_it_changes(comm, device):
    """A X that the model forgets, and numbers of the optimiser, even between the passes and the update."""
    both = []
    for cuda_graph in (False, True):
        problem = Problem(comm, product_order="aggregate-first")
        optimizer = Adam(0.01, clip=1.0)

        def before(epoch, scores, optimizer=optimizer):
            if epoch == 8:
                optimizer.weight_decay, optimizer.clip = [0.5], 0.1

        losses = []
        with device.observed() as seen:
            how = {"cuda_graph": cuda_graph, "before": before}
            for one in train(problem.model, problem.X, problem.targets, optimizer, 12, **how):
                losses.append(one["loss"])
                if one["epoch"] == 5:
                    problem.X.block[...] *= 3
                    problem.model.forget()
        assert seen.launches["graph"] == 19 * cuda_graph  # two in epochs 2 to 5, 7, and 9 to 12; one in 8
        both.append(losses)
    assert both[0] == both[1]


def test_what_changes_between_epochs_is_queued_once_before_it_is_captured(comm, device):
    """An evaluation, which comes first in an epoch, notices it."""
    both = []
    for cuda_graph in (False, True):
        problem, optimizer, losses = Problem(comm, dropout=0.5), Adam(0.01), []
        with device.observed() as seen:
            for one in train(problem.model, problem.X, problem.targets, optimizer, 8, cuda_graph=cuda_graph):
                losses.append(one["loss"])
                if one["epoch"] == 5:
                    optimizer.clip = 1e-3
        # Two in epochs 2 to 5, 7 and 8, and evaluations in 3 to 5 and 8: epoch 6 is queued.
        assert seen.launches["graph"] == (12 + 4) * cuda_graph
        both.append(losses)
    assert both[0] == both[1]


def test_refusals(comm, device, shared_tmp_path, monkeypatch):
    class Own(Adam):
        def step(self, parameters, gradients):
            super().step(parameters, gradients)

    class Network(GCN):
        pass

    problem = Problem(comm)
    with pytest.raises(ArgumentError, match="cuda_graph=True: is for sgd, adam and adamw, not Own"):
        problem.trained(Own(0.1))
    problem.model.__class__ = Network
    monkeypatch.setitem(NETWORKS, "own", Network)
    with pytest.raises(
        ArgumentError, match="cuda_graph=True: is for the models gcn, sage, gat and gatv2, not for Network"
    ):
        problem.trained(Adam(0.1))
    with pytest.raises(ArgumentError, match="cuda_graph=True: is for a GPU, and backend=numpy computes on n"):
        Problem(comm, backend="numpy").trained(Adam(0.1))
    with pytest.raises(ArgumentError, match="cuda_graph=True: excludes sampler=sage; it is for the whole"):
        resolved(Settings(cuda_graph=True, sampler="sage"), 1)


def test_a_run_from_the_command_line(comm, device, shared_tmp_path):
    """A checkpoint in the middle of graphs goes on with the same bits."""
    store = small_store(shared_tmp_path, comm)
    known = {"backend": "cupy", "algorithm": "1d", "hidden": (8,), "schedule": "cosine", "tune_gemm": False}
    losses = []
    for cuda_graph in (False, True):
        made = Run(store, Settings(epochs=9, cuda_graph=cuda_graph, **known), comm)
        losses.append([record["loss"] for record in made.train()])
        assert made.record["config"]["cuda_graph"] == cuda_graph
        made.grid.free()
    assert losses[0] == losses[1]
    words = ["--cuda-graph", "--backend", "cupy", "--algorithm", "1d", "--hidden", "8", "--check", "--trace"]
    run(comm, shared_tmp_path / "small.dg", *words, shared_tmp_path / "trace.json", "--epochs", "7")


@pytest.mark.ranks(2)
def test_several_ranks_are_refused(comm, device, shared_tmp_path):
    with pytest.raises(ArgumentError, match="cuda_graph=True: is for one rank, and here are 2"):
        Problem(comm).trained(Adam(0.1))
