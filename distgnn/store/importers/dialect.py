"""Dialects of text tables: separator, comments and header, told from the beginning of a file as a whole."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distgnn.errors import ArgumentError, UserError
from distgnn.store.importers.files import (
    BYTE_ORDER_MARK,
    check_line,
    check_unpacked,
    reading,
    size_of,
    unpacked,
)
from distgnn.store.importers.names import is_number
from distgnn.store.source import ImportOptions

SAMPLE = 1 << 16  # bytes, by which a dialect is told
MARKS = {"tab": "\t", "comma": ",", "semicolon": ";", "bar": "|", "blank": " "}
#: How files of other kinds begin that are named as texts, and what to do with them.
OTHERS = (
    (rb"PK\x03\x04", "is a Zip archive; unpack it first"),
    (rb"%%MatrixMarket", "is a Matrix Market file; name it .mtx, or give format=mtx"),
    (rb"version https://git-lfs", "is a pointer of Git LFS; fetch the file itself with git lfs pull"),
    (rb"\s*<(\?xml|!doctype|html|graphml|gexf)", "is XML or HTML; save its edges as CSV"),
    (rb"\s*\*(vertices|network)", "is a file of Pajek; save its edges as CSV"),
    (rb'\s*(\[\s*)?[{\[]\s*("|$)', "is JSON; name it .jsonl, with an object in each line"),
    (rb".?\0|.+\0", "holds zero bytes, as UTF-16 text does; save it as UTF-8"),
)
_HEX = re.compile(r"0[xX][0-9a-fA-F]+")
_SAYS_SEPARATOR = re.compile(r"sep=(.)$", re.IGNORECASE)


@dataclass
class Dialect:
    """The separator of a text, and the place where its rows begin.

    Attributes:
        separator: a character; a blank stands for any number of blanks and tabs.
        start, line: bytes and lines before the first row of data.
        names: of the columns, empty without a header, which begins at byte and line `header`.
        rows: of data in the sample, as texts.
        left_out: lines of comments before the first row.
        comments: the character that begins comments further on, if any.
    """

    separator: str
    start: int = 0
    line: int = 0
    names: list[str] = field(default_factory=list)
    header: tuple[int, int] = (0, 0)
    rows: list[list[str]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    comments: str = ""

    @property
    def width(self) -> int:
        """Number of the fields of a row."""
        return len(self.names) or (len(self.rows[0]) if self.rows else 0)

    def split(self, lines: Iterator[str], strict: bool = False) -> Iterator[list[str]]:
        """Split rows into fields, without the blanks around them; csv.Error for odd quotes if `strict`."""
        for row in self.reader(lines, strict):
            yield [*map(str.strip, row)]

    def reader(self, lines: Iterable[str], strict: bool = False) -> Any:
        """Return the reader of CSV in Python for this dialect."""
        blanks = self.separator != " "  # are skipped behind a separator
        return csv.reader(lines, delimiter=self.separator, skipinitialspace=blanks, strict=strict)

    def clean(self, lines: bytes) -> bytes:
        """Change whole lines to plain CSV: no comments, single blanks, quotes at separators."""
        if self.comments:
            lines = re.sub(
                rb"(?m)(^|[ \t])[ \t]*" + re.escape(self.comments.encode()) + rb"[^\r\n]*", b"", lines
            )
        if b'\\"' in lines:
            lines = self._doubled(lines)
        if self.separator == " ":
            return _single_blanks(lines)
        if b" " not in lines and b"\t" not in lines:
            return lines
        tabs = (b"\t",) if self.separator != "\t" else ()  # are blanks, too
        if any(b'"' + blank in lines or blank + b'"' in lines for blank in (b" ", *tabs)):
            mark, blanks = re.escape(self.separator.encode()), rb"[ \t]+" if tabs else rb" +"
            at_quotes = rb"(?m)(^|" + mark + rb")" + blanks + rb'"|"' + blanks + rb"(?=$|\r|" + mark + rb")"
            lines = re.sub(at_quotes, _closer, lines)
        if lines[:1] in (b" ", b"\t") or b"\n " in lines or b"\n\t" in lines:
            lines = re.sub(rb"(?m)^[ \t]+(?=\r?$)", b"", lines)
        return lines

    def _doubled(self, lines: bytes) -> bytes:
        """Put two quotes for each that R puts behind a backslash, unless they may end a field."""
        ends = (rb" \t" if self.separator == " " else re.escape(self.separator.encode())) + rb"\r\n"
        inside = rb'(?:^|[%b])"[^"]*\\"(?:[^"%b]|"(?:[%b]|$))' % (ends, ends, ends)
        return lines.replace(b'\\"', b'""') if re.search(inside, lines) else lines


def _single_blanks(lines: bytes) -> bytes:
    """Put one blank between fields, and none around rows; blanks in quotes stay."""
    if b'"' in lines and (b"\t" in lines or b"  " in lines):
        lines = re.sub(rb'("[^"]*")|[ \t]+', lambda match: match[1] or b" ", lines)
    else:
        lines = lines.replace(b"\t", b" ")
        while b"  " in lines:
            lines = lines.replace(b"  ", b" ")
    for around in (b"\n ", b" \n", b" \r"):
        lines = lines.replace(around, around.strip(b" "))
    return lines.removeprefix(b" ").removesuffix(b" ")


def _closer(match: re.Match[bytes]) -> bytes:
    return b'"' if match[1] is None else match[1] + b'"'


def tell(path: Path, options: ImportOptions, whole_lines: bool = False) -> Dialect:
    """Tell the dialect of a file; with `whole_lines` blanks are no separators.

    Raises UserError for another encoding, and for a text that two separators cut evenly.
    """
    options.used |= {"separator", "comments"}
    marks = "#%" if options.comments is None else options.comments.replace("none", "")
    text, start = _sample(path, marks)
    lines = lines_of(text)
    begin, said = 0, ""
    if lines and (match := _SAYS_SEPARATOR.match(lines[0].strip())):
        begin, said = 1, match[1]
    first = begin
    while first < len(lines) and (not (text := lines[first].strip()) or _comment(text, marks)):
        first += 1
    separator = said or _separator(path, options, lines[first:], whole_lines)
    dialect = Dialect(
        separator, comments="" if options.comments in (None, "none") else options.comments or ""
    )
    while first > begin and _is_row(dialect, lines, first - 1, marks):
        first -= 1
    dialect.left_out = [text for line in lines[:first] if (text := line.strip())]
    data = "".join(lines[first:])
    cleaned = dialect.clean(data.encode()).decode()
    try:
        rows = [row for row in dialect.split(iter(lines_of(cleaned))) if any(row)]
    except csv.Error as error:
        raise UserError(f"{path}, line {first + 1}: {error}; expected rows of CSV") from None
    before = lambda count: start + len("".join(lines[:count]).encode())  # noqa: E731
    dialect.start, dialect.line, dialect.header = before(first), first, (before(first), first)
    if rows and _is_header(rows[0]):
        dialect.names = [""] * (len(rows) > 1 and len(rows[0]) + 1 == len(rows[1])) + rows[0]
        height = _lines_of_row(dialect, lines[first:])
        dialect.start, dialect.line, rows = before(first + height), first + height, rows[1:]
    dialect.rows = rows
    return dialect


def _sample(path: Path, marks: str) -> tuple[str, int]:
    """Return the text of the comments and of some rows behind them, and the bytes before it."""
    comments = re.compile(rb"(?:[ \t]*(?:[%b][^\r\n]*)?[\r\n])*" % (re.escape(marks).encode() or b" "))
    data, packed = b"", size_of(path)
    with reading(path), unpacked(path) as file:
        while more := file.read(max(SAMPLE, len(data))):
            data += more
            check_unpacked(len(data), packed, path)
            if not (lines := max(data.rfind(b"\n"), data.rfind(b"\r")) + 1):
                check_line(len(data), 1, path)
            elif lines - comments.match(data).end() > SAMPLE // 2:  # type: ignore[union-attr]
                break
        whole = not more
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise UserError(f"{path}: is UTF-16 text; save it as UTF-8")
    for begin, what in OTHERS:
        if re.match(begin, data.removeprefix(BYTE_ORDER_MARK)[:200], re.IGNORECASE):
            raise UserError(f"{path}: {what}")
    start = len(BYTE_ORDER_MARK) if data.startswith(BYTE_ORDER_MARK) else 0
    data = data[start:] if whole else _rows_of(data[start:])
    try:
        return data.decode("utf-8"), start
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{path}, line {line}: is not UTF-8 text (byte {start + error.start}); save it as UTF-8"
        ) from None


def _rows_of(data: bytes) -> bytes:
    """Cut off the last row, which may end later; so may a quoted field that began some lines before."""
    cut = lines = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
    for _ in range(100):
        if cut > 0 and data.count(b'"', 0, cut) % 2:
            cut = max(data.rfind(b"\n", 0, cut - 1), data.rfind(b"\r", 0, cut - 1)) + 1
    return data[: lines if data.count(b'"', 0, cut) % 2 else cut or lines]


def lines_of(text: str) -> list[str]:
    """Cut a text behind each line feed or carriage return, and nowhere else."""
    return list(io.StringIO(text, newline=""))


def _comment(line: str, marks: str) -> bool:
    """Return True for a line that begins with # or, before a blank or another one, with %."""
    return line[0] in marks and (line[0] != "%" or line[1:2].strip() in ("", "%"))


