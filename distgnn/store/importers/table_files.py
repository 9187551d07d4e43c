"""Tables in files, by the endings of their names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from distgnn.store.importers.arrow_tables import JsonLines, ParquetTable
from distgnn.store.importers.table import Table
from distgnn.store.importers.text_table import TextTable

PARQUET, JSON_LINES = (".parquet", ".pq"), (".jsonl", ".ndjson")
TABLES = (".csv", ".tsv", ".txt", *PARQUET, *JSON_LINES)


def is_array(path: Path) -> bool:
    """Return True for the name of a file of arrays."""
    return path.name.lower().endswith((".npy", ".npz"))


def is_json(path: Path) -> bool:
    """Return True for the name of a JSON file."""
    return path.name.lower().removesuffix(".gz").endswith(".json")


def is_table(path: Path) -> bool:
    """Return whether the name is that of a table with columns."""
    return path.name.lower().removesuffix(".gz").endswith(TABLES)


def open_table(path: Path, options: Any, by_node: bool = True, whole_lines: bool = False) -> Table:
    """Open a Parquet file, which may be a table `by_node`, JSON lines, or any other file as text."""
    name = path.name.lower()
    if name.endswith(PARQUET):
        return ParquetTable(path, by_node)
    if name.removesuffix(".gz").endswith(JSON_LINES):
        return JsonLines(path)
    return TextTable(path, options, whole_lines)
