"""Files from outside: regular ones only, gzip unpacked, and bounds on what they unpack to or declare."""

from __future__ import annotations

import gzip
import os
import stat
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from distgnn.errors import UserError
from distgnn.files.nearby import did_you_mean_path
from distgnn.files.text import parse_json
from distgnn.store.format.limits import LIMITS

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
AnyPath = str | os.PathLike[str]


@contextmanager
def reading(path: AnyPath) -> Iterator[None]:
    """Turn the errors of a missing, truncated or damaged file into a UserError that names it."""
    try:
        yield
    except FileNotFoundError:
        raise UserError(f"{path}: no such file{did_you_mean_path(Path(path))}") from None
    except IsADirectoryError:
        raise UserError(f"{path}: is a directory where a file is expected") from None
    except (EOFError, zlib.error, gzip.BadGzipFile, zipfile.BadZipFile) as error:
        raise UserError(f"{path}: truncated or damaged ({error}); a complete file is needed") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is not UTF-8 text (byte {error.start}: {error.reason})") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None


def open_plain(path: AnyPath) -> IO[bytes]:
    """Open a regular file; UserError for any other, as a pipe waits and a device never ends."""
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise UserError(f"{path}: is no regular file; copy what it gives into a file first")
    return open(path, "rb")


def open_binary(path: AnyPath) -> IO[bytes]:
    """Open a file, decompressed if it starts with gzip's magic number."""
    with open_plain(path) as file:
        compressed = file.read(2) == b"\x1f\x8b"
    return gzip.open(path, "rb") if compressed else open(path, "rb")  # type: ignore[return-value]


def read_json(path: AnyPath) -> Any:
    """Read a JSON file, which may be compressed."""
    with reading(path):
        parts, unpacked, size = [], 0, os.path.getsize(path)
        with open_binary(path) as file:
            while part := file.read(LIMITS.text_bytes):
                unpacked += len(part)
                check_unpacked(unpacked, size, path)
                parts.append(part)
        text = b"".join(parts).decode("utf-8")
    try:
        return parse_json(text)
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({error})") from None


def lines(path: AnyPath, skip: int = 0) -> Iterator[tuple[int, str]]:
    """Yield (number counted from 1, text) of the lines after the first `skip`, without a byte order mark."""
    with reading(path), open_binary(path) as file:
        number = 0
        while line := file.readline(LIMITS.line_bytes + 1):
            number += 1
            check_line(len(line), number, path)
            if number > skip:
                yield number, line.removeprefix(BYTE_ORDER_MARK if number == 1 else b"").decode("utf-8")


def check_line(length: int, number: int, path: AnyPath) -> None:
    """Raise UserError for a line of more than LIMITS.line_bytes."""
    if length > LIMITS.line_bytes:
        most = f"{LIMITS.line_bytes >> 20} MiB"
        raise UserError(f"{path}, line {number}: longer than {most}; is this a text file?")


def check_unpacked(size: int, packed: int, where: object) -> None:
    """Raise UserError if `packed` bytes unpack to far more in memory than in an honest file."""
    if size > max(LIMITS.unpacked_bytes, LIMITS.unpacked_ratio * packed):
        most = (
            f"at most {LIMITS.unpacked_ratio} times as many are read beyond {LIMITS.unpacked_bytes >> 20} MiB"
        )
        raise UserError(f"{where}: {packed} bytes unpack to {size} or more; {most}: store it uncompressed")


def size_of(path: AnyPath) -> int:
    """Count the bytes of a file, or of all files below a directory."""
    with reading(path):
        if not os.path.isdir(path):
            return os.path.getsize(path)
        return sum(entry.stat().st_size for entry in Path(path).rglob("*") if entry.is_file())


def check_declared(size: int, path: AnyPath, what: str = "nodes") -> None:
    """Raise UserError for more nodes than a file or directory can mean.

    At most one node for every byte, and LIMITS.declared_nodes.
    """
    most = LIMITS.declared_nodes + (held := size_of(path))
    if not 0 <= size <= most:
        raise UserError(f"{path}: declares {size} {what} in {held} bytes; expected 0..{most}")
