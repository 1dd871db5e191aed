"""Memory that a process keeps for its next tensors."""

from __future__ import annotations

import sys

import pytest

from kernelfield import keep_freed_memory

from .fresh_process import run_module


@pytest.mark.slow
@pytest.mark.skipif(not keep_freed_memory(), reason="needs Linux with glibc")
def test_steps_need_fewer_new_pages() -> None:
    usual, kept = (run_module("tests.page_faults", *how) for how in ((), ("keep",)))
    assert int(kept.stdout) < int(usual.stdout) / 4, usual.stderr + kept.stderr


@pytest.mark.parametrize("name", ["MALLOC_ARENA_MAX", "GLIBC_TUNABLES"])
def test_settings_of_the_user_are_kept(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "1")
    assert not keep_freed_memory()


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_other_systems_are_left_alone(monkeypatch: pytest.MonkeyPatch, platform: str) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    assert not keep_freed_memory()
