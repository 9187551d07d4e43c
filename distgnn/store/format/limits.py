"""The sizes that bound memory and files. Tests set them small to reach every branch on small graphs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Limits:
    """Sizes of files, and of what is in memory at a time; tests set them small."""

    # What files look like.
    shard_entries: int = 1 << 22  # of a shard in the default grid, before duplicates are merged
    file_bytes: int = 64 << 20  # of features in one file; a file's rows are put in order in memory
    file_rows: int = 1 << 22
    # Of an HDF5 chunk. Below HDF5's chunk cache of 1 MiB (8 MiB since HDF5 2.0), so that a chunk read in
    # several calls is checked once.
    chunk_bytes: int = 1 << 19

    verified_bytes: int = 256 << 20  # of a store whose files are compared with their hashes on opening

    # What is in memory at a time.
    entries: int = 1 << 20  # edges or entries that are read, moved or scaled
    sorted_entries: int = 6 << 20  # a shard that got more is sorted in ranges of rows
    spilled_bytes: int = 64 << 20  # of records on their way into buckets on disk
    row_bytes: int = 8 << 20  # of rows of a node array
    window_entries: int = 1 << 16  # of a window: they stay in the processor's cache; more is not faster
    counted_entries: int = 1 << 22  # of an order whose blocks are counted
    text_bytes: int = 1 << 24  # of a text file
    line_bytes: int = 1 << 26  # a longer line is no text

    # What files from outside may claim. A bomb packs a thousand bytes into one, an honest file a few.
    unpacked_bytes: int = 1 << 30  # in memory, however small the packed file is; or
    unpacked_ratio: int = 100  # times the bytes of the packed file
    declared_nodes: int = 1 << 24  # besides one for every byte of the file


LIMITS = Limits()
