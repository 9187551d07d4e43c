"""The programs that measure a GPU run from end to end on the stand-in for CuPy, and say what is wrong."""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import shutil
import subprocess
import sys
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import scipy.sparse as sp

from distgnn.arrays import backend

pytestmark = pytest.mark.programs

PROGRAMS, TESTS = (Path(__file__).resolve().parents[1] / folder for folder in ("benchmarks", "tests"))


def loaded(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Load a program, which lies outside of the package."""
    spec = importlib.util.spec_from_file_location(name, PROGRAMS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.syspath_prepend(PROGRAMS)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["rmat-6", "uniform-6", "sbm-6", "road-6", "reddit-6", "rmat-6-4"])
def test_graphs_are_kept(monkeypatch, tmp_path, name):
    graphs = loaded("gpu_graphs", monkeypatch)
    A = graphs.kept(name, tmp_path)
    assert A.shape == (64, 64) and A.nnz > 0 and (A.data > 0).all()
    monkeypatch.delattr(graphs, "graph")
    assert (graphs.kept(name, tmp_path) != A).nnz == 0


def test_counts_of_a_profiler(monkeypatch, tmp_path):
    count = loaded("gpu_count", monkeypatch)
    names, file = count.METRICS.values(), tmp_path / "counted.csv"
    launches = [(launch, kernel) for launch, kernel in enumerate(("pad", "spmm<float>"))]
    rows = [f'"{launch}","{kernel}","{name}","{1000 * (at + 1):,}"' for launch, kernel in launches
            for at, name in enumerate(names)]  # fmt: skip
    file.write_text("\n".join(["==PROF== done", '"ID","Kernel Name","Metric Name","Metric Value"', *rows]))
    (row,) = count.rows("word\nCASE|rmat-6|16|V4 G4|500|72.5\n", file)
    assert row == "| rmat-6 | 16 | V4 G4 | 64 | 72.5 | 4 | 6 | 4e+03 | 0.005 |"
    with pytest.raises(ValueError, match="shorter"):
        list(count.rows("CASE|a|1|V|5|1\nCASE|b|1|V|5|1\n", file))


def test_kernels_by_kind(monkeypatch):
    kernels = loaded("gpu_kernels", monkeypatch)
    events = [
        ("void spmm<float, int, 4, false>(int)", 10, 4000.0), ("sm90_xmma_gemm_f32", 4, 1000.0),
        ("cupy_add__float32", 2, 500.0), ("activate<float>", 2, 600.0), ("_Z4spmmIfiLi4ELb1EEvi", 2, 1000.0),
    ]  # fmt: skip
    assert list(kernels.rows(events, 2)) == [
        "| spmm | 6 | 2.500 |", "| dense products | 2 | 0.500 |", "| activate | 1 | 0.300 |",
        "| sums, copies and other kernels | 1 | 0.250 |", "| together | 10 | 3.550 |",
    ]  # fmt: skip


def tiny(name: str, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a program on the stand-in for CuPy; the numbers mean nothing."""
    if "cupy" in backend.available() or shutil.which(os.environ.get("CXX", "g++")) is None:
        pytest.skip("a GPU here, or no C++ compiler (g++, or what CXX names)")
    path = [str(PROGRAMS.parent), str(TESTS / "fake_cupy"), os.environ.get("PYTHONPATH", "")]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path), **env}
    command = [sys.executable, str(PROGRAMS / f"{name}.py"), *words]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_products(tmp_path):
    out = tmp_path / "results" / "spmm.md"
    words = "--graphs uniform-6 --widths 8 5 --scale 1e-6 --rounds 1 --least-ms 0.01 --tables".split()
    done = tiny("gpu_spmm", *words, "float32", "float16", "variants", "--out", str(out))
    report = out.read_text()
    assert done.returncode == 0 and "WRONG" not in report and report == done.stdout, done.stderr
    rows = [line.split(" | ") for line in report.splitlines() if line.startswith("| uniform-6 ")]
    full, narrow, variants = rows[:2], rows[2:4], rows[4:]
    assert [len(row) for row in full] == [11, 11] and [len(row) for row in narrow] == [12, 12]
    assert all(len(row) == 5 and row[2].startswith("V") for row in variants) and len(variants) > 3
    assert narrow[0][6].strip() and not narrow[1][6].strip(), "cuSPARSE takes rows that are not padded"
    assert "- float32's over ours: geometric mean" in report and "Terabytes per second of copy" in report


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_epochs(tmp_path):
    """Three ways of ours agree, of a GCN and of attention; a rounded one within its own bound."""
    words = "--graphs rmat-6-4 --networks gcn gat-8-8 --epochs 1 --warm-up 10 --peers none --ways".split()
    done = tiny("gpu_epoch", *words, "plain", "fit", "bfloat16", "--kept-in", str(tmp_path))
    assert done.returncode == 0 and "WRONG" not in done.stdout, done.stdout + done.stderr
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| rmat")]
    ours = [row[1:3] + row[5:] for row in rows if row[2].startswith("distgnn")]
    assert [row[:2] for row in ours] == [
        [network, f"distgnn{way}"] for network in ("gcn", "gat-8-8") for way in ("", ", fit", ", bfloat16")
    ]
    assert all(float(apart) < 1e-2 for *_, apart in ours) and ours[0][-1] == "0.0e+00"


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_planned_epochs(tmp_path):
    """Epochs of a GCN and of attention are planned and measured; what is known is known by today's names."""
    words = "--graphs rmat-6-4 --networks gcn gat-8-8 --ways plain graphs+tf32 --warm-up 10".split()
    done = tiny("plan_gpu", *words, "--epochs", "1", "--measure", "--kept-in", str(tmp_path))
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| rmat")]
    assert done.returncode == 0 and len(rows) == 4, done.stdout + done.stderr
    for row in rows:
        *parts, kernels, planned, ms, ratio = map(float, row[3:])
        assert min(*parts, ms, ratio) >= 0 and planned > 0 and kernels > 5
        assert sum(parts) == pytest.approx(planned, abs=4e-3)


