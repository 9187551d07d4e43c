"""A hook of mkdocs: Sphinx's roles in docstrings, such as ``:meth:``, become plain code."""

from __future__ import annotations

import re
from typing import Any

ROLE = re.compile(r":(?:meth|class|func):(<code>)~?(?:[\w.]*\.)?")


def on_page_content(html: str, **_: Any) -> str:
    """Take the roles out of a page's references; mkdocs calls this for every page."""
    return ROLE.sub(r"\1", html)
