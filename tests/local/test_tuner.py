"""Choosing the fastest of several ways by timing calls that have to be made anyway."""

from __future__ import annotations

from distgnn.local.tuner import Tuner
from loops import each


class Clock:
    """A clock on which work moves the hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def tuner(self, ways: list[str], **options: float) -> Tuner[str]:
        return Tuner(ways, "test", lambda: self.now, lambda start, end: end - start, **options)  # type: ignore[arg-type]


def turns(tuner: Tuner[str], clock: Clock, seconds: dict[str, list[float]], calls: int) -> list[str]:
    """Call the tuner so often; each way takes its seconds in turn, the last of them ever after."""
    done: list[str] = []

    def work(way: str) -> None:
        own = seconds[way]
        clock.now += own[min(done.count(way), len(own) - 1)]
        done.append(way)

    for _ in range(calls):
        tuner.run(work)
    return done


def test_every_way_has_its_turn_and_the_fastest_is_taken() -> None:
    clock = Clock()
    tuner = clock.tuner(["a", "b", "c"])
    done = turns(tuner, clock, {"a": [3.0], "b": [1.0], "c": [2.0]}, 15)
    assert done == ["a", "b", "c"] * 4 + ["b"] * 3
    assert tuner.choice == "b" and tuner.marks == []


def test_the_call_that_warms_up_does_not_count() -> None:
    clock = Clock()
    tuner = clock.tuner(["a", "b"])
    turns(tuner, clock, {"a": [0.1, 3.0], "b": [50.0, 1.0]}, 8)
    assert tuner.choice == "b"


def test_the_best_round_of_a_way_counts() -> None:
    clock = Clock()
    tuner = clock.tuner(["a", "b"])
    turns(tuner, clock, {"a": [9.0, 2.0, 2.0, 2.0], "b": [9.0, 8.0, 1.0, 8.0]}, 8)
    assert tuner.choice == "b"


@each("gain, choice", [(1.0, "b"), (0.95, "b"), (0.85, "a")])
def test_another_way_must_gain_so_much(gain: float, choice: str) -> None:
    clock = Clock()
    tuner = clock.tuner(["a", "b"], gain=gain)
    turns(tuner, clock, {"a": [1.0], "b": [0.9]}, 8)
    assert tuner.choice == choice


def test_the_first_of_equal_ways_is_taken() -> None:
    clock = Clock()
    tuner = clock.tuner(["a", "b"])
    turns(tuner, clock, {"a": [1.0], "b": [1.0]}, 8)
    assert tuner.choice == "a"


def test_one_way_is_not_timed() -> None:
    clock = Clock()
    tuner = clock.tuner(["a"])
    assert turns(tuner, clock, {"a": [1.0]}, 2) == ["a", "a"] and tuner.marks == []
