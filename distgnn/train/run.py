"""One run of ``distgnn train``: from the command line's settings to the last line of the log."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from mpi4py import MPI

from distgnn import local, operators
from distgnn.arrays.csr import CSR
from distgnn.comm.grid import Grid
from distgnn.errors import UserError
from distgnn.ledger import Ledger, holds
from distgnn.nn import optim
from distgnn.nn.features import normalize_rows
from distgnn.nn.gcn import GCN
from distgnn.nn.loss import PARTS, TRAIN
from distgnn.nn.reference import GCNReference
from distgnn.nn.sage import SageMean
from distgnn.report import trace
from distgnn.store.checkpoint import next_generation
from distgnn.store.read.distributed import load, load_features, load_targets
from distgnn.store.read.store import Store
from distgnn.train import checkpoint
from distgnn.train.check import CheckFailedError, SerialCheck
from distgnn.train.full_graph import parameters, train
from distgnn.train.log import RunLog, check_log, end_record, run_record
from distgnn.train.settings import Settings, resolve


class Job:
    """Everything a run needs, made and checked before anything is loaded or written. Collective over all
    ranks.

    Args:
        args: what the parser of ``cli/train.py`` gives.
        comm: the ranks of the run; default: all.

    Raises:
        UserError: settings that do not fit together, the store, or the ranks (on every rank).
    """

    def __init__(self, args: argparse.Namespace, comm: MPI.Intracomm | None = None) -> None:
        self.args = args
        resolve(args)
        operators.operator(args.algorithm, args.sparsity_aware)  # refuses what does not go together
        sizes = parse_grid(args.grid, args.algorithm)
        comm = MPI.COMM_WORLD if comm is None else comm
        self.grid = operators.make_grid(comm, args.algorithm, sizes, args.replication, args.backend)
        self.grid.overlap = args.overlap
        if args.block_rows is not None and args.algorithm not in ("1.5d", "3d"):
            raise UserError(
                f"--block-rows: is for 1.5d and 3d, which all-reduce products; algorithm {args.algorithm} does not"
            )
        self.grid.block_rows = args.block_rows
        self.speaks = self.grid.rank == 0 and not args.quiet
        self.optimizer = optim.make(args.optimizer, args.lr, args.weight_decay, args.momentum)
        hidden = hidden_widths(args.hidden, args.layers)
        if len(args.weight_decay) not in (1, len(hidden) + 1):
            given = ",".join(map(str, args.weight_decay))
            raise UserError(
                f"--weight-decay {given}: give one for all {len(hidden) + 1} layers or one for each"
            )
        if not 0 <= args.dropout < 1:
            raise UserError(f"--dropout {args.dropout}: must be at least 0 and less than 1")
        with self.grid.world.together():
            self.store = Store(args.store)
            self.order = self.store.order(args.order)
            if len(self.order.versions) > 1 and (args.sampler or args.model == "sage"):
                what = "minibatches" if args.sampler else "--model sage"
                raise UserError(
                    f"--order {self.order.name}: is for --algorithm 3d, which {what} can't use; take another"
                )
            check_content(self.store)
        self.widths = [self.store.width, *hidden, self.store.classes]
        training = self.store.manifest["split"]["train"]
        self.sampling = (
            Settings(args, len(self.widths) - 1, self.grid.size, training) if args.sampler else None
        )
        with self.grid.world.together():
            if self.grid.rank == 0:
                check_outputs(args)
        check_kernels(self.grid, args.dtype)
        decay = args.weight_decay if len(args.weight_decay) > 1 else args.weight_decay * (len(hidden) + 1)
        self.rates = [{"lr": args.lr, "weight decay": decay}]

    def run(self) -> None:
        """Train, and write what was asked for. Ends the program with exit code 1 where --check fails.
        Collective.
        """
        args, order = self.args, self.order.name
        sage = args.model == "sage"
        A = load(
            self.store, self.grid, args.algorithm, order, args.dtype, args.sparsity_aware, neighbours=sage
        )
        layers = len(self.widths) - 1
        inputs = [self.order.layer(number - 1).permutation for number in range(layers)]
        self.model = (SageMean if sage else GCN)(
            A,
            self.widths,
            args.seed,
            args.dropout,
            args.bias,
            inputs,
            args.product_order,
            args.keep_aggregate,
        )
        self.X = load_features(self.store, self.model.input_layout, order, args.dtype)
        holds(self.X, "features", self.X.block.nbytes)
        if args.normalize_features:
            normalize_rows(self.X)
        output = self.order.layer(layers - 1)
        self.targets = self.model.targets(*load_targets(self.store, self.model.output_layout, output))
        if self.targets.counts[TRAIN] == 0:
            raise UserError(
                f"{self.store.path}: no node of the training split has a label, so there is nothing to train on"
            )
        self.parameters = parameters(self.model, self.X, args.train_features)
        self.minibatches = None
        if self.sampling is not None:
            graph = self.sampling.graph(self.store, self.order, self.grid)
            self.minibatches = self.sampling.training(graph, self.model, self.X, self.targets)
        first_epoch = 1 + (self.resume() if args.resume else 0)
        check = self.serial_check() if args.check else None
        record = run_record(self.grid, self.config())
        if args.tune_gemm:
            record["gemm"] = self.model.tune()
        if self.speaks:
            print(self.describe(), flush=True)
        # Only now, as this empties or cuts an existing log: settings, environment, store and checkpoint are
        # accepted. What can still fail is what happens while training: no room for a checkpoint, a failed
        # check, the machine.
        try:
            with RunLog(
                self.grid, args.log, after=first_epoch - 1 if args.resume else None, force=args.force
            ) as log:
                log.write("run", record)
                self.train(log, first_epoch, check)
        except CheckFailedError as failure:
            if self.grid.rank == 0:
                print(f"distgnn: error: --check: {failure}", file=sys.stderr, flush=True)
            raise SystemExit(1) from None
        if check is not None and self.speaks:
            print(f"check: every loss equals the serial one; largest relative difference {check.largest:.1e}")

    def train(self, log: RunLog, first_epoch: int, check: SerialCheck | None) -> None:
        """The epochs, and the end of the log. Collective."""
        args, seconds, record, marks = self.args, [], {}, []
        epochs = self.epochs(first_epoch)
        steps: dict[str, list[float]] = {}
        with (
            Ledger(timing=True, trace=bool(args.trace)) as ledger,
            progress(self.speaks, first_epoch, args.epochs) as show,
        ):
            for record in epochs:
                stop = time.perf_counter()
                marks.append((record["epoch"], stop - record["seconds"], stop))
                log.write("epoch", record)
                show(record)
                seconds.append(record["seconds"])
                for name, value in record.get("steps", {}).items():
                    steps.setdefault(name, []).append(value)
                if check is not None:
                    check.compare(record)
                due = args.checkpoint_every and record["epoch"] % args.checkpoint_every == 0
                if args.checkpoint and (due or record["epoch"] == args.epochs):
                    state = self.grid.world, self.parameters, self.optimizer, record["epoch"]
                    checkpoint.save(args.checkpoint, *state, self.identity(), self.rates)
            final = self.model.evaluate(self.X, self.targets, args.train_features)
        end = final | {"epochs": args.epochs, "loss": record["loss"]} | end_record(self.grid, ledger, seconds)
        if steps:
            medians = self.grid.world.gather_objects(
                {name: float(np.median(values)) for name, values in steps.items()}
            )
            end["steps_median"] = {name: [rank[name] for rank in medians] for name in steps}
        log.write("end", end)
        if args.trace:
            left_out = trace.write(args.trace, self.grid.world, ledger.events or [], marks)
            if left_out and self.speaks:
                print(
                    f"{args.trace}: the latest {trace.MOST_EVENTS} events of each rank, earlier ones are left out"
                )
        if self.speaks:
            print(summary(end))

    def epochs(self, first_epoch: int) -> Iterator[dict[str, Any]]:
        """Trains; yields the record of every epoch. Collective."""
        args = self.args
        how = {"first_epoch": first_epoch, "eval_every": args.eval_every, "timing": True}
        if self.minibatches is not None:
            return self.minibatches.train(self.optimizer, args.epochs, **how)
        rest = {"train_features": args.train_features, **how}
        return train(self.model, self.X, self.targets, self.optimizer, args.epochs, **rest)

    def resume(self) -> int:
        """The epoch after which the checkpoint was written, its state taken over."""
        args = self.args
        epoch, rates = checkpoint.restore(
            args.checkpoint, self.grid.world, self.parameters, self.optimizer, self.identity()
        )
        if epoch >= args.epochs:
            raise UserError(
                f"--epochs {args.epochs}: {args.checkpoint} has {epoch} epochs already; ask for more"
            )
        if args.check and rates != self.rates:
            said = [
                " and ".join(f"{name} {value}" for name, value in rate.items())
                for rate in (*rates, *self.rates)
            ]
            raise UserError(
                f"--check: the serial reference trains from epoch 1 with {said[-1]}, but {args.checkpoint} was trained "
                f"with {', and with '.join(said[:-1])}; give the same or leave out --check"
            )
        self.rates = [*(rate for rate in rates if rate not in self.rates), *self.rates]
        return epoch

    def serial_check(self) -> SerialCheck:
        """The reference with these settings, from epoch 1 on."""
        return SerialCheck(self.grid.world, self.serial_records)

    def serial_records(self) -> Iterator[dict[str, float]]:
        """The epochs of the reference; reads all of the store that it needs. Called on rank 0 only."""
        args, n = self.args, self.store.n
        order = self.order.layer(-1)  # features and labels as layer 0 takes them
        X = self.store.features(order).astype(args.dtype)
        if args.normalize_features:
            sums = np.abs(X).sum(axis=1, keepdims=True, dtype=np.float64)
            X *= (1 / np.where(sums == 0, 1, sums)).astype(X.dtype)
        ids = order.permutation(0, n)
        A = self.order.block((0, n), (0, n))[self.order.positions(ids)]  # rows in the order of the columns
        reference = GCNReference(A, self.widths, args.seed, args.dropout, args.bias, args.dtype, ids)
        return reference.train(
            X, self.store.labels(order), self.store.split(order), args.epochs, args.optimizer, args.lr,
            args.weight_decay, args.momentum, args.train_features, evaluate=False,
        )  # fmt: skip

    def config(self) -> dict[str, Any]:
        """The settings with defaults resolved, for the log."""
        config = {name: value for name, value in vars(self.args).items() if name not in ("command", "config")}
        config |= {"grid": self.grid.describe(), "order": self.order.name, "layers": len(self.widths) - 1}
        return config | {"widths": self.widths, "n": self.store.n, "nnz": self.store.nnz}

    def describe(self) -> str:
        """What is trained and how, in one line."""
        grid = self.grid.describe()
        arranged = f"grid {'x'.join(map(str, grid.values()))} ({' x '.join(grid)})"
        ranks = f"{self.grid.size} rank{'s' if self.grid.size > 1 else ''}"
        graph = f"{self.store.n} nodes, {self.store.nnz} non-zeros, widths {'-'.join(map(str, self.widths))}"
        aware = {False: "", True: " sparsity-aware"}.get(
            self.args.sparsity_aware, f" sparsity-aware={self.args.sparsity_aware}"
        )
        trained = (
            f"; {self.sampling.describe()}"
            if self.sampling is not None
            else ", sage"
            if self.args.model == "sage"
            else ""
        )
        return (
            f"{self.args.algorithm}{aware} on {ranks}, {arranged}, order {self.order.name}: {graph}{trained}"
        )

    def identity(self) -> dict[str, Any]:
        """What a run that goes on from this one's checkpoint must share with it; the grid is not part of it."""
        args = self.args
        names = (
            "seed",
            "dropout",
            "bias",
            "optimizer",
            "momentum",
            "dtype",
            "train_features",
            "normalize_features",
        )
        settings: dict[str, Any] = {f"graph {name}": self.store.manifest[name] for name in GRAPH}
        settings |= {"widths": self.widths} | {name: getattr(args, name) for name in names}
        settings |= {"model": args.model} | (
            self.sampling.identity() if self.sampling is not None else {"--sampler": None}
        )
        # Trained features are saved by position, and samples depend on it; everything else is the same in
        # every order.
        return settings | ({"order": self.order.name} if args.train_features or args.sampler else {})


