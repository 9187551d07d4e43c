"""Importers, each an `open_source(path, options) -> Imported`.

Entry (i, j) of a matrix in a file is A[i, j]; an edge from source to target is A[target, source]. A file that
lists both directions of every edge is undirected.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

from distgnn.errors import ArgumentError, UserError
from distgnn.store.importers import edge_list, generated, matrix_market, npz, ogb, planetoid
from distgnn.store.importers.companions import attach_features
from distgnn.store.importers.files import size_of
from distgnn.store.importers.imported import Imported
from distgnn.store.importers.label_rows import attach_labels
from distgnn.store.source import ImportOptions, Source, parse_split, random_split

FORMATS: dict[str, Callable[[Path, ImportOptions], Imported]] = {
    "edges": edge_list.open_source,
    "generated": generated.open_source,
    "mtx": matrix_market.open_source,
    "npz": npz.open_source,
    "ogb": ogb.open_source,
    "planetoid": planetoid.open_source,
    "reddit": npz.open_pair,
}
DIRECTORIES = ("generated", "ogb", "planetoid", "reddit")


def open_source(path: str | os.PathLike[str], options: ImportOptions | None = None) -> Source:
    """Open a graph in any of `FORMATS`, recognised unless the options name one. The features, labels and
    split of the options replace those of the format. UserError names the file and what is wrong with it."""
    path, options = Path(path), options or ImportOptions()
    if options.split is not None:
        parse_split(options.split)
    if options.format is not None and options.format not in FORMATS:
        raise ArgumentError("format", options.format, f"unknown; expected one of {', '.join(FORMATS)}")
    if not path.exists():
        raise UserError(f"{path}: no such file or directory")
    path, options = with_companions(path, options)
    form = options.format or recognise(path)
    if path.is_dir() != (form in DIRECTORIES):
        kinds = ("directory", "file") if path.is_dir() else ("file", "directory")
        raise UserError(f"{path}: is a {kinds[0]}; the format {form} is a {kinds[1]}")
    source = FORMATS[form](path, options)
    if source.n < 1:
        raise UserError(f"{path}: a graph without nodes; expected at least one")
    if form != "edges":
        attach_features(source, options, grow=False)
        attach_labels(source, options, grow=False)
    source.note_classes()
    if (source.edge_count or 0) > size_of(path):
        source.edge_count = None  # what is declared may be more than there is; whoever needs it counts
    if options.split is not None:
        source.split = random_split(source.n, options.split, options.seed, source.labels)
    return source


def recognise(path: Path) -> str:
    """The name of the format, by the file's name or by what lies in the directory."""
    if path.is_dir():
        if (path / "graph.json").exists():
            return "generated"
        if any(path.glob("ind.*.graph")):
            return "planetoid"
        if any((path / "raw" / name).exists() for name in ("edge.csv.gz", "edge.csv", "data.npz")):
            return "ogb"
        if npz.find_pair(path):
            return "reddit"
        raise UserError(
            f"{path}: a directory of unknown format; expected graph.json, ind.NAME.graph, raw/edge.csv.gz, "
            "NAME_graph.npz with NAME_data.npz, or NAME_edges.csv with NAME_target.csv and NAME.json"
        )
    name = path.name.lower()
    if name.endswith((".mtx", ".mtx.gz")):
        return "mtx"
    if name.endswith(".npz"):
        return "npz"
    if name.removesuffix(".gz").endswith(edge_list.SUFFIXES):
        return "edges"
    known = f".mtx, .mtx.gz, .npz, {', '.join(edge_list.SUFFIXES)} (.gz)"
    raise UserError(f"{path}: unknown format; expected {known}, or format=NAME, one of {', '.join(FORMATS)}")


def with_companions(path: Path, options: ImportOptions) -> tuple[Path, ImportOptions]:
    """Of a directory with one NAME_edges.csv, NAME_target.csv and NAME.json: the first, and the others."""
    if not path.is_dir() or options.format not in (None, "edges"):
        return path, options
    found = [sorted(path.glob(pattern)) for pattern in ("*_edges.csv", "*_target.csv", "*.json")]
    if [len(files) for files in found] != [1, 1, 1]:
        return path, options
    edges, labels, features = (str(files[0]) for files in found)
    labels, features = options.labels or labels, options.features or features
    return Path(edges), dataclasses.replace(options, format="edges", labels=labels, features=features)
