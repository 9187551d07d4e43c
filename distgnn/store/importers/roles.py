"""Roles of the columns of a table by node: ids, labels, parts or features.

Options and the usual names decide. Without either, each role has one rule, and the summary of `prepare` names
the columns that were taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from distgnn.errors import ArgumentError, UserError
from distgnn.store.importers.columns import ID_NAMES, Columns
from distgnn.store.importers.imported import UNLABELLED
from distgnn.store.importers.names import Names
from distgnn.store.source import ImportOptions

LABEL_NAMES = ("label", "class", "target", "y", "labels", "page_type", "ml_target")  # two of MUSAE
SPLIT_NAMES = ("split", "part", "set", "mask")
#: The labels of a node that may have several classes; -1 in all columns of an unlabelled one.
ZEROS_AND_ONES = {"0": 0, "1": 1, "0.0": 0, "1.0": 1} | dict.fromkeys(UNLABELLED, -1)


@dataclass
class Roles:
    """The column of the ids (None: row i is node i's) and the columns of the values."""

    ids: int | None
    values: list[int]

    def expected(self, what: str, numbers: bool) -> str:
        """Describe the fields that a row needs, for errors."""
        ids = f"a node id{' of at least 0' if numbers else ''} in column {self.ids}"
        values = [f"a {what} in column {k}" for k in self.values[:1]]
        return " and ".join(values if self.ids is None else [ids, *values])

    def described(self, table: Columns, what: str) -> str:
        """Describe the roles of the columns, for the summary."""
        called = [table.called(k) for k in self.values]
        values = f"{what} in {', '.join(called) if len(called) < 4 else f'{len(called)} columns'}"
        ids = "in the order of the nodes" if self.ids is None else f"ids in {table.called(self.ids)}"
        return f"{table.path.name} ({values}, {ids})"


def id_role(table: Columns, options: ImportOptions) -> int:
    """Find the column of the ids: by the option, by a usual name, or the first."""
    options.used.add("id_column")
    return table.find("id_column", options.id_column, 0, ID_NAMES)


def label_roles(table: Columns, options: ImportOptions) -> Roles:
    """Find the ids and the labels: one column, or one of 0 and 1 for each class that nodes may have.

    The columns of classes are those that `label_column` names between commas, or all columns beside the ids
    if none is called `label` and all hold 0 and 1 only. If the column of the ids is like them, row i is node
    i's.
    """
    chosen = options.label_column.split(",") if options.label_column else []
    options.used.add("label_column")
    ids = id_role(table, options)
    named = options.id_column is not None or table.position(*ID_NAMES) is not None
    if len(chosen) > 1:
        columns = [table.find("label_column", name.strip(), 0) for name in chosen]
        if len({*columns}) < len(columns) or (named and ids in columns):
            problem = f"names a column twice, or that of ids, in {table.path}: {table.described()}"
            raise ArgumentError("label_column", options.label_column, problem)
        return Roles(None if ids in columns else ids, columns)
    others = _others(table, ids, options)
    if not chosen and not options.regression and len(others) > 1 and table.position(*LABEL_NAMES) is None:
        roles = _rows_of_classes(table, ids, others, named)
        if roles is not None:
            return roles
    return word_roles(table, options, LABEL_NAMES, "label")


def _rows_of_classes(table: Columns, ids: int, others: list[int], named: bool) -> Roles | None:
    """Find the roles if all other columns hold only 0, 1 or no label; return None if they do not.

    An id column that is not `named` is a class too, if it holds only such values and some of them twice.
    """
    known, first, count = {*ZEROS_AND_ONES}, set[str](), 0
    for texts in table.records([ids, *others]):
        unknown = {*texts[1:]} - known
        if not texts or not {word.lower() for word in unknown} <= known:
            return None
        known |= unknown
        count += 1
        if len(first) <= len(known):
            first.add(texts[0])
    repeated = count > len(first) and {word.lower() for word in first} <= known
    return Roles(None, [ids, *others]) if repeated and not named else Roles(ids, others)


def _others(table: Columns, ids: int, options: ImportOptions) -> list[int]:
    """List the columns beside the ids, and beside the parts if the table has these too."""
    parts = table.position(*SPLIT_NAMES) if options.split and Path(options.split) == table.path else None
    return [k for k in range(len(table.names)) if k not in (ids, parts, *table.all_ids())]


def word_roles(table: Columns, options: ImportOptions, usual: Sequence[str], what: str) -> Roles:
    """Find the ids and one column of words.

    The column of words is the one of its option, of a usual name, or the only other column; for parts the
    last one. Raises ArgumentError if both would be one column, UserError if several columns could be it.
    """
    last = len(table.names) - 1
    if last < 1:
        raise UserError(f"{table.path}: {last + 1} column; expected node ids and {what}s")
    ids, chosen = id_role(table, options), options.label_column if what == "label" else None
    word = table.find("label_column", chosen, last, usual)
    if what == "label" and chosen is None and last > 1 and table.position(*usual) is None:
        word = _only_other(table, ids, options) if ids != word or not options.id_column else word
    if ids != word:
        return Roles(ids, [word])
    given, other = ("id_column", "label_column") if options.id_column else ("label_column", "id_column")
    if last == 1 and (what == "split" or getattr(options, other) is None):  # only the other column is left
        ids_known = options.id_column or (chosen is None and table.position(*ID_NAMES) is not None)
        return Roles(ids, [1 - ids]) if ids_known else Roles(1 - word, [word])
    problem = f"would be node ids and {what}s at once in {table.path}"
    problem += f"; give {other}=NAME, another of its columns"
    value = getattr(options, given) or table.names[ids]
    raise ArgumentError(given, value, f"{problem}: {table.described()}")


def _only_other(table: Columns, ids: int, options: ImportOptions) -> int:
    """Return the only column that can have the labels; UserError if several can."""
    others = _others(table, ids, options)
    if len(others) == 1:
        return others[0]
    advice = "label_column=NAME says which, or its number from 0; those of several classes hold 0 and 1 alone"
    raise UserError(f"{table.path}: cannot tell the column of labels among {table.described()}; {advice}")


def feature_roles(table: Columns, options: ImportOptions, names: Names | None) -> Roles:
    """Find the features: all columns but those of ids, labels and parts.

    Row i is node i's unless a column is called `id` or as the option says, or nodes have `names`, which are
    then in the first column.
    """
    ids = table.position(*ID_NAMES)
    if table.named and options.id_column in table.names:
        ids = table.names.index(options.id_column)
        options.used.add("id_column")
    elif names is not None and (options.id_column is not None or table.names):
        ids = id_role(table, options)
    taken = table.all_ids() if ids is None else [ids, *table.all_ids()]
    if options.labels and Path(options.labels) == table.path:
        taken += label_roles(table, options).values
    if options.split and Path(options.split) == table.path:
        taken += word_roles(table, options, SPLIT_NAMES, "split").values
    return Roles(ids, [k for k in range(len(table.names)) if k not in taken])
