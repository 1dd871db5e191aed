"""Measured costs are kept, read once, and ignored with one warning if they cannot be trusted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
import torch

from kernelfield.ops import calibration, conv
from kernelfield.ops.backend import recorded_launches
from kernelfield.ops.calibration import calibrate, tensor_cores
from kernelfield.ops.calibration.shapes import KINDS, Shape
from kernelfield.ops.conv import measured
from kernelfield.ops.conv.cost import Work, cheapest, seconds
from kernelfield.ops.points.choose import COSTS, point_costs
from tests.commands import call

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CPU = torch.device("cpu")
WORK = Work.of((4, 8, 64), (8, 1, 9), (4,), [False])
FAST, SLOW = {"rates": [1e-9, 0.0, 0.0]}, {"rates": [0.5, 0.0, 0.0]}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give every test a cache folder and costs of its own."""
    monkeypatch.setenv("KERNELFIELD_CACHE", str(tmp_path / "cache"))
    before = dict(measured._of_run)
    measured._of_run.clear()
    measured.forget()
    yield tmp_path
    measured._of_run.clear()
    measured._of_run.update(before)
    measured.forget()


def fft_costs(entry: dict[str, Any]) -> dict[str, Any]:
    return {mode: {"fft": {"1d-depthwise": entry}} for mode in measured.MODES}


def choice() -> str:
    return cheapest(torch.zeros(8, 16, 256), torch.zeros(16, 1, 3), False, ("zero",))


def test_measured_costs_replace_shipped_ones_and_others_stay() -> None:
    shipped = seconds("direct", WORK, "cpu", training=True)
    path = measured.write_record(CPU, fft_costs(FAST))
    measured.forget()
    assert path is not None
    assert seconds("fft", WORK, CPU, training=True) == 1e-9
    assert seconds("direct", WORK, CPU, training=True) == shipped
    assert choice() == "fft"
    assert measured.clear_record(CPU) == path
    assert choice() == "direct"
    assert measured.clear_record(CPU) is None


def test_a_process_keeps_to_the_costs_it_began_with() -> None:
    assert choice() == "direct"
    measured.write_record(CPU, fft_costs(FAST))  # as another process does
    assert choice() == "direct"


@pytest.mark.parametrize(
    "damage",
    [
        "",
        "{",
        "[]",
        '{"measured_on": {}, "costs": {}}',
        "\udcff",
        "costs: none",
        '{"rates": [-1.0, 0.0, 0.0]}',
        '{"rates": [1.0]}',
        '{"rates": [NaN, 0.0, 0.0]}',
        '{"rates": "fast"}',
    ],
)
def test_damaged_files_are_ignored_with_one_warning(damage: str) -> None:
    path = measured.write_record(CPU, fft_costs(FAST))
    assert path is not None
    text = path.read_text()
    new = json.dumps(json.loads(text)).replace(json.dumps(FAST), damage) if "rates" in damage else damage
    path.write_bytes(new.encode("utf-8", "surrogateescape"))
    measured.forget()
    with pytest.warns(UserWarning, match=r"ignored.*calibrate") as seen:  # noqa: PT031
        assert choice() == "direct"
        assert choice() == "direct"
    assert len(seen) == 1


@pytest.mark.parametrize("name", ["torch", "kernelfield", "device", "format", "threads"])
def test_files_of_other_versions_and_devices_are_ignored(name: str) -> None:
    path = measured.write_record(CPU, fft_costs(FAST))
    assert path is not None
    record = json.loads(path.read_text())
    record["measured_on"][name] = "other"
    path.write_text(json.dumps(record))
    measured.forget()
    with pytest.warns(UserWarning, match=f"{name} other"):
        assert choice() == "direct"


def test_the_cache_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    measured.write_record(CPU, fft_costs(FAST))
    monkeypatch.setenv("KERNELFIELD_CACHE", "off")
    measured.forget()
    assert choice() == "direct"
    assert measured.write_record(CPU, {}) is None
    assert measured.clear_record(CPU) is None


def test_xdg_moves_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KERNELFIELD_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    path = measured.record_path(CPU)
    assert path is not None
    assert path.parent == tmp_path / "xdg" / "kernelfield" / "costs"


def test_a_resumed_run_keeps_its_costs(folder: Path) -> None:
    measured.use_costs_of(folder, CPU)
    assert choice() == "direct"
    measured.keep_costs_in(folder, CPU)
    measured.write_record(CPU, fft_costs(FAST))
    measured.use_costs_of(folder, CPU)  # resumed after a calibration
    assert choice() == "direct"
    (folder / "second").mkdir()
    measured.use_costs_of(folder / "second", CPU)
    assert choice() == "fft"
    measured.keep_costs_in(folder / "second", CPU)
    measured.clear_record(CPU)
    measured.use_costs_of(folder / "second", CPU)
    assert choice() == "fft"


def test_compiled_choices_read_the_file_too() -> None:
    measured.write_record(CPU, fft_costs(FAST))
    measured.forget()
    torch.compiler.reset()
    compiled = torch.compile(
        lambda x: x * seconds("fft", WORK, x.device, training=True), backend="eager", fullgraph=True
    )
    assert compiled(torch.ones(1)).item() == pytest.approx(1e-9)


