"""The only door to HDF5 files that somebody else may have written: it hands out plain arrays of this file.

An HDF5 file can lead to other files by external links, soft links through those, virtual datasets, external
raw storage, and links and filters that plugins give a meaning. It can also promise more than it holds. Here a
name leads to an array only through hard links, and only to one such as `hdf5.create` writes.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import h5py
import numpy as np
from h5py import h5a, h5d, h5l, h5o, h5s, h5t, h5z

from distgnn.errors import UserError
from distgnn.store.format.limits import LIMITS
from distgnn.store.format.manifest import NAME, denied

CHUNK_BYTES = 1 << 26  # more than any chunk that was ever written
TEXT_BYTES = 1 << 12  # of an attribute
AGAIN = "copy it or make it again"
PLAIN = "expected an array in this file"
_KINDS = {h5o.TYPE_GROUP: "a group", h5o.TYPE_NAMED_DATATYPE: "a datatype", h5o.TYPE_DATASET: "an array"}
_LINKS = {h5l.TYPE_SOFT: "a soft link", h5l.TYPE_EXTERNAL: "a link to another file"}
_LAYOUTS = (h5d.COMPACT, h5d.CONTIGUOUS, h5d.CHUNKED)


@contextmanager
def reading(path: str | os.PathLike[str]) -> Iterator[StoredFile]:
    """Open a file for reading without locking.

    An error of HDF5 inside becomes a UserError that names the file, so only reads of this file belong inside.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe would wait for ever
            raise UserError(f"{path}: is not a regular file; {AGAIN}")
        with h5py.File(path, "r", locking=False, rdcc_nbytes=LIMITS.cached_bytes) as file:
            yield StoredFile(file, os.path.getsize(path))
    except FileNotFoundError:
        raise UserError(f"{path}: file is missing; {AGAIN}") from None
    except PermissionError:
        raise denied(path) from None
    except (OSError, KeyError, RuntimeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        problem = f"truncated or corrupt HDF5 file ({reason}); copy it or make it again"
        raise UserError(f"{path}: {problem}") from None


class StoredFile:
    """An HDF5 file that is open for reading, of so many bytes."""

    def __init__(self, file: h5py.File, size: int) -> None:
        self._file, self.size = file, size

    def array(self, name: str, shape: tuple[int, ...], *types: Any) -> h5py.Dataset:
        """Return a dataset of this file, to be read in ranges, once it is certain what that reads.

        Args:
            name: with slashes between groups. shape: as the manifest means it. types: the possible ones.

        Raises:
            UserError: it is missing, a link, of another kind, shape or type, kept elsewhere, or not whole.
        """
        self._follow(name)
        dataset = h5d.open(self._file.id, name.encode())
        how = dataset.get_create_plist()  # before all else, as asking for a virtual shape opens its files
        if how.get_layout() not in _LAYOUTS:
            raise self._refused(name, f"is a virtual dataset; {PLAIN}")
        if how.get_external_count():
            raise self._refused(name, f"has its numbers in another file; {PLAIN}")
        extent = dataset.get_space()
        dims = extent.get_simple_extent_dims() if extent.get_simple_extent_type() != h5s.NULL else None
        if dims != shape:
            raise self._refused(name, f"has shape {dims}, but {NAME} means {shape}")
        kind = dataset.get_type()
        matching = [t for t in map(np.dtype, types) if any(kind.equal(other) for other in _type_ids(t))]
        if not matching:
            expected = " or ".join(np.dtype(t).name for t in types)
            raise self._refused(name, f"holds {_type_name(kind)}; expected {expected}")
        self._check_whole(name, dataset, how, math.prod(shape) * kind.get_size())
        return h5py.Dataset(dataset)

    def text(self, name: str) -> bytes | None:
        """Return an attribute of the file that is text of a fixed length, else None."""
        key = name.encode()
        if not h5a.exists(self._file.id, key):
            return None
        attribute = h5a.open(self._file.id, key)
        kind, scalar = attribute.get_type(), attribute.get_space().get_simple_extent_type() == h5s.SCALAR
        fixed = isinstance(kind, h5t.TypeStringID) and not kind.is_variable_str()
        if not (scalar and fixed and kind.get_size() <= TEXT_BYTES):
            return None
        return bytes(self._file.attrs[name])

    def _follow(self, name: str) -> None:
        """Raise UserError unless a name leads to a dataset through hard links and groups."""
        group, *parts = self._file.id, *name.encode().split(b"/")
        for depth, part in enumerate(parts, 1):
            if not group.links.exists(part):
                raise self._refused(name, f"is missing; {PLAIN}")
            link = group.links.get_info(part).type
            if link != h5l.TYPE_HARD:
                raise self._refused(name, f"is {_LINKS.get(link, 'a link of an unknown kind')}; {PLAIN}")
            wanted = h5o.TYPE_DATASET if depth == len(parts) else h5o.TYPE_GROUP
            kind = h5o.get_info(group, part).type
            if kind != wanted:
                raise self._refused(name, f"is {_KINDS.get(kind, 'an unknown object')}; {PLAIN}")
            if depth < len(parts):
                group = h5py.h5g.open(group, part)

    def _check_whole(self, name: str, dataset: h5d.DatasetID, how: Any, nbytes: int) -> None:
        """Raise UserError unless all bytes of a dataset are in the file, under filters of `hdf5.create`."""
        filters = [how.get_filter(k)[0] for k in range(how.get_nfilters())]
        if filters and filters != [h5z.FILTER_FLETCHER32]:
            raise self._refused(name, f"is filtered ({filters}); expected checksums alone")
        if how.get_layout() == h5d.CHUNKED:
            chunk = math.prod(how.get_chunk()) * dataset.get_type().get_size()
            if chunk > max(CHUNK_BYTES, self.size):
                raise self._refused(name, f"has chunks of {chunk} bytes; expected at most {CHUNK_BYTES}")
        held = min(dataset.get_storage_size(), self.size)
        if held < nbytes:
            raise self._refused(name, f"has {nbytes} bytes, and {held} are in the file; expected all")

    def _refused(self, name: str, problem: str) -> UserError:
        return UserError(f"{self._file.filename}: {name} {problem}; {AGAIN}")


def _type_ids(dtype: np.dtype) -> Iterator[h5t.TypeID]:
    """Yield HDF5's types of these numbers, in either order of bytes."""
    yield h5t.py_create(dtype.newbyteorder("<"))
    yield h5t.py_create(dtype.newbyteorder(">"))


def _type_name(kind: h5t.TypeID) -> str:
    """Name a type of HDF5, also one that NumPy has none for."""
    try:
        return str(kind.dtype)
    except (TypeError, ValueError):
        return f"a type of HDF5's class {kind.get_class()}"