def test_ways_of_known_epochs(monkeypatch):
    program = loaded("plan_gpu", monkeypatch)
    assert all(program.asked(way).keys() <= {"tf32", "cuda_graph", "wire"} for way in program.WAYS)
    asked: Any = {name.lower(): getattr(program, name) for name in ("GRAPHS", "NETWORKS", "WAYS")}
    assert sorted(program.cases(argparse.Namespace(**asked))) == sorted(program.KNOWN)


def test_other_losses_are_wrong(monkeypatch, capsys):
    epoch = loaded("gpu_epoch", monkeypatch)
    tf32, dropout = {"tf32": True}, {"how": {"dropout": 0.5}}
    losses = {"distgnn": (1.0, {}), "peer": (1.002, {}), "TF32": (1.002, tf32), "nan": (math.nan, tf32),
              "dropout": (9.0, dropout)}  # fmt: skip
    answers: list[Any] = []
    for name, (loss, more) in losses.items():
        answers.append({"name": name, "losses": [loss], "seconds": [0.002], **more})
    answers.append({"name": "absent", "reason": "no such module"})
    problem = epoch.Problem("rmat-6-4", "gcn", sp.csr_array(np.eye(4)))
    args: Any = type("Args", (), {"warm_up": 0, "out": None})
    rows = epoch.Rows(problem, args, epoch.Report(args))
    for answer in answers:
        rows.tell(answer)
    wrong = rows.wrong
    assert wrong == ["rmat-6-4, gcn, peer", "rmat-6-4, gcn, nan"]
    printed = capsys.readouterr().out
    for row in ("| peer | 2.000 | 1.00 | 2.0e-03, **WRONG** |", "| TF32 | 2.000 | 1.00 | 2.0e-03 |",
                "| dropout | 2.000 | 1.00 |  |"):  # fmt: skip
        assert row in printed
    assert "| absent | no such module | | |" in printed


def test_peers_answer_for_all_problems_in_one_process(monkeypatch, tmp_path):
    epoch = loaded("gpu_epoch", monkeypatch)
    script = tmp_path / "peers.py"
    script.write_text(
        "import json, sys\nend = sys.argv.index('--')\nfor folder in sys.argv[2:end]:\n"
        "    print(json.dumps({'folder': folder, 'name': ' '.join(sys.argv[1:2] + sys.argv[end + 1:])}))\n"
        "sys.exit(3)\n"
    )
    monkeypatch.setattr(epoch, "PEERS", script)
    args: Any = type("Args", (), {"warm_up": 2, "epochs": 3, "peers": ["torch", "EdgeIndex"]})
    given = [*epoch.of_peers([tmp_path / "0", tmp_path / "1"], args)]
    assert [(Path(one["folder"]).name, one["name"]) for one in given] == [
        ("0", "5 torch EdgeIndex"), ("1", "5 torch EdgeIndex"), ("1", "peers")
    ]  # fmt: skip
    assert given[-1]["reason"] == "ended with exit status 3"


