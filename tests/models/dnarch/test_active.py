"""Closed depths and widths, low resolutions, points and unobserved samples."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from kernelfield.layers import BandLimit
from kernelfield.ops import resample
from tests.models.dnarch.nets import build, convs, moved, signal


def test_no_blocks_leave_the_identity_path_alive() -> None:
    net = build(2, 12).eval()
    with torch.no_grad():
        net.depth.offset.fill_(-10.0)
    x = signal(2, 12)
    assert net.architecture().depth == 0
    wanted = net.network.readout(net.network.final_norm(F.gelu(net.network.norm(net.network.stem(x)))))
    for other in (net, net.materialize()):
        torch.testing.assert_close(other(x), wanted)
        assert other(x).std() > 0
    fixed = build(2, 12, fixed_shapes=True).eval()
    fixed.load_state_dict(net.state_dict())
    torch.testing.assert_close(fixed(x), wanted)


def test_closed_widths_leave_the_identity_path_alive() -> None:
    nets = [build(2, 12, fixed_shapes=fixed).eval() for fixed in (False, True)]
    x = signal(2, 12)
    for net in nets:
        with torch.no_grad():
            net.width.offset.fill_(-10.0)
    torch.testing.assert_close(nets[0](x), nets[1](x))


@pytest.mark.parametrize("fixed_shapes", [True, False])
def test_masked_width_never_touches_the_identity_branch(fixed_shapes: bool) -> None:
    net = moved(build(1, 32, fixed_shapes=fixed_shapes)).eval()
    block, active = net.network.blocks[0], net.active()[0]
    with torch.no_grad():
        for p in block.linear.parameters():
            p.zero_()
    x = torch.randn(2, 16, 32)
    assert torch.equal(block(x, active=active), x)
    with torch.no_grad():
        block.linear.bias.fill_(1.0)
    written = net.sizes.unfixed().kept_widths[0][2]
    change = block(x, active=active) - x
    assert (change[:, :written].abs() > 0).all()
    assert torch.equal(change[:, written:], torch.zeros_like(change[:, written:]))


@pytest.mark.parametrize("n", [16, 31, 32])
@pytest.mark.parametrize("share", [0.3, 0.55, 1.0])
def test_downsampling_equals_resample(n: int, share: float) -> None:
    layer = convs(build(1, n).network)[0]
    x = torch.randn(2, 1, n, dtype=torch.float64)
    # A mask so steep that it is one up to its end: the cut alone.
    band = BandLimit((share,), (2 * share - 1 + 1e-4,), 1e6, 0.1)
    low, told = band.down(layer, x, {})
    length = low.shape[-1]
    assert length == min(n, 2 * int(share * n / 2) + 1)
    assert told["step"] == (pytest.approx(n / length),)
    torch.testing.assert_close(low, resample(x, length), rtol=0, atol=1e-9)
    torch.testing.assert_close(band.up(low, (n,), {}), resample(low, n), rtol=0, atol=1e-9)


def test_low_resolution_computes_at_low_resolution() -> None:
    net = build(2, 16, learn=("resolution",)).eval()
    with torch.no_grad():
        net.resolution.offset.view(2, 2).copy_(torch.tensor([[-0.5, 0.2], [2.0, 2.0]]))
    seen = []
    for block in net.network.blocks:
        block.linear.register_forward_hook(lambda *call: seen.append(tuple(call[1][0].shape[2:])))
    y = net(signal(2, 16))
    assert seen == [b.resolution for b in net.architecture().blocks] == [(5, 11), (16, 16)]
    assert y.shape == (2, 3)


def test_points_need_all_frequencies() -> None:
    coords = 12 * torch.rand(9, 2)
    assert build(learn=("kernel", "width", "depth"))(torch.randn(2, 2, 9), coords=coords).shape == (2, 3)
    with pytest.raises(ValueError, match=r"\bcoords must"):
        build()(torch.randn(2, 2, 9), coords=coords)


def test_unobserved_samples_are_ignored_at_low_resolution() -> None:
    net = moved(build(1, 32, norm="none", readout="dense")).eval()
    x, seen = signal(1, 32), torch.arange(32).expand(2, 32) < 20
    other = torch.where(seen.unsqueeze(1), x, 100.0)
    stem = net.network.stem
    net.network.stem = torch.nn.Conv1d(2, 16, 1)  # the identity branch sees unseen samples, the blocks must not

    class Stem(torch.nn.Module):
        def forward(self, x: torch.Tensor, **_: Any) -> torch.Tensor:
            return stem(x)

    net.network.stem = Stem()
    a, b = net(x, mask=seen), net(other, mask=seen)
    torch.testing.assert_close(a[..., :20], b[..., :20])
