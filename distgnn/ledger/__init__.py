"""Ledgers of communication and computation: calls, messages, words, bytes, flops, seconds.

Counting is always on; timing is opt-in and touches nothing but clocks. Ledgers are context managers and nest:
an operation is charged to every ledger that is open, so that a caller can count one product inside a counted
epoch inside a counted run.

What a collective is charged, per rank, for a message of ``m`` words in a group of ``p`` (DESIGN: the
bandwidth-optimal form):

    broadcast          m on every rank but the root          all-gather       m - own part
    reduce             m on every rank but the root          reduce-scatter   (p-1)/p m
    all-to-all(v)      what is received from others          all-reduce       2 (p-1)/p m
    send, receive      what is received

A reduce is the mirror image of a broadcast: its non-root ranks are charged the words they send. Fractions are
kept exact and rounded only when totals are read, so totals agree with the prices to the word.

Every word charged has a peer: of a broadcast the root that owns the panel, whoever handed it on; of an
all-gather, all-to-all(v) or receive the rank whose words they are; of a reduce the root that they go to; of
an all-reduce and a reduce-scatter all others of the group in equal shares, or by tiers the ranks that really
send (see ``comm/tiers.py``). :meth:`Ledger.traffic` has them by
sender and receiver.

Totals are kept by phase, operation, group and *matrix*: "A" (its panels), "H" and, in an adjoint, "G" (panels
or rows), "T" (panels of T and G in products with weights), "sums" (partial sums of products), "reductions"
(sums over all rows of dense matrices), "weights", "gradients" (of weights), "rows" (row numbers and lengths),
"features" (rows of minibatches), "adjacency" (rows of A in sampling, shards that a node reads together),
"loss", "norm" (of gradients, and sums of rows for layer norm), "probe", or "" where nobody said.

Seconds are exclusive: a region timed inside another takes its time off the outer one, so that driving
messages in the middle of a product counts as communication. Communication's seconds are those in which a rank
waits for or drives messages, what is *exposed* of it; *flight* is how long transfers took altogether. Work
of a device is timed by marks in its queue, which are read when somebody asks for the seconds: nothing waits
for the device before.
"""

from distgnn.ledger.charges import MOST_EVENTS, Ledger, charge, flight, loaded, sent, timed, waited
from distgnn.ledger.rank_books import BeyondRoom, Books, apart, books, held, holds, settle
from distgnn.ledger.regions import HOST, Clock, Event, Union
from distgnn.ledger.strand import Strand
from distgnn.ledger.totals import PHASES, Key, OverRanks, Peers, Totals, table

__all__ = [
    "BeyondRoom", "Books", "Clock", "Event", "HOST", "Key", "Ledger", "MOST_EVENTS", "OverRanks",
    "PHASES", "Peers", "Strand", "Totals", "Union", "apart", "books", "charge", "flight", "held",
    "holds", "loaded", "sent", "settle", "table", "timed", "waited",
]  # fmt: skip
