"""The time of a training step: the budget of the measurement, and what it leaves out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kernelfield.cuda_graphs import CapturedFunction
from kernelfield.experiments import bench

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.mark.parametrize("slow", [0.0, 0.05])
def test_bench_keeps_to_its_time_limit(slow: float, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]  # a clock that only steps advance, so that the test does not depend on the machine
    steps = []

    def endless_steps(loop: object) -> Iterator[None]:
        while True:
            now[0] += 0.4 if slow and not steps else slow or 0.001
            steps.append(now[0])
            yield

    monkeypatch.setattr(bench, "_endless_steps", endless_steps)
    monkeypatch.setattr(bench.time, "perf_counter", lambda: now[0])
    found = bench.bench_step("digits", seconds=1.0, settings=["model.channels=4"])
    assert 0.8 < now[0] <= 1.0
    assert found["milliseconds"] == pytest.approx(1e3 * (slow or 0.001), rel=0.01)


def test_bench_measures_captured_steps_however_long_the_first_ones_take(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    make = bench.synthetic_loop

    def captured_loop(*args: Any, **kwargs: Any) -> Any:
        _, loop = make(*args, **kwargs)
        loop.captured = CapturedFunction(loop._work, warmup=2)

        def steps() -> Iterator[None]:
            for seconds in (20.0, 2.0, 2.0, 3.0):  # the first compiles kernels, the fourth captures the graph
                now[0] += seconds
                yield
            while True:
                now[0] += 0.002
                yield

        return steps(), loop

    monkeypatch.setattr(bench, "synthetic_loop", captured_loop)
    monkeypatch.setattr(bench.time, "perf_counter", lambda: now[0])
    assert bench.bench_step("digits", seconds=3.0)["milliseconds"] == pytest.approx(2)
    assert 27.9 < now[0] <= 28.1
