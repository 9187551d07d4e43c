"""A word for each node, in tables with a column of ids: labels, parts of a split; and lists of ids alone."""

from __future__ import annotations

import csv
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from distgnn.errors import ArgumentError, UserError
from distgnn.store.importers import parquet
from distgnn.store.importers.arrays import Npz, integers, open_npy, strings
from distgnn.store.importers.files import lines
from distgnn.store.importers.imported import HIGHEST_ID, UNLABELLED, Imported
from distgnn.store.importers.names import LONGEST, Names, Numbers, check_once, encoded, integer, places_of
from distgnn.store.importers.text import ID_NAMES, Heading, first_line, whole
from distgnn.store.source import TEST, TRAIN, VALIDATION, ImportOptions, parse_split, random_split

LABEL_NAMES = ("label", "class", "target", "y", "labels", "page_type", "ml_target")  # two of MUSAE
SPLIT_NAMES = ("split", "part", "set", "mask")
PARTS = {"train": TRAIN, "training": TRAIN, "1": TRAIN, "val": VALIDATION, "valid": VALIDATION,
         "validation": VALIDATION, "2": VALIDATION, "test": TEST, "3": TEST,
         **dict.fromkeys(("0", *UNLABELLED), 0)}  # fmt: skip
ROWS = 1 << 16  # of a table, at a time


@dataclass
class Words:
    """The nodes that a table names, row by row, and the word of each as an index into `words`."""

    ids: np.ndarray
    codes: np.ndarray
    words: list[str]
    place: Callable[[int], str]


def attach_labels(source: Imported, options: ImportOptions, grow: bool) -> None:
    """Give the source the labels that the options name, if any; UserError for a node that it has not. With
    `grow` a table that lists 0..k-1 once each may add isolated nodes.

    Classes are numbered in sorted order, by value if all are integers.
    """
    if not options.labels:
        return
    path = Path(options.labels)
    table = read_words(path, options, source.names, LABEL_NAMES, "label")
    if grow and int(table.ids.max(initial=-1)) == len(table.ids) - 1:
        check_once(table.ids, table.ids, table.place)
        source.n = max(source.n, len(table.ids))
    numbers = places_of(source.names or Numbers(source.n), table.ids, table.place, source.described())
    labels = np.full(source.n, "", object)
    labels[numbers] = np.array([*table.words, ""], object)[table.codes]
    source.set_classes(labels, path)


def attach_split(source: Imported, options: ImportOptions) -> None:
    """Give the source the split that the options ask for, if any: shares, or that of a file."""
    if options.split is None:
        return
    path = split_file(options.split)
    if path is None:
        source.split = random_split(source.n, options.split, options.seed, source.labels)
    elif path.name.lower().endswith(".npy"):
        source.check_rows(path)
        source.set_split(open_npy(path).read(), path)
    else:
        table = read_words(path, options, source.names, SPLIT_NAMES, "split")
        check_parts(table.words, path)
        numbers = places_of(source.names or Numbers(source.n), table.ids, table.place, source.described())
        split = np.zeros(source.n, np.uint8)
        split[numbers] = np.array([PARTS[word.lower()] for word in table.words], np.uint8)[table.codes]
        source.set_split(split, path)


def check_parts(words: list[str], path: Path) -> None:
    """UserError for parts in numbers that are not 1, 2 and 3, with or without 0: 0, 1 and 2 may be meant as
    train, val and test. Beside words 0 is none."""
    numbers = sorted({"0", "1", "2", "3"} & {*words})
    told = numbers == ["0"] and any(PARTS[word.lower()] for word in words)
    if numbers and not told and not {"1", "2", "3"} <= {*numbers}:
        codes = "0 none, 1 train, 2 val, 3 test"
        expected = f"train, val, test or none, or all of these numbers ({codes})"
        raise UserError(f"{path}: cannot tell the parts from {', '.join(numbers)}; expected {expected}")


def split_file(text: str) -> Path | None:
    """The file that a split names; None for shares. ArgumentError for what is neither."""
    path = Path(text)
    if path.name.lower().removesuffix(".gz").endswith((".csv", ".tsv", ".txt", ".npy", *parquet.SUFFIXES)):
        return path
    parse_split(text)
    return None


