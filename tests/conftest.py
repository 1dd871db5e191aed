"""Options, seeds and profiles shared by all tests."""

from __future__ import annotations

import gc
import os

import pytest
import torch
from hypothesis import settings

# What is asserted in classes that test files inherit, or functions they share, should show the values too if it fails.
pytest.register_assert_rewrite("tests.contracts", "tests.ops.interpreted")

# Derandomised: a run says the same about the same code every time.
settings.register_profile("default", deadline=None, derandomize=True, max_examples=15)
settings.register_profile("slow", settings.get_profile("default"), max_examples=60)
settings.load_profile("default")

# Costs that were measured on this machine, or kernels compiled on it, change no test.
os.environ["KERNELFIELD_CACHE"] = "off"

# Tensors are small and workers share the cores: threads only get into each other's way.
torch.set_num_threads(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run the tests that take minutes")


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("slow" if config.getoption("--slow") else "default")
    if config.getoption("--slow"):
        os.environ["KERNELFIELD_TEST_OVERFLOW"] = "1"  # read by tests/ops/interpreted.py when it is imported


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--slow"):
        return
    slow = [item for item in items if item.get_closest_marker("slow") or _is_untraced(item)]
    left_out = set(slow)
    config.hook.pytest_deselected(items=slow)
    items[:] = [item for item in items if item not in left_out]


def pytest_collection_finish() -> None:
    # Thousands of tests and modules stay until the end: collections of garbage need not look at them again and again.
    gc.collect()
    gc.freeze()


def _is_untraced(item: pytest.Item) -> bool:
    """Return whether the item compiles or exports for a class that leaves this to another class.

    ``traced`` of a class is True, False, or the one of "compiles" and "exports" that runs by default.
    """
    traced = getattr(getattr(item, "cls", None), "traced", True)
    kinds = {True: (), False: ("compiles", "exports"), "compiles": ("exports",), "exports": ("compiles",)}[traced]
    return item.name.startswith(tuple(f"test_{kind}" for kind in kinds))


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write no pictures at the end of runs: they take longer than the training of a tiny network."""
    monkeypatch.setattr("kernelfield.experiments.finish.write_pictures", lambda *_: None)


@pytest.fixture(params=[torch.float32, torch.float64], ids=["float32", "float64"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    """Run a test once per dtype."""
    return request.param
