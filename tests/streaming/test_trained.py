"""Exported streams of trained networks predict, sample by sample, what the networks predict of all samples so far."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor, nn

import kernelfield as kf
from kernelfield.data.sets.images.digits import digits
from kernelfield.streaming import ExportedStream, export_stream
from tests.streaming.networks import forward_after

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

SLOW = pytest.mark.slow


def trained(name: str) -> tuple[nn.Module, Tensor, Tensor | None]:
    """Return a pretrained causal network, inputs, and their classes if they are those of its task."""
    net = kf.create_model(name, pretrained=True).eval()
    if name == "ccnn_4_140.digits":
        batch = digits(16, sequence=True).test.batch(slice(0, 8))
        return net, batch.inputs, batch.target
    torch.manual_seed(1)
    return net, torch.randn(2, 1, 130), None


@pytest.mark.parametrize(
    ("name", "distilled"),
    [
        ("ccnn_4_140.digits", True),
        pytest.param("ccnn_4_140.digits", False, marks=SLOW),
        pytest.param("ckcnn_copy.copy_100", True, marks=SLOW),
        pytest.param("ckcnn_copy.copy_100", False, marks=SLOW),
        pytest.param("flextcn_2.smnist", True, marks=SLOW),
        pytest.param("flextcn_2.smnist", False, marks=SLOW),
    ],
)
def test_exported_streams_of_trained_networks_predict_the_same(name: str, distilled: bool, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    net, x, classes = trained(name)
    if distilled:
        net = kf.distil(net, order=16, refine=0).network
    path = tmp_path / "stream.onnx"
    export_stream(net, path, to="onnx", batch=len(x))
    exported = ExportedStream(path)
    y = torch.stack([exported.push(sample) for sample in x.split(1, dim=-1)], dim=-1)
    times = [0, 1, 60, x.shape[-1] // 2, x.shape[-1] - 1]
    wanted = forward_after(net, x, times)
    torch.testing.assert_close(y[..., times], wanted, rtol=0, atol=1e-4 * float(wanted.abs().max()))
    online = kf.stream(net, len(x)).push(x)
    assert torch.equal(y.argmax(dim=1), online.argmax(dim=1))
    if classes is not None:
        assert torch.equal(y[..., -1].argmax(dim=1), classes)
