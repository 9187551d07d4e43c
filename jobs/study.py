"""Runs studies of the table in studies.py; started by jobs/study.sh.

A study makes its graphs (or takes yours: --store), prepares them in every order that it needs, trains with
every algorithm on every number of ranks, and ends in NAME.md, NAME.csv and NAME.svg in --out.
Protocol (Plexus, section 6.3): 10 epochs, of which the first two do not count, 3 trials, their mean.

Ranks are limited to those of the job, or the cores here; where this leaves fewer than three of the paper's
numbers, smaller ones are added. Generated graphs are scaled down: see --scale. The output says both.

A finished run is kept and not run again: the same command goes on where it was interrupted. A run that fails
is told, and the others go on. Exit status: 0 all is there, 1 runs failed, 2 bad usage.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import study_results
from studies import GRAPHS, STUDIES, Series
from study_results import UNTIMED

LAUNCH = Path(__file__).with_name("launch.sh")
#: Non-zeros of a generated graph without --scale; where the density is varied, of the densest.
FITS, FITS_DENSEST = 250_000, 2_000_000


@dataclass(frozen=True)
class Run:
    """One training."""

    graph: str
    series: Series
    ranks: int
    trial: int

    @property
    def order(self) -> str:
        """The store's name of the order."""
        parts = self.ranks // self.series.copies
        by_partition = self.series.order not in ("random", "double")
        return f"{self.series.order}-{parts}" if by_partition else self.series.order

    @property
    def name(self) -> str:
        label = re.sub(r"[^\w.+]+", "-", self.series.label)
        return f"{self.graph}-{label}-P{self.ranks}-{self.trial}"


