"""Exported networks give what the networks give."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

import kernelfield
from kernelfield import CCNN, CKCNN, DNArch, FlexNet, GroupPool, LiftingConv, create_model
from kernelfield.export import export_network, read_metadata
from kernelfield.groups import Scale
from kernelfield.streaming import export_stream

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

NETWORKS = {
    "ccnn": (lambda: CCNN(1, 10, size=32, channels=4, blocks=1), (1, 32)),
    "ckcnn": (lambda: CKCNN(2, 3, size=32, channels=4), (2, 32)),
    "flexnet": (lambda: FlexNet(3, 10, size=8, channels=4, widths=(1,)), (3, 8, 8)),
}


#: networks by format; `test_a_program_takes_other_lengths` exports a CCNN to pt2
FAST = {("onnx", "ccnn")}


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


class Windows(nn.Module):
    """A convolution without padding on dilations of time, and the mean over all of its outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = LiftingConv(1, 4, group=Scale(2, dim=1), kernel_size=5, boundary="valid")
        self.pool = GroupPool("mean", "all")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pool(self.conv(x))


@pytest.mark.parametrize(
    ("make", "length", "least"),
    [(Windows, 32, 11), (lambda: nn.Sequential(nn.Conv1d(1, 4, 5), nn.AdaptiveAvgPool1d(1), nn.Flatten()), 32, 5)],
)
def test_a_program_takes_the_shortest_input_of_its_network(
    tmp_path: Path, make: Callable[[], nn.Module], length: int, least: int
) -> None:
    network = make().eval()
    export_network(network, tmp_path / "net.pt2", torch.randn(2, 1, length))
    assert read_metadata(tmp_path / "net.pt2")["lengths"] == {"input": [least, None]}
    program = torch.export.load(tmp_path / "net.pt2").module()
    for count in (least, least + 1, 2 * length):
        x = torch.randn(1, 1, count)
        with torch.no_grad():
            torch.testing.assert_close(program(x), network(x), rtol=1e-3, atol=1e-4)
    for call in (program, network):
        with pytest.raises((RuntimeError, ValueError, AssertionError)):
            call(torch.randn(1, 1, least - 1))


class Queried(nn.Module):
    """Values of a sequence at query positions."""

    def forward(self, x: torch.Tensor, *, at: torch.Tensor) -> torch.Tensor:
        return x.mean(dim=2, keepdim=True) * at.movedim(2, 1)


def test_metadata_name_the_accepted_lengths(tmp_path: Path) -> None:
    path, x = tmp_path / "net.pt2", torch.randn(2, 1, 32)
    pools = nn.Sequential(nn.MaxPool1d(2), nn.AdaptiveAvgPool1d(1))  # torch.export fixes the length of such pools
    with pytest.warns(UserWarning, match="accepts inputs of length 32 only, and the network itself more"):
        export_network(pools, path, x)
    assert read_metadata(path)["lengths"] == {"input": [32, 32]}
    torch.testing.assert_close(torch.export.load(path).module()(x), pools(x))
    export_network(nn.ReLU(), path, x, dynamic_length=False)
    assert read_metadata(path)["lengths"] == {"input": [32, 32]}
    export_network(Queried(), path, x, at=torch.randn(2, 3, 1), dynamic_length=False)
    assert read_metadata(path)["lengths"] == {"input": [32, 32], "at": [3, 3]}
    export_network(Queried(), path, x, at=torch.randn(2, 3, 1))
    assert read_metadata(path)["lengths"] == {"input": [1, None], "at": [1, None]}
    export_network(nn.ReLU(), path, torch.randn(2, 1, 8, 8))
    assert "lengths" not in read_metadata(path)


LENGTHS = torch.tensor([16, 9, 12])
MASK = torch.arange(16) < LENGTHS.unsqueeze(1)
TIMES = 16 * torch.rand(3, 16, 1, generator=torch.Generator().manual_seed(0)).sort(dim=1).values
SAMPLING: dict[str, dict[str, torch.Tensor]] = {
    "mask": {"mask": MASK},
    "lengths": {"lengths": LENGTHS},
    "times": {"coords": TIMES},
    "times and mask": {"coords": TIMES, "mask": MASK},
}


def sequence_network(name: str) -> nn.Module:
    torch.manual_seed(0)
    return {"ccnn": CCNN, "ckcnn": CKCNN}[name](2, 3, size=16, channels=4, blocks=1).eval()


