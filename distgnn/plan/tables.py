"""Plans and explanations as text: ASCII columns of at most 110 characters."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from distgnn.layout import written
from distgnn.plan.choices import Choice, Infeasible, Plan, amount
from distgnn.plan.explain import Explanation
from distgnn.report.numbers import short
from distgnn.report.text import WIDTH, aligned
from distgnn.train.ways import Way

SHOWN = 12
#: Phases that have a column of their own.
PHASES = ("spmm", "gemm", "comm")
HEADS = ("", "algorithm", "grid", "order", "ms", *PHASES, "other", "words", "messages", "memory")
LEGEND = (
    "ms: of an epoch, and of it products, and communication that is waited for. Words and messages: of the "
    "rank with most. Memory: of the fullest rank. Grids: the last axis is the nearest within a node."
)
#: Why a run may get less than a formula says.
LESS = (
    "A run gets less where it keeps A X of features that do not change, and multiplies the narrower of H and "
    "H W by A."
)


def name(way: Way) -> str:
    """Name an algorithm as tables and drawings do."""
    return f"{way.algorithm} aware" if way.sparsity_aware else way.algorithm


def shown(plan: Plan, everything: bool) -> list[tuple[int, Choice]]:
    """Return the best dozen and the best of every algorithm, with their places; or all."""
    best: set[str] = set()
    found = []
    for place, choice in enumerate(plan.choices, 1):
        if everything or place <= SHOWN or name(choice.way) not in best:
            found.append((place, choice))
        best.add(name(choice.way))
    return found


def text(plan: Plan, everything: bool = False) -> str:
    """Write the choices, best first, and the infeasible ways."""
    rows = [row(place, choice) for place, choice in shown(plan, everything)]
    orders = any(choice.way.order for choice in plan.choices)
    keep = [i for i, head in enumerate(HEADS) if head != "order" or orders]
    lines = aligned([[line[i] for i in keep] for line in (HEADS, *rows)], left=3 + orders)
    left_out = len(plan.choices) - len(rows)
    lines += [f"... and {left_out} more; --all shows them"] if left_out else []
    advice = [line for one in plan.advice for line in wrap(one)]
    return "\n".join([*lines, "", *wrap(LEGEND), *advice, *infeasible(plan.infeasible)])


def row(place: int, choice: Choice) -> list[str]:
    """Return a choice's cells of the table."""
    way, phases = choice.way, choice.estimate.phases
    epochs = [(lambda costs: costs.epoch.words), (lambda costs: costs.epoch.messages)]
    busiest = [max(choice.by_rank(of)) for of in epochs]
    spent = [phases.get(phase, 0.0) for phase in PHASES]
    seconds = [choice.seconds, *spent, choice.seconds - sum(spent)]
    cells = [str(place), name(way), written(way.grid), way.order or ""]
    cells += [digits(1e3 * part) for part in seconds]
    cells += map(short, busiest)
    return [*cells, amount(max(choice.peak_bytes))]


def infeasible(ways: Iterable[Infeasible]) -> list[str]:
    """Return ways that can't be, grouped: those without room by algorithm, the others by their reasons."""
    full: dict[str, list[Infeasible]] = {}
    reasons: dict[str, list[Infeasible]] = {}
    for one in ways:
        group, key = (full, name(one.way)) if one.peak else (reasons, one.reason)
        group.setdefault(key, []).append(one)
    lines = []
    for algorithm, found in full.items():
        least = min(found, key=lambda one: one.peak)
        lines += wrap(
            f"{algorithm}, {grids(found)}: {least.reason}, on {written(least.way.grid)} at least", "  "
        )
    for reason, found in reasons.items():
        names = ", ".join(dict.fromkeys(name(one.way) for one in found))
        which = written(found[0].way.grid) if len(found) == 1 else grids(found)
        lines += wrap(f"{names}, {which}: {reason}", "  ")
    return ["", "Infeasible:", *lines] if lines else []


def grids(found: Sequence[Any]) -> str:
    """Write ``3 grids``, ``1 grid``."""
    return f"{len(found)} grid{'s' if len(found) > 1 else ''}"


