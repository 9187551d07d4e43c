"""Host SpMM on every graph and width of the comparison; appends a Markdown section to a results file.

python benchmarks/spmm.py --out benchmarks/results/spmm-host.md
"""

from __future__ import annotations

import shlex
import sys
from datetime import date

import table
from distgnn.bench import spmm, timing
from distgnn.cli import bench

GRAPHS = [
    "rmat-15",
    "rmat-16",
    "rmat-17",
    "rmat-18",
    "rmat-19",
    "rmat-20",
    "uniform-17",
    "uniform-20",
    "planted-17",
    "road-18",
]
WIDTHS = [8, 16, 32, 41, 64, 100, 128, 256, 602]
MEMORY = 6 << 30  # of B and C together; wider points are left out


def main() -> None:
    parser = table.arguments(__doc__)
    bench.add_arguments(parser)
    parser.set_defaults(graph=GRAPHS, widths=WIDTHS)
    args = parser.parse_args(["spmm", *sys.argv[1:]])
    ceilings = timing.copy_bandwidth(args.clock), timing.cache_bandwidth(args.clock)
    points = []
    for name in args.graph:
        A = spmm.graph(name)
        for width in args.widths:
            if 8 * A.shape[0] * width > MEMORY:
                continue
            options = args.seconds, args.clock, args.plain_memory
            points.append(spmm.measure(name, A, width, ceilings, *options))
            print(spmm.table(points[-1:], ceilings).splitlines()[-1], flush=True)
    command = f"python benchmarks/spmm.py {shlex.join(sys.argv[1:])}"
    parts = [
        f"# {date.today()}: `{command}`",
        bench.describe(ceilings),
        spmm.table(points, ceilings),
        spmm.summary(points),
    ]
    text = "\n\n".join(part.strip() for part in parts) + "\n\n"
    print(text)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        with args.out.open("a") as file:
            file.write(text)


if __name__ == "__main__":
    main()