def _is_row(dialect: Dialect, lines: list[str], number: int, marks: str) -> bool:
    """Return True for a line such as ``#ai,#python`` before rows that have such names, too."""
    if (
        number + 1 >= len(lines)
        or not (line := lines[number].strip())
        or line[1:2] in ("", " ", "\t", line[0])
    ):
        return False
    rows = [
        *dialect.split(iter([dialect.clean(line.encode()).decode() for line in lines[number : number + 200]]))
    ]
    fields, others = rows[0], [row for row in rows[1:] if len(row) == len(rows[0])]
    alike = any(field and field[0] in marks for row in (fields[1:], *others) for field in row)
    return len(fields) > 1 and bool(others) and (alike or any(fields[0] in row for row in others))


def _separator(path: Path, options: ImportOptions, lines: list[str], whole_lines: bool) -> str:
    """Return the character that cuts all lines evenly."""
    if options.separator is not None:
        mark = MARKS.get(options.separator, options.separator)
        if len(mark) != 1:
            problem = f"expected one character, or {', '.join(MARKS)}"
            raise ArgumentError("separator", options.separator, problem)
        return mark
    text = "".join(lines)
    even, best = list[str](), (0, ",")
    for mark in [*"\t;|,", *([] if whole_lines else " ")]:
        if mark not in text and (mark != " " or "\t" not in text):
            continue
        rows = _cut(mark, lines)
        widths = Counter(map(len, rows[1:] or rows))
        several = Counter(len(row) for row in rows if len(row) > 1)
        width, count = several.most_common(1)[0] if several else (0, 0)
        if width > 1 and [*widths] == [width] and len(rows[0]) in (width, width - 1):
            even.append(mark)
        elif count > best[0]:
            best = count, mark
    if not even:
        return best[1]
    return _choice(path, even, text)


