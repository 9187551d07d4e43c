"""Files of predictions, written some rows at a time."""

from __future__ import annotations

import io
import zipfile
from typing import IO

import numpy as np

from distgnn.arrays.blocking import Blocks
from distgnn.arrays.tuning import TUNING
from distgnn.files.sheet import Sheet
from distgnn.operators.dense import DistDense
from distgnn.store.read.store import Store


class Archive(zipfile.ZipFile):
    """An archive without a finalizer, which would write to the closed file after an error."""

    def __del__(self) -> None:
        pass


class Npz:
    """An archive of ``numpy.savez``, in parts; labels wait, narrow. `like`: labels of no nodes, or None."""

    def __init__(
        self, file: IO[bytes], Z: DistDense, name: str, like: np.ndarray | None, store: Store,
        names: list[str] | None,
    ) -> None:  # fmt: skip
        self.store, self.names = store, names
        self.archive = Archive(file, "w", zipfile.ZIP_STORED, allowZip64=True)
        self.labels: list[np.ndarray] = []
        self.like, self.rows, self.narrow = like, Z.shape[0], np.min_scalar_type(Z.shape[1])
        self.member = self._begin(name, Z.shape, Z.dtype)

    def _begin(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> IO[bytes]:
        member = self.archive.open(f"{name}.npy", "w", force_zip64=True)
        header = {"descr": dtype.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_2_0(member, header)
        return member

    def write(self, rows: np.ndarray, labels: np.ndarray | None) -> None:
        """Write the next rows, and their labels where they are asked for."""
        self.member.write(np.ascontiguousarray(rows).data)
        if labels is not None:
            several = labels.ndim == 2
            self.labels.append(np.packbits(labels, axis=1) if several else labels.astype(self.narrow))

    def close(self) -> None:
        """Write what comes after all rows."""
        self.member.close()
        if self.like is not None:
            width = self.like.shape[1:]
            with self._begin("label", (self.rows, *width), self.like.dtype) as member:
                for labels in self.labels:
                    wide = np.unpackbits(labels, axis=1, count=width[0]) if width else labels
                    member.write(np.ascontiguousarray(wide, self.like.dtype).data)
            if self.names:
                with self.archive.open("class_name.npy", "w") as member:
                    np.lib.format.write_array(member, np.array(self.names), version=(2, 0))
        if self.store.has_ids:
            self._add_ids()
        self.archive.close()

    def _add_ids(self) -> None:
        """Write the ids in parts, once the longest is known."""
        parts = Blocks(self.rows, TUNING.written_numbers)
        dtype = max((self.store.ids(rows).dtype for rows in parts), key=lambda dtype: dtype.itemsize)
        with self._begin("id", (self.rows,), dtype) as member:
            for rows in parts:
                member.write(self.store.ids(rows).astype(dtype).tobytes())


class Csv:
    """Lines of text: node, label or labels, numbers."""

    def __init__(
        self, file: IO[bytes], Z: DistDense, name: str, like: np.ndarray | None, store: Store,
        names: list[str] | None,
    ) -> None:  # fmt: skip
        self.text = io.TextIOWrapper(file, "utf-8", newline="", write_through=True)
        names = None if like is None else names
        self.store, self.names = store, names if like is not None and like.ndim == 1 else None
        self.lines, self.node = Sheet(self.text), 0
        width = names or range(Z.shape[1])
        labels = ["label"] if like is None or like.ndim == 1 else [f"label_{column}" for column in width]
        columns = [f"{name}_{column}" for column in width]
        self.lines.writerow(["node", *([] if like is None else labels), *columns])

    def write(self, rows: np.ndarray, labels: np.ndarray | None) -> None:
        """Write the next rows, and their labels where they are asked for."""
        labels_written = [[]] * len(rows) if labels is None else labels.reshape(len(rows), -1).tolist()
        if self.names is not None:
            labels_written = [[self.names[label]] for (label,) in labels_written]
        nodes = self.store.ids((self.node, self.node + len(rows))).tolist()
        numbers = (f"{number:.7g}" for number in rows.reshape(-1).tolist())
        for node, label in zip(nodes, labels_written, strict=True):
            self.lines.writerow([node, *label, *(next(numbers) for _ in range(rows.shape[1]))])
        self.node += len(rows)

    def close(self) -> None:
        """Write what comes after all rows."""
        self.text.flush()
        self.text.detach()