def read_nodes(path: Path, options: ImportOptions, kind: str, ends: Callable[[], np.ndarray]) -> Names:
    """The ids of all nodes, of this kind, in the order of a table. A first line of words is a header, unless
    it is one of the `ends` of edges. A .npy holds nothing but ids."""
    if path.name.lower().endswith(".npy"):
        return _node_array(path, kind)
    used = np.zeros(0, "S1" if kind == "text" else np.int64)
    if kind == "text" and not parquet.is_parquet(path):
        heading = heading_of(path, None)
        column = columns_of(heading, path, options, ID_NAMES, None)[0]
        if heading.named and heading.columns[column].lower() not in (*ID_NAMES, options.id_column):
            used = ends()
    table = read_words(path, options, Names(used, path), ID_NAMES, None)
    try:
        return Names(table.ids, path)
    except ValueError:
        check_once(np.unique(table.ids, return_inverse=True)[1], table.ids, table.place)
        raise


def _node_array(path: Path, kind: str) -> Names:
    """The ids of all nodes, of this kind, in an array of integers or strings."""
    array = open_npy(path, "iuUS")
    if len(array.shape) != 1:
        raise UserError(f"{path}: node ids have shape {array.shape}; expected (nodes)")
    ids, words = array.read(), array.dtype.kind in "US"
    if words and kind != "text":
        raise UserError(f"{path}: holds strings; expected node ids that are integers, or ids=text")
    try:
        listed = strings(ids, path).tolist() if words else map(str, ids.tolist())
        return Names(encoded(listed) if kind == "text" else integers(ids, str(path)), path)
    except ValueError as error:
        raise UserError(f"{path}: no list of nodes ({error})") from None


def declared_rows(options: ImportOptions) -> int:
    """How many nodes an array of features or labels without ids says that there are; 0 without one."""
    for name in (options.features, options.labels):
        if name and name.lower().endswith(".npy") and Path(name).exists():
            return (*open_npy(name, "biufUS").shape, 0)[0]
        if name and name == options.features and name.lower().endswith(".npz") and Path(name).exists():
            return max(((*archive_shape(Path(name)), 0)[0]), 0)
    return 0


def archive_shape(path: Path) -> tuple[int, ...]:
    archive = Npz(path)
    if "shape" in archive:
        return tuple(archive.integers("shape").ravel().tolist()[:1])
    return archive.header(archive.names[0]).shape if len(archive.names) == 1 else ()


def read_words(
    path: Path, options: ImportOptions, ids: Names | None, usual: Sequence[str], what: str | None
) -> Words:  # fmt: skip
    """A table of node ids (default: column `id` or the first) and of words (of a `usual` name, or the only
    other); of ids alone where `what` is None. Ids are of the same kind as those of the graph."""
    if parquet.is_parquet(path):
        return _parquet_words(path, options, ids, usual, what)
    heading = heading_of(path, what)
    column, word = columns_of(heading, path, options, usual, what)
    if heading.named and ids is not None and ids.has(heading.columns[column]):  # no header, but a node
        heading = replace(heading, skip=heading.skip - 1)
    read, expected = _id_reader(ids), "a node id" if ids else "a node id of at least 0"
    numbers: dict[str, int] = {}
    chunks, codes, places = [], array("i"), array("q")
    some: list[Any] = []
    for line, row in table_rows(path, heading):
        node = read(row[column].strip()) if len(row) > max(column, word) else None
        text = row[word].strip() if node is not None and what else ""
        if node is None:
            shown = (heading.delimiter or " ").join(row)[:80]
            also = f" in column {column} and a {what} in column {word}" if what else f" in column {column}"
            raise UserError(f"{path}, line {line}: bad line {shown!r}; expected {expected}{also}")
        if text not in numbers:
            _check_word(what, text, f"{path}, line {line}")
        some.append(node)
        codes.append(numbers.setdefault(text, len(numbers)))
        places.append(line)
        if len(some) == ROWS:
            chunks.append(_packed(some, ids))
            some = []
    chunks.append(_packed(some, ids))

    def place(row: int) -> str:
        return f"{path}, line {places[row]}"

    return Words(np.concatenate(chunks), np.array(codes, np.int32), list(numbers), place)


def heading_of(path: Path, what: str | None) -> Heading:
    """The columns of a table. Blanks are part of the ids in a CSV that has nothing else."""
    heading = Heading.of(path)
    if what is None and heading.delimiter is None and ".csv" in path.name.lower():
        return replace(heading, delimiter=",", columns=[first_line(path)[1].strip().strip('"')])
    return heading


def _id_reader(ids: Names | None) -> Callable[[str], Any]:
    """What makes an id of a field; it returns None for one that is none."""
    if ids is None:
        return lambda text: node if (node := whole(text)) is not None and node <= HIGHEST_ID else None
    if ids.words:
        return lambda text: text if text and len(text.encode()) <= LONGEST and "\0" not in text else None
    return integer


def _packed(some: list[Any], ids: Names | None) -> np.ndarray:
    return encoded(some) if ids is not None and ids.words else np.array(some, np.int64)


