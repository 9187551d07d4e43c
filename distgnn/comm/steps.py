"""Exchanges that go on while their caller does something else: functions in *steps*.

Such a function is a generator. It yields when its messages are under way, uses what came when it goes on,
and returns its result. Products that are computed in between drive the messages. All ranks of a group take
the steps of all functions on it in one order; what else they do in between may differ.

A function that is closed between two steps, on all ranks alike, receives what is under way and ends. By an
error that is thrown into it, messages are abandoned.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar, cast

import numpy as np

from distgnn.comm.agree import raise_first

if TYPE_CHECKING:
    from distgnn.comm.group import Comm

Array = Any
T = TypeVar("T")
P = ParamSpec("P")
Steps = Generator[None, None, T]


class Swap(NamedTuple):
    """Arrays of an all-to-allv: those that are sent, and those to receive into, by rank; whose they are."""

    sent: Mapping[int, Array]
    into: Mapping[int, Array]
    matrix: str


def at_once(steps: Steps[T]) -> T:
    """Take all steps, one after another, and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast(T, end.value)


def without_steps(function: Callable[P, T]) -> Callable[P, Steps[T]]:
    """Make a function that sends nothing one in steps, of which it has none."""

    @wraps(function)
    def in_steps(*args: P.args, **options: P.kwargs) -> Steps[T]:
        yield from ()
        return function(*args, **options)

    return in_steps


def abandon(steps: Steps[Any], error: BaseException) -> None:
    """End a function because of an error of this rank, which did not come from it."""
    with suppress(type(error)):
        steps.throw(error)


def side_by_side(functions: Sequence[Steps[T]]) -> Steps[list[T]]:
    """Take a step of each function in turn, so that their messages travel together; return all results."""
    results, left = dict[int, T](), dict(enumerate(functions))
    try:
        while left:
            for number, steps in [*left.items()]:
                try:
                    next(steps)
                except StopIteration as end:
                    results[number] = end.value
                    del left[number]
            if left:
                yield
    except BaseException as error:
        with ExitStack() as ends:  # all of them, whatever the end of one raises
            for steps in reversed(left.values()):
                ends.callback(abandon, steps, error)
        raise
    return [results[number] for number in range(len(functions))]


@contextmanager
def _closed(under_way: ExitStack) -> Iterator[None]:
    """Receive what is under way where a function is closed in its step inside."""
    try:
        yield
    except GeneratorExit:
        under_way.close()
        raise


def swap(comm: Comm, *swaps: Swap, **options: Any) -> Steps[None]:
    """Send and receive arrays, each swap as an all-to-allv, in one step.

    Collective. ``options``: of :class:`Exchange`. What is sent stays as it is until the step is over.
    """
    me = comm.rank
    with ExitStack() as under_way:
        exchanges = []
        for sent, into, matrix in swaps:
            receives = [(rank, array) for rank, array in into.items() if rank != me]
            exchange = under_way.enter_context(comm.exchange(receives, matrix, **options))
            for rank in reversed(comm.others()):
                if rank in sent:
                    exchange.send(sent[rank], rank)
            exchange.all_sent()
            if me in into:
                into[me][...] = sent[me]
            exchanges.append(exchange)
        with _closed(under_way), ExitStack() as driving:
            for exchange in exchanges:
                driving.enter_context(exchange.driven())
            yield
        for exchange, (_, into, _) in zip(exchanges, swaps, strict=True):
            exchange.wait(into)


def gather(comm: Comm, matrix: str, *blocks: tuple[Array, np.ndarray]) -> Steps[list[Array]]:
    """Gather rows of arrays on every rank, each for the words of :meth:`Comm.allgather_rows`.

    Collective; one step. ``blocks``: this rank's rows of each array, and the partition vector of all.
    """
    gathered, swaps = [], []
    for block, parts in blocks:
        comm.charge.allgather(matrix, block, parts)
        whole = comm.backend.empty((int(parts[-1]), *block.shape[1:]), block.dtype)
        into = {rank: whole[parts[rank] : parts[rank + 1]] for rank in range(comm.size)}
        swaps.append(Swap(dict.fromkeys(into, block), into, matrix))
        gathered.append(whole)
    yield from swap(comm, *swaps, operation="allgather", charged=True)
    return gathered


def swap_numbers(comm: Comm, numbers: np.ndarray) -> Steps[np.ndarray]:
    """Send row r of a few numbers, int64 (ranks, any), to rank r; return the rows for this one, by rank.

    Collective; one step. Like small objects, they are not charged.
    """
    came = np.empty_like(numbers)
    with ExitStack() as under_way:
        flight = under_way.enter_context(comm.flight("alltoallv", "rows"))
        flight.follow(flight.mpi.Ialltoall(numbers, came))
        under_way.push(lambda kind, *_: None if kind else flight.until(lambda: not flight.requests))
        with _closed(under_way), flight.driven():
            yield
    return came


def together(comm: Comm, make: Callable[[], T]) -> Steps[T]:
    """Return ``make()``, which must not communicate. Collective; one step.

    An error in it is raised on every rank, see :func:`agree.together`.
    """
    failure: Exception | None = None
    made: Any = None
    try:
        made = make()
    except Exception as error:
        failure = error
    said = comm.size if failure is None else comm.rank
    everybody = yield from swap_numbers(comm, np.full((comm.size, 1), said))
    raise_first(comm.mpi, failure, int(everybody.min()))
    return cast(T, made)
