"""Stores and checkpoints that a stranger forged and sealed: refused in a line, or the same results.

    PYTHONPATH=tests python -m faults.forged_files [EVERY]

All checksums of a forged file are right. Two kinds are made, every so many-th of each:

- an HDF5 file in which an array is something else: it leads out of the file, or has another type or shape;
- a manifest in which a value has another type, or is far out of range.

Prints, in Markdown, how many of them were refused, were harmless (all that can be read is what was written),
were silent (something else: a stranger may well write another number), ended in a traceback, or waited
for more than SECONDS.
"""

from __future__ import annotations

import copy
import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from distgnn import Model, UserError
from distgnn.store.format import manifest
from distgnn.train import Predictor, Run, Settings

from . import mixed_stores
from .mixed_stores import OUTCOMES, manifest_of, markdown, places, restored

SECRET = "outside.h5"  # beside the store: what a link leads to
SECONDS = 20  # to open and read a forged file
Array = np.ndarray
Forge = Callable[[h5py.File, str, Array, Path], object]


def virtual(file: h5py.File, name: str, array: Array, outside: Path) -> None:
    layout = h5py.VirtualLayout(array.shape, array.dtype)
    layout[...] = h5py.VirtualSource(str(outside), "numbers", array.shape)
    file.create_virtual_dataset(name, layout)


def virtual_in_itself(file: h5py.File, name: str, array: Array, outside: Path) -> None:
    file["hidden"] = array
    layout = h5py.VirtualLayout(array.shape, array.dtype)
    layout[...] = h5py.VirtualSource(".", "hidden", array.shape)
    file.create_virtual_dataset(name, layout)


def raw(file: h5py.File, name: str, array: Array, outside: Path) -> None:
    storage = [(str(outside), 0, h5py.h5f.UNLIMITED)]
    file.create_dataset(name, array.shape, array.dtype, external=storage)


def soft_through_external(file: h5py.File, name: str, array: Array, outside: Path) -> None:
    file["door"] = h5py.ExternalLink(str(outside), "/")
    file[name] = h5py.SoftLink("/door/numbers")


def soft(file: h5py.File, name: str, array: Array, outside: Path) -> None:
    file["hidden"] = array
    file[name] = h5py.SoftLink("/hidden")


def link(target: str) -> Forge:
    """Return what makes a link to the file of this name beside the store."""

    def forge(file: h5py.File, name: str, array: Array, outside: Path) -> None:
        file[name] = h5py.ExternalLink(str(outside.with_name(target)), "/numbers")

    return forge


def unwritten(file: h5py.File, name: str, array: Array, outside: Path) -> None:
    file.create_dataset(name, array.shape, array.dtype, chunks=array.shape)


def huge(file: h5py.File, name: str, array: Array, outside: Path) -> None:
    file.create_dataset(name, (1 << 40, *array.shape[1:]), array.dtype, chunks=(64, *array.shape[1:]))


def packed(file: h5py.File, name: str, array: Array, outside: Path) -> None:
    file.create_dataset(name, data=array, compression="gzip")


def typed(dtype: Any) -> Forge:
    """Return what writes the array with another type."""

    def forge(file: h5py.File, name: str, array: Array, outside: Path) -> None:
        file.create_dataset(name, array.shape, dtype, fillvalue=None)

    return forge


def reference(file: h5py.File, name: str, array: Array, outside: Path) -> None:
    file.create_dataset(name, array.shape, h5py.ref_dtype)


def text(file: h5py.File, name: str, array: Array, outside: Path) -> None:
    file.create_dataset(name, array.shape, h5py.string_dtype())


#: Ways out of the file; nothing may be read through one.
OUT: dict[str, Forge] = {
    "external link": link(SECRET), "external link to a pipe": link("pipe.h5"),
    "external link to nothing": link("nowhere.h5"),
    "soft link through an external one": soft_through_external,
    "virtual dataset": virtual, "virtual dataset of the file itself": virtual_in_itself, "raw storage": raw,
    "soft link in the file": soft,
}  # fmt: skip
OTHER: dict[str, Forge] = {
    "group": lambda file, name, *_: file.create_group(name),
    "datatype": lambda file, name, array, _: file.__setitem__(name, array.dtype),
    "nothing": lambda *_: None,
    "no space": lambda file, name, array, _: file.create_dataset(name, data=h5py.Empty(array.dtype)),
    "one number": lambda file, name, *_: file.create_dataset(name, data=1),
    "other shape": lambda file, name, array, _: file.create_dataset(name, data=array[:-1]),
    "more dimensions": lambda file, name, array, _: file.create_dataset(name, data=array[..., None]),
    "huge": huge, "never written": unwritten, "compressed": packed, "variable text": text,
    "references": reference, "complex numbers": typed("c8"), "fixed text": typed("S8"),
    "booleans": typed("?"),
    "pairs": typed([("a", "i4"), ("b", "i4")]), "vectors": typed(h5py.vlen_dtype(np.int32)),
    "half floats": typed("f2"), "other sign": typed("u8"), "long floats": typed(np.longdouble),
}  # fmt: skip
#: In place of values of a manifest.
VALUES = (None, True, -1, 1 << 63, 10**30, 1.5, "", "x\0", "../x", [], {}, [[]], {"x": {}}, [10**9] * 2)