def test_peers_begin_with_the_weights_of_their_folder(monkeypatch, capsys):
    """Each named one, in each folder, with a copy of the weights; one that fails gives its reason."""
    monkeypatch.setitem(sys.modules, "torch", MagicMock(__version__="0"))
    peers = loaded("gpu_epoch_peers", monkeypatch)
    weights = {"a": np.zeros(1), "b": np.ones(1)}

    def load(folder: Path) -> dict[str, Any]:
        arrays = MagicMock(clone=weights[folder.name].copy)
        return {"heads": [8, 1] * (folder.name == "b"), "weights": {"W0": arrays}, "device": "cuda"}

    def train(problem: Any, network: Any, epochs: int, graphed: bool) -> tuple[list[float], list[float]]:
        problem["weights"]["W0"] += 1
        if graphed:
            raise RuntimeError("out of memory\nby far")
        return [float(problem["weights"]["W0"][0])] * epochs, [0.5] * epochs

    monkeypatch.setattr(peers, "load", load)
    monkeypatch.setattr(peers, "train", train)
    monkeypatch.setattr(peers, "PEERS", dict.fromkeys(peers.PEERS, lambda problem: problem))
    monkeypatch.setattr(peers, "OF_ATTENTION", {"PyG, edge index": lambda problem: problem})
    monkeypatch.setattr(sys, "argv", ["peers", "2", "a", "b", "--", "five", "CSR", "edge"])
    peers.main()
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["folder"], one["name"], one["tf32"]) for one in told] == [
        ("a", "torch.sparse, five products", False), ("a", "torch.sparse, five products, TF32", True),
        ("a", "torch.sparse, five products, CUDA graphs", False),
        ("a", "torch.sparse, five products, TF32, CUDA graphs", True), ("a", "PyG, CSR adjacency", False),
        ("a", "PyG, edge index", False), ("b", "PyG, edge index", False),
    ]  # fmt: skip
    assert [one.get("losses", one.get("reason")) for one in told] == [
        [1, 1], [1, 1], *["RuntimeError: out of memory"] * 2, [1, 1], [1, 1], [2, 2]
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_cold_start():
    done = tiny("gpu_start", "--nodes", "200", "--epochs", "2")
    lines = [line for line in done.stdout.splitlines() if "meanwhile" in line or "cache |" in line]
    rows = [line.split("|")[2:-1] for line in lines]
    assert done.returncode == 0 and len(rows) == 2, done.stdout + done.stderr
    assert all(0 < float(first) <= float(last) and float(ms) > 0 for first, last, ms in rows)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_minibatches_per_second():
    done = tiny("gpu_sampling", *"--graph rmat-6-4 --batch 8 --bulk 2 --turns 1".split())
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines()[3:] if line.startswith("| ")]
    assert done.returncode == 0 and "WRONG" not in done.stdout, done.stdout + done.stderr
    assert [row[0] for row in rows[1:]] == ["sage", "ladies", "fastgcn", "saint", "shadow", "cluster"]
    assert all(len(row) == 6 and all(float(rate) > 0 for rate in row[1:]) for row in rows[1:])


def test_other_samples_are_wrong(monkeypatch):
    """One of two ways draws an edge more than the other in its second bulk."""
    program, said = loaded("gpu_sampling", monkeypatch), []
    on = argparse.Namespace(backend=backend.get("numpy"))
    args: Any = argparse.Namespace(batch=4, bulk=1, turns=1)
    draws = {"host": [5, 5], "GPU": [5, 6]}
    monkeypatch.setitem(program.SAMPLERS, "sage", lambda graph, batch: graph)
    monkeypatch.setattr(
        program, "bulks", lambda comm, graph, args: lambda turn: [argparse.Namespace(edges=graph.draws[turn])]
    )
    graphs = {way: argparse.Namespace(**vars(on), draws=edges) for way, edges in draws.items()}
    assert not program.measured(program.MPI.COMM_SELF, "sage", graphs, args, said.append)
    assert said[0].startswith("| sage | 5 |") and "WRONG" in said[0]
    graphs["GPU"].draws = draws["host"]
    assert program.measured(program.MPI.COMM_SELF, "sage", graphs, args, said.append)
    assert "WRONG" not in said[1]


