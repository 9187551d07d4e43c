"""Communicators that go back to MPI, also where all ranks raise one error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

from distgnn.errors import TrainingError, UserError


class Holder(Protocol):
    """A holder of communicators: a Comm or a Grid."""

    def free(self) -> None:
        """Give them back to MPI. Collective."""
        ...


H = TypeVar("H", bound=Holder)


@contextmanager
def freed(held: H) -> Iterator[H]:
    """Yield a communicator or a grid, and free it after the block. Collective.

    It is freed after a UserError and a TrainingError too, which all ranks raise. After any other exception it
    is left alone, as the other ranks may be elsewhere.
    """
    try:
        yield held
    except (UserError, TrainingError):
        held.free()
        raise
    held.free()
