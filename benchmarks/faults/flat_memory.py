"""The memory of a training that saves after every epoch: does it grow?

    python benchmarks/faults/flat_memory.py [--seconds 1800] [--ranks 2] [--nodes 2000]

Trains for so many seconds with a checkpoint and a line of log after every epoch, and reads the resident
memory of each rank (VmRSS of /proc, Linux only) every two seconds. The first tenth of the time is warm-up.
After it, growth is the median of the last tenth of the samples over that of the first. Ends the training by
SIGTERM. Prints a table; exits with 1 if a rank grew by more than 1 %, or if the training did not end with 75.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import preemption

TRAINING = "--algorithm 1d --epochs 1000000000 --checkpoint-every 1"
MOST = 1.01  # times the memory at the beginning
EVERY = 2.0  # seconds between samples


def resident(process: int) -> int:
    """Return the resident memory of a process in KiB."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def watch(launch: subprocess.Popen[str], seconds: float) -> list[list[int]]:
    """Sample the memory of all ranks until the time is over or the training ends."""
    samples, end = list[list[int]](), time.monotonic() + seconds
    while launch.poll() is None and time.monotonic() < end:
        time.sleep(EVERY)
        try:
            samples.append([resident(rank) for rank in sorted(preemption.ranks_of(launch))])
        except (OSError, StopIteration):
            continue  # it ends
    return samples


def growth(samples: list[int]) -> tuple[float, float]:
    """Return the median of the first tenth after warm-up, and of the last tenth."""
    tenth = max(len(samples) // 10, 1)
    return statistics.median(samples[tenth : 2 * tenth]), statistics.median(samples[-tenth:])


def table(samples: list[list[int]], epochs: int) -> tuple[str, bool]:
    """Write the table; whether a rank grew too much."""
    lines = ["| rank | MiB at first | MiB at last | growth |", "|---:|---:|---:|---:|"]
    grown = not samples
    for rank, its in enumerate(map(list, zip(*samples, strict=True))):
        first, last = growth(its)
        lines.append(f"| {rank} | {first / 1024:.2f} | {last / 1024:.2f} | {last / first - 1:+.2%} |")
        grown |= last > MOST * first
    lines += ["", f"{epochs} epochs, each with a checkpoint, in {len(samples)} samples"]
    return "\n".join(lines), grown


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--nodes", type=int, default=2000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        store = preemption.make_store(Path(name), given.nodes)
        trial = preemption.Trial(Path(name), store, TRAINING, given.ranks)
        launch = trial.start("flat")
        samples = watch(launch, given.seconds)
        launch.send_signal(signal.SIGTERM)
        code, said, _ = preemption.ended(launch)
        text, grown = table(samples, len(trial.numbers("flat")))
    print(text)
    if code != preemption.STOPPED:
        print(f"the training ended with code {code}: {said[-500:]}", file=sys.stderr)
    return grown or code != preemption.STOPPED


if __name__ == "__main__":
    sys.path.insert(0, str(preemption.ROOT))
    sys.exit(main())
