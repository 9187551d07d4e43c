"""Element-wise passes run compiled and as array operations: tests of them take the fixture `passes`."""

from __future__ import annotations

import pytest

from distgnn import hostkernels


@pytest.fixture(params=["compiled", "arrays"])
def passes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "arrays":
        monkeypatch.setattr(hostkernels, "module", lambda: None)
    elif hostkernels.module() is None:
        pytest.skip("the host kernels are not built here")
    return request.param
