"""Files from outside: regular ones only, gzip unpacked, and bounds on what they unpack to or declare."""

from __future__ import annotations

import os
import stat
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from distgnn.errors import UserError
from distgnn.files.nearby import did_you_mean_path
from distgnn.files.text import parse_json
from distgnn.store.format.limits import LIMITS

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
PACKED = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\x28\xb5\x2f\xfd": "zstd"}
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
    except (EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise UserError(f"{path}: truncated or damaged ({error}); a complete file is needed") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is not UTF-8 text (byte {error.start}: {error.reason})") from None
    except OSError as error:
        if error.errno is None:  # of the library that unpacks
            raise UserError(f"{path}: truncated or damaged ({error}); a complete file is needed") from None
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None


def open_plain(path: AnyPath) -> IO[bytes]:
    """Open a regular file; UserError for any other, as a pipe waits and a device never ends."""
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise UserError(f"{path}: is no regular file; copy what it gives into a file first")
    return open(path, "rb")


def unpacked(path: AnyPath, raw: pa.NativeFile | None = None) -> pa.NativeFile:
    """Open a file, decompressed if it begins as gzip, bzip2 or Zstandard do; `raw`: the file, opened."""
    with open_plain(path) as file:
        begin = file.read(4)
    packing = next((name for magic, name in PACKED.items() if begin.startswith(magic)), None)
    raw = raw or pa.OSFile(os.fspath(path))
    return pa.CompressedInputStream(raw, packing) if packing else raw


def read_json(path: AnyPath) -> Any:
    """Read a JSON file, which may be compressed."""
    with reading(path):
        parts, held, size = [], 0, os.path.getsize(path)
        with unpacked(path) as file:
            while part := file.read(LIMITS.text_bytes):
                held += len(part)
                check_unpacked(held, size, path)
                parts.append(part)
        text = b"".join(parts).decode("utf-8")
    try:
        return parse_json(text)
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({error})") from None


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