def test_half_precision_has_costs_of_its_own_where_measured() -> None:
    measured.write_record(CPU, {**fft_costs(SLOW), "bfloat16": fft_costs(FAST)})
    measured.forget()
    assert seconds("fft", WORK, "cpu", True, torch.float32) == 0.5
    assert seconds("fft", WORK, "cpu", True, torch.bfloat16) == 1e-9
    assert seconds("direct", WORK, "cpu", True, torch.bfloat16) == seconds("direct", WORK, "cpu", True)


def test_captured_steps_choose_by_the_time_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shipped costs of a GPU: few launches count in eager code, and the shorter device time in a graph."""
    work = Work.of((100, 140, 784), (140, 1, 97), (48,), [False])

    def best(work: Work, *methods: str) -> str:
        times = {name: seconds(name, work, "cuda", training=True) for name in methods}
        return min(times, key=times.__getitem__)

    small = Work.of((8, 30, 64), (30, 1, 33), (16,), [False])
    with recorded_launches():
        assert best(work, "direct", "fft", "triton, single, three products") == "fft"
        assert best(small, "direct", "fft") == "direct"
        in_graph = {name: seconds(name, small, "cuda", training=True) for name in ("direct", "fft")}
    for name, time in in_graph.items():
        assert seconds(name, small, "cuda", training=True) > 5 * time
    assert best(small, "direct", "fft") == "direct"
    # Compiled code launches few kernels itself.
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert seconds("fft", small, "cuda", training=True) == in_graph["fft"]


def test_methods_without_a_time_in_a_graph_lose_their_launches(folder: Path) -> None:
    launched = {"rates": [1e-3, 1e-12, 0.0]}
    costs = {"training": {"fft": {"1d-depthwise": launched}}, "graph training": {"direct": {}}}
    measured.write_record(CPU, costs)
    measured.forget()
    eager = seconds("fft", WORK, CPU, training=True)
    with recorded_launches():
        assert seconds("fft", WORK, CPU, training=True) == pytest.approx(eager - 1e-3)
    measured.write_record(CPU, {**costs, "graph training": {"fft": {"1d-depthwise": {"rates": [2e-3, 0.0, 0.0]}}}})
    measured.forget()
    assert seconds("fft", WORK, CPU, training=True) == 2e-3
    with recorded_launches():
        assert seconds("fft", WORK, CPU, training=True) == 2e-3


def test_costs_of_points_follow_the_measurement() -> None:
    assert point_costs(CPU) == COSTS["cpu"]
    measured.write_record(CPU, {"points": COSTS["cpu"]._replace(grid=0.5)._asdict()})
    measured.forget()
    assert point_costs(CPU).grid == 0.5


def test_a_measurement_changes_no_result_and_no_random_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelfield.ops.calibration.least_seconds", lambda calls, *_, **__: dict.fromkeys(calls, 1e-3))
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    result = calibrate(CPU, 0.0, kinds=("1d-depthwise",))
    assert torch.rand(4).equal(expected)
    assert [line.partition(":")[0] for line in result.lines] == ["float32 1d-depthwise"]
    assert result.path is not None
    assert measured.read_record(result.path, CPU) == result.costs
    assert conv(torch.ones(1, 1, 4), torch.ones(1, 1, 3)).shape == (1, 1, 4)


def test_a_gpu_is_measured_call_by_call_and_in_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """With times that a GPU could have: 1 ms of launches, and a tenth of it in a graph."""
    cuda = torch.device("cuda")
    asked = []

    def times(calls: dict[str, object], *_: object, graphs: bool = False) -> dict[str, float]:
        asked.append(graphs)
        return {name: (1e-4 if graphs else 1e-3) * (1.0 + (name == "fft")) for name in calls}

    for module in (calibration, tensor_cores):
        monkeypatch.setattr(module, "least_seconds", times)
        monkeypatch.setattr(module, "MOST_ERROR", float("inf"), raising=False)
    monkeypatch.setattr(calibration, "costs_of", lambda *_: measured.shipped_costs("cuda"))
    monkeypatch.setattr(tensor_cores, "has_layout", lambda *_: True)
    monkeypatch.setattr(Shape, "calls", lambda _, methods, *__: dict.fromkeys(methods))
    result = calibration.Calibration()
    for kind in KINDS:
        for dtype in (torch.float32, torch.bfloat16):
            assert "shapes" in calibration._kind_part(result, kind, cuda, dtype)(0.0)
    assert tensor_cores.measure_tensor_cores(result.costs, cuda, 60.0).startswith("measured 1d bfloat16")
    assert 0 < asked.count(True) <= asked.count(False)
    measured._check(result.costs)
    merged = measured.merged(measured.shipped_costs("cuda"), result.costs)
    assert set(measured.shipped_costs("cuda")) <= {*merged, "machine"}
    monkeypatch.setitem(measured._in_use, ("cuda", None), merged)
    work = Work.of((8, 16, 256), (16, 1, 9), (4,), [False])
    for dtype in (torch.float32, torch.bfloat16):
        for name in ("direct", "fft", "triton", "triton, single", "triton, single, three products"):
            eager = seconds(name, work, "cuda", True, dtype)
            with recorded_launches():
                assert 0 <= seconds(name, work, "cuda", True, dtype) <= eager


def test_a_stopped_measurement_keeps_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelfield.ops.calibration.least_seconds", lambda calls, *_, **__: dict.fromkeys(calls, 1e-3))
    lines = []

    def stop(line: str) -> None:
        lines.append(line)
        if len(lines) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        calibrate(CPU, 60.0, kinds=("1d-depthwise", "2d-depthwise", "3d-dense"), on_line=stop)
    path = measured.record_path(CPU)
    assert path is not None
    kept = measured.read_record(path, CPU)
    assert kept is not None
    assert list(kept["training"]["fft"]) == ["1d-depthwise", "2d-depthwise"]


def test_costs_that_choose_slower_methods_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times for which the shipped costs choose right, and a fit that takes one method for free."""
    monkeypatch.setattr("kernelfield.ops.calibration.MOST_ERROR", float("inf"))
    monkeypatch.setattr("kernelfield.ops.calibration.costs_of", lambda *_: measured.shipped_costs("cpu"))
    shipped = measured.shipped_costs("cpu")

    def times(calls: dict[str, object], *_: object, **__: object) -> dict[str, float]:
        return {name: 1e-5 if name == "direct" else 1e-2 for name in calls}

    def fit(method: str, _: object, known: dict[str, Any]) -> dict[str, Any]:
        return {**known, "rates": [1e-12 if method == "fft" else 1e-3] * len(known["rates"]), "error": 0.0}

    monkeypatch.setattr("kernelfield.ops.calibration.least_seconds", times)
    monkeypatch.setattr("kernelfield.ops.calibration._fit", fit)
    result = calibrate(CPU, 0.0, kinds=("1d-depthwise",))
    assert result.lines[0].count("not changed") == 2
    assert measured.merged(shipped, result.costs)["forward"] == shipped["forward"]


