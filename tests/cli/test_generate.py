"""``distgnn generate``: flags reach the generators, bad ones are one line and leave nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from distgnn import cli, gallery
from distgnn.gallery import PlantedPartition, RMat, RoadMap
from mpi_helpers import clean_environment, mpiexec
from mpi_helpers.programs import launcher


@pytest.mark.parametrize(
    ("words", "graph", "line"),
    [
        (
            "rmat --nodes 50 --edges 200 --probabilities 0.4,0.3,0.2,0.1 --directed --no-scramble "
            "--features 4 --classes 3 --seed 9",
            RMat(
                50,
                edges=200,
                probabilities=(0.4, 0.3, 0.2, 0.1),
                directed=True,
                scramble=False,
                features=4,
                classes=3,
                seed=9,
            ),
            "rmat graph, 50 nodes, 200 directed edges listed, 4 features, 3 classes, seed 9",
        ),
        (
            "sbm --nodes 60 --degree 5 --communities 4 --mixing 0.3 --size-exponent 2 --degree-exponent 3 "
            "--noise 0.5 --classes 2",
            PlantedPartition(
                60,
                degree=5,
                communities=4,
                mixing=0.3,
                size_exponent=2,
                degree_exponent=3,
                noise=0.5,
                classes=2,
            ),
            "sbm graph, 60 nodes, 150 undirected edges listed, 64 features, 2 classes, seed 0",
        ),
        (
            "road --nodes 70 --spacing 2 --missing-roads 0 --missing-nodes 0 --tile 4 "
            "--features 0 --classes 0 --split 0.5/0.1/0.1",
            RoadMap(
                70,
                spacing=2,
                missing_roads=0,
                missing_nodes=0,
                tile=4,
                features=0,
                classes=0,
                split="0.5/0.1/0.1",
            ),
            "undirected edges listed, no features, no labels, seed 0",
        ),
        (
            "sbm",
            PlantedPartition(20_000),
            "sbm graph, 20000 nodes, 160000 undirected edges listed, 64 features, 16 classes, seed 0",
        ),
        (
            "sbm --nodes 5",
            PlantedPartition(5, communities=5),
            "sbm graph, 5 nodes, 40 undirected edges listed, 64 features, 5 classes",
        ),
        (
            "sbm --nodes 1",
            PlantedPartition(1, communities=1, mixing=0),
            "sbm graph, 1 nodes, 8 undirected edges listed, ",
        ),
        (
            "rmat --scale 6",
            RMat(64),
            "rmat graph, 64 nodes, 512 undirected edges listed, 64 features, 8 classes, seed 0",
        ),
    ],
    ids=["rmat", "sbm", "road", "defaults", "few nodes", "one node", "scale"],
)
def test_flags_reach_the_generator(
    words: str, graph: gallery.GeneratedGraph, line: str, tmp_path: Path, capsys
) -> None:
    kind, *flags = words.split()
    assert cli.main(["generate", kind, str(tmp_path / "out"), *flags]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"{tmp_path / 'out'}: ")
    assert line in printed
    assert printed.count("\n") == 1
    gallery.write(graph, tmp_path / "expected")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {path.name for path in (tmp_path / "expected").iterdir()}
    for name in names:
        written, expected = ((tmp_path / folder / name).read_bytes() for folder in ("out", "expected"))
        assert (
            (json.loads(written) == json.loads(expected)) if name == "graph.json" else (written == expected)
        ), name


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("rmat --nodes 0", "--nodes 0: expected 1 to 2**40 nodes"),
        ("sbm --nodes -3", "--nodes -3: expected"),
        ("road --nodes 0", "--nodes 0: expected"),
        ("rmat --nodes many", "argument --nodes: invalid int value: 'many'"),
        ("rmat --nodes 8 --scale 3", "--scale 3: excludes"),
        ("rmat --scale 41", "--scale 41: expected 0 to 40"),
        ("rmat --nodes 8 --edges 5 --degree 2", "--degree 2.0: excludes"),
        ("rmat --nodes 8 --edges -1", "--edges -1: expected a number >= 0"),
        ("rmat --nodes 8 --degree nan", "--degree nan: expected a number >= 0"),
        (
            "rmat --nodes 8 --probabilities 0.5,0.5,0.5,0.5",
            "0.5,0.5,0.5,0.5: expected four numbers >= 0 that sum to 1, not 2",
        ),
        ("rmat --nodes 8 --probabilities 1,1,-1,0", "expected four numbers >= 0 that sum to 1"),
        ("rmat --nodes 8 --probabilities 0.5,0.5", "--probabilities 0.5,0.5: expected four numbers a,b,c,d"),
        (
            "rmat --nodes 8 --probabilities a,b,c,d",
            "argument --probabilities: expected numbers, as in 5e-4,0, not 'a,b,c,d'",
        ),
        ("rmat --nodes 8 --features -1", "--features -1: expected 0 (none) or"),
        ("rmat --nodes 8 --classes -1", "--classes -1: expected 0 (no labels) or"),
        ("rmat --nodes 8 --noise inf", "--noise inf: expected a number >= 0"),
        ("rmat --nodes 8 --seed -1", "--seed -1: expected 0 to"),
        ("rmat --nodes 8 --split 0.9/0.9/0.9", "--split '0.9/0.9/0.9'"),
        ("rmat --nodes 8 --mixing 0.1", "--mixing 0.1: is for sbm, not for rmat"),
        ("road --nodes 8 --degree 3", "--degree 3.0: is for rmat and sbm, not for road"),
        ("sbm --nodes 8 --communities 9", "--communities 9: expected 1 to 8, the number of nodes"),
        (
            "sbm --nodes 8 --communities 4 --classes 5",
            "--classes 5: expected at most 4, the number of communities",
        ),
        (
            "sbm --nodes 8 --communities 1 --mixing 0.2",
            "--mixing 0.2: edges cannot leave the only community; expected 0",
        ),
        ("sbm --nodes 80 --mixing 1.5", "--mixing 1.5: expected a share between 0 and 1"),
        ("sbm --nodes 80 --degree-exponent 1", "--degree-exponent 1.0: expected a number above 1"),
        ("sbm --nodes 80 --size-exponent nan", "--size-exponent nan: expected a number above 1"),
        ("road --nodes 8 --spacing 0", "--spacing 0: expected at least 1"),
        ("road --nodes 8 --tile 0", "--tile 0: expected at least 1"),
        ("road --nodes 8 --missing-roads 2", "--missing-roads 2.0: expected a share between 0 and 1"),
        ("road --nodes 8 --missing-nodes 1", "--missing-nodes 1.0: expected a share between 0 and 0.9"),
        ("ring --nodes 8", "argument KIND: invalid choice: 'ring'"),
    ],
)
def test_bad_parameters_are_one_line_and_write_nothing(
    words: str, message: str, tmp_path: Path, capsys
) -> None:
    kind, *flags = words.split()
    assert cli.main(["generate", kind, str(tmp_path / "out"), *flags]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("distgnn: error: ")
    assert printed.err.count("\n") == 1
    assert message in printed.err
    assert list(tmp_path.iterdir()) == []


def test_existing_output_and_missing_parent(tmp_path: Path, capsys) -> None:
    words = ["generate", "rmat", str(tmp_path / "out"), "--nodes"]
    assert cli.main([*words, "10"]) == 0
    assert cli.main([*words, "20"]) == 2
    assert "out exists; --force replaces it" in capsys.readouterr().err
    assert json.loads((tmp_path / "out/graph.json").read_text())["n"] == 10
    assert cli.main([*words, "20", "--force"]) == 0
    assert json.loads((tmp_path / "out/graph.json").read_text())["n"] == 20
    assert cli.main(["generate", "rmat", str(tmp_path / "no/out"), "--nodes", "9"]) == 2
    assert "does not exist" in capsys.readouterr().err


def test_settings_from_the_environment_and_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "job.toml").write_text(
        "nodes = 30\n[generate]\nprobabilities = [0.25, 0.25, 0.25, 0.25]\nscramble = false\n"
    )
    monkeypatch.setenv("DISTGNN_FEATURES", "3")
    assert cli.main(["generate", "rmat", str(tmp_path / "out"), "--config", str(tmp_path / "job.toml")]) == 0
    graph = json.loads((tmp_path / "out/graph.json").read_text())
    assert (graph["n"], graph["width"]) == (30, 3)
    assert graph["parameters"]["probabilities"] == [0.25] * 4
    assert graph["parameters"]["scramble"] is False


@pytest.mark.slow
def test_under_mpiexec_one_rank_writes_and_all_fail_together(tmp_path: Path) -> None:
    words = ("-m", "distgnn", "generate", "road", str(tmp_path / "out"), "--nodes", "100")
    first, second = mpiexec(3, *words), mpiexec(3, *words)
    assert first.code == 0, first.err
    assert first.out.count("\n") == 1
    assert np.load(tmp_path / "out/labels.npy").shape == (100,)
    assert second.code == 2
    assert second.err.count("\n") == 1
    assert "exists; --force replaces it" in second.err


TOLD = [(1, [0], number) for number in (signal.SIGTERM, signal.SIGHUP)]
TOLD += [(3, [2], signal.SIGTERM), *((3, told, signal.SIGINT) for told in ([0], [2, 1, 0]))]


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "told", "number"), TOLD)
def test_being_told_to_end_leaves_nothing(ranks, told, number, tmp_path: Path) -> None:
    """A signal in the middle of the work: to all processes of the job, as `scancel` sends it, or to one."""
    program = (
        "import os, pathlib, sys, time\n"
        "from distgnn import cli\n"
        "from distgnn.comm import launch\n"
        "from distgnn.gallery import RMat\n"
        "def here(name): pathlib.Path(sys.argv[1], name).symlink_to(str(os.getpid()))\n"
        "def wait(*args): here('middle'); time.sleep(60)\n"
        "RMat.edges = wait\n"
        "launch.begin()\n"
        "here(str(launch.launched()[1]))\n"
        "sys.exit(cli.main(['generate', *sys.argv[2:]]))\n"
    )
    begun, out = tmp_path / "begun", tmp_path / "out"
    begun.mkdir(), out.mkdir()
    words = [sys.executable, "-c", program, begun, "rmat", out / "g", "--nodes", "50"]
    if ranks > 1:
        words = [launcher(), "-n", str(ranks), *words]
    job = subprocess.Popen(words, stderr=subprocess.DEVNULL, env=clean_environment())
    try:
        end = time.monotonic() + 60
        while len(os.listdir(begun)) <= ranks and time.monotonic() < end:
            time.sleep(0.05)
        assert os.listdir(out)
        time.sleep(0.5)  # the others wait for rank 0
        for rank in told:
            os.kill(int(os.readlink(begun / str(rank))), number)
        assert job.wait(30) != 0
    finally:
        job.kill()
        job.wait()
    assert os.listdir(out) == []
