"""Training runs of these tests draw no pictures, which take longer than the training of a tiny network.

A test that reads them uses the fixture ``pictures``; a module whose fixtures need them sets ``PICTURES = True``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kernelfield.experiments import finish

if TYPE_CHECKING:
    from collections.abc import Iterator

WRITE_PICTURES = finish.write_pictures


@pytest.fixture(scope="module", autouse=True)
def _no_pictures_in_modules(request: pytest.FixtureRequest) -> Iterator[None]:
    if getattr(request.module, "PICTURES", False):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finish, "write_pictures", lambda *_: None)
        yield


@pytest.fixture
def pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw the pictures of runs, as outside tests."""
    monkeypatch.setattr(finish, "write_pictures", WRITE_PICTURES)
