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
    """Which node has which label, as `path` lists them; `complete`: the nodes are 0..len(ids)-1, each once."""

    path: Path
    ids: np.ndarray
    values: list[str]
    lines: np.ndarray

    @property
    def complete(self) -> bool:
        return len(self.ids) > 0 and np.array_equal(np.sort(self.ids), np.arange(len(self.ids)))

    def attach(self, source: Imported) -> None:
        """Number the classes in sorted order (by value if all are integers) and label the nodes of the
        source.
        """
        unknown = np.flatnonzero(self.ids >= source.n)
        if len(unknown):
            first = unknown[0]
            raise UserError(
                f"{self.path}, line {self.lines[first]}: a label for node {self.ids[first]}, which is not in the "
                f"graph; {source.path} has nodes 0..{source.n - 1}"
            )
        names = sorted(set(self.values) - set(UNLABELLED), key=_class_key(self.values))
        if not names:
            raise UserError(f"{self.path}: every label is empty; expected a class for some node")
        number = {name: k for k, name in enumerate(names)} | dict.fromkeys(UNLABELLED, -1)
        labels = np.full(source.n, -1, np.int64)
        labels[self.ids] = np.fromiter((number[value] for value in self.values), np.int64, len(self.values))
        source.set_labels(labels, self.path, len(names))
        source.class_names = names


def _class_key(values: list[str]) -> type:
    """How to sort class names: as integers if all of them are, each then having one spelling only."""
    named = set(values) - set(UNLABELLED)
    return int if all(name.isdecimal() and name == str(int(name)) for name in named) else str


def read_labels(path: Path, options: ImportOptions) -> Labels:
    """A table with a column of node ids and one of labels, by default `id` (or the first) and `label` (or the
    last).
    """
    heading = Heading.of(path)
    if len(heading.columns) < 2:
        raise UserError(f"{path}: {len(heading.columns)} column; expected node ids and labels")
    names = [name.lower() for name in heading.columns]
    id_column = _choose(options.id_column, "--id-column", heading, path, names, ID_NAMES, 0)
    label_column = _choose(
        options.label_column, "--label-column", heading, path, names, LABEL_NAMES, len(names) - 1
    )
    ids, values, lines = [], [], []
    for line, row in _rows(path, heading):
        text = row[id_column].strip() if len(row) > max(id_column, label_column) else ""
        if not text.isdecimal() or int(text) > HIGHEST_ID:
            shown = (heading.delimiter or " ").join(row)[:80]
            raise UserError(
                f"{path}, line {line}: bad line {shown!r}; expected a node id of at least 0 in column {id_column} "
                f"and a label in column {label_column}"
            )
        ids.append(int(text))
        values.append(row[label_column].strip())
        lines.append(line)
    labels = Labels(path, np.array(ids, np.int64), values, np.array(lines, np.int64))
    order = np.argsort(labels.ids, kind="stable")
    repeated = np.flatnonzero(np.diff(labels.ids[order]) == 0)
    if len(repeated):
        second = order[repeated[0] + 1]
        raise UserError(
            f"{path}, line {lines[second]}: node {ids[second]} has a second label; expected one for each node"
        )
    return labels


def _choose(
    wanted: str | None,
    flag: str,
    heading: Heading,
    path: Path,
    names: list[str],
    usual: tuple[str, ...],
    default: int,
) -> int:
    if wanted is not None:
        return heading.find(wanted, flag, path)
    return next((names.index(name) for name in usual if name in names), default) if heading.named else default


def _rows(path: Path, heading: Heading) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, fields) of the lines behind the header that are neither blank nor comments."""
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
