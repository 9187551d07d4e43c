"""Docstrings begin with a verb (functions) or a noun phrase (modules, classes); locals are no pronouns."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("distgnn", "kernels", "docs", "notebooks", "tests", "benchmarks", "jobs")

#: Words that begin a clause without its noun, in every docstring.
REFUSED = {
    "What", "Of", "How", "Whether", "Those", "That", "These", "Which", "Such", "As", "By", "Where", "Who",
    "Why", "Whose", "It", "Its", "They", "Their", "If", "So",
}  # fmt: skip

#: Verbs in the imperative that begin the docstrings of functions; add another one if a function needs it.
VERBS = set(
    """
    Accumulate Add Advance Advise Agree Align Allocate Allow Answer Append Apply Arrange Ask
    Assemble Assert Assign Attach Await Begin Bind Block Borrow Break Bring Broadcast Build Cache
    Call Cancel Change Charge Check Choose Clear Close Collect Colour Combine Compare Compile
    Compute Connect Construct Continue Convert Copy Count Create Cut Deal Decide Decode Define
    Delete Describe Distribute Divide Do Draw Drive Drop Encode End Enter Estimate Evaluate Exchange
    Exclude Execute Exit Expand Expect Explain Export Extend Extract Fail Fetch Fill Filter Find
    Finish Fit Fix Flush Follow Forget Fork Format Forward Free Gather Generate Give Go Group Grow
    Halve Hand Handle Hash Hold Ignore Import Include Index Initialise Install Interrupt Invert Join
    Judge Keep Kill Launch Lay Leave Lend Let Limit Link List Load Locate Lock Log Look Lower Make
    Map Mark Mask Measure Merge Mirror Move Multiply Name Normalise Note Notify Number Open Order
    Pack Pair Parse Partition Pass Patch Pick Place Plan Post Predict Prepare Price Print Project
    Publish Push Put Queue Raise Rank Read Rebuild Receive Recognise Record Redraw Reduce Refuse
    Register Relabel Release Remember Remove Render Reorder Repeat Replace Report Require Reserve
    Reset Restore Resume Return Reuse Rewrite Round Run Sample Save Scale Scan Scatter Score Search
    See Select Send Serve Set Settle Share Shift Shorten Show Shuffle Shut Sign Simulate Skip Sleep
    Solve Sort Split Spread Stack Stamp Start Step Stop Store Stream Subtract Suggest Sum Swap
    Switch Take Tell Test Throw Time Trace Train Translate Transpose Trim Try Tune Turn Undo Unpack
    Update Use Visit Wait Walk Warm Warn Weigh Wrap Write Yield
""".split()
)

#: Names of locals that do not say what they hold, and the rooms that still have them.
PRONOUNS = {"found", "told", "one"}
PRONOUNS_IN = ("benchmarks", "jobs", "tests")

PROPERTIES = ("property", "cached_property", "functools.cached_property")


def room(path: Path) -> str:
    """Return the room of a file: a folder or module of distgnn, or another folder of the project."""
    parts = path.relative_to(ROOT).parts
    return "/".join(parts[: 2 if parts[0] == "distgnn" else 1])


def sources() -> list[Path]:
    """List all Python files of the project."""
    files = [ROOT / "setup.py"]
    for folder in FOLDERS:
        files += sorted((ROOT / folder).rglob("*.py"))
    return files


def fault(node: ast.AST) -> str | None:
    """Return the fault of the docstring of a module, class or function; None without a fault or docstring."""
    if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        return None
    text = ast.get_docstring(node)
    if text is None:
        return None
    first = text.split()[0].rstrip(",.:;") if text.strip() else ""
    if first in REFUSED or not first:
        return f"begins with {first!r}; begin with the subject, or with a verb"
    if isinstance(node, (ast.Module, ast.ClassDef)) or node.name.startswith("test_"):
        return None
    if any(ast.unparse(decorator) in PROPERTIES for decorator in node.decorator_list):
        return None
    return None if first in VERBS else f"begins with {first!r}; begin with an imperative verb (see VERBS)"


def faults(path: Path) -> Iterator[str]:
    """Yield a line for each docstring of a file with a fault."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if (problem := fault(node)) is not None:
            name = getattr(node, "name", "the module")
            yield f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}: the docstring of {name} {problem}"


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    wrong = [line for path in sources() for line in faults(path)]
    assert not wrong, "\n".join(wrong)


def pronouns(path: Path) -> Iterator[str]:
    """Yield a line for each local or argument of a file that is called by a pronoun."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        name = node.arg if isinstance(node, ast.arg) else None
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        if name in PRONOUNS:
            yield f"{path.relative_to(ROOT)}:{node.lineno}: call {name!r} what it holds"


def test_locals_are_called_what_they_hold() -> None:
    wrong = [line for path in sources() if room(path) not in PRONOUNS_IN for line in pronouns(path)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "code, refused",
    [
        ("def f():\n    '''Return the rows.'''", False),
        ("def f():\n    '''The rows.'''", True),
        ("def f():\n    '''Returns the rows.'''", True),
        ("def f():\n    '''What f has.'''", True),
        ("@property\ndef f(self):\n    '''The rows.'''", False),
        ("@property\ndef f(self):\n    '''Whether there are rows.'''", True),
        ("def test_f():\n    '''Rows are even.'''", False),
        ("def test_f():\n    '''That rows are even.'''", True),
        ("class C:\n    '''A block.'''", False),
        ("class C:\n    '''How blocks are cut.'''", True),
        ("class C:\n    pass", False),
    ],
)
def test_faults_are_recognised(code: str, refused: bool) -> None:
    assert (fault(ast.parse(code).body[0]) is not None) == refused


def test_faults_of_modules_are_recognised() -> None:
    assert fault(ast.parse("'''Of blocks.'''")) and not fault(ast.parse("'''Blocks.'''"))
