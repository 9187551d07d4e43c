"""Roles of the columns of a table: ends and weights of edges; ids, labels, parts or features of nodes.

Options and the usual names decide. Without either, each role has one rule, and the summary of `prepare` names
the columns that were taken. Where two columns could have a role, the error names the options that say which.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from distgnn.errors import ArgumentError, UserError
from distgnn.store.importers.arrow import numpy_of
from distgnn.store.importers.imported import LABEL_NAMES, SPLIT_NAMES, UNLABELLED
from distgnn.store.importers.names import Names, whole
from distgnn.store.importers.table import ID_NAMES, Table, WantedColumn
from distgnn.store.importers.text_table import TextTable
from distgnn.store.source import ImportOptions

WEIGHT_NAMES = ("weight", "weights", "w", "value")
ENDS = (("source", "target"), ("src", "dst"), ("from", "to"), ("u", "v"), ("id1", "id2"), ("id_1", "id_2"),
        ("node1", "node2"), ("node_1", "node_2"), ("source_id", "target_id"), ("head", "tail"),
        ("subject", "object"), ("source", "destination"), ("src", "dest"), ("src_id", "dst_id"),
        (":start_id", ":end_id"), ("sender", "receiver"))  # fmt: skip
END_NAMES = tuple(name for pair in ENDS for name in pair)
#: The labels of a node that may have several classes; -1 in all columns of an unlabelled one.
ZEROS_AND_ONES = {"0": 0, "1": 1, "0.0": 0, "1.0": 1} | dict.fromkeys(UNLABELLED, -1)
CHOICE = "source_column=S and target_column=T"


def same_file(path: Path, other: str | None) -> bool:
    """Return True if both are one file, by whichever path or link."""
    try:
        return other is not None and path.samefile(other)
    except OSError:
        return False


def edge_roles(table: Table, options: ImportOptions) -> tuple[int, int, int | None]:
    """Find the columns of sources, of targets, and of weights if there are any.

    Sources and targets have one of the pairs of names in `ENDS`, or are the only two columns, or two that are
    alike before one of numbers; an index is none of them.

    Raises UserError if the columns cannot be told, for a table of labels, and for weights that the options
    ask for and that the file has not.
    """
    width = len(table.names)
    _check_matrix(table)
    some = [k for k in range(width) if k != table.index and (table.kinds[k] != "empty" or width < 3)]
    named = [places for pair in ENDS if None not in (places := [*map(table.position, pair)])]
    chosen = options.source_column is not None or options.target_column is not None
    ends = [k for k in named[0] if k is not None] if len(named) == 1 else _first_two(table, some)
    twice = [k for k in some if table.named and names_of(table).count(table.names[k].lower()) > 1]
    loop = {*ends} == {*twice}  # a line such as n0,n0, which is an edge if its word comes again
    if not chosen and not loop and {*ends} & {*twice} and table.names[twice[0]]:
        raise UserError(
            f"{table.path}: several columns are called {table.names[twice[0]]}; {CHOICE} say which"
        )
    if chosen:
        given = (("source_column", options.source_column), ("target_column", options.target_column))
        default = (ends or some or [0, 0])[:2]
        default = default if len(default) == 2 else [*default, *default]
        ends = [
            k if name is None else table.find(argument, name)
            for k, (argument, name) in zip(default, given, strict=True)
        ]
    if width and (len(ends) < 2 or ends[0] == ends[1]):
        expected = f"two columns of node ids and perhaps one of numbers behind them, or {CHOICE}"
        raise UserError(
            f"{table.path}: cannot tell source and target among {width} columns; expected {expected}"
        )
    names = [table.names[k].lower() for k in ends] if table.named and not chosen and ends else []
    if names and names[0] in ID_NAMES and names[1] in LABEL_NAMES:
        problem = f"columns {names[0]} and {names[1]} are those of a table of labels"
        raise UserError(f"{table.path}: {problem}; give it as labels=FILE, or {CHOICE}")
    weight = _weight(table, options, [k for k in some if k not in ends], len(some))
    if options.weights and width and weight is None:
        expected = "a third column of numbers, one called weight, or weight_column=NAME"
        raise UserError(f"{table.path}: weights=True, but it has no column of weights; expected {expected}")
    return (*ends, weight) if width else (0, 1, None)  # type: ignore[return-value]


def _check_matrix(table: Table) -> None:
    """Raise UserError for a matrix, whose rows are called as its columns are."""
    rows = table.text.dialect.rows if isinstance(table, TextTable) else []
    if table.named and len(table.names) > 2 and [row[0] for row in rows] == table.names[1:]:
        advice = "save it as a list of edges, or by scipy.sparse.save_npz"
        raise UserError(f"{table.path}: rows and columns have the same names, as those of a matrix; {advice}")


def _first_two(table: Table, some: list[int]) -> list[int]:
    """Return the first two columns, if there are two, or three of which the last has numbers; else none."""
    if len(some) == 2 or (table.konect and len(some) <= 4):
        return some[:2]
    if len(some) != 3:
        return []
    first, second, third = (table.kinds[k] for k in some)
    numbers = ("integers", "numbers")
    if first == "integers" == second and third == "integers" and _counts(table, some[0]):
        rows = "runs as row numbers do, so that it may be an index"
        raise UserError(f"{table.path}: {table.called(some[0])} {rows}; {CHOICE} say which columns are nodes")
    alike = (first in numbers) == (second in numbers)
    return some[:2] if alike and (third in (*numbers, "empty") or first == "integers" == second) else []


def _counts(table: Table, column: int) -> bool:
    """Return True for a first column that counts rows, beside a last one that has several numbers."""
    rows = table.text.dialect.rows if isinstance(table, TextTable) else []
    counted = [whole(row[column]) for row in rows]
    begins = len(rows) > 2 and counted[0] in (0, 1) and len({row[-1] for row in rows}) > 1
    return begins and counted == [*range(counted[0] or 0, (counted[0] or 0) + len(rows))]


def _weight(table: Table, options: ImportOptions, others: list[int], count: int) -> int | None:
    """Find the column that the option names, or called weight, or the third of three if it has numbers."""
    if options.weight_column is not None:
        return table.find("weight_column", options.weight_column)
    named = [k for k in others if table.named and table.names[k].lower() in WEIGHT_NAMES]
    others = [k for k in others if k not in all_ids(table)]
    third = others if (count == 3 or (table.konect and count == 4)) else []
    if named and options.weights:
        return named[0]  # whatever it holds: an error names its line
    numbers = [k for k in (named or third)[:1] if table.kinds[k] in ("integers", "numbers", "empty")]
    return numbers[0] if numbers else None


@dataclass
class Roles:
    """The column of the ids (None: row i is node i's) and the columns of the values."""

    ids: int | None
    values: list[int]
    asked: list[int] = field(default_factory=list)  # of words that are to be columns of zeros and ones

    def described(self, table: Table, what: str) -> str:
        """Describe the roles of the columns, for the summary."""
        called = [table.called(k) for k in self.values]
        values = f"{what} in {', '.join(called) if len(called) < 4 else f'{len(called)} columns'}"
        ids = "in the order of the nodes" if self.ids is None else f"ids in {table.called(self.ids)}"
        return f"{table.path.name} ({values}, {ids}{comments(table)})"


def comments(table: Table) -> str:
    """Count the lines that were left out, for the summary."""
    lines = len(table.comments)
    return f", {lines} line{'s' * (lines > 1)} before the rows left out" if lines else ""


def named_ids(table: Table) -> int | None:
    """Find a column that is called as ids are: by a usual name, or the first if its name ends in id."""
    position = table.position(*ID_NAMES)
    position = table.ids if position is None else position
    if (
        position is None
        and table.named
        and table.names
        and re.search(r"(?i:[_ .-]id)$|[a-z]I[dD]$", table.names[0])
    ):
        return 0
    return position


def id_role(table: Table, options: ImportOptions) -> int:
    """Find the column of the ids: by the option, by a usual name, or the first."""
    options.used.add("id_column")
    if options.id_column is not None:
        return table.find("id_column", options.id_column)
    return named_ids(table) or 0


def label_roles(table: Table, options: ImportOptions) -> Roles:
    """Find the ids and the labels: one column, or one of 0 and 1 for each class that nodes may have.

    The columns of classes are those that `label_column` names between commas, or all columns beside the ids
    if none is called `label` and all hold 0 and 1 only. If the column of the ids is like them, row i is node
    i's.
    """
    chosen = options.label_column.split(",") if options.label_column else []
    options.used.add("label_column")
    ids = id_role(table, options)
    named = options.id_column is not None or named_ids(table) is not None
    if len(chosen) > 1:
        columns = [table.find("label_column", name.strip()) for name in chosen]
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


def _rows_of_classes(table: Table, ids: int, others: list[int], named: bool) -> Roles | None:
    """Find the roles if all other columns hold only 0, 1 or no label; return None if they do not.

    An id column that is not `named` is a class too, if it holds only such values and some of them twice.
    """
    first, count = set[str](), 0
    for columns in table.batches([WantedColumn(k, "words", "0 or 1") for k in (ids, *others)]):
        different = [{word.strip().lower() for word in column.unique().to_pylist()} for column in columns]
        if not set.union(*different[1:]) <= {*ZEROS_AND_ONES}:
            return None
        count += len(columns[0])
        first |= different[0] if len(first) <= len(ZEROS_AND_ONES) else set()
    repeated = count > len(first) and first <= {*ZEROS_AND_ONES}
    return Roles(None, [ids, *others]) if repeated and not named else Roles(ids, others)


def _others(table: Table, ids: int, options: ImportOptions) -> list[int]:
    """List the columns beside the ids, an index, and the parts if the table has these too."""
    parts = table.position(*SPLIT_NAMES) if same_file(table.path, options.split) else None
    return [k for k in range(len(table.names)) if k not in (ids, parts, table.index, *all_ids(table))]


def names_of(table: Table) -> list[str]:
    """List the names of the columns in lower case."""
    return [name.lower() for name in table.names]


def all_ids(table: Table) -> list[int]:
    """List the columns that are called as ids are."""
    return [k for k, name in enumerate(table.names) if table.named and name.lower() in ID_NAMES]


def word_roles(table: Table, options: ImportOptions, usual: Sequence[str], what: str) -> Roles:
    """Find the ids and one column of words.

    The column of words is the one of its option, of a usual name, or the only other column; for parts the
    last one. Raises ArgumentError if both would be one column, UserError if several columns could be it.
    """
    last = len(table.names) - 1
    if last < 1:
        raise UserError(f"{table.path}: {last + 1} column; expected node ids and {what}s")
    ids, chosen = id_role(table, options), options.label_column if what == "label" else None
    named = table.position(*usual)
    word = table.find("label_column", chosen) if chosen is not None else last if named is None else named
    if what == "label" and chosen is None and last > 1 and named is None:
        word = _only_other(table, ids, options) if ids != word or not options.id_column else word
    if ids != word:
        return Roles(ids, [word])
    given, other = ("id_column", "label_column") if options.id_column else ("label_column", "id_column")
    if last == 1 and (what == "split" or getattr(options, other) is None):  # only the other column is left
        ids_known = options.id_column or (chosen is None and named_ids(table) is not None)
        return Roles(ids, [1 - ids]) if ids_known else Roles(1 - word, [word])
    problem = f"would be node ids and {what}s at once in {table.path}"
    problem += f"; give {other}=NAME, another of its columns"
    value = getattr(options, given) or table.names[ids]
    raise ArgumentError(given, value, f"{problem}: {table.described()}")


def _only_other(table: Table, ids: int, options: ImportOptions) -> int:
    """Return the only column that can have the labels; UserError if several can."""
    others = _others(table, ids, options)
    if len(others) == 1:
        return others[0]
    advice = "label_column=NAME says which, or its number from 0; those of several classes hold 0 and 1 alone"
    raise UserError(f"{table.path}: cannot tell the column of labels among {table.described()}; {advice}")


def feature_roles(table: Table, options: ImportOptions, names: Names | None) -> Roles:
    """Find the features: the columns that the option names, or all but those of ids, labels and parts.

    Row i is node i's unless a column is called `id` or as the option says, or nodes have `names`, which are
    then in the first column, or an index has the number of each node.
    """
    ids = named_ids(table)
    if options.id_column is not None and (options.id_column in table.names) >= table.named:
        ids = id_role(table, options)
    elif names is not None and (options.id_column is not None or table.names):
        ids = id_role(table, options)
    taken = {*all_ids(table), *([] if ids is None else [ids, table.index])} - {None}
    if same_file(table.path, options.labels):
        taken |= {*label_roles(table, options).values}
    if same_file(table.path, options.split):
        taken |= {*word_roles(table, options, SPLIT_NAMES, "split").values}
    options.used |= {"feature_columns", "categorical", "missing"}
    chosen = [*filter(None, map(str.strip, (options.feature_columns or "").split(",")))]
    asked = [*filter(None, map(str.strip, (options.categorical or "").split(",")))]
    categorical = [table.find("categorical", name) for name in asked]
    values = [table.find("feature_columns", name) for name in chosen]
    values = (
        [*dict.fromkeys([*values, *categorical])]
        if chosen
        else [k for k in range(len(table.names)) if k not in taken]
    )
    if (wrong := {*values} & taken) and chosen:
        problem = f"{table.called(min(wrong))} has ids, labels or parts in {table.path}"
        raise ArgumentError("feature_columns", options.feature_columns, problem)
    if ids is None and not chosen and len(values) > 1:
        ids, values = _index_role(table, values)
    return Roles(ids, values, categorical)


def _index_role(table: Table, values: list[int]) -> tuple[int | None, list[int]]:
    """Take a first column that counts rows, or has the number of each node, for an index."""
    index, named = values[0], table.index == values[0]
    kind = table.kinds[index]
    if kind != "integers":
        if named and kind != "empty":
            raise UserError(f"{table.path}: {_question(table, index)}; {_ANSWERS}")
        return None, values[1:] if named else values
    ids = [
        numpy_of(columns[0]) for columns in table.batches([WantedColumn(index, "integers", "a row number")])
    ]
    numbers = np.concatenate([np.zeros(0, np.int64), *ids])
    begin = int(numbers[0]) if len(numbers) else 0
    if (named or len(numbers) > 3) and begin in (0, 1) and (np.diff(numbers) == 1).all():
        return None, values[1:]
    each = len(numbers) > 1 and np.array_equal(np.sort(numbers), np.arange(len(numbers)))
    if named and each:
        return index, values[1:]
    if named or (each and len(numbers) > 3):
        raise UserError(f"{table.path}: {_question(table, index)}; {_ANSWERS}")
    return None, values


_ANSWERS = "id_column=NAME takes a column for the ids, feature_columns=A,B,... says which are features"


def _question(table: Table, column: int) -> str:
    return f"{table.called(column)} may be ids, row numbers or features"
