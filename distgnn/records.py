"""The records of a run, as its log has them: one of the start, one of each epoch, one of the end.

Their keys are declared here alone; mypy finds one that is spelled in another way.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NotRequired, TypedDict, cast


class Scores(TypedDict, total=False):
    """Scores by part of the split and metric, as far as they were measured."""

    train_acc: float
    val_acc: float
    test_acc: float
    train_f1: float
    val_f1: float
    test_f1: float
    train_rocauc: float
    val_rocauc: float
    test_rocauc: float
    train_r2: float
    val_r2: float
    test_r2: float
    train_mae: float
    val_mae: float
    test_mae: float


def named(scores: Mapping[str, float]) -> Scores:
    """Take scores as `Scores`; their names are made of a part of the split and a metric."""
    return cast(Scores, dict(scores))


class Epoch(Scores, total=False):
    """An epoch: its loss, with the scores of the weights before its update, and the costs on rank 0.

    Attributes:
        epoch: its number, from 1; loss: with dropout, None in a log where it is not finite.
        lr: the step size.
        seconds: of the epoch without its evaluation; phases: its parts; eval_seconds: of the evaluation.
        steps: seconds of the steps of minibatch training.
        flight: seconds in which messages were under way; words: received.
    """

    event: str
    epoch: int
    loss: float | None
    lr: float
    steps: dict[str, float]
    seconds: float
    phases: dict[str, float]
    flight: float
    words: int
    eval_seconds: float


class Rank(TypedDict, total=False):
    """A rank: where it runs, its coordinates in the grid, and the non-zeros of its blocks."""

    rank: int
    host: str
    device: str
    coords: dict[str, int]
    nnz: int


class Planned(TypedDict):
    """A plan: predicted seconds of an epoch on a machine, by phase, and lines of advice.

    Attributes:
        measured: figures of the ranks, measured at the start where no machine was given, by name.
    """

    machine: str | None
    seconds: float
    phases: dict[str, float]
    advice: list[str]
    measured: dict[str, float]


class Start(TypedDict, total=False):
    """The start of a run: its settings with all defaults, and what it runs on.

    Attributes:
        config: settings, and the store's ``widths``, ``n`` and ``nnz``; grid: sizes by axis.
        gemm: forms of dense products by layer, where these were timed; plan: where one was made.
        command: of ``distgnn train``, with the settings that differ from its defaults.
    """

    event: str
    config: dict[str, Any]
    grid: dict[str, int]
    started: str
    versions: dict[str, str]
    mpi: str
    cuda_aware: dict[str, Any]
    backend: str
    transport: str
    ranks: list[Rank]
    gemm: list[dict[str, str]]
    plan: Planned
    command: str


class Charge(TypedDict, total=False):
    """An entry of a rank's ledger."""

    rank: int
    phase: str
    operation: str
    group: str
    matrix: str
    calls: int
    messages: int
    words: int
    far: int
    bytes: int
    flops: int
    seconds: float
    flight: float


class Checked(TypedDict):
    """A comparison with a serial training."""

    updates: int
    epochs: tuple[int, int] | None
    allowed: float
    largest_difference: float


class BestEpoch(Scores, total=False):
    """The epoch with the best validation, with the scores after it."""

    epoch: int


class Captured(TypedDict):
    """The epochs of the last launch that were CUDA graphs, and what others lacked, behind "a CUDA graph"."""

    epochs: int
    why_not: str


class End(Scores, total=False):
    """The end of a run: the scores after the last update, and the costs of the whole run by rank.

    Attributes:
        peak_bytes, buffer_bytes: memory of each rank, in all and by purpose.
        ledger: entries of all ranks; traffic: words by sender and receiver, of few ranks.
        steps_median: seconds of the steps of minibatch training, by rank.
        stopped: why training ended before its last epoch.
        cuda_graph: on a GPU.
    """

    event: str
    epochs: int
    loss: float | None
    words: list[int]
    bytes: list[int]
    messages: list[int]
    flops: list[int]
    peak_bytes: list[int]
    buffer_bytes: list[dict[str, int]]
    ledger: list[Charge]
    traffic: list[list[int]]
    epoch_seconds_median: float | None
    best: BestEpoch
    stopped: str
    check: Checked
    steps_median: dict[str, list[float]]
    cuda_graph: Captured


class Failed(TypedDict, total=False):
    """The end of a run whose training gave something wrong."""

    event: str
    epoch: int | None
    problem: str


class Stopped(TypedDict):
    """The end of a run that was asked to stop.

    Attributes:
        epoch: the last whole one; updates: made of the next; signal: its number.
    """

    epoch: int
    updates: int
    signal: int


class Log(TypedDict):
    """A log that was read: its name, its file and its records; an empty end where the run has not ended.

    `first`: the place of the first epoch of the launch whose start and end these are, 0 unless it resumed.
    """

    name: str
    path: Path
    run: Start
    epochs: list[Epoch]
    end: End
    first: NotRequired[int]
