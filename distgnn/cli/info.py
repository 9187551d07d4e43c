"""``distgnn info STORE``: what a store holds and how well its orders balance."""

from __future__ import annotations

import argparse
from typing import Any

from distgnn.cli.values import count, widths
from distgnn.terminal import printable, show

WIDTH = 128  # of a store without features

HELP = "sizes, degrees, orders, load balance and communication volume of a store"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    # fmt: off
    add = parser.add_argument
    add("store", metavar="STORE", help="what prepare wrote")
    add("--json", action="store_true", help="print one JSON object")
    add("--ranks", type=widths, metavar="P[,P...]",
        help="also balance and volume of every order but double (for grids), cut into P block rows")
    add("--shards", metavar="RxC[,RxC...]",
        help="also how evenly every order fills an even cut into R x C blocks, as on grids")
    add("--width", type=count, metavar="F", help="of the dense matrix, for MB (default: of the features)")
    add("--verify", action="store_true", help="read every file and compare checksums")
    # fmt: on


def run(args: argparse.Namespace) -> None:
    from distgnn.cli.first_rank import on_first_rank

    on_first_rank(lambda: show(answer(args)))


def answer(args: argparse.Namespace) -> str:
    """Return the text to print.

    Raise UserError for no store, a cut that its matrix does not have, or a damaged file.
    """
    import json

    from distgnn.store.read.inspect import describe
    from distgnn.store.read.store import Store
    from distgnn.store.write.arguments import check_shards, parse_shards

    cuts = [] if args.shards is None else [parse_shards(cut.strip()) for cut in args.shards.split(",")]
    store = Store(args.store, verify=args.verify)
    for cut in cuts:
        check_shards(*cut, store.n)
    facts = describe(store, args.ranks or (), cuts)
    if args.verify:
        facts["verified"] = len(store.manifest["files"])
    width = args.width or store.width or WIDTH
    for order in facts["orders"].values():
        for cut in order.get("block_rows", ()):
            cut["send_mb"] = megabytes(cut["sends"], width, store.dtype.itemsize)
    return json.dumps(facts, indent=1) if args.json else text(args.store, facts)


def megabytes(rows: list[int], width: int, itemsize: int) -> dict[str, Any]:
    """Return the megabytes that ranks send in a product, on average and at most, for these rows of H.

    ICPP'24, Table 2.
    """
    size, average, most = width * itemsize / 1e6, sum(rows) / len(rows), max(rows)
    imbalance = 100 * (most / average - 1) if average else 0.0
    return {"width": width, "average": average * size, "max": most * size, "imbalance_percent": imbalance}


def text(path: str, facts: dict[str, Any]) -> str:
    """Write the facts in aligned lines."""
    lines = [("store", f"{path}, {facts['bytes'] / 1e6:.1f} MB on disk"), *graph_lines(facts)]
    for name, order in facts["orders"].items():
        lines += order_lines(name, order)
    if "verified" in facts:
        lines.append(("verified", f"{facts['verified']} files are as they were written"))
    indent = max(len(name) for name, _ in lines) + 2
    return "\n".join(printable(f"{name:{indent}}{value}") for name, value in lines)


def graph_lines(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the facts that are the same in every order."""
    split, degrees = facts["split"], facts["degrees"]
    kind = ["directed" if facts["directed"] else "undirected"]
    kind.append("weighted" if facts["weighted"] else "unweighted")
    kind.append("self-loops" if facts["self_loops"] else "no self-loops added")
    scaled = facts["normalize"] != "none"
    kind += [f"normalised {facts['normalize']}" if scaled else "not normalised", facts["dtype"]]
    several = ", of which a node may have several" if facts["multilabel"] else ""
    labelled = f"{facts['classes']}{several}, {facts['labelled']} labelled nodes"
    if facts.get("regression"):
        labelled = f"none; {facts['classes']} numbers to predict, {facts['labelled']} labelled nodes"
    spread = f"{degrees['min']} to {degrees['max']}, mean {degrees['mean']:.2f}"
    return [
        ("id", f"{facts['id'][:16]}, the same for the same graph prepared in the same way"),
        ("source", f"{facts['source']}, {facts['edges']} edges"),
        ("matrix", f"{facts['n']} x {facts['n']}, {facts['nnz']} non-zeros; {', '.join(kind)}"),
        ("degrees", f"{spread}; {degrees['isolated']} isolated nodes"),
        ("ids", ids_text(facts)),
        ("features", str(facts["width"] or "none") + sparse_text(facts)),
        ("classes", labelled if facts["classes"] else "none"),
        ("split", ", ".join(f"{count} {name}" for name, count in split.items()) if split else "none"),
    ]


def sparse_text(facts: dict[str, Any]) -> str:
    """Describe how full sparse features are; nothing of dense ones."""
    if "feature_nnz" not in facts:
        return ""
    share = facts["feature_nnz"] / (facts["n"] * facts["width"])
    return f", sparse: {facts['feature_nnz']} entries, {share:.2g} of all"


def ids_text(facts: dict[str, Any]) -> str:
    """Describe the ids of nodes."""
    if not facts["ids"]["own"]:
        return f"0..{facts['n'] - 1}"
    first = facts["ids"]["first"]
    kind = "text" if isinstance(first[0], str) else "integers"
    shown = ", ".join(map(str, first)) + ", ..." * (facts["n"] > len(first))
    return f"{kind}: {shown}"


def order_lines(name: str, order: dict[str, Any]) -> list[tuple[str, str]]:
    """Describe an order, and the cuts of it that were asked for."""
    rows, cols = order["shards"]
    versions = order.get("versions", [order])
    words = f"{rows}x{cols} shards, {order['bytes'] / 1e6:.1f} MB, non-zeros max/mean"
    lines = [(f"order {name}", f"{words} {balances([version['balance'] for version in versions])}")]
    for cut in zip(*(version.get("cuts", ()) for version in versions), strict=True):
        grid = "x".join(map(str, cut[0]["grid"]))
        evenness = f"non-zeros max/mean {balances([grid_facts['balance'] for grid_facts in cut], digits=3)}"
        lines.append((f"  {grid} blocks", f"{evenness}; mean {cut[0]['mean']:.0f}"))
    for cut in order.get("block_rows", ()):
        stages = f"stage by stage {cut['stage_balance']:.2f}, in the worst stage {max(cut['stages']):.2f}"
        balance = f"non-zeros max/mean {cut['balance']:.2f}, {stages}"
        lines += [(f"  {cut['ranks']} block rows", balance), ("", volume_text(cut))]
    return lines


def balances(numbers: list[float], digits: int = 2) -> str:
    """Write max/mean of each version of an order, in words."""
    words = " and ".join(f"{number:.{digits}f}" for number in numbers)
    return f"{words}, in even and odd layers" if len(numbers) > 1 else words


def volume_text(cut: dict[str, Any]) -> str:
    """Describe the volume between the parts in sparsity-aware products, in one line."""
    mb, rows = cut["send_mb"], max(cut["receives"])
    sent = f"{mb['average']:.3g} MB, at most {mb['max']:.3g} MB (imbalance {mb['imbalance_percent']:.1f} %)"
    got = f"receives at most {rows} rows; volume {cut['volume']} rows, edge cut {cut['edge_cut']}"
    return f"sparsity-aware 1D, width {mb['width']}: a rank sends {sent}, {got}"
