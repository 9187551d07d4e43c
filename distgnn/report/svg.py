"""Drawings as SVG: lines, stacked bars, a matrix, spans of time. Text stays text; sizes suit 400 pixels.

Every mark has a ``<title>``, which browsers show under the pointer. Colours are attributes, for viewers
without CSS; :func:`style` replaces some of them on dark screens.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from xml.sax.saxutils import escape, quoteattr

from distgnn.report.numbers import short

WIDTH, FONT = 460, 12  # pixels
LETTER = 7.0  # the mean width of a letter
WIDE, THIN = "mwMWGQ@%", "ijltfI.,:;' "
INK, FAINT, GRID, PAPER = "#1b1e23", "#4b5058", "#dfe2e6", "#ffffff"
CELL = "#7aa0de"  # of a matrix, the more opaque the larger the number: text stays readable on all of it
#: Colours on dark screens, by those that they replace.
DARK = {INK: "#e4e7eb", FAINT: "#aab2bd", GRID: "#363c45", PAPER: "#15181c", CELL: "#2f5ea8"}
DASHES = ("", "7 4", "2 3", "9 3 2 3")
MOST_STRIPS = 200  # of a drawing that say their values


@dataclass
class Axis:
    """A label with its unit, and the range of an axis: from 0 or by powers of ``base``."""

    label: str
    base: int | None = None
    whole: bool = False
    least: float | None = 0.0  # shown in any case, on a linear axis
    ticks: Sequence[float] | None = None

    def span(self, values: Iterable[float]) -> tuple[float, float]:
        """Return the least and the greatest value on the axis."""
        shown = [value for value in values if value > 0 or self.base is None]
        low, high = min(shown, default=1.0), max(shown, default=1.0)
        if self.base is None:
            low = low if self.least is None else min(low, self.least)
            room = 0.0 if self.whole else 0.05 * (high - low)
            return low - (room if self.least is None else 0.0), high + room if high > low else low + 1.0
        return low / 1.15, high * 1.15

    def marks(self, low: float, high: float) -> list[float]:
        """Return the values at which the axis has numbers."""
        if self.ticks is not None:
            return [tick for tick in self.ticks if low <= tick <= high]
        if self.base is not None:
            return _powers(low, high, self.base)
        step = nice((high - low) / 5)
        step = max(1.0, round(step)) if self.whole else step
        return [step * i for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]

    def place(self, value: float, low: float, high: float) -> float:
        """Return the place of a value on the axis, from 0 to 1."""
        if self.base is None:
            return (value - low) / (high - low)
        return math.log(value / low) / math.log(high / low)


def length(text: str) -> float:
    """Estimate how wide a text is, in pixels."""
    return LETTER * sum(map(_width, text))


def _width(letter: str) -> float:
    """Estimate the width of a letter, as a multiple of that of the mean small letter."""
    if letter in WIDE:
        return 1.5
    if letter in THIN:
        return 0.6
    return 1.2 if letter.isupper() else 1.0


def nice(step: float) -> float:
    """Return 1, 2 or 5 times a power of ten, at least this step."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= step * (1 - 1e-9))


