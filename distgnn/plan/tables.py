"""Plans and explanations as text: ASCII columns of at most 110 characters."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from distgnn.layout import written
from distgnn.plan.choices import ERROR, SHOWN, Plan
from distgnn.plan.explain import Explanation
from distgnn.plan.minibatches import BatchPlan
from distgnn.plan.pricing import Choice, Infeasible, amount
from distgnn.plan.subgraphs import SubgraphPlan
from distgnn.report import colours
from distgnn.report.numbers import short
from distgnn.report.text import WIDTH, aligned
from distgnn.train.ways import Way

#: Phases that have a column of their own.
PHASES = ("spmm", "gemm", "comm")
HEADS = ("", "algorithm", "grid", "order", "ms", *PHASES, "other", "words", "messages", "memory")
LEGEND = (
    "ms: of {}, and of it products, and communication that is waited for. Words and messages: of the "
    "rank with most. Memory: of the fullest rank. Grids: the last axis is the nearest within a node."
)
ALIKE = f"--- 1 to {{}} are within {ERROR:.0%}, the error of a plan: any of them will do ---"
AS_1D = "As all their ranks stand in rows, these move what 1d moves, the same words: {}."
LEFT_OUT = "... and {} that take at least {:.3g} times the first, left out; --all plans them"
OF_MINIBATCHES = (
    "ms: of an epoch without scores, by step. Words: that a rank receives in it, in the mean. Memory: of the "
    "fullest rank, that of two bulks; scores are never there beside bulk, rows and training."
)
#: What the price of an epoch leaves out.
PRICED = "Priced are products, those with weights, and biases; the dry run has norms and the loss, too."


def name(way: Way) -> str:
    """Name an algorithm as tables and drawings do."""
    return colours.way({"algorithm": way.algorithm, "sparsity_aware": way.sparsity_aware})


def shown(plan: Plan, everything: bool) -> list[tuple[int, Choice]]:
    """Return the best dozen and the best of every algorithm, with their places; or all."""
    best: set[str] = set()
    listed = []
    for place, choice in enumerate(plan.choices, 1):
        if everything or place <= SHOWN or name(choice.way) not in best:
            listed.append((place, choice))
        best.add(name(choice.way))
    return listed


def text(plan: Plan, everything: bool = False, what: str = "an epoch") -> str:
    """Write the choices, best first, and the infeasible ways; their seconds are of `what`."""
    listed = shown(plan, everything)
    rows = [row(place, choice) for place, choice in listed]
    orders = any(choice.way.order for choice in plan.choices)
    keep = [i for i, head in enumerate(HEADS) if head != "order" or orders]
    lines = aligned([[line[i] for i in keep] for line in (HEADS, *rows)], left=3 + orders)
    if plan.alike > 1:
        lines.insert(1 + sum(place <= plan.alike for place, _ in listed), ALIKE.format(plan.alike))
    in_rows = ", ".join(str(place) for place, choice in listed if choice.way.as_1d)
    notes = wrap(LEGEND.format(what)) + (wrap(AS_1D.format(in_rows)) if in_rows else [])
    left_out = len(plan.choices) - len(rows)
    lines += [f"... and {left_out} more; --all shows them"] if left_out else []
    lines += [LEFT_OUT.format(*plan.left_out)] if plan.left_out else []
    advice = [line for advised in plan.advice for line in wrap(advised)]
    return "\n".join([*lines, "", *notes, *advice, *infeasible(plan.infeasible)])


def minibatches(plan: BatchPlan) -> str:
    """Write the choices for minibatches, best first, what each moves and holds, and what does not fit."""
    best, places = plan.choices[0], [str(place) for place in range(1, len(plan.choices) + 1)]
    each = [(place, written(choice.way.grid)) for place, choice in zip(places, plan.choices, strict=True)]
    moved = [choice.price.by_matrix() for choice in plan.choices]
    matrices = list(dict.fromkeys(name for words in moved for name in words))
    words = [[short(float(some[name])) for name in matrices] for some in moved]
    memory = [[amount(part) for part in (choice.memory.peak, *choice.memory)] for choice in plan.choices]
    seconds = [
        [str(choice.bulk), *(digits(1e3 * part) for part in (choice.seconds, *choice.phases.values()))]
        for choice in plan.choices
    ]
    parts = (
        (["", "grid", "bulk", "ms", *best.phases], seconds),
        (["", "words of", *matrices], words),
        (["", "memory", "in all", *best.memory._fields], memory),
    )
    lines = list[str]()
    for head, cells in parts:
        rows = [[*name, *cell] for name, cell in zip(each, cells, strict=True)]
        lines += [*aligned([head, *rows], left=2), ""]
    return "\n".join([*lines, *wrap(OF_MINIBATCHES), *infeasible(plan.infeasible)])


def subgraphs(plan: SubgraphPlan, everything: bool = False) -> str:
    """Write the choices for a step on drawn vertices, and what an epoch of the best takes."""
    phases = plan.phases(plan.step.best)
    epoch, sampling = (digits(1e3 * part) for part in (sum(phases.values()), phases["sampling"]))
    steps = f"{plan.steps} step{'s' if plan.steps > 1 else ''} of up to {plan.size} nodes"
    said = f"An epoch of choice 1 has {steps} and takes {epoch} ms without scores, {sampling} of them draws"
    about = wrap(f"{said} and extraction. Memory below is beside the whole graph, for which there is room.")
    return "\n".join([text(plan.step, everything, "a step"), *about])


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
    for way in ways:
        group, key = (full, name(way.way)) if way.peak else (reasons, way.reason)
        group.setdefault(key, []).append(way)
    lines = []
    for algorithm, members in full.items():
        least = min(members, key=lambda way: way.peak)
        lines += wrap(
            f"{algorithm}, {grids(members)}: {least.reason}, on {written(least.way.grid)} at least", "  "
        )
    for reason, members in reasons.items():
        names = ", ".join(dict.fromkeys(name(way.way) for way in members))
        which = written(members[0].way.grid) if len(members) == 1 else grids(members)
        lines += wrap(f"{names}, {which}: {reason}", "  ")
    return ["", "Infeasible:", *lines] if lines else []


def grids(listed: Sequence[Any]) -> str:
    """Write ``3 grids``, ``1 grid``."""
    return f"{len(listed)} grid{'s' if len(listed) > 1 else ''}"


def explanation(explained: Explanation, place: int) -> str:
    """Write one choice in all its parts."""
    choice = explained.choice
    order = f", order {choice.way.order}" if choice.way.order else ""
    near = " ".join(list(choice.way.grid)[::-1])
    lines = [f"{place}. {choice.way}{order}: {digits(1e3 * choice.seconds)} ms per epoch"]
    lines += [AS_1D.format(name(choice.way))] if choice.way.as_1d else []
    lines += [f"axes, nearest in a node first: {near}", "", *_phases(explained), ""]
    lines += ["Communication of the rank that takes longest:", *_communication(explained), ""]
    lines += ["Kernels of this rank, each alone:", *_kernels(explained), ""]
    total = sum(explained.memory.values())
    memory = [
        [purpose, amount(size)]
        for purpose, size in sorted(explained.memory.items(), key=lambda entry: -entry[1])
    ]
    lines += [f"Memory of the fullest rank, {amount(total)}:", *aligned(memory, left=1)]
    return "\n".join([*lines, "", *_formula(explained)])


def _phases(explained: Explanation) -> list[str]:
    """Write the tables that add up to the phases, and the seconds beyond them."""
    parts = ("alone", "slowdown", "others", "seconds")
    about = "ms by phase; below: in the tables below; slowdown: computing takes longer while messages travel"
    lines = [["phase", "below", "slowdown", "others", "ms"]]
    for phase in explained.phases:
        lines.append([phase["phase"], *(_signed(1e3 * phase[part]) for part in parts)])
    totals = [sum(phase[part] for phase in explained.phases) for part in parts]
    lines.append(["all", *(_signed(1e3 * total) for total in totals)])
    return [
        *wrap(f"{about}; others: slower ranks are waited for; other: what no step accounts for."),
        *aligned(lines, left=1),
    ]


def _signed(number: float) -> str:
    """Write like :func:`digits`; empty if it is no more than rounding leaves."""
    return "" if abs(number) < 1e-6 else "-" * (number < 0) + digits(abs(number))


def _communication(explained: Explanation) -> list[str]:
    heads = ["operation", "group", "matrix", "level", "calls", "messages", "words", "bytes", "ms", "exposed"]
    lines = []
    for collective in explained.collectives:
        counts = [
            str(collective["calls"]),
            str(collective["messages"]),
            short(collective["words"]),
            short(collective["bytes"]),
        ]
        seconds = [digits(1e3 * collective[name]) for name in ("under_way", "exposed")]
        lines.append(
            [
                collective["operation"],
                collective["group"],
                collective["matrix"],
                collective["level"] or "",
                *counts,
                *seconds,
            ]
        )
    return aligned([heads, *lines], left=4) if lines else ["none"]


def _kernels(explained: Explanation) -> list[str]:
    heads = ["phase", "operation", "shape", "calls", "non-zeros", "flops", "bytes", "ms"]
    lines = [
        [kernel["phase"], kernel["operation"], "x".join(map(str, kernel["shape"])), str(kernel["calls"])]
        + [short(kernel[what]) if kernel[what] else "" for what in ("nonzeros", "flops", "touched")]
        + [digits(1e3 * kernel["seconds"])]
        for kernel in explained.kernels
    ]
    return aligned([heads, *lines], left=3)


def _formula(explained: Explanation) -> list[str]:
    formula = explained.formula
    if formula is None:
        return ["No price for these layers: the dry run alone has their words."]
    sides = "formula", "dry_run"
    lines = [
        [line["matrix"], *("" if line[side] is None else short(line[side]) for side in sides)]
        for line in formula.words
    ]
    lines.append(["all", *(short(sum(line[side] or 0 for line in formula.words)) for side in sides)])
    comm = sum(collective["under_way"] for collective in explained.collectives)
    messages = sum(collective["messages"] for collective in explained.collectives)
    lines.append(["messages", short(formula.messages), short(messages)])
    lines.append(["ms", digits(1e3 * formula.seconds), digits(1e3 * comm)])
    head = [*wrap(f"{formula.section}: {formula.text}"), *wrap(formula.where, "  "), *wrap(PRICED, "  ")]
    return [*head, *aligned([["words of", "price", "dry run"], *lines], left=1)]


def wrap(text: str, indent: str = "") -> list[str]:
    """Break a text into lines of the width of tables."""
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent + "  " * bool(indent))


def digits(number: float) -> str:
    """Write three significant digits, without an exponent if that is short."""
    if 0.001 <= number < 1e6:
        return f"{number:.0f}" if number >= 100 else f"{number:#.3g}"
    return "0" if number == 0 else f"{number:.1e}"
