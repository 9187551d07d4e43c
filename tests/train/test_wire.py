"""Runs whose messages have 16 bits: losses, bytes, equal weights, records, checkpoints, what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

import distgnn as dg
from distgnn import local
from distgnn.errors import ArgumentError, WireOverflowError
from distgnn.local.narrow import KINDS
from distgnn.nn import GCN
from distgnn.operators import ALGORITHMS, SPARSITY_AWARE, make_grid
from distgnn.split import TRAIN
from distgnn.train import Run
from distgnn.train.resolve import resolved
from distgnn.train.settings import Settings

from .stores import events, run, small_store

NETWORK = {"recipe": "plain", "hidden": (12, 12), "epochs": 10, "tune_gemm": False, "eval_every": 5}


def trained(comm, store, **settings):
    """Return the losses, this rank's weights, the end of the log, and bytes by whether they may be halved."""
    made = Run(store, Settings(**settings, **NETWORK), comm)
    with dg.Ledger() as ledger:
        losses = [record["loss"] for record in made.train()]
    sent = {True: 0, False: 0}
    for entry in ledger.entries():
        sent[entry["matrix"] in ("H", "G", "T", "sums")] += entry["bytes"] * (entry["phase"] == "comm")
    matrices = {p.name: p.matrix for p in made.parameters}
    weights = {name: (W.layout.ranges(W.shape), W.block.tobytes()) for name, W in matrices.items()}
    made.grid.free()
    return np.array(losses), weights, sent


@pytest.mark.ranks(4)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_losses_are_within_one_per_cent_and_ranks_agree(comm, algorithm, shared_tmp_path):
    """Copies of a block of weights are equal to the bit after 10 updates."""
    store = small_store(shared_tmp_path, comm)
    grid = {"1.5d": "2x2", "2d": "2x2", "3d": "2x1x2", "rdm": "2x2"}.get(algorithm)
    exact, _, usual = trained(comm, store, algorithm=algorithm, grid=grid)
    for wire in KINDS:
        losses, weights, sent = trained(comm, store, algorithm=algorithm, grid=grid, wire=wire)
        apart = np.abs(losses / exact - 1)
        assert 1e-6 < apart.max() < 0.01
        assert sent[False] == usual[False] and 2 * sent[True] == pytest.approx(usual[True], abs=9)
        for name in weights:
            copies = {}
            for ranges, block in comm.allgather(weights[name]):
                assert copies.setdefault(ranges, block) == block, name


@pytest.mark.ranks(4)
def test_gradients_of_a_mean_over_many_nodes_are_no_zeros(comm, monkeypatch):
    """A gradient of 1e-8 is 0 in float16, as those of a mean over millions of nodes are."""
    n, r, found = 4096, np.random.default_rng(0), []
    A = sp.csr_array((np.full(2 * n, 0.5, np.float32), r.integers(0, n, 2 * n), np.arange(0, 2 * n + 1, 2)))
    X, G = r.standard_normal((n, 3), np.float32), 1e-8 * r.standard_normal((n, 4), np.float32)
    for wire in (None, *KINDS):
        grid = make_grid(comm, "1d", backend="numpy", wire=wire)
        model = GCN(dg.distribute(A, grid, "1d"), [3, 4], seed=1)
        model.forward(dg.scatter(X, model.input_layout), epoch=1, keep=True)
        gradients, dX = model.backward(dg.scatter(G, model.output_layout), 1, need_input=True, mean_over=n)
        found.append([*gradients, dX.block.copy()])
        told, split = [], np.arange(n, dtype=np.uint8) % 4
        backward = model.backward
        monkeypatch.setattr(model, "backward", lambda *args: told.append(args[3]) or backward(*args))  # noqa: B023
        model.gradients(dg.scatter(X, model.input_layout), model.targets(np.zeros(n, np.int32), split))
        assert told == [(split == TRAIN).sum()]
        grid.free()
    for exact, *rounded in zip(*found, strict=True):
        assert all(np.abs(block - exact).max() < 0.02 * np.abs(exact).max() for block in rounded)


#: By name: numbers that are too large forward, or backward only, in (first layer's input, last weights).
OVERFLOWS = {"a panel or sum of the forward pass": (1e7, 1), "a gradient of the backward pass": (1e-5, 1e8)}


def overflows(comm, store, folder, where, backend="numpy", **settings):
    """Assert that a run ends in its first epoch, with an error on every rank, and leaves no number behind."""
    grow, weigh = OVERFLOWS[where]
    log, saved = folder / "log", folder / "saved"
    given = {"log": str(log), "checkpoint": str(saved), "checkpoint_every": 1, "force": True}
    how = {"backend": backend, "normalize_features": False, "epochs": 2, "tune_gemm": False}
    how |= {"hidden": (12, 12)}
    made = Run(store, Settings(wire="float16", **how | given | settings), comm)
    made.X.block *= grow
    made.model.layers[-1].W.block *= weigh
    with pytest.raises(
        WireOverflowError, match=f"epoch 1: a number of size .* in {where} is too large for fl"
    ):
        list(made.train())
    comm.Barrier()
    if comm.Get_rank() == 0:
        assert not events(log, "epoch") and events(log, "failed")[0]["epoch"] == 1 and not saved.exists()
    comm.Barrier()
    made.grid.free()


