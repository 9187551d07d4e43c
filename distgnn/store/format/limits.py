"""Sizes that bound memory and files. Tests set them small to reach every branch on small graphs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Limits:
    """Sizes of files, and of arrays in memory at a time; tests set them small."""

    # Sizes of files.
    shard_entries: int = 1 << 22  # entries of a shard in the default grid, before duplicates are merged
    file_bytes: int = 64 << 20  # bytes of features in one file; a file's rows are put in order in memory
    file_rows: int = 1 << 22
    # Bytes of an HDF5 chunk, which ranks read whole: less than HDF5's chunk cache (cached_bytes), so that a
    # chunk read in several calls is checked once. Smaller ones cost time of the processor.
    chunk_bytes: int = 1 << 16
    least_chunk_bytes: int = 1 << 12
    chunks: int = 1 << 11  # of an array's rows, if they are not smaller: 8 for each of 256 ranks
    past_chunk_bytes: int = 1 << 19  # of earlier stores

    verified_bytes: int = 256 << 20  # a store of at most this size is compared with its hashes on opening

    manifest_bytes: int = 1 << 28  # of a manifest: about a million files

    # Sizes in memory at a time.
    entries: int = 1 << 20  # edges or entries that are read, moved or scaled
    sorted_entries: int = 6 << 20  # a larger shard is sorted in ranges of rows
    read_bytes: int = 1 << 19  # of node arrays, by a call of HDF5
    cached_bytes: int = 1 << 20  # of chunks, in HDF5's cache of an open array
    spilled_bytes: int = 64 << 20  # records on their way into buckets on disk
    row_bytes: int = 8 << 20  # rows of a node array
    window_entries: int = 1 << 16  # entries of a window, which stay in the processor's cache
    sampled_rows: int = 1 << 10  # of dense features, which show whether to count those that are not 0
    counted_entries: int = 1 << 22  # entries of an order whose blocks are counted
    text_bytes: int = 1 << 24  # a piece of a text file
    line_bytes: int = 1 << 26  # a longer line is no text
    word_length: int = 1 << 12  # of an id or a label of a table

    # Bounds for files from outside. A bomb packs a thousand bytes into one, an honest file a few.
    unpacked_bytes: int = 1 << 30  # in memory, however small the packed file is; or
    unpacked_ratio: int = 100  # times the bytes of the packed file
    declared_nodes: int = 1 << 24  # besides one for every byte of the file


LIMITS = Limits()
