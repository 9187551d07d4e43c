"""A directory of plain .npy files for a generated graph: written chunk by chunk, whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from distgnn.errors import ArgumentError
from distgnn.gallery.graph import GeneratedGraph
from distgnn.stages import followed
from distgnn.store.format.publish import check_target, new_directory
from distgnn.store.importers.arrays import open_npy
from distgnn.store.importers.generated import FORMAT, VERSION, read_edges

KIND = "generated graph"
NODE_BYTES = 8  # bytes of memory, at least, for each node while a graph is written


def write(graph: GeneratedGraph, path: str | os.PathLike[str], force: bool = False) -> dict[str, Any]:
    """Write `graph` to the directory `path`; return the content of its graph.json.

    Files: graph.json; edges.npy int64 (m, 2), source and target; features.npy float32 (n, width), labels.npy
    int32 (n,) and split.npy uint8 (n,) where the graph has them. Memory: a few arrays of n, and chunks.

    The directory appears when it is complete; `force` replaces an existing graph. Raises UserError if `path`
    exists (with `force`: and is no generated graph), if its parent does not, or if the disk is too small.
    """
    with new_directory(path, force=force, replaceable=is_generated, what=KIND) as folder:
        m = graph.n if graph.m is None else graph.m  # road maps have about as many edges as nodes
        check_space(graph.n, 16 * m + graph.n * (4 * graph.width + 5), folder.parent)
        edges = folder / "edges.npy"
        drawn = (np.stack(ends, axis=1) for ends in graph.edges())
        m = save_rows(edges, np.int64, (2,), followed(drawn, "draw edges", graph.m, "edges", len))
        labels, split = graph.labels(lambda: read_edges(open_npy(edges), 0, m)), graph.split()
        if labels is not None:
            save_rows(folder / "labels.npy", np.int32, (), [labels])
        if split is not None:
            save_rows(folder / "split.npy", np.uint8, (), [split])
        if graph.width:
            rows = followed(graph.features(), "draw features", graph.n, "nodes", len)
            save_rows(folder / "features.npy", np.float32, (graph.width,), rows)
        description = {"format": FORMAT, "version": VERSION, "kind": graph.kind, "n": graph.n, "edges": m}
        for name in ("directed", "classes", "width", "seed", "parameters"):
            description[name] = getattr(graph, name)
        with _durable(folder / "graph.json") as file:
            file.write(json.dumps(description, indent=2).encode() + b"\n")
    return description


def save_rows(path: Path, dtype: Any, row_shape: tuple[int, ...], chunks: Iterable[np.ndarray]) -> int:
    """Write an .npy file (version 1.0, C order) of chunks of shape (k, *row_shape); return its rows.

    Writes to a file, as the pages of a memory map would count as this process's memory.
    """
    rows = 0
    with _durable(path) as file:
        begin = _write_header(file, dtype, (0, *row_shape))
        for chunk in chunks:
            if chunk.shape[1:] != row_shape:
                raise ValueError(f"a chunk of shape {chunk.shape} in a file of rows {row_shape}")
            file.write(np.ascontiguousarray(chunk, dtype).data)
            rows += len(chunk)
        file.seek(0)
        if _write_header(file, dtype, (rows, *row_shape)) != begin:
            raise RuntimeError("the longer .npy header overwrote the first row")
    return rows


def _write_header(file: IO[bytes], dtype: Any, shape: tuple[int, ...]) -> int:
    """Write the header; return the position of the data. NumPy leaves room for more rows."""
    header = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.tell()


@contextmanager
def _durable(path: Path) -> Iterator[IO[bytes]]:
    """Open a new file that is on the disk when the block ends."""
    with open(path, "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def is_generated(path: Path) -> bool:
    """Return True for a directory with a graph that ``write`` wrote."""
    return (path / "graph.json").is_file() and (path / "edges.npy").is_file()


def check_output(path: str | os.PathLike[str], nodes: int, force: bool) -> None:
    """Raise the UserError that `write` would raise for a graph of `nodes` nodes, before it is made."""
    check_target(path, force=force, replaceable=is_generated, what=KIND)
    check_space(nodes, 5 * nodes, Path(path).resolve().parent)


def check_space(nodes: int, needed: int, directory: Path) -> None:
    """Raise ArgumentError for a graph of `needed` bytes that disk or memory can't hold."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    free = shutil.disk_usage(directory).free
    if needed > free:
        problem = f"{directory} has {free / 1e9:.1f} GB free; this graph needs {needed / 1e9:.1f} GB"
        raise ArgumentError("nodes", nodes, problem)
    if NODE_BYTES * nodes > memory:
        problem = (
            f"this machine has {memory / 1e9:.1f} GB of memory; they need {NODE_BYTES * nodes / 1e9:.1f} GB"
        )
        raise ArgumentError("nodes", nodes, problem)
