"""``distgnn calibrate``: measure the machine that the job runs on, for ``distgnn plan``."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distgnn.errors import ArgumentError
from distgnn.report import text
from distgnn.terminal import show

if TYPE_CHECKING:
    from distgnn.plan.calibrate import Calibration
    from distgnn.plan.fit import Fit

HELP = "measure this machine, kernel by kernel and collective by collective, for plan --machine"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    # fmt: off
    add = parser.add_argument
    add("--out", metavar="FILE", help="write the machine there, as TOML (default: print it)")
    add("--force", action="store_true", help="replace FILE")
    add("--name", metavar="NAME", help="of the machine (default: as FILE is called)")
    add("--seconds", type=float, default=100.0, metavar="S", help="to spend, about")
    add("--backend", choices=("auto", "numpy", "cupy"), help="of arrays (default: a GPU if there is one)")
    add("--json", action="store_true", help="print fits and samples as JSON")
    # fmt: on


def run(args: argparse.Namespace) -> None:
    from distgnn.cli.first_rank import on_all_ranks

    on_all_ranks(lambda world: _run(args, world))


def _run(args: argparse.Namespace, world: Any) -> None:
    from distgnn.bench.timing import machine
    from distgnn.files.output import check_output, replaced, writing
    from distgnn.plan.calibrate import calibrate
    from distgnn.store.write.ranks import of

    if not 0 < args.seconds < math.inf:
        raise ArgumentError("seconds", args.seconds, "must be a positive number")
    team = of(world)
    with team.together():
        if args.out is not None and team.rank == 0:
            check_output("out", Path(args.out), args.force)
    name = args.name or (Path(args.out).stem if args.out else "measured")
    calibration = calibrate(world, args.seconds, name, machine(), args.backend)
    with team.together():
        if team.rank == 0:
            toml = f"{calibration.machine.toml()}\n"
            if args.out is not None:
                with writing("out", args.out), replaced(Path(args.out)) as file:
                    file.write(toml.encode())
            for line in calibration.warnings:
                show(f"distgnn: warning: {line}", error=True)
            printed = "" if args.out else f"\n\n{toml.strip()}"
            show(json.dumps(calibration.record()) if args.json else table(calibration) + printed)


def table(calibration: Calibration) -> str:
    """Write every fit in a line, aligned for a terminal; then the notes."""
    heads = "kind", "level", "samples", "R²", "median", "largest", "parameters"
    lines = [heads, *(_line(fitted) for fitted in calibration.fits)]
    about = "median and largest: of the residuals, as shares of the measured seconds"
    return "\n".join([*text.aligned(lines), "", about, *calibration.notes])


def _line(fit: Fit) -> tuple[str, ...]:
    import numpy as np

    from distgnn.plan.machine import shown

    sizes = np.abs(fit.residuals)
    values = (f"{name.replace('_', ' ')} {shown(name, value)}" for name, value in fit.values.items())
    r2 = "-" if len(fit.samples) < 3 else f"{fit.r2:.4f}"
    fitted = r2, f"{np.median(sizes):.1%}", f"{sizes.max():.1%}", ", ".join(values)
    return fit.kind, fit.level or "rank", str(len(fit.samples)), *fitted
