"""Hooks of mkdocs: Sphinx roles such as ``:meth:`` become plain code, and settings become tables of flags."""

from __future__ import annotations

import re
from typing import Any

from distgnn.cli import flags
from distgnn.report.text import markdown

FLAGS = "<!-- the flags of train -->"
ROLE = re.compile(r":(?:meth|class|func):(<code>)~?(?:[\w.]*\.)?")


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
    """Replace the roles in the HTML of a page."""
    return ROLE.sub(r"\1", html)
