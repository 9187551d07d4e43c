"""Stores put together of two, and edited manifests: refused in a line, or the same results; never others.

    PYTHONPATH=tests python -m faults.mixed_stores [EDITS]

Prints, in Markdown, how many of them were refused, were harmless (all that can be read is what was written),
were silent (something else), or ended in a traceback.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from distgnn import UserError
from distgnn.arrays import backend
from distgnn.comm.group import Comm
from distgnn.store import Store, checkpoint, prepare
from distgnn.store.format import manifest
from distgnn.store.format.limits import LIMITS
from distgnn.store.read.inspect import describe
from distgnn.store.source import Source

N, WIDTH, CLASSES = 12, 3, 4
OUTCOMES = ("refused", "harmless", "silent", "traceback")
HOW = ("as it is", "checksum made again", "checksum and id made again")


class Complete(Source):
    """Every node with every other, so that all shards of all such graphs have equal sizes."""

    def __init__(self, seed: int) -> None:
        drawn = np.random.default_rng(seed)
        self.name, self.n, self.width, self.classes = "complete", N, WIDTH, CLASSES
        self.src, self.dst = np.triu_indices(N, 1)
        self.weights = drawn.uniform(0.5, 2, len(self.src))
        self.X = drawn.standard_normal((N, WIDTH)).astype(np.float32)
        self.labels = drawn.permutation(np.arange(N) % CLASSES).astype(np.int32)
        self.split = drawn.permutation(np.arange(N) % 4).astype(np.uint8)

    def edges(self) -> Iterator[Any]:
        yield self.src, self.dst, self.weights

    def features(self, ids: np.ndarray) -> np.ndarray:
        return self.X[ids]


def make_stores(folder: Path) -> list[Path]:
    """Make a store, and others of equal sizes: of another graph, seed, features or matrix."""
    other_features, paths = Complete(0), []
    other_features.X = other_features.X[::-1].copy()
    made: dict[str, tuple[Source, dict[str, Any]]] = {
        "store": (Complete(0), {}), "graph": (Complete(1), {}), "seed": (Complete(0), {"seed": 1}),
        "features": (other_features, {}), "matrix": (Complete(0), {"normalize": "none"}),
    }  # fmt: skip
    before, LIMITS.file_bytes = LIMITS.file_bytes, 4 * WIDTH * N // 2
    for name, (source, options) in made.items():
        paths.append(folder / name)
        prepare(source, paths[-1], order=("random", "double"), shards=(2, 1), **options)
    LIMITS.file_bytes = before
    return paths


def make_checkpoints(folder: Path) -> list[Path]:
    """Make a checkpoint, and others of equal sizes: a later epoch, another run, other numbers."""
    made = [(3, "one", 0), (4, "one", 1), (3, "two", 2), (3, "one", 3)]
    paths = []
    for number, (epoch, run, seed) in enumerate(made):
        W = np.random.default_rng(seed).standard_normal((4, 3))
        paths.append(folder / f"checkpoint-{number}")
        pieces = {"W": (0, 0, W, W.shape), "W.m": (0, 0, W + 1, W.shape)}
        meta = {
            "epoch": epoch,
            "steps": epoch,
            "run": {"name": run, "widths": [4, 3]},
            "rates": [{"lr": 0.1}],
        }
        checkpoint.save(paths[-1], alone(), pieces, meta)
    return paths


def alone() -> Comm:
    return Comm(MPI.COMM_SELF, backend.get("numpy"))


def contents(path: Path) -> str:
    """Read all content of a store or checkpoint, as text."""
    if path.name.startswith("checkpoint"):
        reader = checkpoint.load(path, alone())
        found = [reader.meta, reader.shapes]
        for name, (rows, cols) in reader.shapes.items():
            found.append(reader.piece(name, (0, rows), (0, cols)))
        return repr([one.tolist() if isinstance(one, np.ndarray) else one for one in found])
    store = Store(path)
    arrays = []
    for name, layer in itertools.product(store.orders, (0, 1)):
        order = store.order(name).layer(layer)
        block = order.block((0, store.n), (0, store.n))
        arrays += [block.data, block.indices, block.indptr, order.permutation(0, store.n), order.rows]
        arrays += [order.positions(np.arange(store.n)), order.shard_nnz, store.features(order)]
        arrays += [store.labels(order), store.split(order)]
    return repr([describe(store), store.orders, *(array.tolist() for array in arrays)])


def outcome(path: Path, expected: str) -> str:
    """Open and read a store; return the outcome."""
    try:
        return "harmless" if contents(path) == expected else "silent"
    except UserError as error:
        return "refused" if "\n" not in str(error) else "traceback"
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return "traceback"


def mixed(folder: Path, every: int = 1) -> dict[str, Counter[str]]:
    """Exchange files of a store, and of a checkpoint, for files of another and of their own: with the
    hashes of all files compared on opening and without, and made to fit in the manifest.

    Every so many-th file is exchanged, and all manifests.
    """
    table: dict[str, Counter[str]] = {}
    before = LIMITS.verified_bytes
    for others in (make_stores(folder), make_checkpoints(folder)):
        path = others[0]
        expected, names = contents(path), sorted(manifest_of(path)["files"])
        pairs = [(other, name, name) for other in others[1:] for name in names]
        pairs += [(path, one, name) for one, name in itertools.permutations(names, 2)]
        pairs = [pair for pair in pairs if same_size(path, pair[2], *pair[:2])]
        manifests = [(other, manifest.NAME, manifest.NAME) for other in others[1:]]
        for other, source, name in pairs[::every] + manifests:
            what = "manifest" if name == manifest.NAME else "file"
            what += f" of another {kind(path)}" if other != path else f" of the same {kind(path)}"
            for compared in (True, False) if kind(path) == "store" else (True,):
                LIMITS.verified_bytes = before if compared else 0
                with restored(path, name):
                    shutil.copyfile(other / source, path / name)
                    row = f"{what}, hashes {'' if compared else 'not '}compared"
                    table.setdefault(row, Counter())[outcome(path, expected)] += 1
                    # A forged checkpoint whose counters are those of the other is that other checkpoint.
                    if name != manifest.NAME and not compared:
                        fit(path, name)
                        row = f"{what}, hashes made to fit"
                        table.setdefault(row, Counter())[outcome(path, expected)] += 1
    LIMITS.verified_bytes = before
    return table


def kind(path: Path) -> str:
    return "checkpoint" if path.name.startswith("checkpoint") else "store"


def manifest_of(path: Path) -> dict[str, Any]:
    return json.loads((path / manifest.NAME).read_text())


def same_size(one: Path, name: str, other: Path, another: str) -> bool:
    return (other / another).exists() and os.path.getsize(one / name) == os.path.getsize(other / another)


def fit(path: Path, name: str) -> None:
    """Give the manifest the hash of a file that was exchanged."""
    content = manifest_of(path)
    content["files"][name] = manifest.fingerprint(path / name)
    manifest.write(path, content)


class restored:
    """Puts a file, and the manifest, back at the end."""

    def __init__(self, path: Path, name: str) -> None:
        self.before = {file: file.read_bytes() for file in (path / name, path / manifest.NAME)}

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None:
        for file, data in self.before.items():
            file.write_bytes(data)


def places(value: Any, where: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path to every value in a manifest."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inside:
        yield (*where, key)
        yield from places(one, (*where, key))


def edit(content: Any, drawn: random.Random) -> str:
    """Change one thing somewhere; returns what kind of change it was."""
    *way, last = drawn.choice([where for where in places(content) if where[0] != "checksum"])
    for key in way:
        content = content[key]
    value = content[last]
    changes: dict[str, Callable[[], Any]] = {
        "type": lambda: drawn.choice([None, True, [], {}, "x", 1.5, [value], {"x": value}]),
        "dropped": lambda: content.pop(last),
    }
    if isinstance(value, (int, float)):
        numbers = [value + 1, value - 1, -value - 1, 0, value * 2 + 1, 10**30, float(value) + 0.5, str(value)]
        changes["number"] = lambda: drawn.choice([one for one in numbers if one != value])
    elif isinstance(value, str):
        other = [value[::-1], value[:-1], value.upper(), value + "x"]
        paths = [f"../{value}", f"/{value}", f"./{value}", "nodes/../" + value, "/etc/passwd", "\0"]
        hashes = [hex(drawn.getrandbits(256))[2:].zfill(64)]
        changes["text"] = lambda: drawn.choice(hashes if len(value) == 64 else other)
        changes["path"] = lambda: drawn.choice(paths)
    elif isinstance(value, list) and len(value) > 1:
        changes["order"] = lambda: drawn.choice(
            [value[::-1], value[1:], value[:1] * len(value), value[1:] + value[:1]]
        )
    elif isinstance(value, dict) and len(value) > 1:
        changes["order"] = lambda: dict(reversed(value.items()))
    change = drawn.choice(sorted(changes))
    new = changes[change]()
    if change != "dropped":
        content[last] = new
    return change


def edited(folder: Path, edits: int) -> dict[str, Counter[str]]:
    """Make `edits` seeded edits of the manifest of a store and of a checkpoint, each in one of three ways.

    The rest is left as it is, or the checksum is made again, or the id too; with the hashes of files compared
    and without.
    """
    table: dict[str, Counter[str]] = {}
    paths = [make_stores(folder)[0], make_checkpoints(folder)[0]]
    expected, before = {path: contents(path) for path in paths}, LIMITS.verified_bytes
    for number in range(edits):
        drawn, path, how = random.Random(number), paths[number % 4 == 3], HOW[number // 4 % 3]
        LIMITS.verified_bytes = before if number % 2 else 0
        with restored(path, manifest.NAME):
            content = manifest_of(path)
            what = edit(content, drawn)
            if how == HOW[2]:
                content["id"] = manifest.identity(content)
            if how != HOW[0]:
                content["checksum"] = manifest.checksum(content)
            (path / manifest.NAME).write_text(json.dumps(content, indent=1))
            found = outcome(path, expected[path])
            table.setdefault(f"{how}: {what}", Counter())[found] += 1
            if found in ("silent", "traceback"):
                print(f"edit {number} ({path.name}, {how}, {what}): {found}", file=sys.stderr)
    LIMITS.verified_bytes = before
    return table


def markdown(heading: str, table: dict[str, Counter[str]], outcomes: tuple[str, ...] = OUTCOMES) -> str:
    """Write a table of outcomes, and a line with their sums."""
    lines = [f"| {heading} | {' | '.join(outcomes)} |", "|---|" + "---:|" * len(outcomes)]
    all_of_them = sum(table.values(), Counter())
    for name, row in [*sorted(table.items()), ("all", all_of_them)]:
        lines.append(f"| {name} | {' | '.join(str(row[one]) for one in outcomes)} |")
    sums = ", ".join(f"{all_of_them[one]} {one}" for one in outcomes)
    return "\n".join([*lines, "", f"{all_of_them.total()} {heading}: {sums}"])


def main(edits: int = 300) -> int:
    """Print both tables; 1 where a store is read as another, or is a traceback."""
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        tables = {"exchanged": mixed(Path(first)), "edited": edited(Path(second), edits)}
    print(*(markdown(heading, table) for heading, table in tables.items()), sep="\n\n")
    counts = sum((row for table in tables.values() for row in table.values()), Counter())
    return int(counts["silent"] + counts["traceback"] > 0)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
