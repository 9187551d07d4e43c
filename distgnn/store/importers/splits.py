"""Splits of the nodes into training, validation and test: shares of them, a table, or an array."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from distgnn.errors import ArgumentError, UserError
from distgnn.split import NAMES
from distgnn.store.importers.arrays import open_npy
from distgnn.store.importers.imported import UNLABELLED, Imported
from distgnn.store.importers.node_table import read_words
from distgnn.store.importers.roles import SPLIT_NAMES, word_roles
from distgnn.store.importers.table_files import TABLES, open_table
from distgnn.store.source import ImportOptions, parse_split, random_split

PARTS = {word: part for part, names in NAMES.items() for word in (*names, str(part))}
PARTS |= dict.fromkeys(("0", *UNLABELLED), 0)
PARTS |= {f"{part}.0": part for part in (0, *NAMES)}


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
        try:
            source.set_split(array_parts(open_npy(path, "biufUS").read()), path)
        except ArgumentError as error:
            raise UserError(f"{path}: {error.problem}") from None
    else:
        _attach_table(source, path, options)


def _attach_table(source: Imported, path: Path, options: ImportOptions) -> None:
    table = open_table(path, options)
    roles = word_roles(table, options, SPLIT_NAMES, "split")
    source.note_table(roles.described(table, "parts"), table, [roles.ids, *roles.values])
    table_words = read_words(table, roles, source.names, "split", not_a_part)
    check_parts([word.removesuffix(".0") for word in table_words.words], path)
    split = np.zeros(source.n, np.uint8)
    parts = np.array([PARTS[word.lower()] for word in table_words.words], np.uint8)
    split[table_words.rows.nodes(source)] = parts[table_words.codes[:, 0]]
    source.set_split(split, path)


def not_a_part(text: str) -> str | None:
    """Return the fault of a word that is no part, or None."""
    return None if text.lower() in PARTS else f"part {text[:40]!r}; expected train, val, test or none"


def array_parts(values: np.ndarray) -> np.ndarray:
    """Convert parts in words, or numbers from 0 to 3 of which 3 is one, to uint8.

    Raises:
        ArgumentError: of `split`, for other values, or numbers that may not be meant so.
    """
    if values.dtype == bool:
        problem = "a mask is one part; expected a part for each node, or three masks, or {'train': mask}"
        raise ArgumentError("split", "a mask", problem)
    distinct, places, codes = np.unique(
        np.array([_word(value) for value in values.tolist()], "U"), return_index=True, return_inverse=True
    )
    for word, place in zip(distinct.tolist(), places, strict=True):
        if fault := not_a_part(word):
            raise ArgumentError("split", values[place], f"node {place} has {fault}")
    words = distinct.tolist()
    if "3" not in words and (unclear := wrong_parts(words)):
        raise ArgumentError("split", ", ".join(words), unclear)
    return np.array([PARTS[word.lower()] for word in words], np.uint8)[codes.reshape(-1)]


def _word(value: object) -> str:
    """Return a part as text; a whole number without its point."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return "" if value is None else str(value)


def check_parts(words: list[str], path: Path) -> None:
    """Raise UserError for numbers of parts that are not 1, 2 and 3, with or without 0."""
    if problem := wrong_parts(words):
        raise UserError(f"{path}: {problem}")


def wrong_parts(words: list[str]) -> str | None:
    """Return what is wrong with numbers of parts that are not 1, 2 and 3, with or without 0.

    Else 0, 1 and 2 may be meant as train, val and test. In a table of words 0 means none.
    """
    numbers = sorted({"0", "1", "2", "3"} & {*words})
    beside_words = numbers == ["0"] and any(PARTS[word.lower()] for word in words)
    if not numbers or beside_words or {"1", "2", "3"} <= {*numbers}:
        return None
    codes = "0 none, 1 train, 2 val, 3 test"
    expected = f"train, val, test or none, or all of these numbers ({codes})"
    return f"cannot tell the parts from {', '.join(numbers)}; expected {expected}"
