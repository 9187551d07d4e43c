"""Hooks of mkdocs: names lead to the API reference, and settings become tables of flags.

Names are roles of docstrings, such as ``:meth:``, and code on any page, such as ``distgnn.plan.settle`` or
``dg.scatter``.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

from distgnn.cli import flags
from distgnn.report.text import markdown

FLAGS = "<!-- the flags of train -->"
API = Path(__file__).with_name("api.md")
ROLE = re.compile(r":(?:meth|class|func|attr|mod|data):<code>~?([\w.]+)</code>")
NAME = re.compile(r"<code>((?:distgnn|dg)\.[\w.]+)([^<]*)</code>(?!</a>)")
OBJECT = re.compile(r'id="(distgnn\.[\w.]+)"')


def on_page_markdown(text: str, **_: Any) -> str:
    """Put the tables of flags in their place in a page."""
    return text.replace(FLAGS, tables_of_flags())


def tables_of_flags() -> str:
    """Return the settings of a run in Markdown, a table for each group."""
    lines: list[str] = []
    for title, rows in flags.rows().items():
        lines += [f"### {title.capitalize()}", "", *markdown(flags.HEADS, rows), ""]
    return "\n".join(lines)


def on_page_content(html: str, **_: Any) -> str:
    """Link the names of a page, called by mkdocs for each."""
    known = _by_ending([*re.findall(r"^::: (\S+)$", API.read_text(), re.MULTILINE), *OBJECT.findall(html)])
    html = ROLE.sub(lambda role: _linked(role[1], role[1].rpartition(".")[2], known), html)
    return NAME.sub(lambda name: _linked(name[1], name[1] + name[2], known), html)


def _by_ending(paths: list[str]) -> dict[str, set[str]]:
    """Collect the dotted names by each of their endings."""
    names: dict[str, set[str]] = defaultdict(set)
    for path in paths:
        parts = path.split(".")
        for start in range(len(parts)):
            names[".".join(parts[start:])].add(path)
    return names


def _linked(name: str, shown: str, known: dict[str, set[str]]) -> str:
    """Return code that leads to the one object of this name; plain code where there are several, or none.

    ``distgnn.plan.settle`` is also ``distgnn.plan.settle.settle``: packages have names of their modules.
    """
    room, _, last = name.removeprefix("dg.").rpartition(".")
    paths = known[name] or {path for path in known[last] if room.removeprefix("distgnn") in path}
    code = f"<code>{shown}</code>"
    return f'<autoref identifier="{min(paths)}" optional>{code}</autoref>' if len(paths) == 1 else code
