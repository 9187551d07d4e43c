"""The backend of a GPU, on the stand-in for CuPy."""

from __future__ import annotations

import pytest

from distgnn.arrays import backend

pytestmark = pytest.mark.parametrize("stand_in", ["cupy"], indirect=True)


def test_who_was_beside_computes_on_the_same_stream_again(stand_in):
    on = backend.get("cupy")
    on.bind(0)
    computing = on.stream()
    with on.beside("sums"):
        lane = on.stream()
        with on.beside("out"):
            assert len({0, computing, lane, on.stream()}) == 4
        assert on.stream() == lane
    assert on.stream() == computing != 0
    priorities = [on._lanes[lane].priority for lane in ("sums", "out")]
    assert priorities == [-5, -5], "what travels waits behind the blocks of a product"
