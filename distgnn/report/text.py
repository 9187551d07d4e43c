"""Tables as text: aligned columns for a terminal, Markdown for pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

WIDTH = 110  # characters of a line


def aligned(rows: Sequence[Sequence[str]], left: int | None = None) -> list[str]:
    """Return the rows as lines: the first ``left`` columns, or all, flush left, the others flush right.

    Two spaces part columns, or one where a line would have more than ``WIDTH`` characters.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    left = len(widths) if left is None else left
    gap = "  " if sum(widths) + 2 * len(widths) <= WIDTH else " "
    return [
        gap.join(
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in rows
    ]


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]], left: int | None = None) -> list[str]:
    """Return the lines of a Markdown table; the first ``left`` columns, or all, flush left."""
    left = len(heads) if left is None else left
    head, *lines = (f"| {' | '.join(line)} |" for line in (heads, *rows))
    return [head, f"|{'---|' * left}{'---:|' * (len(heads) - left)}", *lines]
