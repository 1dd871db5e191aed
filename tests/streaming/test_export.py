"""Exported streams give the predictions of the networks, sample by sample."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import kernelfield as kf
from kernelfield.streaming import ExportedStream, StreamStep, export_stream
from kernelfield.streaming import export as module
from tests.streaming.networks import assert_equal_outputs, samples, settled
from tests.streaming.test_distil import ckcnn

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def build(name: str) -> nn.Module:
    if name == "distilled":
        return kf.distil(ckcnn(readout="mean"), order=4, refine=0).network
    if name == "cut":
        return kf.distil(ckcnn(size=300, sigma=0.2), order=4, refine=0).network
    torch.manual_seed(1)
    if name == "tokens":
        arguments: dict[str, Any] = {"vocabulary": 7, "readout": "dense", "hidden": 4}
        return settled(kf.CKCNN(4, 7, size=30, channels=4, blocks=1, **arguments))
    return settled(kf.CCNN(2, 3, size=40, channels=4, blocks=1, hidden=4))


@pytest.mark.parametrize("step", [1.0, 0.5])
@pytest.mark.parametrize("name", ["distilled", "cut", "tokens", "kept"])
def test_one_step_is_a_function_of_sample_and_state(name: str, step: float) -> None:
    net = build(name)
    one = StreamStep(net, 2, step=step)
    x = samples(net, 2, 30)
    states = list(one.states.values())
    outputs = []
    for sample in x.split(1, dim=-1):
        y, *states = one(sample, *states)
        outputs.append(y)
    assert_equal_outputs(torch.stack(outputs, dim=-1), kf.stream(net, 2, step=step).push(x))
    assert all(not state.any() for state in one.states.values())


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("to", "name"),
    [
        ("pt2", "cut"),
        pytest.param("onnx", "distilled", marks=SLOW),
        pytest.param("pt2", "tokens", marks=SLOW),
        pytest.param("pt2", "kept", marks=SLOW),
        pytest.param("onnx", "cut", marks=SLOW),
        pytest.param("onnx", "tokens", marks=SLOW),
        pytest.param("onnx", "kept", marks=SLOW),
    ],
)
def test_exported_streams_predict_sample_by_sample(to: str, name: str, tmp_path: Path) -> None:
    if to == "onnx":
        pytest.importorskip("onnxruntime")
    net = build(name)
    path = tmp_path / f"stream.{to}"
    assert export_stream(net, path, to=to) < 1e-4
    exported = ExportedStream(path)
    x = samples(net, 1, 400 if name == "cut" else 60)
    wanted = kf.stream(net).push(x)
    for _ in range(2):
        y = torch.stack([exported.push(sample) for sample in x.split(1, dim=-1)], dim=-1)
        torch.testing.assert_close(y, wanted, rtol=1e-4, atol=1e-4)
        exported.reset()


def test_streams_in_half_precision(tmp_path: Path) -> None:
    net = build("distilled").bfloat16()
    export_stream(net, tmp_path / "stream.pt2")
    y = ExportedStream(tmp_path / "stream.pt2").push(samples(net, 1, 1))
    assert y.dtype == torch.bfloat16
    with pytest.raises(ValueError, match=r"^net .*ONNX"):
        export_stream(net, tmp_path / "stream.onnx", to="onnx")


@pytest.mark.parametrize("sample", [torch.randn(1, 3, 1), torch.randn(1, 2, 2), torch.randn(1, 2, 1).double()])
def test_a_wrong_sample_leaves_the_stream_as_it_was(sample: torch.Tensor, exported: ExportedStream) -> None:
    exported.reset()
    x = torch.ones(1, 2, 1)
    first, second = exported.push(x), exported.push(x)
    exported.reset()
    assert torch.equal(exported.push(x), first)
    with pytest.raises(ValueError, match=r"^sample "):
        exported.push(sample)
    assert torch.equal(exported.push(x), second)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> ExportedStream:
    path = tmp_path_factory.mktemp("exported") / "stream.pt2"
    export_stream(build("kept"), path)
    return ExportedStream(path)


def test_a_wrong_file_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.ExportedStream, "push", lambda self, sample: torch.full((1, 3), 1e6))
    with pytest.raises(RuntimeError, match="differs"):
        export_stream(build("kept"), tmp_path / "stream.pt2")
    assert not (tmp_path / "stream.pt2").exists()


@pytest.mark.parametrize(("argument", "value"), [("to", "h5"), ("batch", 0), ("step", -1.0)])
def test_bad_arguments(argument: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises((TypeError, ValueError), match=rf"^{argument} "):
        export_stream(build("kept"), tmp_path / "stream.pt2", **{argument: value})
