"""Table of the statements for a GPU that the tests have run: `make device-coverage`.

    coverage run --parallel-mode --source distgnn -m pytest -k cupy      and on several ranks
    coverage combine
    python benchmarks/device_coverage.py [.coverage]

Code for a GPU is the whole of some files, the classes of CuPy's backend, and elsewhere what stands in a
branch for arrays on a device.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator
from pathlib import Path

import coverage

PACKAGE = Path(__file__).resolve().parents[1] / "distgnn"
WHOLE = [PACKAGE / "local" / "cuda"]
WHOLE += [PACKAGE / "comm" / f"{name}.py" for name in ("staging", "nccl", "queued")]
CLASSES = ("CupyBackend", "_Event")  # of arrays/backend.py
#: A condition that has one of these is for a device.
ASKS = ("on_device", "on_gpu", "_on_gpu", "by_nccl", "nccl", "_sums_straight")


def lines_for_devices(path: Path) -> set[int]:
    """Return the lines of a file that only run with arrays on a device."""
    tree = ast.parse(path.read_text())
    if any(path.is_relative_to(one) for one in WHOLE):
        return {line for node in tree.body for line in _lines(node)}
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name in CLASSES:
            found.update(_lines(node))
        if isinstance(node, ast.If) and any(_asks(part) for part in ast.walk(node.test)):
            denied = any(_denies(part) for part in ast.walk(node.test))
            found.update(line for one in (node.orelse if denied else node.body) for line in _lines(one))
    return found


def _asks(node: ast.AST) -> bool:
    return getattr(node, "attr", getattr(node, "id", None)) in ASKS


def _denies(node: ast.AST) -> bool:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not) and _asks(node.operand)


def _lines(node: ast.AST) -> Iterator[int]:
    yield from range(node.lineno, node.end_lineno + 1)


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("data", nargs="?", default=".coverage", help="combined data of coverage")
    measured = coverage.Coverage(data_file=parser.parse_args().data)
    measured.load()
    print("| file | statements for a GPU | run | lines not run |\n|---|---|---|---|")
    totals = [0, 0]
    for path in sorted(PACKAGE.rglob("*.py")):
        lines = lines_for_devices(path)
        _, statements, _, missing, _ = measured.analysis2(str(path)) if lines else ("", [], [], [], "")
        ours, left = lines & set(statements), sorted(lines & set(missing))
        if ours:
            totals = [totals[0] + len(ours), totals[1] + len(ours) - len(left)]
            name = path.relative_to(PACKAGE)
            print(f"| {name} | {len(ours)} | {len(ours) - len(left)} | {', '.join(map(str, left))} |")
    print(f"| all | {totals[0]} | {totals[1]} | |")


if __name__ == "__main__":
    main()
