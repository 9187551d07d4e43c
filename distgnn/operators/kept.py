"""Properties that are made when they are first asked for, and kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class cached_property(Generic[T]):
    """A property that is made when it is first asked for, and kept, without a lock.

    The one of ``functools`` holds a lock meanwhile, up to Python 3.11. Making the property may be collective,
    and ranks that are threads of one process would wait for the lock where they should meet.
    """

    def __init__(self, make: Callable[[Any], T]) -> None:
        self.make, self.__doc__ = make, make.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, owner: Any, kind: type | None = None) -> T:
        if owner is None:
            return self  # type: ignore[return-value]
        made = owner.__dict__[self.name] = self.make(owner)
        return made
