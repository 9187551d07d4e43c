"""Element-wise passes run compiled and as array operations: tests of them take the fixture `passes`."""

from __future__ import annotations

import pytest

from distgnn.local import host


@pytest.fixture(params=["compiled", "arrays"])
def passes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "arrays":
        monkeypatch.setattr(host, "module", lambda: None)
    elif host.module() is None:
        pytest.skip("the host kernels are not built here")
    return request.param