@pytest.mark.parametrize("to", ["pt2", pytest.param("onnx", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    # Of times, tests/experiments/test_query_times.py exports a network by default.
    "kind",
    [k if k == "mask" else pytest.param(k, marks=pytest.mark.slow) for k in SAMPLING],
)
@pytest.mark.parametrize("name", ["ckcnn", pytest.param("ccnn", marks=pytest.mark.slow)])
def test_mask_lengths_and_times_are_inputs(tmp_path: Path, name: str, kind: str, to: str) -> None:
    network, x, sampling = sequence_network(name), torch.randn(3, 2, 16), SAMPLING[kind]
    path = tmp_path / f"net.{to}"
    assert export_network(network, path, x, **sampling, to=to) < 1e-4
    assert list(read_metadata(path)["inputs"]) == ["input", *sampling]
    given = {key: value for key, value in sampling.items() if key != "lengths"}
    if kind == "lengths":
        given["mask"] = MASK
    with torch.no_grad():
        wanted = network(x, **given)
        assert not torch.allclose(wanted, network(x), atol=1e-3)  # what was left out before
    torch.testing.assert_close(outputs_of(path, {"input": x, **sampling}), wanted, rtol=1e-3, atol=1e-4)


def outputs_of(path: Path, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the outputs of an exported network without this package."""
    if path.suffix == ".pt2":
        return torch.export.load(path).module()(*inputs.values())
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {name: t.numpy() for name, t in inputs.items()})[0])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the exported network accepts inputs of length 5 or more")  # 5 neighbours
@pytest.mark.parametrize("to", ["pt2", "onnx"])
def test_point_clouds(tmp_path: Path, to: str) -> None:
    network = create_model("ccnn_4_16", channels=4, hidden=4, neighbors=5, in_channels=3, out_channels=3, blocks=1)
    coords, mask = 2 * torch.rand(3, 20, 3) - 1, torch.rand(3, 20) < 0.8
    assert export_network(network, tmp_path / "net", torch.randn(3, 3, 20), coords=coords, mask=mask, to=to) < 1e-4


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the exported network accepts inputs of length 2 or more")
@pytest.mark.parametrize("learn", [("resolution",), ("kernel", "width", "depth")])
def test_learned_architectures_take_other_lengths(tmp_path: Path, learn: tuple[str, ...]) -> None:
    torch.manual_seed(0)
    network = DNArch(CCNN(1, 3, size=16, channels=4, blocks=1, causal=False), learn=learn).eval()
    export_network(network, tmp_path / "net.pt2", torch.randn(2, 1, 16))
    program = torch.export.load(tmp_path / "net.pt2").module()
    for length in (9, 16, 31):
        x = torch.randn(3, 1, length)
        with torch.no_grad():
            torch.testing.assert_close(program(x), network(x), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("export", [export_network, export_stream])
def test_a_dtype_that_the_runtime_lacks_is_refused(tmp_path: Path, export: Callable[..., float]) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    network = CCNN(1, 3, size=8, channels=4, blocks=1).double()
    example = [torch.randn(2, 1, 8, dtype=torch.float64)] if export is export_network else []
    with pytest.raises(ValueError, match=r"to must be 'pt2' .*torch\.float64"):
        export(network, tmp_path / "net.onnx", *example, to="onnx")
    assert not (tmp_path / "net.onnx").exists()


def test_metadata(tmp_path: Path) -> None:
    path = tmp_path / "net.pt2"
    export_network(nn.Flatten(), path, torch.randn(2, 1, 8), metadata={"classes": ["a", "ä"], "rate": 8000})
    found = read_metadata(path)
    assert found["version"] == kernelfield.__version__
    assert (found["classes"], found["rate"]) == (["a", "ä"], 8000)
    assert found["inputs"] == {"input": {"shape": [1, 8], "dtype": "float32"}}
    torch.export.save(torch.export.export(nn.Flatten(), (torch.randn(2, 3),)), tmp_path / "other.pt2")
    with pytest.raises(ValueError, match=r"other\.pt2 must be a file that export_network"):
        read_metadata(tmp_path / "other.pt2")
    (tmp_path / "text.pt2").write_text("no archive")
    with pytest.raises(ValueError, match=r"text\.pt2 must be"):
        read_metadata(tmp_path / "text.pt2")


def test_examples_have_one_batch_size(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\bmask must"):
        export_network(sequence_network("ccnn"), tmp_path / "net.pt2", torch.randn(2, 2, 16), mask=MASK)


class Rough(nn.Module):
    """A network whose outputs are never the same twice."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand_like(x)


def test_a_wrong_export_is_removed(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="the exported network differs by"):
        export_network(Rough(), tmp_path / "net.pt2", torch.randn(2, 1, 8))
    assert not (tmp_path / "net.pt2").exists()
    with pytest.raises(ValueError, match=r"\bto must"):
        export_network(Rough(), tmp_path / "net", torch.randn(2, 1, 8), to="tflite")
