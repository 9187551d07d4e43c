"""One run of ``distgnn train``: from the command line's settings to the last line of the log."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from distgnn import algorithms
from distgnn.errors import UserError
from distgnn.gcn import checkpoint, optim
from distgnn.gcn.check import CheckFailedError, SerialCheck
from distgnn.gcn.features import normalize_rows
from distgnn.gcn.log import RunLog, check_log, end_record, run_record
from distgnn.gcn.loss import PARTS
from distgnn.gcn.model import GCN
from distgnn.gcn.training import evaluate, parameters, train
from distgnn.ledger import Ledger
from distgnn.store.distributed import load, load_features, load_targets
from distgnn.store.loader import Store


class Job:
    """Everything a run needs, made and checked before anything is loaded or written. Collective over all ranks.

    Args:
        args: what the parser of ``cli/train.py`` gives.
        comm: the ranks of the run; default: all.

    Raises:
        UserError: settings that do not fit together, the store, or the ranks (on every rank).
    """

    def __init__(self, args: argparse.Namespace, comm: MPI.Intracomm | None = None) -> None:
        self.args = args
        sizes = parse_grid(args.grid, args.algorithm)
        comm = MPI.COMM_WORLD if comm is None else comm
        self.grid = algorithms.make_grid(comm, args.algorithm, sizes, args.replication, args.backend)
        self.speaks = self.grid.rank == 0 and not args.quiet
        self.optimizer = optim.make(args.optimizer, args.lr, args.weight_decay, args.momentum)
        hidden = hidden_widths(args.hidden, args.layers)
        if len(args.weight_decay) not in (1, len(hidden) + 1):
            given = ",".join(map(str, args.weight_decay))
            raise UserError(f"--weight-decay {given}: give one for all {len(hidden) + 1} layers or one for each")
        if not 0 <= args.dropout < 1:
            raise UserError(f"--dropout {args.dropout}: must be at least 0 and less than 1")
        with self.grid.world.together():
            self.store = Store(args.store)
            self.order = self.store.order(args.order)
            check_content(self.store)
        self.widths = [self.store.width, *hidden, self.store.classes]
        with self.grid.world.together():
            if self.grid.rank == 0:
                check_outputs(args)

    def run(self) -> None:
        """Train, and write what was asked for. Ends the program with exit code 1 where --check fails. Collective."""
        args, order = self.args, self.order.name
        A = load(self.store, self.grid, args.algorithm, order, args.dtype)
        self.model = GCN(A, self.widths, args.seed, args.dropout, args.bias, self.order.permutation)
        self.X = load_features(self.store, self.model.input_layout, order, args.dtype)
        if args.normalize_features:
            normalize_rows(self.X)
        self.targets = self.model.targets(*load_targets(self.store, self.model.output_layout, order))
        self.parameters = parameters(self.model, self.X, args.train_features)
        first_epoch = 1 + (self.resume() if args.resume else 0)
        check = self.serial_check() if args.check else None
        # Only now, when nothing in the input can be found wrong any more.
        log = RunLog(self.grid, args.log, append=args.resume, force=args.force)
        log.write("run", run_record(self.grid, self.config()))
        try:
            self.train(log, first_epoch, check)
        except CheckFailedError as failure:
            if self.grid.rank == 0:
                print(f"distgnn: error: --check: {failure}", file=sys.stderr, flush=True)
            raise SystemExit(1) from None
        finally:
            log.close()
        if check is not None and self.speaks:
            print(f"check: every loss equals the serial one; largest relative difference {check.largest:.1e}")

    def train(self, log: RunLog, first_epoch: int, check: SerialCheck | None) -> None:
        """The epochs, and the end of the log. Collective."""
        args, seconds, record = self.args, [], {}
        epochs = train(
            self.model, self.X, self.targets, self.optimizer, args.epochs, first_epoch=first_epoch,
            eval_every=args.eval_every, train_features=args.train_features, timing=True,
        )  # fmt: skip
        with Ledger(timing=True) as ledger, progress(self.speaks, first_epoch, args.epochs) as show:
            for record in epochs:
                log.write("epoch", record)
                show(record)
                seconds.append(record["seconds"])
                if check is not None:
                    check.compare(record)
                due = args.checkpoint_every and record["epoch"] % args.checkpoint_every == 0
                if args.checkpoint and (due or record["epoch"] == args.epochs):
                    comm = self.grid.world
                    checkpoint.save(
                        args.checkpoint, comm, self.parameters, self.optimizer, record["epoch"], self.identity()
                    )
            final = evaluate(self.model, self.X, self.targets)
        end = final | {"epochs": args.epochs, "loss": record["loss"]} | end_record(self.grid, ledger, seconds)
        log.write("end", end)
        if self.speaks:
            print(summary(end))

    def resume(self) -> int:
        """The epoch after which the checkpoint was written, its state taken over."""
        comm = self.grid.world
        epoch = checkpoint.restore(
            self.args.checkpoint, comm, self.parameters, self.optimizer, self.identity()
        )
        if epoch >= self.args.epochs:
            raise UserError(f"--epochs {self.args.epochs}: {self.args.checkpoint} has {epoch} epochs already; ask for more")
        return epoch

    def serial_check(self) -> SerialCheck:
        """The reference with these settings, from epoch 1 on."""
        args, order, first = self.args, self.order.name, self.grid.rank == 0
        X = self.store.features(order).astype(args.dtype) if first else None
        if X is not None and args.normalize_features:
            sums = np.abs(X).sum(axis=1, keepdims=True, dtype=np.float64)
            X *= (1 / np.where(sums == 0, 1, sums)).astype(X.dtype)
        settings = {
            "widths": self.widths, "seed": args.seed, "dropout": args.dropout, "bias": args.bias, "dtype": args.dtype,
            "nodes": self.order.permutation(0, self.store.n),
        }  # fmt: skip
        training = {
            "epochs": args.epochs, "optimizer": args.optimizer, "lr": args.lr, "weight_decay": args.weight_decay,
            "momentum": args.momentum, "train_features": args.train_features,
        }  # fmt: skip
        labels, split = self.store.labels(order), self.store.split(order)
        return SerialCheck(self.grid.world, self.order, X, labels, split, settings, training)

    def config(self) -> dict[str, Any]:
        """The settings with defaults resolved, for the log."""
        config = {name: value for name, value in vars(self.args).items() if name not in ("command", "config")}
        config |= {"grid": self.grid.describe(), "order": self.order.name, "layers": len(self.widths) - 1}
        return config | {"widths": self.widths, "n": self.store.n, "nnz": self.store.nnz}

    def identity(self) -> dict[str, Any]:
        """What a run that goes on from this one's checkpoint must share with it; the grid is not part of it."""
        args = self.args
        names = ("seed", "dropout", "bias", "optimizer", "momentum", "dtype", "train_features", "normalize_features")
        settings: dict[str, Any] = {"nodes": self.store.n, "widths": self.widths}
        settings |= {name: getattr(args, name) for name in names}
        # Trained features are saved by position; everything else is the same in every order.
        return settings | ({"order": self.order.name} if args.train_features else {})


