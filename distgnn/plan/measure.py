"""Seconds of what the engine runs on all ranks at once: kernels, products, epochs. Messages: collectives.py.

All of it is collective over all ranks. Of the ranks' medians the slowest counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from mpi4py import MPI

from distgnn import local, operators, records
from distgnn.arrays import timing
from distgnn.arrays.backend import Backend
from distgnn.arrays.csr import CSR
from distgnn.comm.grid import Grid
from distgnn.comm.group import Comm
from distgnn.errors import ArgumentError
from distgnn.layout import partition
from distgnn.ledger import Ledger
from distgnn.local import additive, edges
from distgnn.nn import optim
from distgnn.nn.gcn import GCN
from distgnn.operators.dense import DistDense
from distgnn.operators.sources import LocalBlocks
from distgnn.plan import replay, reuse
from distgnn.plan.dry.recorder import ROUNDED, ProgramStep, Recorder
from distgnn.plan.fit import Measurement
from distgnn.plan.reuse import EVEN, READ
from distgnn.train.full_graph import train

Run = Callable[[], object]
Clock = Callable[[], float]
LEAST, MOST = 3, 15  # batches of calls that are timed
BATCH = 0.1  # seconds of a batch of quick calls: many turns on a core, more bytes than a link lets burst
WARM_UP, CAPTURING = 2, 20  # epochs, and those in which kernels are chosen and graphs made
DEGREE = 32  # non-zeros of a row of which passes over them are measured
TURNS = 3  # products with overlap and without


class Budget:
    """Seconds to spend; all ranks see the clock of rank 0.

    Args:
        least: samples of a kind that are taken whatever they take.
        clock: of the kernels of a host.
    """

    def __init__(
        self, world: Comm, seconds: float, least: int = LEAST, clock: Clock = time.perf_counter
    ) -> None:
        self.world, self.end, self.least = world, time.perf_counter() + seconds, least
        self.clock = clock

    def left(self) -> float:
        """Return seconds left, the same on all ranks. Collective."""
        return float(self.world.share(self.end - time.perf_counter()))

    def part(self, share: float) -> Budget:
        """Return a share of what is left."""
        return Budget(self.world, share * self.left(), self.least, self.clock)


def sample(
    world: Comm, what: str, run: Run, most: float, group: Comm | None = None, active: bool = True,
    clock: Clock = time.perf_counter,
) -> Measurement:  # fmt: skip
    """Measure a call: its seconds and its charges. Collective over ``world``.

    Args:
        most: seconds to spend, if that allows a few calls.
        group: the ranks that call it together, default: each for itself; active: whether this rank calls.
        clock: of the seconds, on a host.
    """
    once, steps = 0.0, list[ProgramStep]()
    for _ in range(2):  # the first to warm up
        world.barrier()
        if active:
            once, steps = _first(world.backend, run, group)
        once = max(world.gather_objects(once))
    calls = max(int(min(BATCH, most / LEAST) / max(once, 1e-7)), 1)
    batches = int(np.clip(most / max(once * calls, 1e-7), LEAST, MOST))
    world.barrier()
    median = _median(world.backend, run, calls, batches, group, clock) if active else 0.0
    reports = world.gather_objects((median, steps))
    longest = max((steps for _, steps in reports), key=_traffic)
    return Measurement(what, max(median for median, _ in reports), longest)


def _traffic(steps: Sequence[ProgramStep]) -> float:
    """Count bytes and messages that come or are sent, whichever are more."""
    ways = ([step for step in steps if step.phase == way] for way in ("comm", "sent"))
    return max(sum(step.nbytes + step.messages for step in some) for some in ways)


def _messages(steps: Sequence[ProgramStep]) -> tuple[ProgramStep, ...]:
    """List the messages received and sent: ranks that do so alike are of one kind."""
    return tuple(step for step in steps if step.phase in ("comm", "sent"))


def _first(backend: Backend, run: Run, group: Comm | None) -> tuple[float, list[ProgramStep]]:
    if group is not None:
        group.barrier()
    with Recorder() as book:
        return timing.seconds(run, backend), book.steps


def _median(
    backend: Backend, run: Run, calls: int, batches: int, group: Comm | None, clock: Clock
) -> float:
    """Return seconds of a call: on a device, of kernels that follow each other, without the host."""
    if backend.on_device and group is None:
        return replay.seconds(run, backend, calls, batches)
    seconds = []
    for _ in range(batches):
        if group is not None:
            group.barrier()
        seconds.append(timing.seconds(run, backend, calls, clock))
    return float(np.median(seconds))


def share_of_a_core(world: Comm) -> float:
    """Return the part of the time that a rank computes while all want to: the least of all ranks. Collective.

    Less than 1 where ranks are more than cores.
    """
    world.barrier()
    begun, own = time.perf_counter(), time.thread_time()
    while (taken := time.perf_counter() - begun) < BATCH:
        pass
    return min(1.0, *world.gather_objects((time.thread_time() - own) / taken))


# -- kernels ---------------------------------------------------------------------------------------------


class Scale(NamedTuple):
    """Sizes of measured kernels.

    Attributes:
        nonzeros: of a sparse product; operands: bytes of B; rows: of dense blocks; flops: of a dense product.
        skews: 1 for columns drawn evenly; a power of what is drawn, by which the first are drawn more often.
        nodes, widths: of networks, of whose epochs the passes are measured; nodes by default as `rows`.
    """

    nonzeros: int
    operands: tuple[int, ...]
    rows: tuple[int, ...]
    flops: float
    skews: tuple[int, ...] = (1,)
    nodes: tuple[int, ...] = ()
    widths: tuple[int, ...] = (64, 64, 16)


#: Fewer non-zeros than those from which on products time how far to prefetch.
HOST = Scale(250_000, (1 << 17, 1 << 20, 1 << 22, 1 << 24, 1 << 26), (1 << 8, 1 << 11, 1 << 14, 1 << 17), 3e9)
DEVICE = Scale(  # its passes on so many nodes that the host is ahead
    1 << 21, (1 << 20, 1 << 23, 1 << 25, 1 << 27, 1 << 29), (1 << 11, 1 << 14, 1 << 17, 1 << 20), 3e11,
    (1, 4, 10), (1 << 19,), (128, 128, 64),
)  # fmt: skip
TINY = Scale(1 << 13, (1 << 14, 1 << 17), (1 << 6, 1 << 8, 1 << 11), 1e8)
BRIEF = Scale(1 << 16, (1 << 22, 1 << 23), (1 << 11,), 1e9)  # blocks such as those of epochs, in moments


def sparse_products(budget: Budget, scale: Scale, rounded: bool = False) -> list[Measurement]:
    """Measure products of random matrices with few and many non-zeros per row; B fits a cache or does not,
    or the cores find again what they read. ``rounded``: they read 16 bits; none where none can.
    """
    world, random = budget.world, np.random.default_rng(budget.world.rank)
    room, results = (
        _memory(world.backend, max(scale.operands)),
        _memory(world.backend, 64 * scale.nonzeros * 4),
    )
    samples: list[Measurement] = []
    if rounded and not local.reads_rounded(room):
        return samples
    cases = scale.operands, (16, 64, 128), (2, 8, 32), scale.skews
    for most, number, (nbytes, width, degree, skew) in _cases(budget, *cases):
        few = scale.nonzeros // (64 if number % 4 == 3 else 1)  # some of them are short
        k = max(min(nbytes // (4 * width), few), 1)  # of more rows most would not be read
        own = random_rows(random, max(few // degree, 1), k, degree, skew)
        A = CSR.from_scipy(own, world.backend)
        m = A.shape[0]
        B, out = room[: k * width].reshape(k, width), results[: m * width].reshape(m, width)
        what = f"{m} x {k}, {degree} non-zeros per row, width {width}{f', skew {skew}' * (skew > 1)}"
        curve = EVEN if skew == 1 else reuse.of_rows([own.indices[:READ]], k)
        if rounded:
            B = local.rounded(B, "bfloat16", world.backend.zeros((1,), np.int32))
        measured = sample(world, what, partial(local.spmm, A, B, out), most, clock=budget.clock)
        steps = [step._replace(operation=ROUNDED) for step in measured.steps] if rounded else measured.steps
        samples.append(replace(measured, reuse=curve, steps=steps))
    return samples


def _memory(on: Backend, nbytes: int) -> Any:
    """Return numbers in one dimension, which were written to."""
    return filled(on, (nbytes // 4, 1)).reshape(-1)


def _cases(budget: Budget, *choices: Sequence[Any]) -> Iterator[tuple[float, int, tuple[Any, ...]]]:
    """Return all combinations in a random order, as many as the budget allows, with the seconds for each and
    its number.
    """
    combined = list(product(*choices))
    for number, case in enumerate(np.random.default_rng(0).permutation(len(combined)).tolist()):
        left = budget.left()
        if number >= budget.least and left < 0:
            return
        yield left / 2 / (len(combined) - number), number, combined[case]


def random_rows(
    random: np.random.Generator, m: int, k: int, degree: int, skew: int = 1
) -> sp.csr_array:  # fmt: skip
    """Return an m x k matrix with so many non-zeros per row, of which some may coincide; ``skew``: of
    :class:`Scale`.
    """
    if skew == 1:
        columns = random.integers(0, k, m * degree, dtype=np.int64)
    else:
        columns = (k * random.random(m * degree) ** skew).astype(np.int64)
    pointers = np.arange(0, m * degree + 1, degree)
    return sp.csr_array((np.ones(m * degree, np.float32), columns, pointers), shape=(m, k))


def filled(on: Backend, shape: tuple[int, int], number: float = 1) -> Any:
    """Return a block of this number: memory that was written to."""
    block = on.empty(shape, np.float32)
    block[...] = number
    return block


def dense_products(budget: Budget, scale: Scale) -> list[Measurement]:
    """Measure H W, G Wᵀ and Hᵀ G, of tall H and G."""
    on, samples = budget.world.backend, list[Measurement]()
    widths = [(256, 256), (128, 128), (128, 40), (64, 16), (16, 16)]
    for most, _, (rows, (inner, columns), form) in _cases(
        budget, scale.rows, widths, ("H W", "G Wt", "Ht G")
    ):
        if rows * inner * columns > scale.flops / 2:
            continue
        shape = {"H W": (inner, columns), "G Wt": (columns, inner), "Ht G": (rows, columns)}[form]
        A, B = filled(on, (rows, inner)), filled(on, shape)
        how = {"trans_a": form == "Ht G", "trans_b": form == "G Wt"}
        out = filled(on, (inner if form == "Ht G" else rows, columns))
        run = partial(local.gemm, A, B, out, **how)
        what = f"{form}, {rows} rows, {inner} x {columns}"
        samples.append(sample(budget.world, what, run, most, clock=budget.clock))
    return samples


def rounded_products(budget: Budget, scale: Scale) -> list[Measurement]:
    """Measure dense products that round to TensorFloat-32; none where there is no such thing."""
    on = budget.world.backend
    try:
        on.use_tf32(True)
    except ArgumentError:
        return []
    try:
        return dense_products(budget, scale)
    finally:
        on.use_tf32(False)


def dense_passes(budget: Budget, scale: Scale) -> list[Measurement]:
    """Measure rows gathered and added, and the passes of a network on this rank alone."""
    world, samples = budget.world, list[Measurement]()
    on, random = world.backend, np.random.default_rng(world.rank)
    for most, _, (rows, width) in _cases(budget.part(0.5), scale.rows, (16, 128)):
        X, some = filled(on, (rows, width)), filled(on, (rows // 2, width))
        which = on.asarray(np.sort(random.permutation(rows)[: rows // 2]))
        gather, add = partial(local.gather_rows, X, which, some), partial(local.scatter_add, some, which, X)
        samples.append(sample(world, f"gather {rows // 2} of {rows} rows of {width}", gather, most / 2))
        samples.append(sample(world, f"add to {rows // 2} of {rows} rows of {width}", add, most / 2))
    for _, _, (rows,) in _cases(budget, scale.nodes or scale.rows):
        samples += _passes_of_epochs(budget, rows, scale.widths)
    return samples


def edge_passes(budget: Budget, scale: Scale) -> list[Measurement]:
    """Measure the passes of attention over the non-zeros of a random matrix, of one head and of eight."""
    world, samples = budget.world, list[Measurement]()
    on, random = world.backend, np.random.default_rng(0)
    cases = (scale.nonzeros, scale.nonzeros // 64), ((1, 16), (1, 64), (8, 64), (8, 128))
    for most, _, (nonzeros, (heads, width)) in _cases(budget, *cases):
        k = max(nonzeros // DEGREE, 1)
        A = CSR.from_scipy(random_rows(random, k, k, DEGREE), on)
        bounds = [head * width // heads for head in range(heads + 1)]
        U, V, u, v = (filled(on, (k, columns), 0.01) for columns in (width, width, heads, heads))
        x, P, T = filled(on, (A.nnz, heads), 0.0), filled(on, (A.nnz, heads), 0.1), filled(on, (k, width))
        bits = edges.signs_for(A.nnz * heads, on)
        more = on.zeros((A.nnz, additive.sign_bytes(width)), np.uint8)
        ways = {
            "softmax": partial(edges.softmax, A, P, ends=(u, v), slope=0.2, signs=bits),
            "its adjoint": partial(edges.softmax_back, A, P, x, slope=0.2, signs=bits),
            "dot products": partial(edges.dots, A, U, V, bounds, x),
            "scores of GATv2": partial(additive.scores, A, U, V, U[0], bounds, 0.2, x, more),
            "sums of slopes": partial(additive.slope_sums, A, P, more, 0.2, bounds, T),
        }
        what = f"{A.nnz} non-zeros, heads {heads}, width {width}"
        samples += [
            sample(world, f"{name}, {what}", run, most / len(ways), clock=budget.clock)
            for name, run in ways.items()
        ]
    return samples


def _passes_of_epochs(budget: Budget, rows: int, widths: Sequence[int]) -> list[Measurement]:
    """Measure the passes of a small network with trained features, by the ledger."""
    kinds = ("activation", "loss", "optimizer")
    epochs = network(Grid(MPI.COMM_SELF, backend=budget.world.backend, rows=1), rows, 2, widths, True)
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    for number in range(WARM_UP + LEAST):
        with Recorder(timing=True) as book:
            next(epochs)
        if number >= WARM_UP:
            for kind in kinds:
                seconds[kind].append(book.seconds.get(kind, 0.0))
    medians = budget.world.gather_objects({kind: float(np.median(seconds[kind])) for kind in kinds})
    steps = {kind: [step for step in book.steps if step.phase == kind] for kind in kinds}
    slowest = {kind: max(median[kind] for median in medians) for kind in kinds}
    return [
        Measurement(f"{kind} of {rows} nodes", slowest[kind], steps[kind]) for kind in kinds if steps[kind]
    ]


# -- products and epochs ---------------------------------------------------------------------------------


class Timed(NamedTuple):
    """A product without and with overlap: seconds of the slowest rank, and what a rank is charged.

    Attributes:
        computing, apart: of its local products and of all of it, one after the other.
        slowed, together: the same with overlap.
    """

    computing: float
    apart: float
    slowed: float
    together: float
    steps: Sequence[ProgramStep]


def overlapping(budget: Budget, n: int, degree: int, width: int) -> Timed:
    """Measure a 1D product of a random n x n matrix with a dense one of this width."""
    world = budget.world
    grid = Grid(world.mpi, backend=world.backend, rows=world.size)
    bounds, random = partition(n, world.size), np.random.default_rng(world.rank)
    rows = int(bounds[world.rank]), int(bounds[world.rank + 1])
    own = random_rows(random, rows[1] - rows[0], n, degree)
    A = operators.distribute(LocalBlocks((n, n), [(rows, (0, n), own)]), grid, "1d")
    H = DistDense.empty(A.input_layout, (n, width), np.float32)
    T = DistDense.empty(A.output_layout, (n, width), np.float32)
    H.block[...] = 1
    multiply, how = partial(A.multiply, H, T), (False, True)
    seconds: dict[bool, list[float]] = {overlap: [] for overlap in how}
    computing: dict[bool, list[float]] = {overlap: [] for overlap in how}
    for turn, overlap in product(range(TURNS), how):
        grid.overlap = overlap
        measured = sample(world, "", multiply, budget.left() / 4 / (TURNS - turn), grid.world)
        seconds[overlap].append(measured.seconds)
        computing[overlap].append(_computing(world, multiply))
    grid.free()
    apart, together = (float(np.median(seconds[overlap])) for overlap in how)
    alone, slowed = (float(np.median(computing[overlap])) for overlap in how)
    return Timed(alone, apart, slowed, together, measured.steps)


def _computing(world: Comm, run: Run) -> float:
    """Return seconds in local products, with the messages that are driven meanwhile."""
    seconds = []
    for _ in range(LEAST + 2):
        with Ledger(trace=True) as book:
            run()
        seconds.append(sum(event.stop - event.start for event in book.events or [] if event.phase == "spmm"))
    return max(world.gather_objects(float(np.median(seconds))))


def random_graph(n: int, degree: int) -> sp.csr_array:
    """Return a symmetric matrix with about so many non-zeros per row, the same on all ranks."""
    random = np.random.default_rng(n)
    half = max(n * degree // 2, 1)
    places = random.integers(0, n, half), random.integers(0, n, half)
    matrix = sp.coo_array((np.ones(half, np.float32), places), shape=(n, n)).tocsr()
    return sp.csr_array(matrix + matrix.T)


def network(
    grid: Grid,
    n: int,
    degree: int,
    widths: Sequence[int],
    train_features: bool = False,
    algorithm: str = "1d",
    cuda_graph: bool = False,
) -> Iterator[records.Epoch]:
    """Train on a random graph, epoch by epoch."""
    A = operators.distribute(random_graph(n, degree), grid, algorithm)
    model = GCN(A, widths)
    X = DistDense.empty(model.input_layout, (n, widths[0]), np.float32)
    X.block[...] = 0.01
    rows = np.arange(n)
    targets = model.targets(rows % widths[-1], (rows % 2).astype(np.uint8))
    how: Any = {"eval_every": 0, "train_features": train_features, "cuda_graph": cuda_graph}
    return train(model, X, targets, optim.make("adam"), 1000, **how)


def epoch(
    budget: Budget, algorithm: str, sizes: Mapping[str, int], n: int, degree: int, widths: Sequence[int],
    cuda_graph: bool = False,
) -> Measurement:  # fmt: skip
    """Measure an epoch on all ranks, on a grid of these sizes.

    Args:
        cuda_graph: of one rank's device, as CUDA graphs, once they are there; they have no steps.
    """
    world = budget.world
    grid = operators.make_grid(world.mpi, algorithm, sizes, backend=world.backend)
    epochs = network(grid, n, degree, widths, algorithm=algorithm, cuda_graph=cuda_graph)
    warm, seconds = WARM_UP + CAPTURING * cuda_graph, list[float]()
    while len(seconds) < warm + LEAST or (len(seconds) < 50 and budget.left() > 0):
        with Recorder() as book:
            seconds.append(next(epochs)["seconds"])
    slowest = max(world.gather_objects(float(np.median(seconds[warm:]))))
    del epochs  # which use the grid
    grid.free()
    kinds = {_messages(steps): steps for steps in world.gather_objects(book.steps)}
    steps, *others = kinds.values()
    what = f"{algorithm}, {', '.join(f'{axis}={size}' for axis, size in sizes.items())}: "
    what += f"an epoch of {len(widths) - 1} layers on {n} nodes{', CUDA graphs' * cuda_graph}"
    return Measurement(what, slowest, steps, sizes, others)
