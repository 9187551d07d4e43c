"""Seconds of calls, by a clock that the test moves."""

from __future__ import annotations

from distgnn.arrays import timing
from distgnn.arrays.backend import Backend


class Device(Backend):
    """A device that takes a second for what waits in its queue."""

    now, queued = 0.0, 0

    def synchronize(self) -> None:
        self.now, self.queued = self.now + self.queued, 0

    def queue(self) -> None:
        self.now, self.queued = self.now + 0.25, self.queued + 1


def test_a_device_is_idle_before_and_after():
    device = Device()
    device.queue()
    assert timing.seconds(device.queue, device, clock=lambda: device.now) == 1.25
    assert timing.seconds(device.queue, device, 4, clock=lambda: device.now) == 1.25


def test_the_best_call_is_none_that_warms_up(monkeypatch):
    device, took = Device(), iter([0.5, 3.0, 1.0, 2.0])
    monkeypatch.setattr(timing.seconds, "__defaults__", (timing.HOST, 1, lambda: device.now))

    def work():
        device.now += next(took)

    assert timing.best(work, device, 3) == 1.0