def parse_grid(text: str | None, algorithm: str) -> dict[str, int] | None:
    """``2x2`` in the order of the algorithm's axes, or ``rows=2,reps=2``; None for None.

    Raises:
        UserError: anything else.
    """
    if text is None:
        return None
    axes = algorithms.get(algorithm).axes
    example = f"write {'x'.join('2' for _ in axes)} or {','.join(f'{axis}=2' for axis in axes)}"
    try:
        if "=" in text:
            pairs = [word.split("=") for word in text.split(",")]
            sizes = {name.strip(): int(size) for name, size in pairs}
        else:
            values = [int(word) for word in text.lower().split("x")]
            sizes = dict(zip(axes, values, strict=True))
    except ValueError:
        raise UserError(f"--grid {text}: algorithm {algorithm} has the axes {', '.join(axes)}; {example}") from None
    return sizes


def hidden_widths(hidden: list[int], layers: int | None) -> list[int]:
    """One width per hidden layer.

    Raises:
        UserError: a list of another length than the number of layers asks for.
    """
    if layers is None:
        return hidden
    if len(hidden) == 1:
        return hidden * (layers - 1)
    if len(hidden) != layers - 1:
        given = ",".join(map(str, hidden))
        raise UserError(f"--hidden {given}: {len(hidden)} widths make {len(hidden) + 1} layers, --layers says {layers}")
    return hidden


