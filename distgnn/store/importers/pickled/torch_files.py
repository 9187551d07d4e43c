"""Tensors in .pt files of `torch.save`, loaded by PyTorch, where it is installed, as data alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from distgnn.errors import UserError
from distgnn.store.format.limits import LIMITS
from distgnn.store.importers.arrays import Archive, Header
from distgnn.store.importers.files import open_plain, reading
from distgnn.store.importers.graph_arrays import has_graph, open_arrays
from distgnn.store.importers.imported import Imported
from distgnn.store.source import ImportOptions

ADVICE = "save its arrays as numpy.savez('graph.npz', edge_index=..., x=..., y=...) and give that file"


class Tensors(Archive):
    """The tensors and numbers of the graph in a .pt file, by name, in a map of the file's memory."""

    def __init__(self, path: Path, scratch: str | None = None) -> None:
        self.values = graph_of(loaded(path), path)
        super().__init__(path, scratch, self.values)

    def where(self, name: str) -> str:
        return f"{self.path}, {name!r}"

    def header(self, name: str, kinds: str = "biuf") -> Header:
        array = self.stored(name)
        return Header(array.shape, array.dtype, False, 0)

    def read(self, name: str) -> np.ndarray:
        return self.stored(name).copy()

    def stream(self, name: str, start: int, count: int) -> Iterator[np.ndarray]:
        flat = self.stored(name).reshape(-1)
        for lo in range(start, start + count, LIMITS.entries):
            yield flat[lo : min(lo + LIMITS.entries, start + count)]

    def stored(self, name: str) -> Any:
        value = self.values[name]
        try:
            if hasattr(value, "detach"):
                value = value.detach().cpu()
                value = (value.float() if "bfloat16" in str(value.dtype) else value).numpy()
            array = np.ascontiguousarray(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise UserError(f"{self.where(name)}: is no array ({str(error).splitlines()[0]})") from None
        if array.dtype.kind not in "biuf":
            raise UserError(f"{self.where(name)}: holds {array.dtype}, expected numbers")
        return array


def loaded(path: Path) -> Any:
    """Load the file; UserError without PyTorch, or for what is more than tensors and plain containers."""
    with reading(path), open_plain(path):
        pass
    try:
        import torch
    except ImportError:
        raise UserError(f"{path}: .pt files need PyTorch, which is not installed; {ADVICE}") from None
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # a damaged or foreign file can raise nearly anything
        what = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise UserError(f"{path}: PyTorch cannot load it as tensors alone ({what}); {ADVICE}") from None


def graph_of(content: Any, path: Path) -> dict[str, Any]:
    """Return the attributes of the only graph in what was loaded: a dictionary, or PyG's (data, slices)."""
    if isinstance(content, (tuple, list)) and content:
        slices = content[1] if len(content) > 1 else None
        ends = slices.get("edge_index") if isinstance(slices, dict) else None
        if ends is not None and len(ends.numpy()) > 2:
            raise UserError(f"{path}: holds {len(ends.numpy()) - 1} graphs; save one of them")
        content = content[0]
    if hasattr(content, "to_dict"):
        content = content.to_dict()
    values = (
        {key: value for key, value in content.items() if value is not None}
        if isinstance(content, dict)
        else {}
    )
    for inner in (values, *(value for value in values.values() if isinstance(value, dict))):
        if any(name in inner for name in ("edge_index", "src", "row")):
            return {str(key): value for key, value in inner.items()}
    raise UserError(
        f"{path}: has no edge_index; it has {', '.join(map(str, values))[:200] or 'other things'}; {ADVICE}"
    )


def open_source(path: Path, options: ImportOptions) -> Imported:
    """Open the graph of PyG's `Data`, or of a dictionary of tensors with the names of `graph_arrays`."""
    tensors = Tensors(path, options.scratch)
    if not has_graph(tensors):
        raise UserError(f"{path}: has no edge_index; it has {tensors.described()}")
    return open_arrays(tensors, path, options)
