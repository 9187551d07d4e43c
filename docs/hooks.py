"""Hooks of mkdocs for our docstrings: Sphinx's roles, such as ``:meth:``, become plain code."""

from __future__ import annotations

import re
from typing import Any

ROLE = re.compile(r":(?:meth|class|func):(<code>)~?(?:[\w.]*\.)?")


def on_page_content(html: str, **_: Any) -> str:
    """Mend the HTML of a page, for mkdocs."""
    return ROLE.sub(r"\1", html)
