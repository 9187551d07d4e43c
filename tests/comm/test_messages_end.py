"""No generator holds messages: one that is left early ends when Python collects it, or never."""

from __future__ import annotations

import ast
from pathlib import Path

import distgnn

#: Calls that return a context with messages under way.
HOLDERS = {"Relay", "Exchange", "Sums", "broadcast", "_broadcast", "fetch", "add_back", "rows_of", "sums_in"}


def held(function: ast.FunctionDef) -> set[str]:
    """List the holders of messages in whose context a plain generator yields."""
    if any("contextmanager" in ast.unparse(decorator) for decorator in function.decorator_list):
        return set()
    names = set()
    for block in (node for node in ast.walk(function) if isinstance(node, ast.With)):
        if any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in ast.walk(block)):
            calls = [node for item in block.items for node in ast.walk(item) if isinstance(node, ast.Call)]
            names |= {getattr(call.func, "attr", getattr(call.func, "id", "")) for call in calls}
    return names & HOLDERS


def test_no_generator_of_the_package_holds_messages():
    functions = [
        (path, node)
        for path in Path(distgnn.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
    ]
    assert len(functions) > 1000
    wrong = {f"{path.name}: {node.name}": held(node) for path, node in functions if held(node)}
    assert not wrong


def test_a_generator_that_holds_messages_is_seen():
    module = ast.parse("""
def rows_of(self, H):
    with self.rows.fetch(H, into, "H") as arriving, driven():
        for place in places:
            yield H[place]
""")
    assert held(module.body[0]) == {"fetch"}
