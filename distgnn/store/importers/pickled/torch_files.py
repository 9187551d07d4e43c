"""Tensors in .pt files of `torch.save`, without torch and without running the pickle's code.

A file is a ZIP archive: data.pkl describes tensors, whose numbers are members of their own. The pickle may
name tensors, plain containers and PyG's `Data`; any other name is refused (see `unpickler`).
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from distgnn.errors import UserError
from distgnn.store.format.limits import LIMITS
from distgnn.store.importers.arrays import (
    PACKINGS,
    Archive,
    Header,
    StoredArray,
    data_offset,
    scratch_file,
    unzipping,
)
from distgnn.store.importers.files import check_unpacked, open_plain, reading
from distgnn.store.importers.graph_arrays import has_graph, open_arrays
from distgnn.store.importers.imported import Imported
from distgnn.store.importers.pickled.unpickler import (
    ALLOWED,
    MOST_SIDES,
    PickledArray,
    RestrictedUnpickler,
    loaded,
)
from distgnn.store.source import ImportOptions

# bool is read as uint8, of which every value but 0 is true; bfloat16 as the upper half of a float32.
STORAGES = {"Float": "f4", "Double": "f8", "Half": "f2", "BFloat16": "u2", "Long": "i8", "Int": "i4",
            "Short": "i2", "Char": "i1", "Byte": "u1", "Bool": "u1"}  # fmt: skip


class Bag:
    """A stand-in for PyG's `Data` and its storages, which keeps the state alone."""

    state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


@dataclass
class Storage:
    """A stand-in for a storage of a tensor: `numel` numbers in the member data/`key`."""

    kind: str
    key: str
    numel: int


