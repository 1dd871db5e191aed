"""Processes that tests share: they take seconds to start."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .workers import Workers

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def two() -> Iterator[Workers]:
    """Two processes that share every sample."""
    workers = Workers(2)
    yield workers
    workers.close()


@pytest.fixture(scope="session")
def four() -> Iterator[Workers]:
    """Four processes that share every sample."""
    workers = Workers(4)
    yield workers
    workers.close()


@pytest.fixture(scope="session")
def grid() -> Iterator[Workers]:
    """Two pairs of processes; each pair shares its samples."""
    workers = Workers(4, context=2)
    yield workers
    workers.close()
