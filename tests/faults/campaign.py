"""All campaigns of faults, one after another, and one table of what they found.

    python tests/faults/campaign.py [--seconds 300] [--first 0] [--only NAME] [--out build/faults]

The random ones (files, faulted jobs, preempted trainings, sequences of operations) each run for so many
seconds and draw their first case by the number --first; the others try all of their cases. What each one says
is in OUT/NAME.txt, with the table in OUT/table.md. A campaign without its last line has not come to its end,
which is wrong too. Exits with 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from mpi_helpers.programs import launcher

ROOT = Path(__file__).resolve().parents[2]
#: Every message is read by its receiver from the sender's memory; ranks that wait leave the core to others.
ENVIRONMENT = {"MPIR_CVAR_CH4_IPC_CMA_P2P_THRESHOLD": "1", "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"}
RANDOM = "--seconds {seconds} --first {first}"
#: By name: what runs, and words in the last line of one that came to its end.
CAMPAIGNS = {
    "disagreements": ("tests/faults/disagree.py", "disagreements named"),
    "user programs": ("tests/faults/user_programs.py", "programs, "),
    "programs that catch": (f"tests/faults/catching.py {RANDOM}", "programs that catch: 0"),
    "mixed stores": ("-m faults.mixed_stores", " edited: "),
    "forged files": ("-m faults.forged_files", " forged: "),
    "kills while publishing": ("-m pytest -q tests/faults/test_killed_while_publishing.py", "passed"),
    "broken files": (f"tests/faults/fuzz_importers.py --runs 100000 {RANDOM}", "mutants of"),
    "signals, errors, disks": (f"tests/faults/faulted_runs.py --runs 100000 {RANDOM}", "faulted runs: "),
    "preemption": (f"benchmarks/faults/preemption.py --preemptions 100000 {RANDOM}", "preemptions of"),
    "sequences": (f"tests/faults/sequences.py {RANDOM}", "sequences of operations"),  # on SEQUENCES ranks
}
SEQUENCES = 6


@dataclass
class Ended:
    """A campaign: its exit code, seconds, and the line that sums it up."""

    name: str
    code: int
    seconds: float
    said: str

    @property
    def wrong(self) -> bool:
        """True where it found anything, or did not come to its end."""
        return self.code != 0 or CAMPAIGNS[self.name][1] not in self.said


def run(name: str, out: Path, **given: float) -> Ended:
    """Run a campaign; its words go to a file."""
    words = CAMPAIGNS[name][0].format(**given).split()
    path, begun = out / f"{name.replace(',', '').replace(' ', '-')}.txt", time.monotonic()
    launch = [launcher(), "-n", str(SEQUENCES)] if name == "sequences" else []
    variables = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    variables |= {"DISTGNN_FAULTS": "all"} | (ENVIRONMENT if launch else {})
    with open(path, "w") as file:
        code = subprocess.run(
            [*launch, sys.executable, *words], cwd=ROOT, env=variables, stdin=subprocess.DEVNULL,
            stdout=file, stderr=subprocess.STDOUT,
        ).returncode  # fmt: skip
    return Ended(name, code, time.monotonic() - begun, summary(path.read_text(), CAMPAIGNS[name][1]))


def summary(text: str, words: str) -> str:
    """Return the last line that has these words, or the very last."""
    lines = [line.strip(" |") for line in text.splitlines() if line.strip()] or ["nothing said"]
    return next((line for line in reversed(lines) if words in line), lines[-1])


def table(ended: list[Ended]) -> str:
    """Write the table."""
    lines = ["| campaign | s | wrong | said |", "|---|---:|---|---|"]
    for one in ended:
        lines.append(f"| {one.name} | {one.seconds:.0f} | {'YES' if one.wrong else 'nothing'} | {one.said} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=int, default=300, help="of each of the random ones")
    parser.add_argument("--first", type=int, default=0, help="number of their first case")
    parser.add_argument("--only", default="", help="campaigns whose name has this")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "faults")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    ended = list[Ended]()
    for name in (name for name in CAMPAIGNS if given.only in name):
        print(f"{name} …", file=sys.stderr, flush=True)
        ended.append(run(name, given.out.resolve(), seconds=given.seconds, first=given.first))
        (given.out / "table.md").write_text(table(ended) + "\n")  # as far as it came
    print(table(ended))
    return int(any(one.wrong for one in ended))


if __name__ == "__main__":
    sys.exit(main())
