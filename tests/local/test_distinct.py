"""Distinct numbers by the parts that they lie in, on hosts and GPUs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from distgnn.local.distinct import distinct
from loops import each

CASES = {
    "none": [], "one": [5], "repeats": [3, 3, 3], "falling": [9, 4, 0], "all": list(range(10)),
    "rising": [1, 2, 6], "mixed": [8, 1, 1, 9, 0, 8], "ends of parts": [3, 2, 9],
}  # fmt: skip


@pytest.mark.ranks(1)
@each("name", CASES)
@each("parts", [[0, 10], [0, 3, 3, 10], [0, 0, 10, 10]])
def test_distinct_numbers_of_each_part(comm: Any, backend: Any, parts: list[int], name: str) -> None:
    numbers = np.array(CASES[name], np.int64)
    found = distinct(backend.asarray(numbers), np.array(parts))
    rows = {q: backend.to_host(rows) for q, rows in found.rows.items()}
    whole = np.concatenate([rows[q] + parts[q] for q in rows]) if rows else numbers
    assert whole.tolist() == sorted(set(numbers.tolist()))
    np.testing.assert_array_equal(whole[backend.to_host(found.places)], numbers)
    assert found.rising == (numbers.tolist() == whole.tolist())
    for q, own in rows.items():
        assert all(0 <= row < parts[q + 1] - parts[q] for row in own)
        run = own.size > 0 and own[-1] - own[0] + 1 == own.size
        assert found.runs[q] == (slice(int(own[0]), int(own[-1]) + 1) if run else None)
