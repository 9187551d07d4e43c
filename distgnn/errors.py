"""The one exception that means "the input is wrong", as opposed to "the program is wrong"."""

from __future__ import annotations


class UserError(Exception):
    """Bad input: the message names the file or flag, what is wrong, and what would be right, in one line.

    The command line prints it on rank 0 and every rank exits with code 2; library callers catch it like any
    exception.
    """
