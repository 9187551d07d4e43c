"""Arrays in .npy and .npz files, read by rows or streamed; object arrays are never unpickled."""

from __future__ import annotations

import contextlib
import copy
import io
import math
import mmap
import os
import shutil
import struct
import tempfile
import warnings
import weakref
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import IO

import numpy as np

from distgnn.errors import UserError
from distgnn.store.format.limits import LIMITS
from distgnn.store.importers.files import AnyPath, check_unpacked, open_plain, reading

COPY_BYTES = 1 << 24
HEADER_BYTES = 1 << 14  # NumPy reads headers of 10,000 bytes
PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # the two that NumPy writes


@dataclass
class Header:
    """The header of a .npy file, whose numbers begin at `offset`."""

    shape: tuple[int, ...]
    dtype: np.dtype
    fortran: bool
    offset: int

    def __post_init__(self) -> None:
        self.size = math.prod(self.shape)
        self.end = self.offset + self.size * self.dtype.itemsize


def read_header(file: IO[bytes], length: int, name: str, kinds: str = "biuf") -> Header:
    """Read the header of a .npy of `length` bytes that starts here; UserError for other kinds of dtype."""
    try:
        head = io.BytesIO(file.read(HEADER_BYTES))
        old = np.lib.format.read_magic(head) == (1, 0)
        read = np.lib.format.read_array_header_1_0 if old else np.lib.format.read_array_header_2_0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NumPy warns of old spellings
            shape, fortran, dtype = read(head)
        header = Header(shape, dtype, fortran and len(shape) > 1, head.tell())
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile):
        raise
    except Exception as error:  # a damaged header goes through a Python parser, which raises any exception
        what = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{name}: not a complete NumPy array file ({what})") from None
    if dtype.hasobject:
        what = "Python objects, which are pickles and never loaded"
        raise UserError(f"{name}: holds {what}; save it as numbers")
    if dtype.kind not in kinds:
        raise UserError(f"{name}: holds {dtype}, expected {'numbers' if kinds == 'biuf' else 'a string'}")
    if length < header.end or min(shape, default=0) < 0:
        needs = f"shape {shape} of {dtype} needs {header.end} bytes, the file has {length}"
        raise UserError(f"{name}: truncated: {needs}")
    if math.prod(max(side, 1) for side in shape) >> 48:  # an empty array has room for any length
        raise UserError(f"{name}: shape {shape} is not possible")
    return header


class StoredArray:
    """A C-ordered or F-ordered array in the file of the path, or in an open file.

    Rows in C order are read with pread, by runs of consecutive ids. In a memory map every scattered row would
    map and count 64 KiB, or cost a fault.
    """

    def __init__(self, path: AnyPath, header: Header, start: int = 0, file: IO[bytes] | None = None):
        self.path, self.shape, self.dtype, self.fortran = path, header.shape, header.dtype, header.fortran
        self._start = start + header.offset
        self._file = os.open(path, os.O_RDONLY) if file is None else os.dup(file.fileno())
        weakref.finalize(self, os.close, self._file)
        if os.fstat(self._file).st_size < start + header.end:
            raise UserError(f"{path}: truncated: an array in it ends at byte {start + header.end}")

    def __len__(self) -> int:
        return self.shape[0]

    def flat(self) -> StoredArray:
        """Return all elements in the order of the file."""
        flat = copy.copy(self)
        flat.shape, flat.fortran = (math.prod(self.shape),), False
        return flat

    def read(self) -> np.ndarray:
        """Return the whole array."""
        return self._view().copy(order="C")

    def rows(self, ids: np.ndarray) -> np.ndarray:
        """Return a new array of these rows, in this order; IndexError for an id outside."""
        if len(ids) and (ids.min() < 0 or ids.max() >= len(self)):
            raise IndexError(f"{self.path}: row outside 0..{len(self) - 1}")
        if self.fortran and len(ids):
            return self._view()[ids]
        ends = np.append(np.flatnonzero(np.diff(ids) != 1) + 1, len(ids))
        begins = np.append(0, ends[:-1])
        return self._runs(begins.tolist(), ends.tolist(), ids[begins].tolist() if len(ids) else [0])

    def window(self, first: int, last: int) -> np.ndarray:
        """Return a new array of rows first..last-1."""
        return self._view()[first:last].copy() if self.fortran else self._runs([0], [last - first], [first])

    def _runs(self, begins: list[int], ends: list[int], rows: list[int]) -> np.ndarray:
        """Return an array whose rows begins[k]..ends[k]-1 are the rows of this one from rows[k] on."""
        values = np.empty((ends[-1], *self.shape[1:]), self.dtype)
        if values.size:
            size, buffer = values.nbytes // len(values), values.reshape(-1).view(np.uint8).data
            with reading(self.path):
                for begin, end, row in zip(begins, ends, rows, strict=True):
                    self._fill(buffer[begin * size : end * size], self._start + row * size)
        return values

    def _fill(self, buffer: memoryview, place: int) -> None:
        """Read until the buffer is full; one call moves at most 2 GiB."""
        while got := os.preadv(self._file, [buffer], place):
            if got == len(buffer):
                return
            buffer, place = buffer[got:], place + got
        raise EOFError("the file became shorter")

    def _view(self) -> np.ndarray:
        if 0 in self.shape:
            return np.zeros(self.shape, self.dtype)
        mapped = mmap.mmap(self._file, 0, access=mmap.ACCESS_READ)
        return np.ndarray(self.shape, self.dtype, mapped, self._start, order="F" if self.fortran else "C")