#: What a store's manifest says of the graph itself, and not of how it is cut into files.
GRAPH = (
    *("source", "seed", "n", "nnz", "edges", "directed", "weighted", "self_loops", "normalize"),
    *("width", "classes", "labelled", "split"),
)


def parse_grid(text: str | None, algorithm: str) -> dict[str, int] | None:
    """``2x2`` in the order of the algorithm's axes, or ``rows=2,reps=2``; None for None.

    Raises:
        UserError: anything else.
    """
    if text is None:
        return None
    axes = operators.get(algorithm).axes
    example = f"write {'x'.join('2' for _ in axes)} or {','.join(f'{axis}=2' for axis in axes)}"
    try:
        if "=" in text:
            pairs = [word.split("=") for word in text.split(",")]
            sizes = {name.strip(): int(size) for name, size in pairs}
        else:
            values = [int(word) for word in text.lower().split("x")]
            sizes = dict(zip(axes, values, strict=True))
    except ValueError:
        raise UserError(
            f"--grid {text}: algorithm {algorithm} has the axes {', '.join(axes)}; {example}"
        ) from None
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
        raise UserError(
            f"--hidden {given}: {len(hidden)} widths make {len(hidden) + 1} layers, --layers says {layers}"
        )
    return hidden


def check_content(store: Store) -> None:
    """UserError unless the store has what training needs."""
    for what, missing, value in (
        ("features", not store.width, "FILE"),
        ("labels", not store.classes, "FILE"),
        ("split", not store.manifest["split"], "0.6/0.2/0.2"),
    ):
        if missing:
            raise UserError(
                f"{store.path}: has no {what}, which train needs; make the store with prepare --{what} {value}"
            )
    if not store.manifest["split"].get("train"):
        raise UserError(
            f"{store.path}: no node is in the training split; make the store with prepare --split 0.6/0.2/0.2"
        )


