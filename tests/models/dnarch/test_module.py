"""A network with a learned architecture as a module: autocast, norms, copies, history, errors, the contract."""

from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import torch

from kernelfield import CCNN, DNArch
from kernelfield._hooks import pause_step_hooks
from kernelfield.layers.continuous.learned_size import DelayedSizes
from kernelfield.viz.architecture import architecture_table, plot_history, read_last_row
from tests.contracts.models import ModelContract
from tests.models.dnarch.nets import build, moved, signal

if TYPE_CHECKING:
    from pathlib import Path


def test_bf16_autocast() -> None:
    net, x = moved(build(2, 12)).eval(), signal(2, 12)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = net(x)
    wanted = net(x)
    assert (y - wanted).norm() < 0.05 * wanted.norm()


@pytest.mark.parametrize("norm", ["batch", "batch-statistics", "layer", "none"])
@pytest.mark.parametrize("prenorm", [True, False])
def test_every_norm(norm: str, prenorm: bool) -> None:
    net = moved(build(1, 24, norm=norm, prenorm=prenorm))
    x = torch.randn(4, 2, 24)
    net(x).sum().backward()  # running statistics move
    net.eval()
    torch.testing.assert_close(net.materialize()(x), net(x), rtol=1e-4, atol=1e-5)


def test_copies_follow_their_own_masks() -> None:
    net = moved(build(1, 32)).eval()
    x = signal(1, 32)
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        torch.testing.assert_close(other(x), net(x))
        with torch.no_grad():
            other.width.offset.sub_(0.3)
        other(x)
        assert other.sizes.kept_widths[0] < net.sizes.kept_widths[0]


def test_delayed_sizes_cover_the_architecture() -> None:
    net, fixed = build(1, 32), build(1, 32, fixed_shapes=True)
    late = DelayedSizes(net.parameters())
    assert net.sizes in [size for size, _ in late.sizes]
    assert fixed.sizes not in [size for size, _ in DelayedSizes(fixed.parameters()).sizes]
    with pause_step_hooks():
        with torch.no_grad():
            net.width.offset.add_(0.25)
        for _ in range(2):
            late.update()
            net(signal(1, 32))
            assert net.sizes.kept_widths == [(9, 9, 9)] * 4  # as they were, and one channel to spare
            late.copy_to_host(late.measure())
        late.update()
        assert net.sizes.kept_widths == [(11, 11, 11)] * 4
        net.width.offset.grad = torch.full_like(net.width.offset, 100.0)
        torch.optim.SGD([net.width.offset], lr=1.0).step()
        assert net.width.offset.min().item() == pytest.approx(net.width.limits()[0])  # limits hold meanwhile


def test_history(tmp_path: Path) -> None:
    net = build(1, 32)
    net.record(step=0)
    with torch.no_grad():
        net.depth.offset.add_(0.6)
    row = net.record(step=1)
    assert [r["depth"] for r in net.history] == [2, 3]
    assert row["step"] == 1
    assert row["block3.width.middle"] == 8
    assert row["block1.resolution.0"] == 32
    plot_history(net.history, tmp_path / "history.png")
    assert (tmp_path / "history.png").stat().st_size > 10_000
    with pytest.raises(ValueError, match=r"\bhistory must"):
        plot_history([], tmp_path / "none.png")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"learn": ("kernels",)}, ValueError, "learn must"),
        ({"budget": 0}, ValueError, "budget .*got 0"),
        ({"max_width": 0.5}, ValueError, "max_width .*got 0.5"),
        ({"fixed_shapes": 1}, TypeError, "fixed_shapes must"),
        ({"fixed_shapes": True, "smooth": True}, ValueError, "fixed_shapes must"),
        ({"block": "resnet"}, TypeError, "network .*got CCNN"),
    ],
)
def test_bad_arguments(change: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=rf"\b{message}"):
        build(**change)


def test_a_materialised_network_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"\bnetwork\b"):
        DNArch(build().materialize())


def materialised(**arguments: Any) -> CCNN:
    return moved(DNArch(CCNN(**arguments), learn=("kernel", "width", "depth"))).materialize()


class TestMaterialised(ModelContract):
    traced = False
    model = staticmethod(materialised)
    arguments: ClassVar[dict[str, Any]] = {"channels": 6, "blocks": 1, "sigma": 0.1, "hidden": 8}
    dims = (1,)


def test_found_architectures_are_tabulated_from_runs(tmp_path: Path) -> None:
    net = DNArch(CCNN(1, 2, dim=2, size=8, channels=4, blocks=2))
    rows = [net.record(epoch=epoch) for epoch in range(2)]
    path = tmp_path / "masks.csv"
    path.write_text("\n".join([",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]))
    assert read_last_row(path) == rows[-1]
    lines = architecture_table({"small": read_last_row(path)}).splitlines()
    assert len(lines) == 2 + net.architecture().depth
    assert lines[2].split(" | ")[2:] == ["1 of 2", "3×3", "8×8", "4, 4, 4 |"]
    path.write_text("epoch,loss\n1,2\n")
    with pytest.raises(ValueError, match=r"masks.csv must hold"):
        read_last_row(path)
