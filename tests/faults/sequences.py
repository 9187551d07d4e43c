"""A campaign of random sequences of operations on every grid of every algorithm (see ``tests/sequences.py``).

    python tests/faults/sequences.py --sequences 2000 --out benchmarks/results/sequences.md
    mpiexec -n 6 python tests/faults/sequences.py --seconds 60 --first 17

The first command deals the sequences to 1 to 12 ranks, as many to each grid, and makes the
table. The second runs sequences 17, 18, ... for a minute and ends at the first that is wrong. A launch that
ends with an error, or has said nothing for five minutes, counts as a wrong sequence; the next launch goes on
after it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence as Many
from datetime import date
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from mpi4py import MPI

from distgnn.bench.timing import machine
from distgnn.operators import ALGORITHMS
from mpi_helpers.programs import ROOT, clean_environment, launcher
from sequences import DRAWN, Sequence, SequenceError, cases

RANKS, PATIENCE = (1, 2, 3, 4, 6, 8, 9, 12), 300
#: Every message is read by its receiver from the sender's memory; ranks that wait leave the core to others.
ENVIRONMENT = {"MPIR_CVAR_CH4_IPC_CMA_P2P_THRESHOLD": "1", "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"}


def run(args: argparse.Namespace) -> None:
    """Run sequences on the ranks of this launch, one after another; print each, and end at a wrong one."""
    comm, begun = MPI.COMM_WORLD, time.monotonic()
    for number in range(args.first, args.first + args.sequences):
        if comm.bcast(time.monotonic() - begun > args.seconds):
            if comm.rank == 0:
                print(f"{number - args.first} sequences of operations on {comm.size} ranks: 0 wrong")
            return
        sequence = Sequence(comm, number, nodes=1500 if number % 23 == 0 else 150, steps=args.steps)
        try:
            operations = sequence.run(repeats=3, seconds=0.002)
        except SequenceError as error:
            if comm.rank == 0 or error.__cause__ is not None:
                print(error, flush=True)
            if error.__cause__ is None:  # all ranks are here
                comm.Barrier()
            comm.Abort(1)
        if comm.rank == 0:
            row = {"number": number, "algorithm": sequence.case.algorithm, "operations": operations}
            print(json.dumps(row | {"case": str(sequence.case)}), flush=True)


def campaign(ranks: int, count: int, given: argparse.Namespace) -> list[dict]:
    """Return the rows of ``count`` sequences on ``ranks`` ranks, in as many launches as needed."""
    rows: list[dict] = []
    while len(rows) < count:
        rows += _launch(ranks, given.first + len(rows), count - len(rows), given.steps)
        print(f"{ranks} ranks: {len(rows)} of {count} sequences", flush=True)
    return rows


def _launch(ranks: int, first: int, count: int, steps: str) -> list[dict]:
    words = [launcher(), "-n", str(ranks), sys.executable, __file__, "--launched", "--steps", steps]
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(
            [*words, "--first", str(first), "--sequences", str(count)], cwd=ROOT, stdin=subprocess.DEVNULL,
            stdout=out, stderr=subprocess.STDOUT, env=clean_environment(**ENVIRONMENT),
        )  # fmt: skip
        said, since = 0, time.monotonic()
        while process.poll() is None and time.monotonic() - since < PATIENCE:
            time.sleep(0.2)
            if os.fstat(out.fileno()).st_size > said:
                said, since = os.fstat(out.fileno()).st_size, time.monotonic()
        process.terminate()  # mpiexec ends its ranks
        process.wait()
        out.seek(0)
        lines = out.read().splitlines()
    rows = []
    for line in lines:
        with contextlib.suppress(json.JSONDecodeError):
            rows.append(json.loads(line) | {"wrong": 0})
    if len(rows) < count:
        dealt, number = cases(ranks), first + len(rows)
        print(f"{ranks} ranks, sequence {number} is wrong:", *lines[-40:], sep="\n", flush=True)
        case = dealt[number % len(dealt)]
        rows.append({"algorithm": case.algorithm, "case": str(case), "operations": 0, "wrong": 1})
    return rows


def table(rows: dict[int, list[dict]]) -> str:
    """Write the table of sequences, operations and wrong sequences by ranks and algorithm."""
    lines = ["| ranks | algorithm | grids | sequences | operations | wrong |"]
    lines += ["|---:|---|---:|---:|---:|---:|"]
    groups: dict[tuple[str, str], list[dict]] = defaultdict(list)
    for ranks, found in rows.items():
        for row in found:
            groups[str(ranks), row["algorithm"]].append(row | {"case": f"{ranks} {row['case']}"})
            groups["all", "all"].append(row | {"case": f"{ranks} {row['case']}"})
    for key in [*((str(r), a) for r in rows for a in ALGORITHMS if (str(r), a) in groups), ("all", "all")]:
        of_it = groups[key]
        sums = [sum(row[name] for row in of_it) for name in ("operations", "wrong")]
        numbers = len({row["case"] for row in of_it}), len(of_it), *sums
        lines.append(f"| {' | '.join([*key, *map('{:,}'.format, numbers)])} |")
    return "\n".join(lines)


def main(words: Many[str] | None = None) -> int:
    """Run the sequences of this launch, or the campaign; 1 if one of the campaign is wrong."""
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("--sequences", type=int, default=1 << 30)
    parser.add_argument("--first", type=int, default=0, help="number of the first sequence of a launch")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start none later than that")
    parser.add_argument("--ranks", type=int, nargs="*", default=RANKS, help="of a campaign")
    parser.add_argument("--steps", choices=list(DRAWN), default="all", help="what sequences are made of")
    parser.add_argument("--launched", action="store_true", help="of a campaign, though on one rank")
    parser.add_argument("--out", type=Path, help="file for the table of a campaign")
    args = parser.parse_args(words)
    if MPI.COMM_WORLD.size > 1 or args.launched:
        run(args)
        return 0
    begun, every = time.monotonic(), sum(len(cases(ranks)) for ranks in args.ranks)
    counts = {ranks: -(-args.sequences * len(cases(ranks)) // every) for ranks in args.ranks}
    rows = {ranks: campaign(ranks, count, args) for ranks, count in counts.items()}
    wrong = sum(row["wrong"] for of_ranks in rows.values() for row in of_ranks)
    command = f"`python tests/faults/sequences.py {' '.join(words or sys.argv[1:])}`"
    minutes = (time.monotonic() - begun) / 60
    head = f"{date.today()}: {command}; {machine()}; {minutes:.0f} minutes."
    text = f"# Random sequences of operations\n\n{head}\n\n{table(rows)}\n\n{ABOUT}\n"
    print(text)
    if args.out:
        args.out.write_text(text)
    return int(wrong > 0)


ABOUT = """A sequence is 3 to 8 operations on one grid: products and adjoint products of two matrices,
products with weights, relayouts, scatter and gather, training of GCN and GraphSAGE with dropout, samplers;
and those of `--steps edges`: products with other values, SDDMM, softmax and scores of edges, aggregation
over semirings, their adjoints, training of GAT and GATv2, and refusals, which must be documented and alike
on all ranks. It runs once without overlap, compared with SciPy and NumPy, and three times with it,
compared to the bit. With overlap, messages are read late, delivered late and completed in random order,
ranks sleep at random, and every message is a rendezvous (`MPIR_CVAR_CH4_IPC_CMA_P2P_THRESHOLD=1`). Wrong
is another number, memory that is written while MPI has it, a message left under way, an error, or no
progress for five minutes."""

if __name__ == "__main__":
    sys.exit(main())