def explanation(found: Explanation, place: int) -> str:
    """Write one choice in all its parts."""
    choice = found.choice
    order = f", order {choice.way.order}" if choice.way.order else ""
    near = " ".join(list(choice.way.grid)[::-1])
    lines = [f"{place}. {choice.way}{order}: {digits(1e3 * choice.seconds)} ms per epoch"]
    lines += [f"axes, nearest in a node first: {near}", "", *_phases(found), ""]
    lines += ["Communication of the rank that takes longest:", *_communication(found), ""]
    lines += ["Kernels of this rank, each alone:", *_kernels(found), ""]
    total = sum(found.memory.values())
    memory = [
        [purpose, amount(size)] for purpose, size in sorted(found.memory.items(), key=lambda one: -one[1])
    ]
    lines += [f"Memory of the fullest rank, {amount(total)}:", *aligned(memory, left=1)]
    return "\n".join([*lines, "", *_formula(found)])


def _phases(found: Explanation) -> list[str]:
    """Write the tables that add up to the phases, and the seconds beyond them."""
    parts = ("alone", "slowdown", "others", "seconds")
    about = "ms by phase; below: in the tables below; slowdown: computing takes longer while messages travel"
    lines = [["phase", "below", "slowdown", "others", "ms"]]
    for one in found.phases:
        lines.append([one["phase"], *(_signed(1e3 * one[part]) for part in parts)])
    totals = [sum(one[part] for one in found.phases) for part in parts]
    lines.append(["all", *(_signed(1e3 * total) for total in totals)])
    return [
        *wrap(f"{about}; others: slower ranks are waited for; other: what no step accounts for."),
        *aligned(lines, left=1),
    ]


def _signed(number: float) -> str:
    """Write like :func:`digits`; empty if it is no more than rounding leaves."""
    return "" if abs(number) < 1e-6 else "-" * (number < 0) + digits(abs(number))


def _communication(found: Explanation) -> list[str]:
    heads = ["operation", "group", "matrix", "level", "calls", "messages", "words", "bytes", "ms", "exposed"]
    lines = []
    for one in found.collectives:
        counts = [str(one["calls"]), str(one["messages"]), short(one["words"]), short(one["bytes"])]
        seconds = [digits(1e3 * one[name]) for name in ("under_way", "exposed")]
        lines.append([one["operation"], one["group"], one["matrix"], one["level"] or "", *counts, *seconds])
    return aligned([heads, *lines], left=4) if lines else ["none"]


def _kernels(found: Explanation) -> list[str]:
    heads = ["phase", "operation", "shape", "calls", "non-zeros", "flops", "bytes", "ms"]
    lines = [
        [one["phase"], one["operation"], "x".join(map(str, one["shape"])), str(one["calls"])]
        + [short(one[what]) if one[what] else "" for what in ("nonzeros", "flops", "touched")]
        + [digits(1e3 * one["seconds"])]
        for one in found.kernels
    ]
    return aligned([heads, *lines], left=3)


def _formula(found: Explanation) -> list[str]:
    formula = found.formula
    if formula is None:
        return [f"No paper's formula for {found.choice.way.algorithm}."]
    lines = [
        [matrix, "" if words is None else short(words), short(own)] for matrix, words, own in found.compared
    ]
    totals = [formula.words.values(), [own for *_, own in found.compared]]
    lines.append(["all", *(short(sum(words)) for words in totals)])
    comm = sum(one["under_way"] for one in found.collectives)
    messages = sum(one["messages"] for one in found.collectives)
    lines.append(["messages", short(formula.messages) if formula.messages else "", short(messages)])
    lines.append(["ms", digits(1e3 * formula.seconds), digits(1e3 * comm)])
    head = [*wrap(f"{formula.section}: {formula.text}"), *wrap(formula.where, "  "), *wrap(LESS, "  ")]
    return [*head, *aligned([["words of", "formula", "dry run"], *lines], left=1)]


def wrap(text: str, indent: str = "") -> list[str]:
    """Break a text into lines of the width of tables."""
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent + "  " * bool(indent))


def digits(number: float) -> str:
    """Write three significant digits, without an exponent if that is short."""
    if 0.001 <= number < 1e6:
        return f"{number:.0f}" if number >= 100 else f"{number:#.3g}"
    return "0" if number == 0 else f"{number:.1e}"