@pytest.mark.ranks(4)
@pytest.mark.parametrize("where", OVERFLOWS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_does_not_fit_ends_training_at_once(comm, algorithm, where, shared_tmp_path, backend):
    """With and without dropout, on whole blocks, needed rows and covers."""
    store = small_store(shared_tmp_path, comm)
    ways = [(False, "plain"), (True, "kipf-welling"), ("cover", "plain")]
    for aware, recipe in ways if algorithm in SPARSITY_AWARE else [(False, "kipf-welling")]:
        how = {"algorithm": algorithm, "sparsity_aware": aware, "recipe": recipe}
        overflows(comm, store, shared_tmp_path, where, backend.name, **how)


@pytest.mark.ranks(3)
@pytest.mark.parametrize("where", OVERFLOWS)
@pytest.mark.parametrize("model", ["sage", "gat", "gatv2"])
def test_in_every_network(comm, model, where, shared_tmp_path):
    store = small_store(shared_tmp_path, comm)
    heads = None if model == "sage" else 2
    for algorithm in ("1d", "2d"):
        overflows(comm, store, shared_tmp_path, where, model=model, algorithm=algorithm, heads=heads)


@pytest.mark.ranks(1)
@pytest.mark.parametrize("where", OVERFLOWS)
def test_on_one_gpu_what_products_read_must_fit(comm, where, stand_in, shared_tmp_path):
    """In CUDA graphs too."""
    store = small_store(shared_tmp_path, comm)
    for graph in (False, True):
        overflows(comm, store, shared_tmp_path, where, "cupy", cuda_graph=graph, algorithm="1d")


@pytest.mark.ranks(1, 4)
def test_the_command_says_it_in_a_line(comm, shared_tmp_path, capfd):
    """Numbers that ReLU would hide: -inf in H W. bfloat16 holds them, and so do 32 bits."""
    store = small_store(shared_tmp_path, comm)
    words = [store, "--recipe", "plain", "--epochs", 2, "--quiet", "--lr", "1e5", "--hidden", 12]
    for wire, code in (("float16", comm.Get_size() > 1), ("bfloat16", False)):
        assert run(comm, *words, "--wire", wire) == code
        comm.Barrier()
        _, err = capfd.readouterr()
        if comm.Get_rank() == 0 and code:
            assert err.startswith("distgnn: error: epoch 2: a number of size ") and err.count("\n") == 1
            assert "; take wire=bfloat16, or no wire" in err
        comm.Barrier()


@pytest.mark.ranks(1)
@pytest.mark.parametrize("kind", KINDS)
def test_on_a_gpu_one_rank_trains_with_rounded_operands(comm, stand_in, shared_tmp_path, kind, monkeypatch):
    """Losses are those of a serial training that rounds what A multiplies, and others than without."""
    store, found, of_run = small_store(shared_tmp_path, comm), [], dg.Grid.rounded

    def rounded(grid, B):
        if grid.backend.on_device:
            return of_run(grid, B)
        X = np.ascontiguousarray(B, np.float32)
        bits = local.narrow(X, np.empty(X.shape, np.uint16), kind, np.zeros(1, np.int32))
        return local.widen(bits, X, kind).astype(B.dtype)

    for patched in (False, True):
        if patched:
            monkeypatch.setattr(dg.Grid, "rounded", rounded)
        how = {"product_order": "aggregate-first", "backend": "cupy", "check": 10}
        made = Run(store, Settings(algorithm="1d", wire=kind, **how, **NETWORK), comm)
        assert len(list(made.train())) == 10
        assert made.check.compared == 10
        found.append(made.check.largest)
        made.grid.free()
    assert found[1] < found[0] / 10 and found[0] > 1e-5


@pytest.mark.ranks(4)
def test_wire_is_in_the_log_and_in_the_checkpoint(comm, shared_tmp_path):
    store, log, saved = (shared_tmp_path / name for name in ("small.dg", "run.jsonl", "saved"))
    small_store(shared_tmp_path, comm)
    words = [store, "--log", log, "--checkpoint", saved, "--epochs"]
    run(comm, *words, 2, "--wire", "bfloat16", "--check")
    comm.Barrier()
    if comm.Get_rank() == 0:
        (start,), (end,) = events(log, "run"), events(log, "end")
        assert start["config"]["wire"] == "bfloat16"
        assert end["check"]["allowed"] == 0.01 and 1e-7 < end["check"]["largest_difference"] < 0.01
    comm.Barrier()
    run(comm, *words, 4, "--wire", "bfloat16", "--resume")
    for other in ([], ["--wire", "float16"]):
        with pytest.raises(dg.UserError, match="was written by a run with wire bfloat16, this one has"):
            run(comm, *words, 6, "--resume", *other)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"wire": "int8"}, "wire=int8: expected one of bfloat16, float16"),
        ({"wire": "float16", "dtype": "float64"}, "wire=float16: .* excludes dtype=float64"),
        ({"wire": "float16", "sampler": "sage"}, "wire=float16: excludes sampler=sage; features of "),
    ],
)
def test_what_does_not_go_together_is_refused_in_a_line(given, problem):
    with pytest.raises(ArgumentError, match=problem):
        resolved(Settings(**given), 4)