@dataclass
class Tensor:
    """A stand-in for a tensor, a view of a storage."""

    storage: Storage
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]

    @classmethod
    def rebuilt(cls, storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> Tensor:
        """Rebuild a tensor as `torch._utils._rebuild_tensor_v2`; ValueError for a view beyond its storage."""
        sides = type(size) is type(stride) is tuple and len(size) == len(stride) <= MOST_SIDES
        if not isinstance(storage, Storage) or not sides:
            raise ValueError("a tensor of an unknown kind")
        if any(type(k) is not int or not 0 <= k < 1 << 48 for k in (offset, *size, *stride)):
            raise ValueError("a tensor of an impossible shape")
        if math.prod(size) > storage.numel:
            raise ValueError(f"a tensor of size {size} from {storage.numel} numbers")
        last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        if math.prod(size) and last >= storage.numel:
            raise ValueError(f"a tensor that ends at {last} of {storage.numel} numbers")
        return cls(storage, offset, size, stride)


_PYG = {
    "torch_geometric.data.data": ("Data", "DataEdgeAttr", "DataTensorAttr"),
    "torch_geometric.data.storage": ("GlobalStorage", "NodeStorage", "EdgeStorage", "BaseStorage"),
}
TORCH: dict[tuple[str, str], Any] = {
    **ALLOWED,
    **{(module, name): Bag for module, names in _PYG.items() for name in names},
    **{("torch", f"{kind}Storage"): kind for kind in STORAGES},
    ("torch._utils", "_rebuild_tensor_v2"): Tensor.rebuilt,
    ("torch._utils", "_rebuild_parameter"): lambda data, *_: data,
    ("torch", "Size"): lambda size: size,
    ("collections", "OrderedDict"): lambda *_: {},
}


class TorchUnpickler(RestrictedUnpickler):
    """An unpickler of the names in `TORCH`."""

    stateful = (*RestrictedUnpickler.stateful, Bag)
    allowed, loads = TORCH, "only tensors, containers and PyG's Data are loaded"

    def persistent_load(self, pid: Any) -> Storage:
        what, kind, key, _, numel = pid
        known = type(kind) is str and kind in STORAGES
        if what != "storage" or not known or type(key) is not str or type(numel) is not int:
            raise ValueError("a storage of an unknown kind")
        return Storage(kind, key, numel)


class Tensors(Archive):
    """The tensors and numbers of the graph in a .pt file, by name."""

    def __init__(self, path: Path, scratch: str | None = None) -> None:
        with reading(path), open_plain(path) as file:
            if file.read(2) != b"PK":
                old = "not a ZIP archive, as torch.save writes since 1.6"
                raise UserError(f"{path}: {old}; load it with torch and save it again")
        with unzipping(path, path) as archive:
            self.members = {info.filename: info for info in archive.infolist()}
        pickles = [name for name in self.members if name.rpartition("/")[2] == "data.pkl"]
        if len(pickles) != 1:
            raise UserError(f"{path}: has no data.pkl; expected what torch.save writes")
        super().__init__(path, scratch, ())
        self.prefix = pickles[0].removesuffix("data.pkl")
        order = f"{self.prefix}byteorder"
        self.order = ">" if order in self.members and self._bytes(order) == b"big" else "<"
        content = loaded(TorchUnpickler(self._bytes(pickles[0]), path), path)
        self.values = attributes(content, path)
        self.names = list(self.values)
        self.arrays: dict[str, StoredArray] = {}

    def where(self, name: str) -> str:
        return f"{self.path}, {name!r}"

    def _info(self, name: str) -> zipfile.ZipInfo:
        info = self.members.get(name)
        if info is None or info.compress_type not in PACKINGS:
            what = "is missing" if info is None else f"is packed by method {info.compress_type}"
            raise UserError(f"{self.path}: member {name} {what}; save the file again")
        return info

    def _bytes(self, name: str) -> bytes:
        info = self._info(name)
        with unzipping(self.path, self.path) as archive, archive.open(info) as file:
            check_unpacked(info.file_size, info.compress_size, self.path)
            return file.read()

    def header(self, name: str, kinds: str = "biuf") -> Header:
        array = self.stored(name)
        return Header(array.shape, array.dtype, array.fortran, 0)

    def read(self, name: str) -> np.ndarray:
        values, value = self.stored(name).read(), self.values[name]
        return values != 0 if isinstance(value, Tensor) and value.storage.kind == "Bool" else values

    def stream(self, name: str, start: int, count: int) -> Iterator[np.ndarray]:
        flat = self.stored(name).flat()
        for lo in range(start, start + count, LIMITS.entries):
            yield flat.window(lo, min(lo + LIMITS.entries, start + count))

    def stored(self, name: str) -> StoredArray:
        if name not in self.arrays:
            value = self.values[name]
            plain = self._plain(value) if isinstance(value, Tensor) else None
            self.arrays[name] = plain or self._copied(value, name)
        return self.arrays[name]

    def _plain(self, tensor: Tensor) -> StoredArray | None:
        """Open the tensor in the file; return None if its numbers have gaps or need a change."""
        size, stride, storage = tensor.size, tensor.stride, tensor.storage
        rows = tuple(math.prod(size[k + 1 :]) for k in range(len(size)))
        fortran = len(size) == 2 and stride == (1, size[0]) and stride != rows
        info = self._info(f"{self.prefix}data/{storage.key}")
        if (stride != rows and not fortran) or info.compress_type or storage.kind == "BFloat16":
            return None
        dtype = np.dtype(self.order + STORAGES[storage.kind])
        self._check_size(storage, info)
        start = data_offset(self.path, info)
        return StoredArray(self.path, Header(size, dtype, fortran, tensor.offset * dtype.itemsize), start)

    def _check_size(self, storage: Storage, info: zipfile.ZipInfo) -> None:
        needed = storage.numel * np.dtype(STORAGES[storage.kind]).itemsize
        if needed > info.file_size:
            what = f"{info.filename} has {info.file_size} bytes, its tensors need {needed}"
            raise UserError(f"{self.path}: truncated: {what}")

    def _copied(self, value: Any, name: str) -> StoredArray:
        if isinstance(value, Tensor):
            array = self._loaded(value)
        else:
            array = value.array if isinstance(value, PickledArray) else np.asarray(value)
        if array.dtype.kind not in "biuf":
            raise UserError(f"{self.where(name)}: holds {array.dtype}, expected numbers")
        with scratch_file(self.scratch) as copy:
            copy.write(np.ascontiguousarray(array).data)
            copy.flush()
            return StoredArray(self.path, Header(array.shape, array.dtype, False, 0), file=copy)

    def _loaded(self, tensor: Tensor) -> np.ndarray:
        storage = tensor.storage
        info = self._info(f"{self.prefix}data/{storage.key}")
        self._check_size(storage, info)
        numbers = np.frombuffer(
            self._bytes(info.filename), self.order + STORAGES[storage.kind], storage.numel
        )
        steps = tuple(step * numbers.itemsize for step in tensor.stride)
        array = np.lib.stride_tricks.as_strided(numbers[tensor.offset :], tensor.size, steps, writeable=False)
        if storage.kind == "BFloat16":
            return (array.astype(np.uint32) << 16).view(np.float32)
        return array.astype(array.dtype.newbyteorder("="))


def attributes(content: Any, path: Path) -> dict[str, Any]:
    """Map names to tensors, arrays and numbers of a `Data`, a dictionary, or the first of a data set."""
    if isinstance(content, (tuple, list)) and content:
        slices = content[1] if len(content) > 1 else None
        ends = slices.get("edge_index") if isinstance(slices, dict) else None
        if isinstance(ends, Tensor) and ends.size != (2,):
            raise UserError(f"{path}: holds {math.prod(ends.size) - 1} graphs; save one of them")
        content = content[0]
    if isinstance(content, Bag):  # before PyG 2.0 the attributes lay in the Data itself
        content = _state(content)
        content = _state(content["_store"]).get("_mapping") if "_store" in content else content
    if not isinstance(content, dict):
        content_type = f"holds a {type(content).__name__}"
        raise UserError(f"{path}: {content_type}; expected PyG's Data, or a dictionary of tensors")
    named: dict[str, Any] = {}
    for name, value in content.items():
        if isinstance(name, str) and (type(value) is int or isinstance(value, (Tensor, PickledArray))):
            if type(value) is not int or abs(value) < 1 << 63:
                named[name] = value
    return named


def _state(bag: Any) -> dict[str, Any]:
    return bag.state if isinstance(bag, Bag) and isinstance(bag.state, dict) else {}


def open_source(path: Path, options: ImportOptions) -> Imported:
    """Open the graph of a PyG `Data`, or of a dictionary of tensors with the same names."""
    tensors = Tensors(path, options.scratch)
    if not has_graph(tensors):
        raise UserError(f"{path}: has {tensors.described()}; expected edge_index, (2, edges)")
    return open_arrays(tensors, path, options)
