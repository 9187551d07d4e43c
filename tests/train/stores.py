"""A small store, and runs of `distgnn train` on it in this process."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from chosen_grids import wide
from distgnn import cli
from distgnn.cli.config import Origins
from distgnn.errors import UserError
from distgnn.layout import written
from distgnn.operators import ALGORITHMS
from distgnn.store import prepare
from distgnn.store.source import Source
from distgnn.train import Run
from mpi_helpers.programs import scratch

N, WIDTH, CLASSES = 60, 9, 4


class Communities(Source):
    """Four communities with features that tell them apart, one node without a label, a directed ring among
    them.
    """

    def __init__(self, directed: bool = False) -> None:
        r = np.random.default_rng(3)
        self.name, self.n, self.width, self.classes, self.directed = (
            "communities",
            N,
            WIDTH,
            CLASSES,
            directed,
        )
        self.labels = (np.arange(N) % CLASSES).astype(np.int32)
        near = (np.arange(N)[:, None] + CLASSES * r.integers(1, N, (N, 4))) % N  # 60 is a multiple of 4
        self._edges = np.repeat(np.arange(N), 4), near.reshape(-1)
        self._features = (np.eye(CLASSES, WIDTH)[self.labels] + 0.3 * r.random((N, WIDTH))).astype(np.float32)
        self.split = np.tile([1, 2, 3], N // 3).astype(np.uint8)
        self.labels[7] = -1

    def edges(self):
        yield *self._edges, None

    def features(self, ids):
        return self._features[ids]


@functools.cache
def prepared() -> Path:
    """Prepare the store that tests get copies of."""
    path = scratch() / "small.dg"
    prepare(Communities(), path, order=("random", "original"))
    return path


def small_store(folder: Path, comm: Any = None, **options: Any) -> str:
    """Put it there (on rank 0), in a random order and the original one."""
    path = folder / "small.dg"
    if comm is None or comm.Get_rank() == 0:
        if options:
            prepare(Communities(), path, order=("random", "original"), **options)
        else:
            shutil.copytree(prepared(), path)
    if comm is not None:
        comm.Barrier()
    return str(path)


def line(words: Iterable[Any]) -> list[str]:
    """Write a command line of `train` in which a flag of a test replaces an earlier one of its network."""
    parts: dict[str, list[str]] = {"": ["train"]}
    name = ""
    for word in map(str, words):
        if word.startswith("--"):
            name = word.partition("=")[0]
            parts[name] = []
        parts[name].append(word)
    return [word for part in parts.values() for word in part]


#: Flags with which a grid may not be given, or would not be what a test is of.
OTHER_GRIDS = {"--grid", "--replication", "--resume", "--machine", "--config", "--batch-size"}


def on_a_grid(words: list[str], ranks: int) -> list[str]:
    """Give a command line the grid on which its algorithm takes all steps, in place of a plan for a grid."""
    flags = {word.partition("=")[0] for word in words}
    algorithm = words[words.index("--algorithm") + 1] if "--algorithm" in words else ""
    if algorithm not in ALGORITHMS or flags & OTHER_GRIDS:
        return words
    return [*words, "--grid", written(wide(algorithm, ranks))]


def run(comm: Any, *words: Any, planned: bool = False) -> int:
    """Run `distgnn train` on these ranks; return its exit code, when the first rank has written its log.

    Errors have the words of the command line. Only what is `planned` may leave its grid open.
    """
    command = cli.command_module("train")
    told = line(words) if planned else on_a_grid(line(words), comm.Get_size())
    try:
        code: int = command.run(cli.parse(told), comm)
    except UserError as error:
        raise Origins().explain(error, map(cli.command_parser, cli.COMMANDS)) from None
    comm.Barrier()
    return code


def made(comm: Any, *words: Any) -> Run:
    """Make the run that a command line asks for."""
    args = cli.parse(line(words))
    return Run(args.store, cli.command_module("train").settings(args), comm)


def events(log: Path, kind: str) -> list[dict[str, Any]]:
    """Return the events of one kind in a log."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return [event for event in lines if event["event"] == kind]