@pytest.mark.parametrize("refused", [torch.OutOfMemoryError, MemoryError], ids=["GPU", "host"])
def test_shapes_too_large_for_the_device_are_left_out(refused: type, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def times(calls: dict[str, object], *_: object, **__: object) -> dict[str, float]:
        tried.append(calls)
        if len(tried) == 1:
            raise refused("out of memory")
        return dict.fromkeys(calls, 1e-3)

    monkeypatch.setattr("kernelfield.ops.calibration.least_seconds", times)
    (line,) = calibrate(CPU, 0.0, kinds=("1d-depthwise",)).lines
    assert "3 shapes" in line
    monkeypatch.setattr("kernelfield.ops.calibration.least_seconds", mock.Mock(side_effect=refused("none fits")))
    with pytest.raises(refused, match="none fits"):
        calibrate(CPU, 0.0, kinds=("1d-depthwise",))


@pytest.mark.parametrize("slower", ["direct", "fft"])
def test_choices_follow_the_times(slower: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def times(calls: dict[str, object], *_: object, **__: object) -> dict[str, float]:
        return {name: 1e-2 if name == slower else 1e-5 for name in calls}

    monkeypatch.setattr("kernelfield.ops.calibration.least_seconds", times)
    # Otherwise times that are the same for all shapes are taken for noise.
    monkeypatch.setattr("kernelfield.ops.calibration.MOST_ERROR", float("inf"))
    calibrate(CPU, 0.0, kinds=("1d-depthwise",))
    assert choice() != slower


def test_nothing_is_measured_where_times_would_lie() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(RuntimeError, match="deterministic"):
            calibrate(CPU, 0.0)
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_folder_that_cannot_be_written_is_an_error_of_the_command_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    environment = {**os.environ, "KERNELFIELD_CACHE": str(tmp_path / "file")}
    script = "import torch, kernelfield.ops as o; print(o.conv(torch.ones(1, 1, 4), torch.ones(1, 1, 3)).shape[2])"
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "4"


def test_the_command_measures_shows_and_clears(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelfield.ops.calibration.least_seconds", lambda calls, *_, **__: dict.fromkeys(calls, 1e-3))
    options = ("--device", "cpu")
    assert "shipped" in call("calibrate", "--show", *options)
    said = call("calibrate", "--seconds", "0.1", *options)
    assert "float32 1d-depthwise: " in said
    path = next(folder.rglob("*-threads.json"))
    assert f"stored in {path}" in said
    assert f"measured, {path}" in call("calibrate", "--show", *options)
    assert f"removed {path}" in call("calibrate", "--clear", *options)
    assert "no measured costs" in call("calibrate", "--clear", *options)


def test_advice_is_for_unmeasured_gpus_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert measured.advice(CPU) == []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for name, told in (("NVIDIA H200", 0), ("NVIDIA A100-SXM4-80GB", 1)):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _, name=name: name)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert len(measured.advice(torch.device("cuda"))) == told
