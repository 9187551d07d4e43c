"""Kernels of an epoch on one GPU, by PyTorch's profiler, which sees those of all libraries in its process.

    python benchmarks/gpu_kernels.py --graphs rmat-20-16 --out results/gpu.md
    python benchmarks/gpu_kernels.py --graphs rmat-16-32 --networks gat-8-1 gat-8-8

The trainings are those of ``gpu_epoch.py``, without CUDA graphs. Our kernels go by their names, cuBLAS's
together, all others, CuPy's and copies, too. Milliseconds and launches are means over epochs.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import gpu_timing
import table
from distgnn.local.cuda.instances import KERNELS
from gpu_epoch import Problem, Training, arguments
from gpu_graphs import kept

OURS = {name.partition("<")[0] for names in KERNELS.values() for name in names}
DENSE = ("gemm", "gemv", "cutlass", "splitK", "cublas")


def kind(kernel: str) -> str:
    """Return the row that a kernel of this name belongs to."""
    mangled = re.match(r"_Z(\d+)", kernel)  # the length of the name follows
    start = kernel[mangled.end() :][: int(mangled[1])] if mangled else kernel.removeprefix("void ")
    name = start.partition("<")[0].partition("(")[0]
    if name in OURS:
        return name
    return "dense products" if any(word in kernel for word in DENSE) else "sums, copies and other kernels"


def rows(events: Iterable[tuple[str, int, float]], epochs: int) -> Iterator[str]:
    """Yield the table's rows from name, launches and microseconds of kernels, those of most time first."""
    launches, spent = Counter[str](), Counter[str]()
    for name, count, microseconds in events:
        launches[kind(name)] += count
        spent[kind(name)] += microseconds  # type: ignore[assignment]
    for name, microseconds in spent.most_common():
        yield f"| {name} | {launches[name] / epochs:.3g} | {microseconds / 1e3 / epochs:.3f} |"
    together = f"{launches.total() / epochs:.3g} | {spent.total() / 1e3 / epochs:.3f}"
    yield f"| together | {together} |"


def seen(problem: Problem, on: Any, args: Any) -> list[tuple[str, int, float]]:
    """Train, the last epochs under the profiler; return name, launches and microseconds of the kernels."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    training = Training(problem, on, args.warm_up + args.epochs, {})
    training.run(args.warm_up)
    watched = ProfilerActivity.CUDA if torch.cuda.is_available() else ProfilerActivity.CPU
    with profile(activities=[watched]) as made:
        training.run(args.epochs)
    events = [event for event in made.key_averages() if event.device_type.name == "CUDA"]  # no calls
    return [(event.key, event.count, event.self_device_time_total) for event in events]


def main() -> int:
    args = arguments(__doc__).parse_args()
    on, report = gpu_timing.bound("gpu_kernels"), gpu_timing.Report(args)
    report.begin(args, gpu_timing.device_name(on.xp))
    for name in args.graphs:
        for network in args.networks:
            problem = Problem(name, network, kept(name, args.kept_in))
            events = seen(problem, on, args)
            report.say(*table.columns(f"kernels of {network}, {name}", "launches", "ms"))
            report.say(*rows(events, args.epochs), "")
    return 0


if __name__ == "__main__":
    sys.exit(main())