def _check_word(what: str | None, text: str, where: str) -> None:
    if what == "label" and text.lower() not in UNLABELLED and not _is_class(text):
        raise UserError(f"{where}: label {text[:40]!r} is not whole; expected a class")
    if what == "split" and text.lower() not in PARTS:
        raise UserError(f"{where}: part {text[:40]!r}; expected train, val, test or none")


def _is_class(text: str) -> bool:
    """Whether this is a name or a whole number: classes have no fractions."""
    try:
        return float(text).is_integer()
    except ValueError:
        return True


def _parquet_words(
    path: Path, options: ImportOptions, ids: Names | None, usual: Sequence[str], what: str | None
) -> Words:  # fmt: skip
    heading, form = parquet.heading(path), parquet.kinds(path)
    column, word = columns_of(heading, path, options, usual, what)
    kind = "words" if ids is not None and ids.words else "integers"
    name = heading.columns[column]
    if form[name] != kind and not (kind == "words" and form[name] == "integers"):
        raise UserError(f"{path}: column {name} holds {form[name]}; expected node ids that are {kind}")
    numbers: dict[str, int] = {}
    chunks, codes, row = [_packed([], ids)], array("i"), 0
    fields = [("id", name, kind)] + ([("word", heading.columns[word], "any")] if what else [])
    for rows in parquet.ParquetTable(path, fields):
        chunks.append(rows["id"])
        for text in rows["word"].tolist() if what else [""] * len(rows):
            if text not in numbers:
                numbers[text] = len(numbers)
                _check_word(what, text, f"{path}, row {row + 1}")
            codes.append(numbers[text])
            row += 1
    found = np.concatenate(chunks)
    if ids is None and len(found) and not 0 <= found.min() <= found.max() <= HIGHEST_ID:
        raise UserError(f"{path}: column {name} has ids outside 0..{HIGHEST_ID}; give ids=integers")
    return Words(found, np.array(codes, np.int32), list(numbers), lambda row: f"{path}, row {row + 1}")


def columns_of(
    heading: Heading, path: Path, options: ImportOptions, usual: Sequence[str], what: str | None
) -> tuple[int, int]:  # fmt: skip
    """Where the node and its word stand; ArgumentError where that would be the same column, UserError where
    labels may be in several."""
    last = len(heading.columns) - 1
    if last < (what is not None):
        raise UserError(f"{path}: {last + 1} column; expected node ids{f' and {what}s' if what else ''}")
    ids = heading.find("id_column", options.id_column, path, 0, ID_NAMES)
    if what is None:
        return ids, ids
    chosen = options.label_column if what == "label" else None
    word = heading.find("label_column", chosen, path, last, usual)
    if ids != word:
        unclear = what == "label" and chosen is None and last > 1 and heading.position(*usual) is None
        return ids, _only_other(heading, ids, path, options) if unclear else word
    given, other = ("id_column", "label_column") if options.id_column else ("label_column", "id_column")
    if last == 1 and (what == "split" or getattr(options, other) is None):  # only the other column is left
        return (ids, 1 - ids) if given == "id_column" else (1 - word, word)
    problem = f"would be node ids and {what}s at once in {path}; give {other}=NAME, another of its columns"
    raise ArgumentError(
        given, getattr(options, given) or heading.columns[ids], f"{problem}: {heading.described()}"
    )


def _only_other(heading: Heading, ids: int, path: Path, options: ImportOptions) -> int:
    """The column beside the ids, and beside the parts where this is the table of these, too; UserError where
    there are several.
    """
    parts = heading.position(*SPLIT_NAMES) if options.split and Path(options.split) == path else None
    others = [k for k in range(len(heading.columns)) if k not in (ids, parts)]
    if len(others) == 1:
        return others[0]
    advice = "label_column=NAME says which, or its number from 0; those of several classes hold 0 and 1 alone"
    raise UserError(f"{path}: cannot tell the column of labels among {heading.described()}; {advice}")


def table_rows(path: Path, heading: Heading) -> Iterator[tuple[int, list[str]]]:
    """(line number, fields) of the lines behind the header that are neither blank nor comments."""
    mark, number = heading.delimiter, heading.skip
    texts = (text for _, text in lines(path, heading.skip))
    rows: Any = csv.reader(texts, delimiter=mark) if mark else map(str.split, texts)
    try:
        for k, row in enumerate(rows, 1):
            number = heading.skip + (rows.line_num if mark else k)
            if row and not row[0].lstrip().startswith("#") and any(field.strip() for field in row):
                yield number, row
    except csv.Error as error:
        raise UserError(f"{path}, line {number + 1}: {error}; expected a row of CSV") from None