def open_npy(path: AnyPath, kinds: str = "biuf") -> StoredArray:
    """Open the array in a .npy file; UserError for other kinds of dtype."""
    with reading(path), open_plain(path) as file:
        return StoredArray(path, read_header(file, os.path.getsize(path), str(path), kinds))


@contextlib.contextmanager
def scratch_file(folder: str | None) -> Iterator[IO[bytes]]:
    """Open a temporary file without a name: it vanishes however this process ends."""
    place = folder or tempfile.gettempdir()
    with reading(place):
        file = tempfile.TemporaryFile(prefix="distgnn-", dir=folder)
    try:
        with file:
            yield file
    except OSError as error:
        raise UserError(f"{place}: a temporary copy cannot be written ({error.strerror or error})") from None


class Archive(ABC):
    """Named arrays in a file: `read` small ones, `stream` long ones, `stored` for rows in any order."""

    def __init__(self, path: AnyPath, scratch: str | None, names: Iterable[str]) -> None:
        self.path, self.scratch, self.names = path, scratch, list(names)

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def described(self) -> str:
        """List the names of the arrays, for errors."""
        return ", ".join(self.names[:20]) + ", ..." * (len(self.names) > 20) or "nothing"

    def where(self, name: str) -> str:
        """Return the file and the name of an array, for errors."""
        return f"{self.path}, array {name!r}"

    @abstractmethod
    def header(self, name: str, kinds: str = "biuf") -> Header:
        """Read type and shape of an array; UserError if it is missing or of another kind."""

    @abstractmethod
    def stream(self, name: str, start: int, count: int) -> Iterator[np.ndarray]:
        """Yield elements start..start+count of an array, in file order, LIMITS.entries at a time."""

    @abstractmethod
    def stored(self, name: str) -> StoredArray:
        """Open an array in its place in the file if it can be read there, else in a temporary copy."""

    def read(self, name: str) -> np.ndarray:
        """Return a whole array."""
        header = self.header(name)
        flat = np.concatenate([np.zeros(0, header.dtype), *self.stream(name, 0, header.size)])
        return flat.reshape(header.shape, order="F" if header.fortran else "C")

    def integers(self, name: str) -> np.ndarray:
        """Return a whole array as int64; UserError if it holds other values than integers."""
        return integers(self.read(name), self.where(name))


class Npz(Archive):
    """A .npz archive."""

    def __init__(self, path: AnyPath, scratch: str | None = None) -> None:
        with unzipping(path, path) as archive:
            self._members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        super().__init__(path, scratch, self._members)
        self._headers: dict[str, Header] = {}

    @contextlib.contextmanager
    def _open(self, name: str) -> Iterator[IO[bytes]]:
        """Open the member as a file; raise UserError for damage."""
        if name not in self._members:
            raise UserError(f"{self.path}: has no array {name!r}; it has {self.described()}")
        info, where = self._members[name], self.where(name)
        if info.compress_type not in PACKINGS:
            what = f"packed by method {info.compress_type}"
            raise UserError(f"{where}: {what}; expected a plain or compressed .npz")
        with unzipping(self.path, where) as archive, archive.open(info) as file:
            yield file

    def header(self, name: str, kinds: str = "biuf") -> Header:
        if name not in self._headers:
            with self._open(name) as file:
                info, where = self._members[name], self.where(name)
                packed = min(info.compress_size, os.path.getsize(self.path))
                check_unpacked(info.file_size, packed, where)
                self._headers[name] = read_header(file, info.file_size, where, kinds)
        return self._headers[name]

    def text(self, name: str) -> str:
        """Return the string that a member holds, such as the `format` of a SciPy matrix."""
        header = self.header(name, "US")
        if header.size != 1 or not 0 < header.dtype.itemsize <= HEADER_BYTES:
            lengths = f"{header.size} strings of {header.dtype.itemsize} bytes"
            raise UserError(f"{self.where(name)}: {lengths}, expected a short one")
        (array,) = self.stream(name, 0, 1)
        try:
            value = array.item()
        except ValueError as error:
            raise UserError(f"{self.where(name)}: no string ({error})") from None
        return value.decode("latin1") if isinstance(value, bytes) else str(value)

    def stream(self, name: str, start: int, count: int) -> Iterator[np.ndarray]:
        header, most = self.header(name), LIMITS.entries
        size = header.dtype.itemsize
        with self._open(name) as file:
            skip = header.offset + start * size
            while skip:
                skip -= len(_exactly(file, min(skip, COPY_BYTES)))
            for left in range(count, 0, -most):
                yield np.frombuffer(_exactly(file, min(most, left) * size), header.dtype)
            if start + count == header.size:
                file.read(1)  # the end of the member is where its checksum is compared

    def stored(self, name: str) -> StoredArray:
        header, info = self.header(name), self._members[name]
        if info.compress_type == zipfile.ZIP_STORED:
            return StoredArray(self.path, header, data_offset(self.path, info))
        with scratch_file(self.scratch) as unpacked:
            with self._open(name) as file:
                shutil.copyfileobj(file, unpacked, COPY_BYTES)
            unpacked.flush()
            return StoredArray(self.where(name), header, file=unpacked)


