"""Files that come beside a graph: features and labels of its nodes."""

from __future__ import annotations

from pathlib import Path

from distgnn.errors import UserError
from distgnn.store.importers.feature_files import read_features
from distgnn.store.importers.imported import Imported
from distgnn.store.importers.label_files import read_labels
from distgnn.store.source import ImportOptions


def attach_features(source: Imported, options: ImportOptions, grow: bool) -> None:
    """Give the source the features that the options name, if any.

    Where nothing declares the number of nodes (`grow`), it becomes what the edges (source.n so far) and the
    features say.
    """
    if not options.features:
        return
    table = read_features(Path(options.features), options)
    if grow:
        source.n = max(source.n, table.nodes)
    if table.complete and table.nodes != source.n:
        found = f"{table.nodes} rows of features for a graph of {source.n} nodes ({source.path})"
        raise UserError(f"{options.features}: {found}; expected as many rows as nodes")
    if table.nodes > source.n:
        there = f"the graph in {source.path} has nodes 0..{source.n - 1}"
        raise UserError(f"{options.features}: has node {table.nodes - 1}; {there}")
    source.set_features(table)


def attach_labels(source: Imported, options: ImportOptions, grow: bool) -> None:
    """Give the source the labels that the options name, if any; UserError for a node that it has not.

    Where nothing declares the number of nodes (`grow`), a table that lists 0..k-1 once each may add isolated
    nodes.
    """
    if not options.labels:
        return
    labels = read_labels(Path(options.labels), options)
    if grow and labels.complete:
        source.n = max(source.n, len(labels.ids))
    labels.attach(source)
