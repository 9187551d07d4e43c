"""The sizes and thresholds that change how fast a product runs and never what it gives.

Tests set them small to reach every branch on small matrices; the planner reads them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Tuning:
    """Every attribute is a default that was measured; sizes are bytes where nothing else is said."""

    # Passes over arrays in several operations.
    cached_numbers: int = 1 << 16
    """Numbers that are treated at a time on a host: three 256 KiB arrays stay in a core's L2 cache."""
    launched_numbers: int = 1 << 24
    """The same on a GPU, where launches cost and L2 does not hold them anyway."""
    summed_rows: int = 512
    """Rows whose columns a block of a GPU adds up, at least."""
    written_numbers: int = 1 << 18
    """Numbers that pass through rank 0 at a time into a file: 1 MiB of float32, in several copies."""

    # Products on one rank.
    look_ahead_nonzeros: int = 1 << 18
    """Non-zeros from which on it is measured how far a product should prefetch: fewer are too quick."""
    copied_elements: int = 1 << 22
    """Elements of a matrix that are converted and copied to a device at a time."""
    sorted_on_device: int = 1 << 27
    """Non-zeros of a block that is transposed on a GPU at most: sorting takes some 50 bytes of each."""
    flops_between_polls: int = 1 << 25
    """Multiplications and additions of a sparse product between two looks at the messages under way: one or
    two milliseconds. Less often, sockets run empty; more often, the product is slower.
    """
    transposed_pieces: int = 8
    """Parts in which a block is transposed while it multiplies, where its transpose is not held."""
    filled_memory: float = 0.8
    """Share of a rank's memory that is filled with transposes, at most, where a product can do without."""
    densest_features: float = 0.1
    """Share of features that are not 0 up to which they are multiplied by entries: a sparse product makes a
    tenth of the multiplications of a dense one in a second.
    """
    gemm_rows: int = 512
    """Rows of a tall matrix that a product on the host takes at a time: all stays in the L2 cache."""
    gemm_trial: float = 3e8
    """Multiplications and additions of a trial of a product in a form: milliseconds. Longer ones are cut."""
    gemm_trial_on_device: float = 3e11
    long_dimension: int = 1 << 13
    """Rows from which on a GPU multiplies tall matrices of float32 by a kernel of its own."""
    gemm_gain: float = 0.9
    """Share of the seconds of the form in which operands come that another must take at most, or noise would
    choose.
    """
    product_entries: int = 1 << 18
    """Non-zeros of a sampler's product that are made at a time: 2 to 4 MiB, which the step after reads from a
    cache.
    """
    device_entries: int = 1 << 24
    """The same on a GPU, where a block of 33 bytes per non-zero is drawn from in a launch."""

    graph_rows: int = 1 << 18
    """Nodes up to which epochs on one GPU are CUDA graphs unless a setting says otherwise: the host's time,
    which they spare, is 3 % of an epoch on a million nodes, and they take memory of their own.
    """

    # Messages under way.
    relay_segments: int = 16
    """Segments of a panel that travels around a ring, unless they would be smaller or larger than these."""
    relay_segment: int = 1 << 18
    largest_segment: int = 4 << 20
    device_segment: int = 16 << 20
    """A segment of a panel on a device at least: a quarter of the panel, up to four times this. A link
    between devices takes 4 MiB in the time that the host needs to begin a message. 0: as on a host.
    """
    relay_at_a_time: int = 8
    """Segments of a panel that a rank receives, and sends, at a time."""
    relay_buffers: int = 2
    """Panels that a rank receives at a time."""
    probe_rows: int = 256
    """Rows that are packed and sent to measure what a fetch costs, of ``fetched_row_bytes`` each: 128 KiB."""
    probes: int = 3
    """Times that this is measured, of which the least counts, after once to warm up."""
    fetched_row_bytes: int = 512
    """What a row of H is taken to have where needed rows and whole blocks are compared: 128 float32."""
    exchange_sends: int = 8
    """Messages of an exchange that a rank sends at a time."""
    packed_numbers: int = 1 << 18
    """Numbers of the rows that a host packs, or unpacks, at a time: 1 MiB of float32."""
    packed_at_a_time: int = 4
    """Rooms for them in an exchange."""
    sum_chunk: int = 4 << 20
    """Summed at a time; less costs more calls than it hides."""
    sum_chunk_on_device: int = 32 << 20
    """The same on a device, for the same reason; sum_chunk where that is more."""
    sums_under_way: int = 3
    """Chunks at a time: one arriving, one being sent on, one to come."""

    # Products that are summed over ranks in row blocks.
    small_sum: int = 1 << 16
    """A product that MPI sums: what counts is how long a message takes, not how many bytes."""
    smallest_sum_block: int = 512 << 10
    """A row block, where nobody says how many rows it should have."""
    sum_blocks: int = 16
    """Row blocks of a product at least, unless they would be smaller than that."""
    smallest_sum_block_on_device: int = 4 << 20
    sum_blocks_on_device: int = 4
    """The same on a device, where a row block costs launches of kernels: so many at most."""

    # Panels and groups of rows: nothing hides the product with the last one to arrive, but each costs a pass
    # over the product, which only many non-zeros per row are worth.
    panel_nonzeros: int = 16
    """Non-zeros that a row of A has in the columns of one panel at least, where there are several."""
    most_panels: int = 4
    halved_block: int = 64 << 20
    """A block of H, with rows of ``fetched_row_bytes``, that travels in two panels at least, whatever the
    passes: two halves of a block take half of the memory of two blocks, and products with them are 1.02
    (blocks of 64 MiB) to 1.28 times (of 16 MiB, which a cache holds) as long, of 16 non-zeros a row.
    """
    joined_panels: int = 64 << 10
    """Bytes of H, with rows of ``fetched_row_bytes``, up to which a rank multiplies by one product all that
    it receives. One for each block costs a turn and a pass over the result, but hides the messages of those
    to come: on hosts epochs are planned to take 0.77 to 1.06 times as long with 4 MiB joined, and longer
    with more (``joined-panels.md``).
    """
    joined_panels_on_device: int = 128 << 20
    """The same on a device, which waits for the host that queues a turn: on up to 16 H200 epochs are planned
    to take 0.4 to 0.8 times as long, with twice as much 0.5 to 1.1 (``joined-panels.md``).
    """
    column_parts: int = 2
    """Parts at most in which columns travel to where they are multiplied, and back."""
    part_columns: int = 32
    """Columns that a rank multiplies at a time at least, where there are several parts."""
    group_nonzeros: int = 16
    """The same for a group of ranks whose rows are multiplied together."""
    most_groups: int = 4


TUNING = Tuning()
