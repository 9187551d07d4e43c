"""`manifest.json`, schema version 1: what a store holds, in which files, their lengths and hashes.

format, version     "distgnn-store", 1
source, seed        name of the data; seed of the orders
n, nnz, edges       nodes; entries of A; edges, each once however often it is listed
dtype               of A's values; features are always float32
width, classes      feature width, number of classes, 0 where there are none
class_names         list or null
labelled, split     labelled nodes; {"train", "validation", "test"} node counts or null
directed, weighted, self_loops, normalize, symmetric
degrees             {"min", "mean", "max", "isolated"}: neighbours per node (per row), not itself
nodes               {"order", "partition", "files"}: row shards of features, labels, split, in this order
                    (of its last version's rows, the input of layer 0)
orders              name -> {"rows", "cols": partition vectors of shards, "files", "nnz": 2D lists,
                    "permutation": {"partition", "files"} or null for the identity, "symmetric",
                    "partition": null or the partition vector of its parts}; the first is the default.
                    An order of two matrices has {"versions": [even, odd]}, where `permutation` is that
                    of the rows, and the columns are in the order of the other's rows
files               path -> {"bytes", "sha256"}, all files but the manifest
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from operator import methodcaller
from pathlib import Path
from typing import Any

from distgnn.errors import UserError

NAME = "manifest.json"
FORMAT = "distgnn-store"
VERSION = 1
AnyPath = str | os.PathLike[str]


def read(folder: AnyPath, format: str = FORMAT, version: int = VERSION, what: str = "store") -> Any:
    """The manifest of a directory; UserError where it has none of this `format` and schema version."""
    root = Path(folder)
    try:
        if not root.exists():
            raise UserError(f"{root}: no such {what}")
        if not root.is_dir():
            raise UserError(f"{root}: is a file; a distgnn {what} is a directory with a {NAME}")
        if not stat.S_ISREG((root / NAME).stat().st_mode):  # reading a pipe would wait for ever
            raise UserError(f"{root / NAME}: is not a regular file; copy the {what} or make it again")
        content = json.loads((root / NAME).read_text(encoding="utf-8"))
    except PermissionError as error:
        raise denied(error.filename or root / NAME) from None
    except FileNotFoundError:
        raise UserError(f"{root}: not a distgnn {what}, it has no {NAME}") from None
    except (ValueError, OSError) as error:
        raise UserError(f"{root / NAME}: not readable as JSON ({error})") from None
    if not isinstance(content, dict) or content.get("format") != format:
        raise UserError(f'{root}: not a distgnn {what}; its {NAME} does not say "format": "{format}"')
    found = content.get("version")
    if found is None:
        missing = "damaged (it does not say its schema version)"
        raise UserError(f"{root / NAME}: {missing}; copy the {what} or make it again")
    if found != version:
        reads = f"this distgnn reads version {version}"
        raise UserError(f"{root}: {what} schema version {found}, {reads}; make it again")
    return content


def write(folder: Path, content: dict[str, Any]) -> None:
    """Replace the manifest of `folder` in one step, durably. NumPy scalars and arrays become JSON."""
    temporary = folder / (NAME + ".tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(content, file, indent=1, default=methodcaller("tolist"))
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, folder / NAME)
    sync_folder(folder)


def fingerprint(path: Path, *, sync: bool = False) -> dict[str, Any]:
    """{"bytes", "sha256"} of a file; with `sync`, after everything in it has reached the disk."""
    digest, size, buffer = hashlib.sha256(), 0, memoryview(bytearray(1 << 18))
    with open(path, "rb", buffering=0) as file:
        if sync:
            os.fsync(file.fileno())
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
            size += count
    return {"bytes": size, "sha256": digest.hexdigest()}


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_sizes(root: Path, files: dict[str, Any]) -> None:
    """UserError for the first file that is missing or of another length than the manifest says."""
    for name, expected in files.items():
        try:
            size = (root / name).stat().st_size
        except PermissionError:
            raise denied(root / name) from None
        except OSError:
            raise UserError(f"{root / name}: file is missing; copy it or make it again") from None
        if size != expected["bytes"]:
            raise UserError(f"{root / name}: {size} bytes where the manifest says {expected['bytes']}; "
                            "the file is truncated or was changed, copy it or make it again")  # fmt: skip


def denied(path: str | os.PathLike[str]) -> UserError:
    """The error for a file that may not be read."""
    return UserError(f"{os.fspath(path)}: permission denied; give this user the right to read it")
