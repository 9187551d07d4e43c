"""Labels in a table of their own: a column of node ids and a column of classes, which may be words."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from distgnn.errors import UserError
from distgnn.store.importers.imported import HIGHEST_ID, Imported
from distgnn.store.importers.text import ID_NAMES, Heading, open_binary, reading
from distgnn.store.source import ImportOptions

LABEL_NAMES = ("label", "class", "target", "y", "labels")
UNLABELLED = ("", "-1", "nan", "NaN", "null", "None")


@dataclass
class Labels:
    """Which node has which label, as `path` lists it."""

    path: Path
    ids: np.ndarray
    values: list[str]
    lines: list[int]

    def attach(self, source: Imported) -> None:
        """Number the classes in sorted order (by value if all are integers) and label the source's nodes."""
        unknown = np.flatnonzero(self.ids >= source.n)
        if len(unknown):
            line, node = self.lines[unknown[0]], self.ids[unknown[0]]
            found = f"a label for node {node}, which is not in the graph"
            raise UserError(f"{self.path}, line {line}: {found}; {source.path} has nodes 0..{source.n - 1}")
        named = set(self.values) - set(UNLABELLED)
        integers = all(name.isdecimal() and name == str(int(name)) for name in named)
        names = sorted(named, key=int if integers else str)
        if not names:
            raise UserError(f"{self.path}: every label is empty; expected a class for some node")
        number = {name: k for k, name in enumerate(names)} | dict.fromkeys(UNLABELLED, -1)
        labels = np.full(source.n, -1, np.int64)
        labels[self.ids] = [number[value] for value in self.values]
        source.set_labels(labels, self.path, len(names))
        source.class_names = names


def attach_labels(source: Imported, options: ImportOptions, grow: bool) -> None:
    """Give the source the labels that the options name, if any; UserError for a node that it has not. With
    `grow` a table that lists 0..k-1 once each may add isolated nodes."""
    if not options.labels:
        return
    labels = read_labels(Path(options.labels), options)
    if grow and np.array_equal(np.sort(labels.ids), np.arange(len(labels.ids))):
        source.n = max(source.n, len(labels.ids))
    labels.attach(source)


def read_labels(path: Path, options: ImportOptions) -> Labels:
    """A table of node ids (default: column `id` or the first) and labels (`label` or the last)."""
    heading = Heading.of(path)
    last = len(heading.columns) - 1
    if last < 1:
        raise UserError(f"{path}: {last + 1} column; expected node ids and labels")
    id_column = heading.find("id_column", options.id_column, path, 0, ID_NAMES)
    label_column = heading.find("label_column", options.label_column, path, last, LABEL_NAMES)
    ids, values, lines = [], [], []
    for line, row in _rows(path, heading):
        text = row[id_column].strip() if len(row) > max(id_column, label_column) else ""
        if not text.isdecimal() or int(text) > HIGHEST_ID:
            shown = (heading.delimiter or " ").join(row)[:80]
            expected = f"a node id of at least 0 in column {id_column} and a label in column {label_column}"
            raise UserError(f"{path}, line {line}: bad line {shown!r}; expected {expected}")
        ids.append(int(text))
        values.append(row[label_column].strip())
        lines.append(line)
    labels = Labels(path, np.array(ids, np.int64), values, lines)
    order = np.argsort(labels.ids, kind="stable")
    repeated = np.flatnonzero(np.diff(labels.ids[order]) == 0)
    if len(repeated):
        second = order[repeated[0] + 1]
        found = f"node {ids[second]} has a second label"
        raise UserError(f"{path}, line {lines[second]}: {found}; expected one for each node")
    return labels


def _rows(path: Path, heading: Heading) -> Iterator[tuple[int, list[str]]]:
    """(line number, fields) of the lines behind the header that are neither blank nor comments."""
    with reading(path), open_binary(path) as file:
        lines = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
        for _ in range(heading.skip):
            lines.readline()
        if heading.delimiter is None:
            rows: Iterator[list[str]] = (line.split() for line in lines)
        else:
            rows = csv.reader(lines, delimiter=heading.delimiter)
        number = heading.skip
        try:
            for k, row in enumerate(rows, 1):
                number = heading.skip + (k if heading.delimiter is None else rows.line_num)  # type: ignore[attr-defined]
                if row and not row[0].lstrip().startswith("#") and any(field.strip() for field in row):
                    yield number, row
        except csv.Error as error:
            raise UserError(f"{path}, line {number + 1}: {error}; expected a row of CSV") from None
