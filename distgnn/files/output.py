"""Output files: checked before the work, and replaced as a whole."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from distgnn.errors import ArgumentError
from distgnn.files import leftovers
from distgnn.files.leftovers import AnyPath
from distgnn.files.lock import check_unlocked, locked


def check_output(argument: str, path: Path, replace: bool) -> None:
    """Raise ArgumentError if a file can't be written to this path.

    A directory, device, pipe or socket, a file that may not be replaced, or a path without a directory.
    UserError: another run writes it now.
    """
    if path.is_dir():
        raise ArgumentError(argument, path, "is a directory; give the name of a file")
    if path.exists() and not path.is_file():
        raise ArgumentError(argument, path, "is no regular file, and nothing else is replaced")
    if path.exists() and not replace:
        raise ArgumentError(argument, path, "exists; force=True replaces it, or give another name")
    if not (folder := path.resolve().parent).is_dir():  # the parent of a link's target
        raise ArgumentError(argument, path, f"directory {folder} does not exist")
    check_unlocked(path)


def check_apart(outputs: Mapping[str, AnyPath | None], inputs: Iterable[AnyPath] = ()) -> None:
    """Raise ArgumentError for an output, by its argument, that is another one's file or one that is read."""
    known = {os.path.realpath(path): "is a file that is read" for path in inputs}
    for argument, path in outputs.items():
        place = None if path is None else os.path.realpath(path)
        if place in known:
            raise ArgumentError(argument, path, f"{known[place]}; give another name")
        if place is not None:
            known[place] = f"is what {argument}={path} names, too"


@contextmanager
def writing(argument: str, path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn an error of the disk inside into an ArgumentError that names the output."""
    try:
        yield
    except OSError as error:
        raise ArgumentError(argument, path, f"cannot write it ({error.strerror or error})") from error


@contextmanager
def claimed(path: Path) -> Iterator[None]:
    """Hold a file as its only writer, and remove what killed runs have left beside it.

    Raises UserError if another run writes it, or if the disk is full.
    """
    path = path.resolve()
    with locked(path) as alone:
        if alone:
            leftovers.remove(path, leftovers.beside(path, "tmp"))
        yield


@contextmanager
def exchanged(path: Path) -> Iterator[IO[bytes]]:
    """Open a file to write, which takes the place of `path` when the context ends without an error.

    `path` holds the old content or the new, whatever happens. It keeps its mode, and a link stays a link.
    The caller is its only writer.
    """
    path = path.resolve()
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    file = open(descriptor, "wb")
    try:
        yield file
        file.flush()
        os.fsync(file.fileno())
        file.close()
        mask = os.umask(0)  # the mask can only be read by setting it
        os.umask(mask)
        os.chmod(name, path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~mask)
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            file.close()  # writes what is left
        os.unlink(name)
        raise


@contextmanager
def replaced(path: Path) -> Iterator[IO[bytes]]:
    """Open a file to write as :func:`exchanged` does, as its only writer; see :func:`claimed`."""
    with claimed(path), exchanged(path) as file:
        yield file
