"""Output of ``distgnn train`` while it trains."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields

import numpy as np
from mpi4py import MPI

from distgnn import records
from distgnn.cli.config import flag_text
from distgnn.cli.stop import CODE
from distgnn.comm.session import task
from distgnn.errors import TrainingError
from distgnn.layout import written
from distgnn.ledger import MOST_EVENTS
from distgnn.records import Epoch
from distgnn.report.metrics import scores, title
from distgnn.report.numbers import size
from distgnn.stages import stage
from distgnn.terminal import printable, show
from distgnn.train.check import CheckFailedError
from distgnn.train.resolve import left_open
from distgnn.train.run import Run
from distgnn.train.settings import DEFAULT, Settings
from distgnn.train.stopping import Stop

JUDGED = 3  # epochs, after the first, that are compared with the plan
SLOW = 2.0  # times the plan from which on epochs are warned of


def train(
    store: str, settings: Settings, comm: MPI.Intracomm | None = None, machine: str | None = None,
    stop: Stop | None = None, report: bool = False,
) -> int:  # fmt: skip
    """Train with the progress on rank 0's terminal; plan first where settings leave a choice. Collective.

    `report`: print at the end how predictions compare with labels, by class.

    Returns:
        The exit code: 1 if the training fails, stop.CODE if `stop` ended it; see ``Run.train``.
    """
    comm = MPI.COMM_WORLD if comm is None else comm
    command, plan = command_line(store, settings, comm.Get_size(), machine), None
    with task(comm) as ours:
        left = left_open(ours, settings, store)
        settings = left.settings
        if machine is not None or left.asked is not None:
            from distgnn.plan.settle import settle_open

            settled = settle_open(ours, left, store, machine)
            settings, plan = settled.settings, settled if settled.machine else None
    run = Run(store, settings, comm)
    speaks = run.grid.rank == 0 and not settings.quiet
    run.record["command"] = command
    if plan is not None:
        run.record["plan"] = plan.record()
    if speaks:
        show(*([plan] if plan else []), printable(describe(run)))
    planned, seconds = plan.seconds if plan and run.grid.rank == 0 else np.inf, list[float]()
    try:
        with progress(speaks, run.first_epoch, settings.epochs) as tell:
            for record in run.train(stop):
                tell(record)
                seconds.append(record["seconds"])
                for line in off_plan(planned, seconds):
                    show(line, error=True)
    except TrainingError as failure:
        if run.grid.rank == 0:
            prefix = "--check: " if isinstance(failure, CheckFailedError) else ""
            show(f"distgnn: error: {prefix}{failure}", error=True)
        return 1
    if speaks and run.end:
        show(summary(run))
    if report and (run.end or run.finished) and (table := run.report()) is not None:
        show(table)
    if run.log_lost:
        show(f"distgnn: warning: {run.log_lost}", error=True)
    if run.stopped is None:
        return 0
    if run.grid.rank == 0:
        show(f"distgnn: {stopped(run.stopped, settings.checkpoint)}", error=True)
    return CODE


def command_line(store: str, settings: Settings, ranks: int, machine: str | None = None) -> str:
    """Write the command that gives these settings, with those that differ from the defaults, for the log."""
    words = [*(["mpiexec", "-n", str(ranks)] if ranks > 1 else []), "distgnn", "train", str(store)]
    words += ["--machine", str(machine)] if machine is not None else []
    usual = vars(Settings(recipe=settings.recipe)) | {"recipe": DEFAULT}  # type: ignore[arg-type]
    for setting in fields(settings):
        value, flag = getattr(settings, setting.name), setting.name.replace("_", "-")
        if flag_text(value) == flag_text(usual[setting.name]):
            continue
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words.append(f"--{flag}={flag_text(value)}")
    return shlex.join(words)


def describe(run: Run) -> str:
    """Describe the network, the graph and the algorithm of a run, in one line."""
    s, arranged = run.settings, f"grid {written(run.grid.shape)}"
    ranks = f"{run.grid.size} rank{'s' if run.grid.size > 1 else ''}"
    graph = f"{run.store.n} nodes, {run.store.nnz} non-zeros, widths {'-'.join(map(str, run.widths))}"
    how = "" if s.sparsity_aware is True else f"={s.sparsity_aware}"
    aware = f" sparsity-aware{how}" if s.sparsity_aware else ""
    trained = f", {s.model}" if s.model != "gcn" else ""
    trained += f" of {','.join(map(str, s.heads))} heads" if s.heads else ""
    if s.together:
        trained = f"; {s.model} on subgraphs of {s.batch_size} drawn vertices"
    elif s.samples:
        what = " parts" if s.fanout is None else ""
        sizes = f"{s.batch_size}{what}, {s.batches_per_update} per update, {s.bulk} sampled at a time"
        drawn = f"{s.sampler} {','.join(map(str, s.fanout or ())) or s.parts or 'of the order'}"
        where = "partitioned" if s.partition_graph else "on every rank"
        trained = f"; {s.model} on minibatches of {sizes} by {drawn}, graph {where}"
    wire = f", {s.wire} messages" if s.wire else ""
    wire += ", mixed precision" if s.mixed_precision else ""
    wire += ", TF32 products" if s.tf32 else ""
    return f"{s.algorithm}{aware} on {ranks}, {arranged}{wire}, order {run.order.name}: {graph}{trained}"


def off_plan(planned: float, seconds: Sequence[float]) -> list[str]:
    """Return a line, once, where the first epochs take more than twice as long as planned."""
    took = float(np.median(seconds[1:] or 0.0))
    if len(seconds) != 1 + JUDGED or took <= SLOW * planned:
        return []
    times = f"{took / planned:.2g} times its plan of {planned:.3g} s; another way may be faster"
    advice = "distgnn calibrate --out here.toml, then train --machine here.toml"
    return [f"distgnn: warning: an epoch takes {took:.3g} s, {times}: {advice}"]


@contextmanager
def progress(shown: bool, first_epoch: int, epochs: int) -> Iterator[Callable[[Epoch], None]]:
    """Yield a function that takes records.

    Of a stage of this rank and, where `shown`, as one of about fifty lines on stdout. A terminal has the bar
    of the stage instead.
    """
    total = epochs - first_epoch + 1
    step, bar = max(1, total // 50), sys.stdout.isatty() and sys.stderr.isatty()
    with stage("train", total, "epochs") as advance:

        def tell(record: Epoch) -> None:
            epoch = record["epoch"]
            advance(1, _numbers(record))
            if shown and not bar and ((epoch - first_epoch) % step == 0 or epoch == epochs):
                show(f"epoch {epoch:4d}  {_numbers(record)}  {record['seconds']:.4f} s")

        yield tell


def _numbers(record: Epoch) -> str:
    return "  ".join([f"loss {record['loss']:.6f}", *scores(record)])


def summary(run: Run) -> str:
    """Return the last lines on the terminal."""
    end, lines = run.end, []
    if run.trace_cut:
        kept = f"the latest {MOST_EVENTS} events of each rank, earlier ones are left out"
        lines.append(f"{run.settings.trace}: {kept}")
    stopped = f" (epoch {end['epochs']}; {end['stopped']})" if "stopped" in end else ""
    last = ", ".join(scores(end, named=False))
    lines.append(f"{title(end)} after the last update{stopped}: {last}")
    if "best" in end:
        best = ", ".join(scores(end["best"], named=False))
        lines.append(f"best validation after epoch {end['best']['epoch']}: {best}")
    if "steps_median" in end:
        spent = ", ".join(f"{name} {np.mean(values):.4f}" for name, values in end["steps_median"].items())
        lines.append(f"of an epoch, seconds (median, mean of ranks): {spent}")
    peak = f"peak memory per rank {size(max(end['peak_bytes']))} at most"
    lines.append(f"epoch {end['epoch_seconds_median']:.4f} s (median); {messages(run)}; {peak}")
    if "cuda_graph" in end:
        lines.append(captured(**end["cuda_graph"]))
    if run.check is not None:
        lines.append(run.check.verdict())
    return "\n".join(lines)


def captured(epochs: int, why_not: str) -> str:
    """Return the words for how many epochs were CUDA graphs, or why none was."""
    return f"CUDA graphs: {epochs} epochs" if epochs else f"no epoch was a CUDA graph, which {why_not}"


def stopped(where: records.Stopped, checkpoint: str | None) -> str:
    """Describe in one line where a run stopped, and where it goes on."""
    updates = f" and {where['updates']} updates" if where["updates"] else ""
    after = f"{signal.Signals(where['signal']).name}: stopped after epoch {where['epoch']}{updates}"
    if checkpoint is None or (where["epoch"], where["updates"]) == (0, 0):
        return f"{after}; nothing is saved{'' if checkpoint else ', as there is no --checkpoint'}"
    return f"{after}; --resume goes on from {checkpoint}"


def messages(run: Run) -> str:
    """Describe the bytes that the ledger charges the busiest rank of a run that has ended, since it began
    or went on.
    """
    if run.grid.size == 1:
        return "one rank, no messages"
    when = "in the whole run" if run.first_epoch == 1 else f"since epoch {run.first_epoch}"
    return f"{size(max(run.end['bytes']))} of messages on the busiest rank, {when}"
