"""Importers, each an `open_source(path, options) -> Imported`. `store.rules` defines how they read graphs."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from distgnn.errors import ArgumentError, UserError, offered
from distgnn.files.nearby import did_you_mean_path
from distgnn.store.importers import edge_list, generated, matrix_market, npz, ogb
from distgnn.store.importers.features import attach_features
from distgnn.store.importers.files import size_of
from distgnn.store.importers.imported import Imported
from distgnn.store.importers.labels import attach_labels
from distgnn.store.importers.pickled import planetoid, torch_files
from distgnn.store.importers.splits import attach_split, split_file
from distgnn.store.source import ImportOptions, Source

FORMATS: dict[str, Callable[[Path, ImportOptions], Imported]] = {
    "edges": edge_list.open_source,
    "generated": generated.open_source,
    "mtx": matrix_market.open_source,
    "npz": npz.open_source,
    "ogb": ogb.open_source,
    "planetoid": planetoid.open_source,
    "pt": torch_files.open_source,
    "reddit": npz.open_pair,
}
DIRECTORIES = ("generated", "ogb", "planetoid", "reddit")
COMPANIONS = {"features": "features", "x": "features", "labels": "labels", "y": "labels", "target": "labels",
              "split": "split", "nodes": "node_list"}  # names of files beside edges -> options  # fmt: skip


def open_source(path: str | os.PathLike[str], options: ImportOptions | None = None) -> Source:
    """Open a graph in any of `FORMATS`, recognised unless the options name one.

    The features, labels and split of the options replace those of the format. Raises UserError, which names
    the file and its fault.
    """
    path, options = Path(path), options or ImportOptions()
    if options.split is not None:
        split_file(options.split)
    if options.format is not None and options.format not in FORMATS:
        raise ArgumentError("format", options.format, f"unknown; {offered(options.format, FORMATS)}")
    if not path.exists():
        raise UserError(f"{path}: no such file or directory{did_you_mean_path(path)}")
    path, options, left = with_companions(path, options)
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
        if options.ids or options.node_list:
            raise ArgumentError("ids" if options.ids else "node_list", options.ids or options.node_list,
                                f"is for lists of edges; the format {form} numbers nodes from 0")  # fmt: skip
    source.note_classes()
    if (source.edge_count or 0) > size_of(path):
        source.edge_count = None  # the declared number may be too high; `prepare` counts the edges
    attach_split(source, options)
    check_used(source, options, form)
    if form != "edges" and path not in source.columns:
        source.readings.insert(0, f"{path.name} (a graph in the format {form})")
    source.note_left(left)
    return source


def check_used(source: Imported, options: ImportOptions, form: str) -> None:
    """Raise ArgumentError for an option that found nothing to act on."""
    where = "is for lists of edges" if form != "edges" else ""
    tables = {"id_column": "a table of features, labels or parts", "label_column": "a table of labels"}
    tables |= dict.fromkeys(("feature_columns", "categorical"), "a table of features")
    for name in ("source_column", "target_column", "weight_column", *tables):
        value = getattr(options, name)
        if value and name in tables and name not in options.used:
            raise ArgumentError(name, value, f"names no column that was read; it is for {tables[name]}")
        if value and name not in tables and where:
            raise ArgumentError(name, value, f"{where}; {source.path} has the format {form}")
    for name in ("separator", "comments"):
        if (value := getattr(options, name)) is not None and name not in options.used:
            raise ArgumentError(name, value, "is for tables in text, and none was read")
    if options.missing != "refuse" and "missing" not in options.used:
        raise ArgumentError("missing", options.missing, "is for a table of features, and none was read")
    if options.weights and where and next(source.stream(), (0, 0, 0))[2] is None:
        raise ArgumentError("weights", True, f"{source.path} has no weights of edges")
    if options.multilabel and not source.multilabel:
        expected = "expected a row of 0 and 1 for each node, or names between semicolons"
        raise ArgumentError("multilabel", True, f"no labels of several classes were read; {expected}")
    if options.regression and not source.regression:
        problem = f"no numbers to predict were read of {source.path}; give them in labels=FILE"
        raise ArgumentError("regression", True, problem)


def recognise(path: Path) -> str:
    """Return the name of the format, by the file's name or by the files in the directory."""
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
            "NAME_graph.npz with NAME_data.npz, or edges.csv, alone or with features, labels, split and nodes"
        )
    if (form := form_of(path)) is not None:
        return form
    known = f".mtx, .mtx.gz, .npz, .pt, {', '.join(edge_list.SUFFIXES)} (.gz)"
    raise UserError(f"{path}: unknown format; expected {known}, or format=NAME, one of {', '.join(FORMATS)}")


def form_of(path: Path) -> str | None:
    """Return the format of a file by its name; None for an unknown one."""
    name = path.name.lower()
    if name.endswith((".mtx", ".mtx.gz")):
        return "mtx"
    if name.endswith(".npz"):
        return "npz"
    if name.endswith((".pt", ".pth")):
        return "pt"
    if name.removesuffix(".gz").endswith(edge_list.SUFFIXES):
        return "edges"
    return None


def with_companions(path: Path, options: ImportOptions) -> tuple[Path, ImportOptions, list[Path]]:
    """Find the file of edges in a directory, the options that its other files stand for, and files left over.

    The directory has no other format. The edges are in the only file called `edges` or NAME_edges, or in
    the only file that can have a graph. Files called features, labels, target, split and nodes, alone or
    behind NAME_, belong to them, and NAME.json has features. In names of files, case does not matter.
    """
    if not path.is_dir() or options.format in DIRECTORIES or is_other(path):
        return path, options, []
    files = sorted(entry for entry in path.iterdir() if entry.is_file() and entry.name[0] != ".")
    graphs = [file for file in files if stem(file) == "edges" or stem(file).endswith("_edges")]
    graphs = graphs or [file for file in files if form_of(file) and stem(file) not in COMPANIONS]
    if len(graphs) != 1 or form_of(graphs[0]) is None:
        return path, options, []
    base = stem(graphs[0]).removesuffix("edges")
    known: dict[str, Any] = {}
    for file in files:
        name = COMPANIONS.get(stem(file).removeprefix(base)) if file != graphs[0] else None
        if name is None and base and file.name.lower() == f"{base.removesuffix('_')}.json":
            name = "features"
        if name and getattr(options, name) is None:
            if name in known:
                both = f"{Path(known[name]).name} and {file.name} could both be it; give one of them"
                raise ArgumentError(name, path, both)
            known[name] = str(file)
    taken = {graphs[0], *map(Path, known.values()), *(Path(str(given)) for given in vars(options).values())}
    left = [file for file in files if file not in taken]
    return graphs[0], dataclasses.replace(options, **known), left


def is_other(path: Path) -> bool:
    """Return True if the directory is in one of the formats of directories."""
    try:
        recognise(path)
    except UserError:
        return False
    return True


def stem(path: Path) -> str:
    """Return the name of a file without endings, in lower case."""
    return path.name.lower().partition(".")[0]