class Campaign:
    """A study as it is run here: what it starts and keeps."""

    def __init__(self, name: str, args: argparse.Namespace) -> None:
        self.name, self.study, self.args = name, STUDIES[name], args
        self.folder = args.out / name
        self.failed: dict[str, str] = {}
        self.broken: dict[Path, str] = {}
        self.notes: list[str] = []
        self.shown: set[Path] = set()
        self.nodes = int(os.environ.get("SLURM_NNODES") or 1)
        self.top = args.ranks or int(os.environ.get("SLURM_NTASKS") or len(os.sched_getaffinity(0)))
        self.runs = [run for run in self.planned() if any(text in run.name for text in args.only)]
        used = {run.graph for run in self.runs}
        self.notes = [note for note in self.notes if note.partition(":")[0] in used]

    def planned(self) -> list[Run]:
        runs = []
        for graph, (*_, paper) in self.study.graphs.items():
            for series in self.study.series:
                counts = self.counts(graph, series, series.ranks or paper)
                runs += [Run(graph, series, p, t) for p in counts for t in range(self.args.trials)]
        return runs

    def counts(self, graph: str, series: Series, paper: tuple[int, ...]) -> list[int]:
        """Return the paper's numbers of ranks as far as there are ranks, and smaller ones if few are left."""
        if self.args.at:
            self.note(f"{graph}: P as --at says; the paper has {', '.join(map(str, paper))}")
            return [count for count in self.args.at if count % series.copies == 0]
        here = [count for count in paper if count <= self.top]
        smaller = (k**series.root if series.root > 1 else 1 << (k - 1) for k in range(1, 32))
        limit = min(self.top, paper[0] - 1)
        more = [count for count in smaller if count <= limit and count % series.copies == 0]
        if missing := ", ".join(str(count) for count in paper if count > self.top):
            self.note(f"{graph}: P = {missing} of the paper are more than the {self.top} ranks here")
        return (more[len(here) - 3 :] if len(here) < 3 else []) + here

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def run(self) -> int:
        """Run the study; return the number of runs that failed."""
        for index, run in enumerate(self.runs, 1):
            progress = f"[{index}/{len(self.runs)}] {run.name}:"
            problem = self.prepare(run) or self.train(run, progress)
            if problem:
                self.failed[run.name] = problem
                print(f"{progress} FAILED: {problem}", file=sys.stderr, flush=True)
        return len(self.failed)

    def size(self, graph: str) -> tuple[int, float]:
        """Return nodes and mean degree of the graph to generate."""
        given, degree = GRAPHS[graph], GRAPHS[graph].nonzeros / GRAPHS[graph].nodes
        densest, fits, share = given.nonzeros, FITS, 16
        if self.study.drawing == "density":  # the same nodes for all
            densest, fits, share = max(GRAPHS[one].nonzeros for one in self.study.graphs), FITS_DENSEST, 2
        nodes = max(given.nodes * fits / densest, math.sqrt(share * fits))
        if self.args.scale:
            nodes = max(64, given.nodes * self.args.scale)
        nodes = min(given.nodes, round(nodes))
        return nodes, min(degree, nodes / share)

    def generated(self, graph: str) -> Path:
        """Return the path for a graph of this size and with these widths."""
        features, classes, _ = self.study.graphs[graph]
        nodes, degree = self.size(graph)
        return self.args.out / "graphs" / f"{graph}-{nodes}x{degree:.4g}-{features}-{classes}"

    def store(self, run: Run) -> Path:
        source = self.generated(run.graph)
        return self.args.stores.get(run.graph) or source.with_name(f"{source.name}-{run.order}.dg")

    def prepare(self, run: Run) -> str:
        """Make the store that the run needs, if it is not there; what went wrong, or ""."""
        store, source = self.store(run), self.generated(run.graph)
        if run.graph in self.args.stores or store.exists():
            return ""
        if store in self.broken:
            return self.broken[store]
        features, classes, _ = self.study.graphs[run.graph]
        nodes, degree = self.size(run.graph)
        kind, *flags = GRAPHS[run.graph].kind.split()
        flags += [] if kind == "road" else ["--degree", f"{degree:.4g}"]
        flags += ["--nodes", str(nodes), "--features", str(features), "--classes", str(classes)]
        method, _, parts = run.order.rpartition("-")
        order = ["--partition", f"{method}:{parts}"] if method else ["--order", run.order]
        problem = ""
        if not source.exists():
            problem = self.start(1, source, ["generate", kind, str(source), *flags])
        ranks = min(self.top, 1 + int(nodes * degree) // 1_000_000)
        problem = problem or self.start(ranks, store, ["prepare", str(source), str(store), *order])
        if problem:
            self.broken[store] = f"no {store.name}: {problem}"
        return self.broken.get(store, "")

    def command(self, run: Run) -> list[str]:
        """Return the words behind ``distgnn``."""
        flags = f"{self.study.network} {run.series.flags}"
        if (
            run.graph not in self.args.stores
        ):  # a scaled graph has fewer training nodes: eight batches at least
            most = max(1, int(0.6 * self.size(run.graph)[0]) // 8)
            flags = re.sub(r"(--batch-size) (\d+)", lambda m: f"{m[1]} {min(int(m[2]), most)}", flags)
        words = [*flags.split(), "--order", run.order, "--seed", str(run.trial)]
        side = round(run.ranks ** (1 / run.series.root))
        if run.series.root > 1 and side**run.series.root == run.ranks:
            words += ["--grid", "x".join([str(side)] * run.series.root)]
        if run.series.axis:
            sizes = {axis: run.ranks if axis == run.series.axis else 1 for axis in "xyz"}
            words += ["--grid", ",".join(f"{axis}={size}" for axis, size in sizes.items())]
        words += ["--recipe", "plain", "--epochs", str(self.args.epochs), "--eval-every", "0"]
        words = ["train", str(self.store(run)), *without(words, self.args.flags), *self.args.flags]
        return [*words, "--log", str(self.log(run)), "--force", "--quiet"]

    def train(self, run: Run, progress: str) -> str:
        """Train; return the problem, or ""."""
        if not self.args.dry_run and self.events(run):
            print(f"{progress} kept", flush=True)
            return ""
        started = time.monotonic()
        problem = self.start(run.ranks, self.log(run), self.command(run))
        if problem or self.args.dry_run:
            return problem
        events, spent = self.events(run), time.monotonic() - started
        if not events:
            return f"{self.log(run)} has no end"
        print(f"{progress} {study_results.seconds(events):.4g} s per epoch ({spent:.0f} s)", flush=True)
        return ""

    def events(self, run: Run) -> list[study_results.Log]:
        """Read the log of a run that ended and was started by the same command; else return no events."""
        output, title = beside(self.log(run)), self.title(run.ranks, self.command(run))
        if not output.exists() or output.read_text(errors="replace").split("\n", 1)[0] != title:
            return []
        return study_results.finished(self.log(run))

    def log(self, run: Run) -> Path:
        return self.folder / f"{run.name}.jsonl"

    def per_node(self, ranks: int) -> int:
        """Return ranks on each node where the study says so, as far as there are nodes; 0: as the job has."""
        return self.study.per_node and max(self.study.per_node, math.ceil(ranks / self.nodes))

    def title(self, ranks: int, command: list[str]) -> str:
        where = f", {self.per_node(ranks)} per node" if self.per_node(ranks) else ""
        return f"# {ranks} ranks{where}: distgnn {shlex.join(command)}"

    def start(self, ranks: int, what: Path, command: list[str]) -> str:
        """Run `distgnn` on ranks, its output beside what it makes; what went wrong, or ""."""
        script = 'source "$1"; launch "$2" "$DISTGNN" "${@:3}"'
        words = ["bash", "-c", script, "bash", str(LAUNCH), str(ranks), *command]
        env = dict(os.environ)
        if self.per_node(ranks) and self.nodes > 1:
            env["PER_NODE"] = str(self.per_node(ranks))
        if self.args.dry_run:
            return "" if what in self.shown else self.show(what, words, env)
        what.parent.mkdir(parents=True, exist_ok=True)
        output = beside(what)
        with output.open("w") as file:
            print(self.title(ranks, command), file=file, flush=True)
            problem = follow(words, env, file, self.args.limit)
        told = [line for line in output.read_text(errors="replace").splitlines()[1:] if line.strip()]
        return problem and f"{problem}; {told[-1].strip() if told else 'no output'} ({output})"

    def show(self, what: Path, words: list[str], env: dict[str, str]) -> str:
        """Print the command that would make this."""
        self.shown.add(what)
        env |= {"DRY_RUN": "1"}
        shown = subprocess.run(words, env=env, text=True, capture_output=True, check=False)
        print(shown.stdout, end="", flush=True)
        return shown.stderr.strip()


def beside(path: Path) -> Path:
    """Return the path for the output of the command that makes this file."""
    return path.with_name(f"{path.name}.out")


def follow(words: list[str], env: dict[str, str], file: Any, limit: float | None) -> str:
    """Run a command with its output in the file; what went wrong, or "". It ends when this program does."""
    quiet = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": subprocess.STDOUT}
    process = subprocess.Popen(words, env=env, start_new_session=True, **quiet)
    try:
        code = process.wait(limit)
        return f"exit status {code}" if code else ""
    except subprocess.TimeoutExpired:
        return f"over its limit of {limit:g} s"
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            if process.poll() is None:
                os.killpg(process.pid, number)
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    continue


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="jobs/study.sh",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="What follows -- goes to every `distgnn train`, as in: -- --backend cupy --machine perlmutter",
    )
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help="of a study, or of a paper for all of its studies")
    add("--list", action="store_true", help="print the table of studies")
    add("--ranks", type=positive, metavar="P", help="how many there are (default: the job's tasks, or cores)")
    add("--at", type=several, metavar="P,...", help="these numbers of ranks instead of the paper's")
    add("--scale", type=share, metavar="S", help="nodes of the published graphs times S, with the published "
        f"degree up to a 16th of the nodes (default: for about {FITS:,} non-zeros)")  # fmt: skip
    add("--store", action="append", default=[], metavar="GRAPH=DIR", help="of yours, with the orders needed")
    add("--trials", type=positive, default=3, metavar="N", help="of each run (default: 3)")
    add("--epochs", type=positive, default=10, metavar="N", help="of a run (default: 10)")
    add("--only", type=lambda text: text.split(","), default=[""], metavar="TEXT,...",
        help="runs whose names contain one of these")  # fmt: skip
    add("--limit", type=float, metavar="SECONDS", help="end a run that takes longer")
    add("--out", type=Path, default=Path("studies"), metavar="DIR", help="for all files (default: studies)")
    add("--dry-run", action="store_true", help="print the commands")
    mine, flags = sys.argv[1:], []
    if "--" in mine:
        mine, flags = mine[: mine.index("--")], mine[mine.index("--") + 1 :]
    args = parser.parse_args(mine)
    args.flags = flags
    check(parser, args)
    return args


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: expected a whole number of at least 1")
    return int(text)


