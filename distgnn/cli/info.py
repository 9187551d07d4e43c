"""``distgnn info STORE``: what a store holds and how well its orders balance."""

from __future__ import annotations

import argparse
from typing import Any

from distgnn.cli.train import widths

HELP = "sizes, degrees, orders, load balance and communication volume of a store"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("store", metavar="STORE", help="what prepare wrote")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--ranks", type=widths, metavar="P[,P...]", help="also balance and volume of every order cut into P block rows"
    )
    parser.add_argument("--verify", action="store_true", help="read every file and compare checksums")


def run(args: argparse.Namespace) -> None:
    from distgnn.cli.first_rank import on_first_rank

    on_first_rank(lambda: print(answer(args), flush=True))


def answer(args: argparse.Namespace) -> str:
    """The text to print.

    Raises:
        UserError: no such store, or with --verify, a file whose bytes changed.
    """
    import json

    from distgnn.errors import UserError
    from distgnn.store.inspect import describe
    from distgnn.store.loader import Store

    store = Store(args.store)
    damaged = store.verify() if args.verify else []
    if damaged:
        raise UserError(f"{store.path}: the bytes of {', '.join(damaged)} changed since it was written; copy or prepare it again")
    facts = describe(store, args.ranks or ())
    if args.verify:
        facts["verified"] = len(store.manifest["files"])
    return json.dumps(facts, indent=1) if args.json else text(args.store, facts)


def text(path: str, facts: dict[str, Any]) -> str:
    """The facts in aligned lines."""
    split, degrees = facts["split"], facts["degrees"]
    kind = [
        "directed" if facts["directed"] else "undirected",
        "weighted" if facts["weighted"] else "unweighted",
        "self-loops" if facts["self_loops"] else "no self-loops added",
        f"normalised {facts['normalize']}" if facts["normalize"] != "none" else "not normalised",
        facts["dtype"],
    ]
    lines = [
        ("store", f"{path}, {facts['bytes'] / 1e6:.1f} MB on disk"),
        ("source", f"{facts['source']}, {facts['edges']} edges"),
        ("matrix", f"{facts['n']} x {facts['n']}, {facts['nnz']} non-zeros; {', '.join(kind)}"),
        ("degrees", f"{degrees['min']} to {degrees['max']}, mean {degrees['mean']:.2f}; {degrees['isolated']} isolated nodes"),
        ("features", f"{facts['width']}" if facts["width"] else "none"),
        ("classes", f"{facts['classes']}, {facts['labelled']} labelled nodes" if facts["classes"] else "none"),
        ("split", ", ".join(f"{count} {name}" for name, count in split.items()) if split else "none"),
    ]
    for name, order in facts["orders"].items():
        rows, cols = order["shards"]
        words = [f"{rows}x{cols} shards, {order['bytes'] / 1e6:.1f} MB, non-zeros max/mean {order['balance']:.2f}"]
        lines.append((f"order {name}", "; ".join(words)))
        lines += [(f"  {cut['ranks']} block rows", cut_text(cut)) for cut in order.get("block_rows", ())]
    if "verified" in facts:
        lines.append(("verified", f"{facts['verified']} files are as they were written"))
    indent = max(len(name) for name, _ in lines) + 2
    return "\n".join(f"{name:{indent}}{value}" for name, value in lines)


def cut_text(cut: dict[str, Any]) -> str:
    """How an order behaves in block rows, in one line."""
    stages = f"stage by stage {cut['stage_balance']:.2f}, in the worst stage {max(cut['stages']):.2f}"
    moved = f"sparsity-aware 1D moves {cut['volume']} rows, at most {max(cut['receives'])} to a rank"
    return f"non-zeros max/mean {cut['balance']:.2f}, {stages}; {moved}"
