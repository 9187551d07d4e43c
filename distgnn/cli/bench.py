"""``distgnn bench``: time a kernel beside everything installed that computes the same."""

from __future__ import annotations

import argparse

from distgnn.errors import ArgumentError
from distgnn.terminal import show

HELP = "time a kernel and print GFLOP/s, GB/s and the ratio to all else installed that computes the same"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    # fmt: off
    add = parser.add_argument
    add("what", choices=["spmm"], help="spmm: sparse times dense on one rank")
    add("--graph", nargs="+", default=["rmat-16"], help="rmat-15 ... road-18, or stores NAME.dg")
    add("--widths", nargs="+", type=int, default=[16, 64, 128], help="columns of the dense matrix")
    add("--seconds", type=float, default=1.0, help="to spend on each point, all candidates together")
    add("--clock", choices=["wall", "cpu"], default="wall", help="cpu: of this process, on a busy machine")
    add("--plain-memory", action="store_true", help="NumPy's arrays, not ones that start at a cache line")
    # fmt: on


def run(args: argparse.Namespace) -> None:
    from distgnn.bench import spmm, timing

    if min(args.widths) < 1:
        raise ArgumentError("widths", min(args.widths), "a width is at least 1")
    ceilings = timing.copy_bandwidth(args.clock), timing.cache_bandwidth(args.clock)
    show(describe(ceilings))
    points = []
    for name in args.graph:
        A = spmm.graph(name)
        for width in args.widths:
            options = args.seconds, args.clock, args.plain_memory
            points.append(spmm.measure(name, A, width, ceilings, *options))
            lines = spmm.table(points[-1:], ceilings).splitlines()
            show(*(lines if len(points) == 1 else lines[2:]))
    show(f"\n{spmm.summary(points)}")


def describe(ceilings: tuple[float, float]) -> str:
    """Describe the machine and settings of the figures, and the columns."""
    from distgnn.bench import spmm, timing
    from distgnn.local import host

    kernels = host.built().isas()[host.isa()]
    copy, cache = (f"{ceiling / 1e9:.1f} GB/s" for ceiling in ceilings)
    return f"""{timing.machine()}; {kernels} kernels, {host.threads()} thread(s), float32.
Ceilings of this run: copy {copy} (read + written), last-level cache {cache}.
Dense products, {timing.dense_rate() / 1e9:.1f} GFLOP/s: NumPy's BLAS, {timing.blas()}.

Columns: GFLOP/s of each candidate (best call, all in turns on the same arrays; one call of those that take
over {spmm.LONG:g} s and {spmm.HOPELESS:g} times as long as ours); of ours, GB/s as if no gathered row were
reused, its share of the copy ceiling (above 1: rows are reused in cache), and the share of the roof: the
least seconds that the ceilings allow without reuse, with gathers from cache where B fits it and from memory
otherwise; times faster than the fastest of the others, and than MKL.
"""