def several(text: str) -> list[int]:
    return sorted({positive(word) for word in text.split(",")})


def share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text}: expected a number above 0 and up to 1, such as 1e-3")
    return value


def check(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Check studies by name and stores by graph; end with status 2 for what does not fit."""
    if not args.names and not args.list:
        parser.error("name a study, or a paper for all of its studies: see --list")
    for name in args.names:
        if not chosen([name]):
            parser.error(f"{name}: no such study; there are {', '.join(STUDIES)}")
    args.stores = {}
    for text in args.store:
        graph, _, path = text.partition("=")
        if graph not in GRAPHS:
            parser.error(f"--store {text}: no graph {graph}; expected GRAPH=DIR with {', '.join(GRAPHS)}")
        if not Path(path).is_dir():
            parser.error(f"--store {text}: no directory {path}; expected one that prepare made")
        args.stores[graph] = Path(path)
    if args.epochs <= UNTIMED:
        parser.error(f"--epochs {args.epochs}: expected more than the {UNTIMED} that do not count")


def chosen(names: list[str]) -> list[str]:
    """Return studies of these names, or of these papers."""
    return [one for one in STUDIES if any(one == name or one.startswith(f"{name}-") for name in names)]


def without(words: list[str], others: list[str]) -> list[str]:
    """Leave out the flags, with their values, that are among the others, too."""
    given, kept = {word.partition("=")[0] for word in others}, True
    left = []
    for word in words:
        kept = word not in given if word.startswith("--") else kept
        left += [word] if kept else []
    return left


def main() -> int:
    args = arguments()
    if args.list:
        print(study_results.table_of_studies())
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    failed = 0
    for name in chosen(args.names):
        campaign = Campaign(name, args)
        if not campaign.runs:
            print(f"study: {name}: no run fits --at, --ranks and --only", file=sys.stderr)
            return 2
        try:
            failed += campaign.run()
        finally:
            if not args.dry_run:
                study_results.publish(campaign)
    if failed and not args.dry_run:
        print(
            f"{failed} runs failed; the same command runs them again, and keeps the others", file=sys.stderr
        )
    return int(failed > 0)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
