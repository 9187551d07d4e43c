"""`distgnn train` plans what its flags leave open, and trains as with the flags that it chose."""

from __future__ import annotations

from typing import Any

import pytest

from distgnn.errors import UserError
from distgnn.layout import written as flag
from distgnn.plan.probe import usual_machine
from mpi_helpers import mpiexec

from ..plan.machines import slow, written
from .stores import events, run, small_store

SHORT = ["--epochs", 3, "--hidden", 6, "--force"]


def losses(log: Any) -> list[float]:
    return [event["loss"] for event in events(log, "epoch")]


@pytest.fixture
def store(comm: Any, shared_tmp_path: Any) -> str:
    if comm.Get_rank() == 0:
        written(shared_tmp_path, slow())
    return small_store(shared_tmp_path, comm)


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize(
    "asked",
    [
        ["auto"],
        ["auto", "--sparsity-aware"],
        ["3d"],
        ["1.5d", "--grid", "reps=2"],
        ["3d", "--grid", "auto", "--order", "auto"],
    ],
)
@pytest.mark.slow
def test_it_trains_as_with_the_flags_that_it_chose(comm, shared_tmp_path, store, asked, capsys):
    logs, words = [shared_tmp_path / f"{n}.jsonl" for n in (0, 1)], [store, *SHORT, "--no-tune-gemm", "--log"]
    if comm.Get_size() == 1 and asked[0] != "auto":
        return
    machine = shared_tmp_path / "slow.toml"
    assert run(comm, *words, logs[0], "--algorithm", *asked, "--machine", machine) == 0
    said = capsys.readouterr().out.splitlines()
    (start,) = events(logs[0], "run")
    config, plan = start["config"], start["plan"]
    assert plan["machine"] == "slow" and plan["seconds"] == pytest.approx(sum(plan["phases"].values()))
    chosen = ["--algorithm", config["algorithm"], "--grid", flag(config["grid"]), "--order", config["order"]]
    chosen += ["--sparsity-aware"] if config["sparsity_aware"] else []
    if comm.Get_rank() == 0:
        assert said[0].startswith(f"planned for slow: {config['algorithm']} {flag(config['grid'])}")
        assert said[0].endswith(f"on order {config['order']}, {plan['seconds']:.3g} s per epoch")
        assert said[1 : 1 + len(plan["advice"])] == plan["advice"]
    assert run(comm, *words, logs[1], *chosen) == 0
    assert losses(logs[0]) == losses(logs[1])
    assert "plan" not in events(logs[1], "run")[0]


ALONE = """
import sys
from distgnn import cli
assert cli.main(sys.argv[2:]) == 0
entered = sorted(name for name in sys.modules if name.startswith("distgnn.plan"))
assert str(bool(entered)) == sys.argv[1], entered
"""


@pytest.mark.slow  # starts MPI jobs
@pytest.mark.parametrize(
    ("asked", "planned"),
    [
        (["1d", "--grid", "auto"], False), (["2d", "--grid", "2x1"], False),
        (["1.5d", "--sampler", "sage"], False), (["2d", "--grid", "auto"], True),
        (["1d", "--order", "auto"], True),
    ],
)  # fmt: skip
def test_a_run_enters_the_planner_only_where_there_is_a_choice(tmp_path, asked, planned):
    store = small_store(tmp_path)
    words = [str(planned), "train", store, "--epochs", "1", "--quiet", "--algorithm", *asked]
    done = mpiexec(2, "-c", ALONE, *words)
    assert done.code == 0, done.err


@pytest.mark.ranks(4)
@pytest.mark.slow
def test_a_resumed_run_may_be_planned_anew(comm, shared_tmp_path, store):
    """Trained features are saved in their order, so that another is not to be chosen."""
    machine = ["--machine", shared_tmp_path / "slow.toml"]
    for more in ([], ["--train-features"]):
        saved, log = shared_tmp_path / f"saved{len(more)}", shared_tmp_path / "log"
        words = [store, "--hidden", 6, "--checkpoint", saved, "--log", log, *more]
        assert run(comm, *words, "--epochs", 2, "--algorithm", "2d", "--order", "original", "--force") == 0
        assert run(comm, *words, "--epochs", 4, "--resume", "--algorithm", "auto", *machine) == 0
        _, second = events(log, "run")
        assert "plan" in second and len(losses(log)) == 4
        assert not more or second["config"]["order"] == "original"
        comm.Barrier()


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--machine", "hal"], "machine hal: there is none"),
        (["--machine", "hal", "--algorithm", "1d"], "machine hal: there is none"),
        (["--grid", "7x7"], "--grid 7x7: no algorithm can do this"),
        (["--order", "triple"], "no order 'triple'"),
        (["--sampler", "sage", "--fanout", "5"], "--fanout 5: has 1 numbers for 2 layers"),
        (
            ["--algorithm", "1.5d", "--sampler", "sage", "--order", "auto"],
            "--order auto: excludes --sampler sage; of minibatches the grid and the bulk are planned",
        ),
    ],
)
def test_bad_input_is_one_line_on_every_rank(comm, shared_tmp_path, store, words, problem):
    words = words if "--algorithm" in words else ["--algorithm", "auto", *words]
    words = words if "--machine" in words else [*words, "--machine", shared_tmp_path / "slow.toml"]
    with pytest.raises(UserError, match=problem):
        run(comm, store, *SHORT, *words, "--log", shared_tmp_path / "log")
    comm.Barrier()
    assert not (shared_tmp_path / "log").exists()


@pytest.mark.ranks(2)
@pytest.mark.slow
def test_a_machine_too_small_and_a_log_that_is_there_are_refused(comm, shared_tmp_path, store):
    (shared_tmp_path / "there").touch()
    if comm.Get_rank() == 0:
        written(shared_tmp_path, slow(memory=1e3, name="small"))
    comm.Barrier()
    words = [store, "--algorithm", "auto", "--machine", shared_tmp_path / "small.toml"]
    with pytest.raises(UserError, match="no way to train fits into"):
        run(comm, *words)
    with pytest.raises(UserError, match="--log .*there: exists"):
        run(comm, *words, "--log", shared_tmp_path / "there")


@pytest.mark.ranks(1, 4)
def test_the_usual_machine_has_nodes_like_these(comm):
    machine = usual_machine(comm, "numpy")
    assert machine.name == "infiniband-cpu"
    assert machine.levels[-2].ranks == comm.Get_size() and 1e8 < machine.memory < 1e14
