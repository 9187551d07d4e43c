"""The schema of `manifest.json`, version 3: contents of a store, its files, their lengths and hashes.

format, version     "distgnn-store", 3 where features are sparse, else 2, which earlier readers take
source, seed        name of the data; seed of the orders
n, nnz, edges       nodes; entries of A; edges, each once however often it is listed
dtype               of A's values
feature_dtype       "float64" where features are float64, left out where they are float32
width, classes      feature width, number of classes, 0 where there are none
sparse_features     {"nnz", "ones"} where they are kept as CSR, left out elsewhere: "features/indptr",
                    "features/indices", of the shortest whole numbers from 0 that count columns, and
                    "features/values", left out where all are 1 (ones), in place of "features"
multilabel          true where a node may have several classes, left out elsewhere: labels are int8, rows of
                    zeros and ones, -1 of an unlabelled node, not int32, a class or -1
regression          true where labels are numbers to predict, left out elsewhere: "targets" in place of
                    "labels", float32, n x classes, NaN of an unlabelled node
class_names         list or null
labelled, split     labelled nodes; {"train", "validation", "test"} node counts or null
directed, weighted, self_loops, normalize, symmetric
content             hashes of "edges", "features", "labels", "split" (and "ids") by node, however they are cut
degrees             {"min", "mean", "max", "isolated"}: neighbours per node (per row), not itself
nodes               {"order", "partition", "files"}: row shards of features, labels, split, in this order
                    (of its last version's rows, the input of layer 0); "entries" of sparse features, by file
ids                 where nodes have ids of their own: {"dtype", "partition", "files"}, by node; |S12 is UTF-8
orders              name -> {"rows", "cols": partition vectors of shards, "files", "nnz": 2D lists,
                    "permutation": {"partition", "files", "sha256"} or null for the identity, "symmetric",
                    "partition": null or the partition vector of its parts}; the first is the default.
                    An order of two matrices has {"versions": [even, odd]}; `permutation` is of the rows,
                    and the columns are in the order of the other matrix's rows
id                  see `identity`; every file carries it (see `members`)
files               path -> {"bytes", "sha256"}, all files but the manifest
checksum            of all of the above

The id is a hash of the facts and of the graph's content: the same graph prepared twice in the same way makes
the same bytes, and an edited fact no longer matches the files that carry the id. The id can't be a hash of
the files, as the files contain it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from operator import methodcaller
from pathlib import Path
from typing import Any

from distgnn.errors import UserError
from distgnn.files.leftovers import AnyPath, moved_aside
from distgnn.files.nearby import did_you_mean_path
from distgnn.files.text import parse_json, read_regular
from distgnn.store.format.limits import LIMITS

NAME = "manifest.json"
GRAPH = "graph.json"  # of a graph that was generated, and is no store
_TEMPORARY = NAME + ".tmp"


@dataclass(frozen=True)
class Kind:
    """A kind of manifest, of a store or a checkpoint.

    Those of versions `oldest` to `version` are read. `again` tells the user how to make another; `command`
    makes one.
    """

    format: str
    oldest: int
    version: int
    what: str
    again: str
    command: str


MADE_OF = "distgnn prepare {source} {out} --features FILE --labels FILE --split 0.6/0.2/0.2"
STORE = Kind("distgnn-store", 2, 3, "store", "prepare it again from its source", MADE_OF)


def read(folder: AnyPath, kind: Kind = STORE) -> Any:
    """Read the manifest of a directory; raise UserError if it has none of this kind, or a changed one."""
    root = Path(folder)
    content = _parsed(root, kind)
    if not isinstance(content, dict) or content.get("format") != kind.format:
        raise UserError(
            f'{root}: not a distgnn {kind.what}; its {NAME} does not say "format": "{kind.format}"'
        )
    version = content.get("version")
    if version is None:
        raise damaged(root, kind, "it does not say its schema version")
    if type(version) is not int or not kind.oldest <= version <= kind.version:
        known = f"s {kind.oldest} to {kind.version}" if kind.oldest < kind.version else f" {kind.version}"
        reads = f"this distgnn reads version{known}"
        raise UserError(f"{root}: {kind.what} schema version {version!r}, {reads}; {kind.again}")
    if content.get("checksum") != checksum(content) or content.get("id") != identity(content):
        raise damaged(root, kind, "it was changed after it was written")
    return content


def _parsed(root: Path, kind: Kind) -> Any:
    try:
        if not root.exists():
            hint = _hint(root) or did_you_mean_path(root) or _advice(kind, root)
            raise UserError(f"{root}: no such {kind.what}{hint}")
        if not root.is_dir():
            about = f"is a file; a distgnn {kind.what} is a directory with a {NAME}"
            raise UserError(f"{root}: {about}{_advice(kind, root)}")
        return parse_json(text(root))
    except PermissionError as error:
        raise denied(error.filename or root / NAME) from None
    except FileNotFoundError:
        generated = kind is STORE and (root / GRAPH).exists()
        made = _advice(kind, root) if generated or root.suffix != ".dg" else ""
        raise UserError(f"{root}: not a distgnn {kind.what}, it has no {NAME}{made}") from None
    except (ValueError, OSError) as error:
        raise UserError(f"{root / NAME}: not readable as JSON ({error})") from None


def text(root: Path) -> str:
    """Read the manifest of a directory; raise OSError or ValueError, see :func:`read_regular`."""
    return read_regular(root / NAME, LIMITS.manifest_bytes)


def _hint(root: Path) -> str:
    old = moved_aside(root)
    if old is None:
        return ""
    return (
        f"; a run that was killed left it as {old.name} beside: rename that to {root.name}, or prepare again"
    )


def _advice(kind: Kind, root: Path) -> str:
    """Name the command that makes a store of the file at this path, or that writes a store or checkpoint."""
    if (root / GRAPH).exists() and kind is STORE:
        return f"; it is what distgnn generate wrote: distgnn prepare {root} STORE.dg makes a store of it"
    if root.exists() and kind is STORE:
        out = f"{root.absolute().name.partition('.')[0] or 'graph'}.dg"
        return f"; {kind.command.format(source=root, out=out)} makes one of it"
    return f"; {kind.command.format(source='SOURCE', out='DIR' if root.exists() else root)} writes one"


def damaged(root: Path, kind: Kind, reason: object) -> UserError:
    """Return the error for a manifest that contradicts itself."""
    return UserError(f"{root / NAME}: damaged ({reason}); copy the {kind.what} or {kind.again}")


def claims(folder: Path, kind: Kind) -> bool | None:
    """Return True if a directory claims to be of this kind, of any schema version; None if unreadable."""
    if not (folder / NAME).is_file():
        return False
    try:
        content = parse_json(text(folder))
    except (OSError, ValueError):
        return None
    return isinstance(content, dict) and content.get("format") == kind.format


def identity(content: Mapping[str, Any]) -> str:
    """Return the id of a store or checkpoint: a hash of its manifest without entries that follow from it."""
    return _hash({name: content[name] for name in content if name not in ("id", "files", "checksum")})


def checksum(content: Mapping[str, Any]) -> str:
    """Return the checksum of a manifest: a hash of all other entries."""
    return _hash({name: content[name] for name in content if name != "checksum"})


def _hash(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 of compact JSON. The order of names counts: a store's first order is its default."""
    text = json.dumps(content, separators=(",", ":"), default=methodcaller("tolist"))
    return hashlib.sha256(text.encode()).hexdigest()


def write(folder: Path, content: Mapping[str, Any]) -> None:
    """Replace the manifest of `folder` in one step, durably. NumPy scalars and arrays become JSON."""
    temporary = folder / _TEMPORARY
    with open(temporary, "w", encoding="utf-8") as file:
        sealed = {**content, "checksum": checksum(content)}
        json.dump(sealed, file, indent=1, default=methodcaller("tolist"))
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, folder / NAME)
    sync_folder(folder)


def fingerprint(path: AnyPath, *, sync: bool = False) -> dict[str, Any]:
    """Return {"bytes", "sha256"} of a file; with `sync`, once all of it is on disk."""
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


def denied(path: str | os.PathLike[str]) -> UserError:
    """Return the error for a file that may not be read."""
    return UserError(f"{os.fspath(path)}: permission denied; give this user the right to read it")