def _powers(low: float, high: float, base: int) -> list[float]:
    first, last = math.ceil(math.log(low, base) - 1e-9), math.floor(math.log(high, base) + 1e-9)
    powers = [float(base) ** power for power in range(first, last + 1)]
    for factors in (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 7), [0.1 * k for k in range(10, 100)]:
        if base == 10 and len(powers) < 3:  # a short axis
            powers = [10.0**p * k for p in range(first - 1, last + 1) for k in factors]
            powers = [power for power in powers if low <= power <= high]
    return powers[:: -(-len(powers) // 9) or 1]


@dataclass
class Line:
    """A curve of points.

    Attributes:
        marker: the mark of each point: "dot", "cross", "ring" or "" for none.
        joined: draw a line through the points.
        spread: the least and the greatest value by x, drawn as whiskers.
    """

    label: str
    colour: str
    points: Sequence[tuple[float, float]]
    dash: str = ""
    width: float = 2.0
    marker: str = "dot"
    joined: bool = True
    spread: Mapping[float, tuple[float, float]] | None = None


def style() -> str:
    """Return the CSS of drawings: their colours on dark screens, and the strip under the pointer."""
    dark = "".join(
        f'svg [fill="{light}"]{{fill:{colour}}}svg [stroke="{light}"]{{stroke:{colour}}}'
        for light, colour in DARK.items()
    )
    hover = "svg text{pointer-events:none}svg .strip:hover{fill-opacity:.1}"
    return f"{hover}@media screen and (prefers-color-scheme:dark){{{dark}}}"


def lines(what: str, curves: Sequence[Line], x: Axis, y: Axis, height: int = 250) -> str:
    """Draw curves in a frame with a legend above it; ``what`` is the title for screen readers."""
    xs = x.span(p for curve in curves for p, _ in curve.points)
    shown = [p for curve in curves for _, p in curve.points]
    shown += [end for curve in curves for ends in (curve.spread or {}).values() for end in ends]
    ys = y.span(shown)
    named = [curve for curve in curves if curve.label]
    looks = [(curve.colour, curve.dash if curve.joined else curve.marker) for curve in named]
    legend, top = _legend([(curve.label, *look) for curve, look in zip(named, looks, strict=True)])
    left, right, bottom = 62.0, WIDTH - 14.0, top + height
    to_x = lambda value: left + (right - left) * x.place(value, *xs)  # noqa: E731
    to_y = lambda value: bottom - height * y.place(value, *ys)  # noqa: E731
    parts = [*legend, *_frame(left, top, right, bottom)]
    for tick in y.marks(*ys):
        parts += [
            _rule(left, to_y(tick), right, to_y(tick)),
            _text(left - 6, to_y(tick) + 4, short(tick), "end"),
        ]
    last = -math.inf
    for tick in x.marks(*xs):
        parts.append(_rule(to_x(tick), top, to_x(tick), bottom))
        if to_x(tick) - last >= LETTER * (len(short(tick)) + 1):
            parts.append(_text(to_x(tick), bottom + 16, short(tick), "middle"))
            last = to_x(tick)
    parts += _strips(curves, x.label, to_x, (left, top, right, bottom))
    for curve in curves:
        parts += _curve(curve, [(to_x(a), to_y(b), f"{short(a)}: {short(b)}") for a, b in curve.points])
        for at, (low, high) in (curve.spread or {}).items():
            parts.append(_rule(to_x(at), to_y(low), to_x(at), to_y(high), curve.colour))
    parts.append(_text((left + right) / 2, bottom + 34, x.label, "middle", FAINT))
    parts.append(_text(15, (top + bottom) / 2, y.label, "middle", FAINT, turned=True))
    return _drawing(what, bottom + 42, parts)


def _strips(
    curves: Sequence[Line], label: str, to_x: Callable[[float], float], frame: tuple[float, ...]
) -> list[str]:
    """Draw invisible strips from the top of the frame to its bottom that say what all curves are there."""
    values: dict[float, list[str]] = defaultdict(list)
    for curve in curves:
        for x, y in curve.points:
            values[x].append(f"{curve.label}: {y:.6g}")
    shown = sorted(values)[:: -(-len(values) // MOST_STRIPS) or 1]
    left, top, right, bottom = frame
    middles = [(to_x(a) + to_x(b)) / 2 for a, b in pairwise(shown)]
    return [
        _box(start, top, max(end - start, 0.1), bottom - top, INK, "\n".join([f"{label} {x:g}", *values[x]]),
             ' class="strip" fill-opacity="0"')
        for x, (start, end) in zip(shown, pairwise([left, *middles, right]), strict=True)
    ]  # fmt: skip


def _curve(curve: Line, points: Sequence[tuple[float, float, str]]) -> list[str]:
    path = " ".join(f"{'L' if i else 'M'}{x:.1f} {y:.1f}" for i, (x, y, _) in enumerate(points))
    dash = f' stroke-dasharray="{curve.dash}"' if curve.dash else ""
    look = f'fill="none" stroke="{curve.colour}" stroke-width="{curve.width:g}" stroke-linejoin="round"'
    parts = [f'<path d="{path}" {look}{dash}/>'] if curve.joined and len(points) > 1 else []
    marker = curve.marker or ("dot" if len(points) == 1 else "")
    for x, y, values in points if marker else ():
        title = f"<title>{escape(f'{curve.label}, {values}'.strip(', '))}</title>"
        parts.append(_marker(marker, x, y, curve.colour, title))
    return parts


def _marker(marker: str, x: float, y: float, colour: str, title: str = "") -> str:
    if marker == "cross":
        arms = f"M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8"
        return f'<path d="{arms}" stroke="{colour}" stroke-width="2" fill="none">{title}</path>'
    place = f'cx="{x:.1f}" cy="{y:.1f}"'
    if marker == "ring":
        return f'<circle {place} r="6" fill="none" stroke="{colour}">{title}</circle>'
    return f'<circle {place} r="3.5" fill="{colour}">{title}</circle>'


def bars(
    what: str, rows: Sequence[tuple[str, Mapping[str, float]]], colours: Mapping[str, str], axis: Axis
) -> str:  # fmt: skip
    """Draw a stacked bar of parts for each row; parts are in the order of their colours."""
    legend, top = _legend([(part, colour, None) for part, colour in colours.items()])
    thick = min(20.0, max(3.0, 640 / max(len(rows), 1)))
    left = min(150.0, 14 + max((length(label) for label, _ in rows), default=1.0))
    right, bottom = WIDTH - 14.0, top + 1.35 * thick * len(rows) + 4
    ends = axis.span(sum(parts.values()) for _, parts in rows)
    to_x = lambda value: left + (right - left) * axis.place(value, *ends)  # noqa: E731
    drawn = [*legend]
    for tick in axis.marks(*ends):
        drawn += [
            _rule(to_x(tick), top, to_x(tick), bottom),
            _text(to_x(tick), bottom + 16, short(tick), "middle"),
        ]
    every = math.ceil(FONT / (1.35 * thick))  # rows that have a label
    for number, (label, parts) in enumerate(rows):
        y = top + 4 + 1.35 * thick * number
        if number % every == 0:
            drawn.append(_text(left - 6, y + thick / 2 + 4, _cut(label, left - 10), "end"))
        sizes = [(part, parts.get(part, 0.0)) for part in colours]
        for (part, value), (a, b) in zip(
            sizes, pairwise(accumulate((v for _, v in sizes), initial=0.0)), strict=True
        ):
            if value > 0:
                tip = f"{label}, {part}: {short(value)}"
                drawn.append(_box(to_x(a), y, to_x(b) - to_x(a), thick, colours[part], tip))
    drawn.append(_text((left + right) / 2, bottom + 34, axis.label, "middle", FAINT))
    return _drawing(what, bottom + 42, drawn)


def matrix(
    what: str, numbers: Sequence[Sequence[float]], rows: str, columns: str, labels: Sequence[str]
) -> str:  # fmt: skip
    """Draw cells that are the darker the larger their number; with the numbers if there are few.

    ``labels``: of the rows, and of the columns.
    """
    count, most = len(numbers), max(map(max, numbers)) or 1
    left, top = 58.0, 40.0
    cell = min(60.0, (WIDTH - 14 - left) / max(count, 1))
    every = math.ceil(24 / cell)
    drawn = [_text(left + cell * count / 2, 14, columns, "middle", FAINT)]
    drawn.append(_text(15, top + cell * count / 2, rows, "middle", FAINT, turned=True))
    for i, row in enumerate(numbers):
        middle = (i + 0.5) * cell
        if i % every == 0:
            drawn += [
                _text(left - 7, top + middle + 4, labels[i], "end"),
                _text(left + middle, top - 7, labels[i], "middle"),
            ]
        for j, number in enumerate(row):
            x, y = left + j * cell, top + i * cell
            tip = f"{rows} {labels[i]}, {columns} {labels[j]}: {number:,}"
            shade = 0.06 + 0.94 * number / most if number else 0.0
            drawn.append(_box(x, y, cell, cell, CELL, tip, f' fill-opacity="{shade:.2f}"'))
            if cell > 34 and number:
                drawn.append(_text(x + cell / 2, y + cell / 2 + 4, short(number), "middle"))
    drawn += _frame(left, top, left + count * cell, top + count * cell)
    return _drawing(what, top + count * cell + 6, drawn)


def spans(
    what: str, rows: Sequence[str], times_by_row: Mapping[tuple[int, str], Sequence[tuple[float, float]]],
    colours: Mapping[str, str], axis: Axis, end: float,
) -> str:  # fmt: skip
    """Draw spans of time, (start, length) by (row, kind), from 0 to ``end``; one path per row and kind."""
    legend, top = _legend([(kind, colour, None) for kind, colour in colours.items()])
    left, right, thick = (
        14 + 0.95 * max(map(length, rows)),
        WIDTH - 14.0,
        min(13.0, max(2.0, 900 / len(rows))),
    )
    bottom, scale = top + thick * len(rows) + 4, (right - left) / (end or 1.0)
    drawn = [*legend]
    for tick in axis.marks(0.0, end):
        x = left + scale * tick
        drawn += [_rule(x, top, x, bottom), _text(x, bottom + 16, short(tick), "middle")]
    every = math.ceil(FONT / thick)
    drawn += [
        _text(left - 6, top + thick * i + thick / 2 + 5, label, "end", size=min(11.0, thick * every))
        for i, label in enumerate(rows)
        if i % every == 0
    ]
    for (row, kind), times in times_by_row.items():
        y, path = top + thick * row + 2, []
        for start, lasts in times:
            a, b = max(start, 0.0), min(start + lasts, end)
            x, long = left + scale * a, max(scale * (b - a), 0.2)
            path.append(f"M{x:.2f} {y:.1f}h{long:.2f}v{0.86 * thick:.1f}H{x:.2f}z")
        caption = f"{rows[row]}, {kind}: {len(times)} times, {short(sum(t for _, t in times))} {axis.label}"
        title = f"<title>{escape(caption)}</title>"
        drawn.append(f'<path d="{"".join(path)}" fill="{colours.get(kind, INK)}">{title}</path>')
    drawn.append(_text((left + right) / 2, bottom + 34, axis.label, "middle", FAINT))
    return _drawing(what, bottom + 42, drawn)


def beside(what: str, drawings: Sequence[tuple[str, str]], across: int = 2) -> str:
    """Draw drawings with their titles in one file, ``across`` in a row."""
    heights = [float(text.split('viewBox="0 0 ')[1].split('"')[0].split()[1]) for _, text in drawings]
    parts, y = [f'<style>{style()}</style><rect width="100%" height="100%" fill="{PAPER}"/>'], 0.0
    for first in range(0, len(drawings), across):
        for column, (title, text) in enumerate(drawings[first : first + across]):
            x = column * WIDTH
            parts.append(_text(x + WIDTH / 2, y + 18, title, "middle", size=14))
            size = f'width="{WIDTH}" height="{heights[first + column]:.0f}"'
            parts.append(text.replace("<svg ", f'<svg x="{x}" y="{y + 26:.0f}" {size} ', 1))
        y += 34 + max(heights[first : first + across])
    return _drawing(what, y, parts, WIDTH * min(across, len(drawings)))


def _drawing(what: str, height: float, parts: Iterable[str], width: float = WIDTH) -> str:
    font = f'font-family="system-ui, sans-serif" font-size="{FONT}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img" '
    return head + f"aria-label={quoteattr(what)} {font}>" + "".join(parts) + "</svg>"


def _legend(items: Sequence[tuple[str, str, str | None]]) -> tuple[list[str], float]:
    """Draw names with a dashed line, a marker, or for None a box, in rows; return where they end, too."""
    parts, x, y = [], 8.0, 14.0
    for label, colour, dash in items:
        wide = 34 + length(label)
        if x > 8 and x + wide > WIDTH - 8:
            x, y = 8.0, y + 18
        if dash is None:
            parts.append(f'<rect x="{x:.1f}" y="{y - 9}" width="12" height="11" fill="{colour}"/>')
        elif dash.isalpha():
            parts.append(_marker(dash, x + 8, y - 4, colour))
        else:
            look = f'stroke="{colour}" stroke-width="3" stroke-dasharray="{dash}"'
            parts.append(f'<path d="M{x:.1f} {y - 4}h16" {look}/>')
        parts.append(_text(x + 20, y, label))
        x += wide
    return parts, y + 10 if items else 10.0


def _cut(label: str, width: float) -> str:
    """Shorten a label to so many pixels."""
    if length(label) <= width:
        return label
    while label and length(f"{label}…") > width:
        label = label[:-1]
    return f"{label}…"


def _frame(left: float, top: float, right: float, bottom: float) -> list[str]:
    size = f'x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" height="{bottom - top:.1f}"'
    return [f'<rect {size} fill="none" stroke="{FAINT}"/>']


def _rule(x1: float, y1: float, x2: float, y2: float, colour: str = GRID) -> str:
    return f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" stroke="{colour}"/>'


def _box(x: float, y: float, width: float, height: float, colour: str, tip: str, look: str = "") -> str:
    place = f'x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}"'
    return f'<rect {place} fill="{colour}"{look}><title>{escape(tip)}</title></rect>'


def _text(
    x: float, y: float, text: str, anchor: str = "start", colour: str = INK, turned: bool = False,
    size: float = FONT,
) -> str:  # fmt: skip
    turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
    large = "" if size == FONT else f' font-size="{size:g}"'
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}"'
    return f"<text {place}{large}{turn}>{escape(text)}</text>"