def data_offset(path: AnyPath, info: zipfile.ZipInfo) -> int:
    """Find the first byte of a member, behind its local header of variable length."""
    with reading(path), open_plain(path) as file:
        file.seek(info.header_offset)
        local = file.read(30)
        if len(local) < 30 or local[:4] != b"PK\x03\x04":
            raise UserError(f"{path}: truncated or damaged; a complete file is needed")
        return info.header_offset + 30 + sum(struct.unpack("<HH", local[26:30]))


@contextlib.contextmanager
def unzipping(path: AnyPath, name: object) -> Iterator[zipfile.ZipFile]:
    """Open the archive; turn all errors that zipfile raises for impossible fields into UserError."""
    try:
        with reading(path), open_plain(path) as file, zipfile.ZipFile(file) as archive:
            yield archive
    except (NotImplementedError, RuntimeError, struct.error, ValueError, OverflowError) as error:
        what = f"cannot be unpacked ({error}); expected a plain or compressed .npz"
        raise UserError(f"{name}: {what}") from None


def _exactly(file: IO[bytes], count: int) -> bytes:
    data = file.read(count)
    if len(data) < count:
        raise EOFError("the file ends early")
    return data


def rows_of(array: StoredArray | np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Return these rows of an array in a file or in memory."""
    return array.rows(ids) if isinstance(array, StoredArray) else array[ids]


def window_of(array: StoredArray | np.ndarray, first: int, last: int) -> np.ndarray:
    """Return rows first..last-1 of an array in a file or in memory."""
    return array.window(first, last) if isinstance(array, StoredArray) else array[first:last]


def strings(array: np.ndarray, where: object) -> np.ndarray:
    """Convert strings of dtype U, or UTF-8 in S, to objects; UserError for bytes that are no text."""
    try:
        if array.dtype.kind == "S":
            return np.char.decode(array, "utf-8").astype(object)
        codes = np.ascontiguousarray(array, array.dtype.newbyteorder("=")).view(np.uint32)
        if ((codes > 0x10FFFF) | ((codes >= 0xD800) & (codes < 0xE000))).any():  # NumPy checks no code point
            raise ValueError("code points outside Unicode")
        return array.astype(object)
    except ValueError as error:
        raise UserError(f"{where}: no strings ({error})") from None


def integers(array: np.ndarray, what: str) -> np.ndarray:
    """Convert an array to int64; UserError if it holds other values than integers in int64's range."""
    if array.dtype.kind not in "iu":
        raise UserError(f"{what}: holds {array.dtype}, expected integers")
    if array.dtype.kind == "u" and array.max(initial=0) >> 63:
        raise UserError(f"{what}: holds {array.max()}, which is too large")
    return array.astype(np.int64, copy=False)


def indices(array: np.ndarray, below: int, where: object, what: str = "node id") -> np.ndarray:
    """Convert an array to int64 and check that all its values lie in 0..below-1.

    Every index of a file passes here, or through `pointers`, before it is used.
    """
    numbers = integers(array, f"{where}: {what}s")
    if len(numbers) and (numbers.min() < 0 or numbers.max() >= below):
        bad = numbers[(numbers < 0) | (numbers >= below)][0]
        raise UserError(f"{where}: {what} {bad} lies outside 0..{below - 1}")
    return numbers


def pointers(array: np.ndarray, rows: int, entries: int, where: object) -> np.ndarray:
    """Convert the row pointers of a compressed matrix to int64; check that they rise from 0 to `entries`."""
    indptr = integers(array, f"{where}: row pointers")
    if indptr.shape != (rows + 1,):
        raise UserError(f"{where}: {indptr.size} row pointers for {rows} rows; expected one more than rows")
    if indptr[0] != 0 or indptr[-1] != entries or np.any(indptr[1:] < indptr[:-1]):
        raise UserError(f"{where}: row pointers do not rise from 0 to {entries}, the number of entries")
    return indptr