def check_content(store: Store) -> None:
    """UserError unless the store has what training needs."""
    for what, missing in (("features", not store.width), ("labels", not store.classes), ("split", not store.manifest["split"])):
        if missing:
            raise UserError(f"{store.path}: has no {what}, which train needs; prepare the store with {what}")
    if not store.manifest["split"].get("train"):
        raise UserError(f"{store.path}: no node is in the training split; prepare the store with --split")


def check_outputs(args: argparse.Namespace) -> None:
    """UserError if something would be overwritten, or continued that is not there."""
    if args.resume and not args.checkpoint:
        raise UserError("--resume: say with --checkpoint DIR where to go on from")
    if args.checkpoint_every and not args.checkpoint:
        raise UserError("--checkpoint-every: say with --checkpoint DIR where to save")
    if args.checkpoint and not args.resume and Path(args.checkpoint).exists():
        if not args.force:
            raise UserError(f"--checkpoint {args.checkpoint}: exists; use --resume to go on from it or --force to replace it")
        checkpoint.check_replaceable(args.checkpoint)  # now, not after the first epochs
    if args.log:
        check_log(Path(args.log), args.resume, args.force)
    for flag, path in (("--log", args.log), ("--checkpoint", args.checkpoint)):
        if path and not Path(path).absolute().parent.is_dir():
            raise UserError(f"{flag} {path}: directory {Path(path).absolute().parent} does not exist")


@contextmanager
def progress(shown: bool, first_epoch: int, epochs: int) -> Iterator[Any]:
    """Yields a function that shows a record: in a progress bar on a terminal, as at most about fifty lines elsewhere."""
    if not shown:
        yield lambda record: None
    elif sys.stdout.isatty():
        from tqdm import tqdm

        with tqdm(total=epochs, initial=first_epoch - 1, unit="epoch", file=sys.stdout) as bar:

            def advance(record: dict[str, Any]) -> None:
                bar.set_postfix_str(_numbers(record), refresh=False)
                bar.update()

            yield advance
    else:
        step = max(1, (epochs - first_epoch + 1) // 50)

        def line(record: dict[str, Any]) -> None:
            if (record["epoch"] - first_epoch) % step == 0 or record["epoch"] == epochs:
                print(f"epoch {record['epoch']:4d}  {_numbers(record)}  {record['seconds']:.4f} s", flush=True)

        yield line


def _numbers(record: dict[str, Any]) -> str:
    accuracies = [f"{name[:-4]} {record[name]:.4f}" for name in PARTS if name in record]
    return "  ".join([f"loss {record['loss']:.6f}", *accuracies])


def summary(end: dict[str, Any]) -> str:
    """The last lines on the terminal."""
    accuracies = ", ".join(f"{name[:-4]} {end[name]:.4f}" for name in PARTS)
    return (
        f"accuracy after the last update: {accuracies}\n"
        f"epoch {end['epoch_seconds_median']:.4f} s (median); words received per rank {max(end['words'])} at most; "
        f"peak memory per rank {max(end['peak_bytes']) / 2**20:.0f} MiB at most"
    )