def check_outputs(args: argparse.Namespace) -> None:
    """UserError if something would be overwritten, or continued that is not there."""
    if args.resume and not args.checkpoint:
        raise UserError("--resume: say with --checkpoint DIR where to go on from")
    if args.checkpoint_every and not args.checkpoint:
        raise UserError("--checkpoint-every: say with --checkpoint DIR where to save")
    if args.checkpoint and not args.resume and Path(args.checkpoint).exists():
        if not args.force:
            raise UserError(
                f"--checkpoint {args.checkpoint}: exists; use --resume to go on from it or --force to replace it"
            )
        next_generation(args.checkpoint)  # refuses what save would refuse: now, not after the first epochs
    if args.log:
        check_log(Path(args.log), args.resume, args.force)
    if args.trace:
        trace.check_trace(Path(args.trace), args.force)
    for flag, path in (("--log", args.log), ("--checkpoint", args.checkpoint)):
        if path and not Path(path).absolute().parent.is_dir():
            raise UserError(f"{flag} {path}: directory {Path(path).absolute().parent} does not exist")
    if args.checkpoint:
        check_writable(Path(args.checkpoint))


def check_writable(path: Path) -> None:
    """UserError unless files can be made in the directory of a checkpoint, or it beside others: known before
    the first epoch.
    """
    folder = path if path.exists() else path.absolute().parent
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise UserError(f"--checkpoint {path}: cannot write to {folder} ({error.strerror})") from None


