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

BUFFER = 1 << 20  # bytes that are written together: HDF5 writes chunk after chunk


class SteadyFile:
    """A file as h5py's driver "fileobj" takes it. It keeps its first error and leaves later writes out.

    Args:
        mode: "w", an empty file, or "r+", an existing one.
    """

    def __init__(self, path: AnyPath, mode: str) -> None:
        self._file = cast(FileIO, open(path, {"w": "w+b", "r+": "r+b"}[mode], buffering=0))
        self._error: BaseException | None = None
        self._at = self._begin = 0  # this place in the file, and where the bytes in the buffer begin
        self._held = bytearray()

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a place in the file."""
        if whence:
            self._put()
            offset = self._file.seek(offset, whence)
        self._at = offset
        return offset

    def tell(self) -> int:
        """Return the place in the file."""
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer, with zeros where the file has nothing."""
        self._put()
        self._file.seek(self._at)
        view = memoryview(buffer).cast("B")
        done = self._parts(lambda at: self._file.readinto(view[at:]), len(view))
        view[done:] = bytes(len(view) - done)
        self._at += len(view)
        return len(view)

    def write(self, data: Any) -> int:
        """Write all of the data, with what follows it in the file, unless something failed before."""
        size = len(data)  # bytes
        if self._at != self._begin + len(self._held):
            self._put()
            self._begin = self._at
        self._held += data
        self._at += size
        if len(self._held) >= BUFFER:
            self._put()
        return size

    def truncate(self, size: int) -> int:
        """Cut or lengthen the file."""
        self._put()
        self._trying(lambda: self._file.truncate(size))
        return size

    def flush(self) -> None:
        """Do nothing: what is in the buffer is written when the file is closed, at the latest."""

    def _put(self) -> None:
        """Write what is in the buffer."""
        view, self._held = memoryview(self._held), bytearray()  # another one: an error keeps the first
        if len(view):
            self._file.seek(self._begin)
            done = self._parts(lambda at: self._file.write(view[at:]), len(view))
            if done < len(view) and not self._error:
                self._error = OSError(errno.EIO, os.strerror(errno.EIO))
            self._begin += len(view)

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
        self._put()
        self._file.close()
        if self._error is not None:
            raise self._error
