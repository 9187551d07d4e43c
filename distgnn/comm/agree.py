"""Comparison of the facts that all ranks of a group must share, in one small message.

An error names the facts that differ.

Imports neither NumPy nor anything of the package that does, so that a job can compare its ranks first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from mpi4py import MPI

from distgnn.comm.communicator import Communicator
from distgnn.errors import DisagreementError, UserError

MOST_NAMED = 3  # settings, values of one, and hosts of a value, in an error

Facts = Mapping[str, Any]


def agree(
    mpi: Communicator, facts: Facts, sources: Mapping[str, str] | None = None, by: str = "set by"
) -> None:
    """Raise DisagreementError on every rank unless all ranks of `mpi` give equal facts. Collective.

    Numbers, texts, paths, dtypes, arrays, lists and mappings of them can be compared. Costs an all-reduce of
    64 bytes; the facts themselves travel only if they differ. Not charged to the ledger, like `together`.

    Args:
        facts: values by name.
        sources: where this rank has some of them from, for the error; not compared.
        by: the words before a source.
    """
    if mpi.Get_size() == 1:
        return
    texts = {name: text(value) for name, value in facts.items()}
    digest = hashlib.sha256(repr(sorted(texts.items())).encode("utf-8", "backslashreplace")).digest()
    # The maximum of the complements is the complement of the minimum.
    extremes = bytearray(digest + bytes(255 - byte for byte in digest))
    mpi.Allreduce(MPI.IN_PLACE, [extremes, MPI.UNSIGNED_CHAR], MPI.MAX)
    largest, complement = extremes[: len(digest)], extremes[len(digest) :]
    if any(most + rest != 255 for most, rest in zip(largest, complement, strict=True)):
        mine = RankFacts(texts, MPI.Get_processor_name(), dict(sources or {}))
        raise disagreement(mpi.allgather(mine), by)


@dataclass(frozen=True)
class RankFacts:
    """The facts of one rank, its host, and the sources of the facts."""

    facts: Mapping[str, str]
    host: str
    sources: Mapping[str, str]


@contextmanager
def together(mpi: Communicator) -> Iterator[None]:
    """Raise an error inside on every rank of `mpi`, so that nobody waits for a rank that has left.

    A rank that failed raises its own exception; the others raise that of the lowest failing rank: a
    :class:`UserError` as such, anything else as a RuntimeError that says which rank failed and how. The
    region must not communicate.
    """
    rank, size = mpi.Get_rank(), mpi.Get_size()
    failure: Exception | None = None
    try:
        yield
    except Exception as error:
        failure = error
    raise_first(mpi, failure, reduced(mpi, size if failure is None else rank, MPI.MIN))


def raise_first(mpi: Communicator, failure: Exception | None, first: int) -> None:
    """Raise the error of the lowest failing rank, as :func:`together` does. Collective.

    Args:
        failure: of this rank, if it failed; first: the lowest that did; the number of ranks if none did.
    """
    if first == mpi.Get_size():
        return
    raised: Any = failure
    if failure is not None and not isinstance(failure, UserError):
        where = f"rank {mpi.Get_rank()} on host {MPI.Get_processor_name()}"
        raised = RuntimeError(f"{where} failed with {type(failure).__name__}: {failure}")
    raised = mpi.bcast(raised, first)
    raise raised if failure is None else failure


def reduced(mpi: Communicator, number: int, operation: MPI.Op) -> int:
    """Reduce a number of 64 bits of every rank. Collective: one word, not charged to the ledger."""
    word = memoryview(bytearray(8)).cast("q")
    word[0] = number
    mpi.Allreduce(MPI.IN_PLACE, [word, MPI.INT64_T], operation)
    return word[0]


def text(value: Any) -> str:
    """Return a value as it is compared and shown: equal for equal settings, whatever type they have."""
    if isinstance(value, Mapping):
        return ",".join(f"{name}={text(part)}" for name, part in value.items())
    if isinstance(value, (list, tuple, range)):
        return ",".join(map(text, value)) if len(value) else "nothing"
    if isinstance(value, type):
        return value.__name__
    if hasattr(value, "tobytes"):
        return text(value.item()) if value.shape == () else _array(value)
    said = str(value)
    return type(value).__name__ if f"{id(value):x}" in said else said  # not where in memory an object is


def _array(value: Any) -> str:
    try:
        digest = hashlib.sha256(value)
    except (TypeError, ValueError):  # not in one piece, or on a device
        digest = hashlib.sha256(value.tobytes())
    return f"{value.dtype}{list(value.shape)} (sha256 {short(digest)})"


def short(digest: Any) -> str:
    """Return the first digits of a hash, for people."""
    return str(digest.hexdigest()[:12])


def disagreement(everybody: Sequence[RankFacts], by: str = "set by") -> DisagreementError:
    """Make the error that names the facts in which ranks differ.

    Facts that only some ranks have (the flags of another command) are named only where no others differ.
    """
    names = dict.fromkeys(name for member in everybody for name in member.facts)
    differing = [name for name in names if len({member.facts.get(name) for member in everybody}) > 1]
    named = [name for name in differing if all(name in member.facts for member in everybody)] or differing
    sentences = [_sentence(name, everybody, by) for name in named[:MOST_NAMED]]
    if len(named) > MOST_NAMED:
        sentences.append(f"{len(named) - MOST_NAMED} more differ")
    return DisagreementError(named[0], everybody[0].facts.get(named[0]), "; ".join(sentences))


def _sentence(name: str, everybody: Sequence[RankFacts], by: str) -> str:
    """Write ``lr is 0.01 on ranks 0, 2-3 and 0.1 on rank 1 (host b)``: the commonest value comes first."""
    groups: dict[str, list[int]] = {}
    for rank, member in enumerate(everybody):
        groups.setdefault(member.facts.get(name, "not there"), []).append(rank)
    parts: list[str] = []
    for value, ranks in sorted(groups.items(), key=lambda group: (-len(group[1]), group[1]))[:MOST_NAMED]:
        group = [everybody[rank] for rank in ranks]
        notes = [_some("host", [member.host for member in group])] if parts else []
        notes += [_some(by, [member.sources[name] for member in group if name in member.sources])]
        note = ", ".join(filter(None, notes))
        parts.append(f"{value or 'empty'} on {ranges(ranks)}{f' ({note})' if note else ''}")
    if len(groups) > MOST_NAMED:
        parts.append(f"{len(groups) - MOST_NAMED} more values elsewhere")
    return f"{name} is {', '.join(parts[:-1])} and {parts[-1]}"


def _some(what: str, words: Sequence[str]) -> str:
    """Write ``host b, c and 2 more``; return an empty text if there are no words."""
    different = list(dict.fromkeys(words))
    more = f" and {len(different) - MOST_NAMED} more" if len(different) > MOST_NAMED else ""
    return f"{what} {', '.join(different[:MOST_NAMED])}{more}" if different else ""


def ranges(ranks: Sequence[int]) -> str:
    """Write ``rank 1`` or ``ranks 0, 2-3``, of sorted ranks; of many ranges, the first."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    words = [f"{first}-{last}" if last > first else f"{first}" for first, last in runs[: 2 * MOST_NAMED]]
    more = f" and more, {len(ranks)} in all" if len(runs) > len(words) else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(words)}{more}"
