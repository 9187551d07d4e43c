"""Files that come beside a graph: features and labels of its nodes."""

from __future__ import annotations

from pathlib import Path

from distgnn.errors import UserError
from distgnn.store.importers.feature_files import read_features
from distgnn.store.importers.imported import Imported
from distgnn.store.importers.label_files import read_labels
from distgnn.store.source import ImportOptions


def attach(source: Imported, options: ImportOptions, grow: bool) -> None:
    """Give the source the features and labels that the options name.

    Where nothing declares the number of nodes (`grow`), it becomes what the edges (source.n so far), the features and a
    complete table of labels say. Otherwise, and beyond that, a node that only a companion knows is an error.
    """
    if options.features:
        table = read_features(Path(options.features), options)
        if grow:
            source.n = max(source.n, table.nodes)
        if table.complete and table.nodes != source.n:
            raise UserError(f"{options.features}: {table.nodes} rows of features for a graph of {source.n} nodes "
                            f"({source.path}); expected as many rows as nodes")
        if table.nodes > source.n:
            raise UserError(f"{options.features}: has node {table.nodes - 1}; the graph in {source.path} has nodes "
                            f"0..{source.n - 1}")
        source.set_features(table)
        grow = grow and not table.complete
    if options.labels:
        labels = read_labels(Path(options.labels), options)
        if grow and labels.complete:
            source.n = max(source.n, len(labels.ids))
        labels.attach(source)
