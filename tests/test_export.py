"""Exported networks give what the networks give."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from kernelfield import CCNN, CKCNN, FlexNet
from kernelfield.export import export_network

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

NETWORKS = {
    "ccnn": (lambda: CCNN(1, 10, size=32, channels=4, blocks=1), (1, 32)),
    "ckcnn": (lambda: CKCNN(2, 3, size=32, channels=4), (2, 32)),
    "flexnet": (lambda: FlexNet(3, 10, size=8, channels=4, widths=(1,)), (3, 8, 8)),
}


#: networks by format; `test_a_program_takes_other_lengths` exports a CCNN to pt2
FAST = {("pt2", "flexnet"), ("onnx", "ccnn")}


@pytest.mark.parametrize(
    ("to", "name"),
    [
        pytest.param(to, name, marks=() if (to, name) in FAST else pytest.mark.slow)
        for to in ("pt2", "onnx")
        for name in NETWORKS
    ],
)
def test_exports(tmp_path: Path, to: str, name: str) -> None:
    if to == "onnx":
        pytest.importorskip("onnxruntime")
        pytest.importorskip("onnxscript")
    make, shape = NETWORKS[name]
    path = tmp_path / f"net.{to}"
    network = make().train()
    assert export_network(network, path, torch.randn(2, *shape), to=to) < 1e-3
    assert path.exists()
    assert network.training


def test_a_program_takes_other_lengths(tmp_path: Path) -> None:
    network = CCNN(1, 10, size=32, channels=4, blocks=1).eval()
    export_network(network, tmp_path / "net.pt2", torch.randn(2, 1, 32))
    program = torch.export.load(tmp_path / "net.pt2").module()
    for length in (20, 32, 50):
        x = torch.randn(3, 1, length)
        with torch.no_grad():
            torch.testing.assert_close(program(x), network(x), rtol=1e-3, atol=1e-4)


class Rough(nn.Module):
    """A network whose outputs are never the same twice."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand_like(x)


def test_what_differs_is_not_kept(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="the exported network differs by"):
        export_network(Rough(), tmp_path / "net.pt2", torch.randn(2, 1, 8))
    assert not (tmp_path / "net.pt2").exists()
    with pytest.raises(ValueError, match=r"\bto must"):
        export_network(Rough(), tmp_path / "net", torch.randn(2, 1, 8), to="tflite")