def check_kernels(grid: Grid, dtype: str) -> None:
    """UserError if the environment asks for kernels that are not there, which the first product would find
    out. Collective.
    """
    with grid.world.together():
        one = np.ones((1, 1), dtype)
        local.spmm(CSR.from_scipy(sp.csr_array(one), grid.backend), grid.backend.asarray(one))


@contextmanager
def progress(shown: bool, first_epoch: int, epochs: int) -> Iterator[Any]:
    """Yields a function that shows a record: in a progress bar on a terminal, as at most about fifty lines
    elsewhere.
    """
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
                print(
                    f"epoch {record['epoch']:4d}  {_numbers(record)}  {record['seconds']:.4f} s", flush=True
                )

        yield line


def _numbers(record: dict[str, Any]) -> str:
    accuracies = [f"{name[:-4]} {record[name]:.4f}" for name in PARTS if name in record]
    return "  ".join([f"loss {record['loss']:.6f}", *accuracies])


def summary(end: dict[str, Any]) -> str:
    """The last lines on the terminal."""
    accuracies = ", ".join(f"{name[:-4]} {end[name]:.4f}" for name in PARTS)
    lines = [
        f"accuracy after the last update: {accuracies}",
        f"epoch {end['epoch_seconds_median']:.4f} s (median); words charged per rank {max(end['words'])} at most; "
        f"peak memory per rank {max(end['peak_bytes']) / 2**20:.0f} MiB at most",
    ]
    if "steps_median" in end:
        spent = ", ".join(f"{name} {np.mean(values):.4f}" for name, values in end["steps_median"].items())
        lines.insert(1, f"of an epoch, seconds (median, mean of ranks): {spent}")
    return "\n".join(lines)
