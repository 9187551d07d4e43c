"""Splits of the nodes into training, validation and test: shares of them, a table, or an array."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from distgnn.errors import UserError
from distgnn.split import NAMES
from distgnn.store.importers.arrays import open_npy
from distgnn.store.importers.imported import UNLABELLED, Imported
from distgnn.store.importers.node_table import TABLES, read_words
from distgnn.store.importers.roles import SPLIT_NAMES, word_roles
from distgnn.store.importers.table import open_table
from distgnn.store.source import ImportOptions, parse_split, random_split

PARTS = {word: part for part, names in NAMES.items() for word in (*names, str(part))}
PARTS |= dict.fromkeys(("0", *UNLABELLED), 0)


def split_file(text: str) -> Path | None:
    """Return the file that a split names; None for shares. ArgumentError for any other text."""
    path = Path(text)
    if path.name.lower().removesuffix(".gz").endswith((".npy", *TABLES)):
        return path
    parse_split(text)
    return None


def attach_split(source: Imported, options: ImportOptions) -> None:
    """Give the source the split that the options ask for, if any: shares, or a file's."""
    if options.split is None:
        return
    path = split_file(options.split)
    if path is None:
        source.split = random_split(source.n, options.split, options.seed, source.labels)
    elif path.name.lower().endswith(".npy"):
        source.check_rows(path)
        source.readings.append(f"{path.name} (parts)")
        source.set_split(open_npy(path).read(), path)
    else:
        _attach_table(source, path, options)


def _attach_table(source: Imported, path: Path, options: ImportOptions) -> None:
    table = open_table(path, options)
    roles = word_roles(table, options, SPLIT_NAMES, "split")
    source.note_table(roles.described(table, "parts"), table, [roles.ids, *roles.values])
    table_words = read_words(table, roles, source.names, "split", not_a_part)
    check_parts(table_words.words, path)
    split = np.zeros(source.n, np.uint8)
    parts = np.array([PARTS[word.lower()] for word in table_words.words], np.uint8)
    split[table_words.rows.nodes(source)] = parts[table_words.codes[:, 0]]
    source.set_split(split, path)


def not_a_part(text: str) -> str | None:
    """Return the fault of a word that is no part, or None."""
    return None if text.lower() in PARTS else f"part {text[:40]!r}; expected train, val, test or none"


def check_parts(words: list[str], path: Path) -> None:
    """Raise UserError for numbers of parts that are not 1, 2 and 3, with or without 0.

    Else 0, 1 and 2 may be meant as train, val and test. In a table of words 0 means none.
    """
    numbers = sorted({"0", "1", "2", "3"} & {*words})
    beside_words = numbers == ["0"] and any(PARTS[word.lower()] for word in words)
    if numbers and not beside_words and not {"1", "2", "3"} <= {*numbers}:
        codes = "0 none, 1 train, 2 val, 3 test"
        expected = f"train, val, test or none, or all of these numbers ({codes})"
        raise UserError(f"{path}: cannot tell the parts from {', '.join(numbers)}; expected {expected}")