def _cut(mark: str, lines: list[str]) -> list[list[str]]:
    dialect = Dialect(mark)
    cleaned = lines_of(dialect.clean("".join(lines).encode()).decode())
    try:
        return [row for row in dialect.split(iter(cleaned), strict=True) if any(row)] or [[]]
    except csv.Error:
        return [[]]


def _choice(path: Path, even: list[str], text: str) -> str:
    """Choose among characters that all cut the lines evenly; UserError where they are alike."""
    name = path.name.lower().partition(".")[2]
    if "\t" in even:
        return "\t"
    if " " in even and len(even) > 1:
        beside = "[" + re.escape("".join(even).replace(" ", "")) + "]"
        apart = re.search(r"\S[ \t]+\S", re.sub(rf"[ \t]*{beside}[ \t]*", "", text))
        if not apart or "csv" in name or '"' in text:
            even.remove(" ")
    if "," in even and len(even) > 1 and not re.search(r",(?!\s)(?!\d)|(?<!\d),(?!\s)", text):
        even.remove(",")  # behind each comma is a blank, or it is that of a decimal fraction
    if len(even) > 1:
        names = " or ".join(name for name, mark in MARKS.items() if mark in even)
        cut = ", ".join(f"separator={name}" for name, mark in MARKS.items() if mark in even)
        raise UserError(f"{path}: {names} could part the columns; expected one of {cut}")
    return even[0]


def _is_header(row: list[str]) -> bool:
    """Return True for a row without numbers."""
    fields = [field for field in row if field]
    return bool(fields) and not any(is_number(field) or _HEX.fullmatch(field) for field in fields)


def _lines_of_row(dialect: Dialect, lines: list[str]) -> int:
    """Count the lines up to the end of the first row."""
    reader = dialect.reader(io.StringIO("".join(lines), newline=""))
    for row in reader:
        if any(map(str.strip, row)):
            return reader.line_num
    return 0
