"""Planned epochs of ``1d`` with a product for each panel of H, and with two for all (``JoinedBlocks``).

    python benchmarks/joined_panels.py --out benchmarks/results/joined-panels.md

Nothing is measured: a dry run of the program is priced with the rates of a machine that ships. It trains a
GCN of layers 128-128-40 on graphs with as many non-zeros everywhere. It decides TUNING.joined_panels, and
that of devices.
"""

from __future__ import annotations

import table
from distgnn.arrays.tuning import TUNING
from distgnn.plan.cost_model import estimate
from distgnn.plan.dry.graphs import Graph
from distgnn.plan.dry.run import dry_run
from distgnn.plan.machine import read
from distgnn.train import Settings

EVERYTHING = 1 << 60


def seconds(machine: str, ranks: int, nodes: int, degree: int, joined: int) -> float:
    """Return those of a training epoch, of which panels of so many bytes are joined."""
    TUNING.joined_panels, TUNING.halved_block = joined, EVERYTHING
    graph, settings = Graph.of_size(nodes, degree * nodes, 128, 40), Settings(algorithm="1d", hidden=(128,))
    dry = dry_run(settings, graph, ranks, True, evaluation=False)
    return estimate(read(machine), dry.grid, [dry.ranks[0].epoch.steps]).seconds


def main() -> None:
    parser = table.arguments(__doc__)
    parser.add_argument("--machines", nargs="+", default=["h200", "infiniband-cpu"])
    parser.add_argument("--ranks", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--log-nodes", type=int, nargs="+", default=[13, 15, 17, 18, 19, 20])
    parser.add_argument("--degrees", type=int, nargs="+", default=[16, 256])
    args = parser.parse_args()
    columns = "machine", "ranks", "nodes, log2", "degree", "H, MiB", "by panels, ms", "joined, ms", "ratio"
    lines = table.columns(*columns)
    for machine in args.machines:
        for ranks in args.ranks:
            for degree in args.degrees:
                for log in args.log_nodes:
                    how = machine, ranks, 1 << log, degree
                    apart, joined = (1e3 * seconds(*how, nbytes) for nbytes in (0, EVERYTHING))
                    size = (1 << log) * TUNING.fetched_row_bytes / (1 << 20)
                    cells = machine, ranks, log, degree, f"{size:.0f}", f"{apart:.3f}", f"{joined:.3f}"
                    lines.append(f"| {' | '.join(map(str, cells))} | {joined / apart:.2f} |")
    table.publish(args, "\n".join([table.heading(args) + ". Planned, not measured.", "", *lines]))


if __name__ == "__main__":
    main()