def forge_file(path: Path, name: str, array: str, forge: Forge, outside: Path) -> None:
    """Replace an array of a file, and give the manifest its new hash."""
    with h5py.File(path / name, "r+") as file:
        before = file[array][...]
        with h5py.File(outside, "w") as other:
            other["numbers"] = before
        del file[array]
        forge(file, array, before, outside)
    mixed_stores.fit(path, name)


def seal(path: Path, content: Any) -> None:
    """Write a manifest with an id and a checksum that are right, and the id into all of its files."""
    identity = manifest.identity(content)
    if identity != content.get("id") and isinstance(content.get("files"), dict):
        content["id"] = identity
        for name in content["files"]:
            if (file := path / name).is_file() and path in file.resolve().parents:
                with h5py.File(file, "r+") as opened:
                    opened.attrs["id"] = np.bytes_(identity)
                content["files"][name] = manifest.fingerprint(file)
    content["id"] = identity
    manifest.write(path, content)


def arrays_of(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the arrays of a store or checkpoint: the file's name, and its own."""
    for name in sorted(manifest_of(path)["files"]):
        names: list[str] = []
        with h5py.File(path / name) as file:
            file.visititems(lambda at, _, names=names: names.append(at))
            names = [at for at in names if isinstance(file[at], h5py.Dataset)]
        yield from ((name, array) for array in names)


def checkpoint_of(store: Path) -> Path:
    """Train a network; return its checkpoint."""
    path = store.parent / "checkpoint"
    for _ in Run(str(store), settings(path)).train():
        pass
    return path


def settings(path: Path, resume: bool = False) -> Settings:
    return Settings(epochs=1, layers=2, hidden=3, checkpoint=str(path), patience=3, resume=resume)


def trained(store: Path, path: Path) -> Callable[[], str]:
    """Return what reads all of a checkpoint, also as a model, predicts with it and resumes its run."""

    def read() -> str:
        Model.load(str(path))
        predictor = Predictor(str(store), str(path))
        written = predictor.write(store.parent / "predicted.npz", force=True)
        run = Run(str(store), settings(path, resume=True))
        for held in (predictor, run):
            held.grid.free()  # an MPI has some thousand communicators
        with np.load(written) as arrays:
            return mixed_stores.contents(path) + repr({name: arrays[name].tolist() for name in arrays})

    return read


def outcome(read: Callable[[], str], expected: str) -> str:
    """Read with an alarm; return the outcome."""
    signal.alarm(SECONDS)
    try:
        return "harmless" if read() == expected else "silent"
    except UserError as error:
        return "refused" if "\n" not in str(error) else "traceback"
    except TimeoutError:
        return "waited"
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return "traceback"
    finally:
        signal.alarm(0)


class all_restored(restored):
    """Puts all files of a store or checkpoint back at the end."""

    def __init__(self, path: Path) -> None:
        files = [path / name for name in manifest_of(path)["files"]]
        self.before = {file: file.read_bytes() for file in [*files, path / manifest.NAME]}


def forgeries(path: Path, outside: Path) -> Iterator[tuple[str, str, Callable[[], None]]]:
    """Yield kind, name and maker of every forgery of a store or checkpoint."""
    for kind, forges in (("an array that leads out of the file", OUT), ("an array of another kind", OTHER)):
        for name, array in arrays_of(path):
            for how, forge in forges.items():
                yield kind, f"{name}/{array} {how}", partial(forge_file, path, name, array, forge, outside)
    content = manifest_of(path)
    for where in places(content):
        for value in VALUES if where[0] not in ("checksum", "id") else ():
            make = partial(seal, path, changed(content, where, value))
            yield "a value of the manifest", f"{where} {value!r}", make


def forged(folder: Path, every: int = 1) -> dict[str, Counter[str]]:
    """Make forged copies of a store and a checkpoint, every so many-th of all; count the outcomes."""
    signal.signal(signal.SIGALRM, _alarm)
    os.mkfifo(folder / "pipe.h5")
    store, outside = mixed_stores.make_stores(folder)[0], folder / SECRET
    weights = checkpoint_of(store)
    readers = {store: lambda: mixed_stores.contents(store), weights: trained(store, weights)}
    table: dict[str, Counter[str]] = {}
    for path, read in readers.items():
        expected = read()
        for kind, about, make in islice(forgeries(path, outside), 0, None, every):
            row = f"{'store' if path == store else 'checkpoint'}: {kind}"
            with all_restored(path):
                make()
                ended = outcome(read, expected)
            table.setdefault(row, Counter())[ended] += 1
            if ended in ("traceback", "waited") or (ended == "silent" and "manifest" not in kind):
                print(f"{row}, {about}: {ended}", file=sys.stderr)
    return table


def changed(content: Any, where: tuple[Any, ...], value: Any) -> Any:
    """Return a manifest with another value at a place."""
    inner = content = copy.deepcopy(content)
    for key in where[:-1]:
        inner = inner[key]
    inner[where[-1]] = value
    return content


def _alarm(*_: object) -> None:
    raise TimeoutError


def main(every: int = 1) -> int:
    """Print the table; 1 where an array is read as another, or is a traceback, or keeps waiting."""
    with tempfile.TemporaryDirectory() as folder:
        table = forged(Path(folder), every)
    print(markdown("forged", table, (*OUTCOMES, "waited")))
    silent = sum(row["silent"] for kind, row in table.items() if "manifest" not in kind)
    return int(silent + sum(row["traceback"] + row["waited"] for row in table.values()) > 0)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
