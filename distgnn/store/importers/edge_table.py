"""Tables of edges: columns of sources and targets, perhaps one of weights, and the kind of the ids."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from distgnn.errors import ArgumentError, UserError
from distgnn.store.importers.arrow import numpy_of, places
from distgnn.store.importers.coded_edges import NO_NAMES, Batch, CodedEdges
from distgnn.store.importers.imported import Imported
from distgnn.store.importers.names import Names, integer, is_number
from distgnn.store.importers.roles import END_NAMES, comments, edge_roles
from distgnn.store.importers.table import ID_NAMES, WantedColumn, WrongValue
from distgnn.store.importers.table_files import open_table
from distgnn.store.importers.text_table import TextTable
from distgnn.store.source import IDS, Edges, ImportOptions


class EdgeTable:
    """A table of edges: its columns of sources, targets and perhaps weights, and the kind of its ids.

    `words`: ids are words, else whole numbers; `unsure`: the header may be an edge; `why`: the text by which
    ids are words where others are numbers.
    """

    def __init__(self, path: Path, options: ImportOptions) -> None:
        if options.ids not in (None, *IDS):
            raise ArgumentError("ids", options.ids, f"unknown; expected one of {', '.join(IDS)}")
        self.path, self.options, self.why = path, options, ""
        self.table = open_table(path, options, by_node=False)
        if self.table.konect == "bip":
            what = f"line 1 {self.table.comments[0][:40]!r} says that sources and targets are numbered apart"
            raise UserError(f"{path}: {what}; expected ids of which no target has that of a source")
        *ends, self.weight = edge_roles(self.table, options)
        self.ends = ends
        self.coded: CodedEdges | None = None
        kinds = {self.table.kinds[k] for k in ends if k < len(self.table.kinds)}
        self.words = options.ids == "text" or (options.ids is None and "words" in kinds)
        for column in ends if self.table.names else ():
            numbers = ("integers", "numbers")
            given = (*numbers, "words") if options.ids == "text" else ("words",) if self.words else numbers
            self.table.require(column, given, "node ids, whole numbers or strings")
        if self.words and options.ids is None and isinstance(self.table, TextTable):
            some = [row[k] for row in self.table.text.dialect.rows for k in ends if k < len(row)]
            others = (text for text in some if integer(text) is None and text not in NO_NAMES)
            self.why = next(others, "") if any(integer(text) is not None for text in some) else ""
        self.unsure = self.words and self._maybe_no_header()

    def _maybe_no_header(self) -> bool:
        """Return True if the header may be an edge between words: it has no usual name and no chosen one."""
        others = {kind for k, kind in enumerate(self.table.kinds) if k not in self.ends}
        if not self.table.named or not isinstance(self.table, TextTable) or not others <= {"words", "empty"}:
            return False
        names = {self.table.names[k] for k in self.ends}
        usual = {name.lower() for name in names} & {*END_NAMES, *ID_NAMES, ""}
        return not usual and not {self.options.source_column, self.options.target_column} & names

    @property
    def weighted(self) -> bool:
        """True if weights are taken."""
        return self.options.weights and self.weight is not None

    def _batches(self, kind: str, expected: str) -> Iterator[Batch]:
        wanted, done = [WantedColumn(column, kind, expected) for column in self.ends], 0
        if self.weighted and self.weight is not None:
            wanted.append(WantedColumn(self.weight, "numbers", "a finite number as weight"))
        for columns in self.table.batches(wanted) if self.table.names else ():
            weight = None
            if self.weighted:
                weight = numpy_of(columns[2]).astype(np.float64, copy=False)
                if not (good := np.isfinite(weight)).all():
                    row = int(np.argmin(good))
                    text = "" if np.isnan(weight[row]) else weight[row]
                    raise self.table.bad(done + row, wanted[2].column, text, wanted[2].expected)
            yield columns[:2], weight
            done += len(columns[0])

    def numbers(self, low: int = -(1 << 63), high: int = (1 << 63) - 1) -> Iterator[Edges]:
        """Yield edges between whole numbers; the UserError for one outside low..high names its line."""
        advice = " of at least 0, or ids=integers" if not low else ""
        expected, done = f"a node id, a whole number{advice}, or ids=text", 0
        for columns, weight in self._batches("integers", expected):
            ends = [numpy_of(column) for column in columns]
            for column, ids in zip(self.ends, ends, strict=True):
                if len(ids) and (ids.min() < low or ids.max() > high):
                    row = int(np.argmax((ids < low) | (ids > high)))
                    above = "" if ids[row] < low else f", at most {high}"
                    raise self.table.bad(done + row, column, ids[row], expected + above)
            yield ends[0], ends[1], weight
            done += len(ends[0])

    def take_words(self, error: WrongValue) -> bool:
        """Take ids for words after one that is no whole number; return False for what cannot be a word."""
        text = error.text
        if (
            self.options.ids is not None
            or not isinstance(self.table, TextTable)
            or error.column not in self.ends
        ):
            return False
        if text in NO_NAMES or text[:2] in ("# ", "% ") or (is_number(text) and not text.isdecimal()):
            return False
        if self.table.named and text == self.table.names[error.column]:
            place = str(error).partition(", column")[0]
            raise UserError(f"{place}: repeats the header; expected one header, in the first line")
        self._words_as(text)
        return True

    def _words_as(self, why: str) -> None:
        self.words, self.why, self.unsure = True, why, self._maybe_no_header()

    def leading_zeros(self) -> bool:
        """Return True if an id has a leading zero: 7 and 007 may be two nodes."""
        if not isinstance(self.table, TextTable) or not self.table.leading_zeros:
            return False
        done, pattern = 0, r"^\s*-?0[xX]" if self.options.ids else r"^\s*-?0[0-9xX]"
        for columns, _ in self._batches("words", "a node id"):
            for end, column in zip(self.ends, columns, strict=True):
                rows = places(pc.match_substring_regex(column, pattern))
                if len(rows) and self.options.ids:
                    raise self.table.bad(done + rows[0], end, "", "a whole number in digits, or ids=text")
                if len(rows):
                    self._words_as(column[rows[0]].as_py().strip())
                    return True
            done += len(columns[0])
        return False

    def read_words(self) -> CodedEdges:
        """Read the edges between words, unless that was done."""
        if self.coded is None:
            batches, scratch = self._batches("words", "a node id"), self.options.scratch
            self.coded = CodedEdges(self.table, self.ends, batches, self.weighted, scratch)
        return self.coded

    def settle_header(self, ids: Names) -> bool:
        """Take the header as an edge if one of its words is an id; return True if it was one."""
        if self.words and (self.why or not self.unsure):
            self.read_words().check_header()
        was_edge = self.unsure and ids.has(*(self.table.names[k] for k in self.ends))
        if was_edge and isinstance(self.table, TextTable):
            self.table.take_header()
            self.unsure, self.coded = False, None
        return was_edge

    def note(self, ids: str, source: Imported) -> None:
        """Note for the summary the columns that were read as edges; `ids`: the kind of ids."""
        taken = [*self.ends, *([self.weight] if self.weighted and self.weight is not None else [])]
        columns = ", ".join(map(self.table.called, taken if self.table.names else []))
        lines = comments(self.table)
        source.note_table(f"{self.path.name} (edges in {columns}, ids are {ids}{lines})", self.table, taken)
        if self.why:
            others = "of which some are whole numbers; ids=integers would refuse others"
            source.notes.append(f"{self.path}: ids are words, such as {self.why[:40]!r}, {others}")
        source.weighted = self.weight is not None and self._some_weight()

    def _some_weight(self) -> bool:
        """Return True if one of the first weights is another number than 1."""
        for columns in self.table.batches([WantedColumn(self.weight or 0, "words", "a number")]):
            return any(
                is_number(text or "1") and float(text or "1") != 1 for text in columns[0][:1000].to_pylist()
            )
        return False