@pytest.mark.slow
def test_counts_without_a_profiler_fail():
    done = tiny("gpu_count", "--graphs", "rmat-6", "--widths", "8", "--ncu", "false")
    assert done.returncode == 1 and "###" not in done.stdout
    said = tiny("gpu_count", "--graphs", "rmat-6", "--widths", "8", "--launch").stdout
    assert said.startswith("CASE|rmat-6|8|V4 G2") and said.count("CASE") == 1


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_dense_products_and_passes(tmp_path):
    out, words = tmp_path / "dense.md", "--rows 96 --by-rows 32x16 --by-columns 16x32 --columns 5 8".split()
    done = tiny("gpu_dense", *words, "--rounds", "1", "--least-ms", "0.01", "--out", str(out))
    assert done.returncode == 0 and "WRONG" not in done.stdout and out.read_text() == done.stdout, done.stderr
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    assert [row[:4] for row in rows if row[0] in ("X W", "G Wᵀ", "Xᵀ G")] == [
        ["X W", "96", "32", "16"], ["G Wᵀ", "96", "32", "16"], ["Xᵀ G", "16", "96", "32"]
    ]  # fmt: skip
    assert all(float(row[4]) > 0 and float(row[5]) > 0 for row in rows if len(row) == 9 and row[1] != "m")
    assert [row[0] for row in rows if len(row) == 2][1:] == [
        "none", "bias, ReLU and bits", "with dropout", "a gradient's mask"
    ]  # fmt: skip
    assert [row[1] for row in rows if row[0].startswith("`")] == ["5"] * 5 + ["8"] * 5


def test_wrong_dense_products_are_named(monkeypatch):
    """The one that rounds may be off by a thousandth; the exact one may not."""
    program = loaded("gpu_dense", monkeypatch)

    def gemm(A, B, out, exact=True):
        out[...] = 1.001 * (A @ B)
        return True

    args: Any = argparse.Namespace(rows=40, by_rows=["8x4"], by_columns=["4x8"], rounds=1, least_ms=1)
    monkeypatch.setattr(program.cuda, "gemm", gemm)
    monkeypatch.setattr(program, "Cublas", MagicMock(side_effect=RuntimeError("absent")))
    monkeypatch.setattr(program, "medians", lambda *_: {"ours": 2.0, "ours, TF32*": 3.0})
    monkeypatch.setattr(program, "Ceilings", MagicMock(measured=lambda *_: MagicMock(copy=1e6)))
    wrong: list[str] = []
    rows = list(program.of_products(args, backend.get("numpy"), wrong))
    assert wrong == ["X W, 40 x 8 x 4, ours", "G Wᵀ, 40 x 8 x 4, ours", "Xᵀ G, 4 x 40 x 8, ours"]
    assert rows[0] == "| X W | 40 | 8 | 4 | 2.000 | 3.000* |  |  | 2.048 |"


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_launches_of_an_epoch(tmp_path):
    """Kernels in graphs are those of an epoch that is queued; a run waits as often as the loop."""
    out = tmp_path / "launches.md"
    done = tiny("launches", "--models", "gcn", "gat", "--nodes", "60", "--by-name", "--out", str(out))
    assert done.returncode == 0 and out.read_text() == done.stdout, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("| ")]
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith(("| gcn |", "| gat |"))]
    rows = [row for row in rows if row[-1] != "launches"]
    assert [row[:3] for row in rows] == [
        [*start, asked] for start in product(("gcn", "gat"), ("", "0.5")) for asked in ("", "yes")
    ]
    for row in rows:
        launches, waits, of_loop, *_, graphs, inside, others, waited, _, _ = map(int, row[3:])
        assert waits == of_loop == waited == 2 + (row[2] == "yes") and graphs in (2, 3)
        assert launches <= inside + others <= launches + 1  # a copy of logits
    heads = [at for at, line in enumerate(lines) if line.endswith("| launches |")]
    assert len(heads) == 8
    for at, row in zip(heads, rows, strict=True):
        end = next((other for other in heads if other > at), len(lines))
        assert sum(int(line.split("|")[2]) for line in lines[at + 1 : end]) == int(row[3])
