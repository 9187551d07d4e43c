"""A file for HDF5 in which no write fails.

HDF5 does not get over a write that fails: its cache of metadata stays locked, so that closing the file is
another error, or a segmentation fault at the end of the process. And h5py calls Python for each write here,
where a signal's handler may raise (see ``comm/interrupts.py``).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from functools import partial
from io import FileIO
from typing import Any, cast

from distgnn.files.leftovers import AnyPath


class SteadyFile:
    """A file as h5py's driver "fileobj" takes it. It keeps its first error and leaves later writes out.

    Args:
        mode: "w", an empty file, or "r+", an existing one.
    """

    def __init__(self, path: AnyPath, mode: str) -> None:
        self._file = cast(FileIO, open(path, {"w": "w+b", "r+": "r+b"}[mode], buffering=0))
        self._error: BaseException | None = None

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a place in the file."""
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        """Return the place in the file."""
        return self._file.tell()

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer, with zeros where the file has nothing."""
        view = memoryview(buffer).cast("B")
        done = self._parts(lambda at: self._file.readinto(view[at:]), len(view))
        view[done:] = bytes(len(view) - done)
        return len(view)

    def write(self, data: Any) -> int:
        """Write all of the data, unless something failed before."""
        view = memoryview(data).cast("B")
        if self._parts(lambda at: self._file.write(view[at:]), len(view)) < len(view) and not self._error:
            self._error = OSError(errno.EIO, os.strerror(errno.EIO))
        return len(view)

    def truncate(self, size: int) -> int:
        """Cut or lengthen the file."""
        self._trying(lambda: self._file.truncate(size))
        return size

    def flush(self) -> None:
        """Do nothing: there is no buffer."""

    def _parts(self, action: Callable[[int], int | None], size: int) -> int:
        """Call an action with how many bytes are done until all are, or none more; return how many are."""
        done = 0
        while done < size and (more := self._trying(partial(action, done))):
            done += more
        return done

    def _trying(self, action: Callable[[], int | None]) -> int | None:
        """Return the result of an action; None where it fails, or something failed before."""
        try:
            return action() if self._error is None else None
        except Exception as error:
            self._error = error
            return None

    def close(self) -> None:
        """Close the file; raise the first error."""
        self._file.close()
        if self._error is not None:
            raise self._error
