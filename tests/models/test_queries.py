"""Outputs wherever they are asked for."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from kernelfield import CCNN, CKCNN, CKConv, FlexConv, FlexNet, SeparableConv
from kernelfield.fields import MAGNet
from kernelfield.layers import CCNNBlock

NETWORKS: dict[str, Any] = {
    "CCNN": partial(CCNN, 2, 3, channels=6, blocks=2, hidden=8, readout="dense"),
    "global CCNN": partial(CCNN, 2, 3, channels=6, blocks=1, hidden=8, readout="dense", sigma=None),
    "FlexNet": partial(
        FlexNet, 2, 3, dim=1, channels=6, widths=(1, 1.5), hidden=8, sigma=0.5, causal=True, readout="dense"
    ),
    "CKCNN": partial(CKCNN, 2, 3, channels=6, blocks=1, hidden=8, readout="dense", norm="batch"),
}


def build(name: str, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    return NETWORKS[name](size=20, **options).double().eval()


@pytest.mark.parametrize("name", NETWORKS)
def test_there_is_one_answer_for_each_question(name: str) -> None:
    net = build(name)
    x, t = torch.randn(2, 2, 15, dtype=torch.float64), torch.rand(2, 15, 1, dtype=torch.float64) * 20
    at = torch.rand(2, 7, 1, dtype=torch.float64) * 20
    y = net(x, coords=t, at=at)
    assert y.shape == (2, 3, 7)
    assert torch.isfinite(y).all()


@pytest.mark.parametrize("name", NETWORKS)
def test_an_answer_depends_on_no_other_question(name: str) -> None:
    net = build(name)
    x, t = torch.randn(2, 2, 15, dtype=torch.float64), torch.rand(2, 15, 1, dtype=torch.float64) * 20
    at = torch.rand(2, 6, 1, dtype=torch.float64) * 20
    together = net(x, coords=t, at=at)
    alone = torch.cat([net(x, coords=t, at=at[:, i : i + 1]) for i in range(6)], dim=-1)
    assert torch.allclose(together, alone, atol=1e-12)


@pytest.mark.parametrize("name", NETWORKS)
def test_answers_of_a_causal_network_depend_on_no_later_sample(name: str) -> None:
    net = build(name)
    x, t = torch.randn(1, 2, 15, dtype=torch.float64), torch.rand(1, 15, 1, dtype=torch.float64).sort(dim=1).values * 20
    at = t[:, 7:8] + 1e-3
    y = net(x, coords=t, at=at)
    changed = x.clone()
    changed[..., 8:] += 1
    assert torch.allclose(net(changed, coords=t, at=at), y, atol=1e-12)
    changed[..., :8] += 1
    assert not torch.allclose(net(changed, coords=t, at=at), y)


@pytest.mark.parametrize("dim", [1, 2])
def test_a_grid_and_its_points_give_the_same_answers(dim: int) -> None:
    net = build("CCNN", dim=dim, causal=False)
    x = torch.randn(1, 2, *(6,) * dim, dtype=torch.float64)
    places = torch.cartesian_prod(*[torch.arange(6, dtype=torch.float64) * 2] * dim).view(-1, dim)
    at = torch.rand(5, dim, dtype=torch.float64) * 12
    on_grid = net(x, at=at, step=2.0)
    at_points = net(x.flatten(2), coords=places, at=at, step=2.0)
    assert torch.allclose(on_grid, at_points, atol=1e-12)


def test_queries_in_half_precision_do_not_round_the_positions_of_a_grid() -> None:
    net, x = build("CCNN", causal=False), torch.randn(1, 2, 600, dtype=torch.float64)
    at = torch.tensor([[3.0], [300.0], [520.0]])  # all of them exact in bfloat16, which has neither 257 nor 521
    assert torch.allclose(net(x, at=at.bfloat16()), net(x, at=at), atol=1e-6)


def test_queries_are_not_rounded_to_the_precision_of_the_coordinates() -> None:
    net, x = build("CCNN", causal=False), torch.randn(1, 2, 3, dtype=torch.float64)
    t, at = torch.tensor([[296.0], [298.0], [300.0]]), torch.tensor([[297.0], [299.25]])
    assert torch.allclose(net(x, coords=t.bfloat16(), at=at), net(x, coords=t, at=at), atol=1e-6)


def test_unseen_samples_have_no_effect_on_answers() -> None:
    net = build("CCNN")
    x, t = torch.randn(2, 2, 15, dtype=torch.float64), torch.rand(2, 15, 1, dtype=torch.float64) * 20
    at, mask = torch.rand(2, 4, 1, dtype=torch.float64) * 20, torch.ones(2, 15, dtype=torch.bool)
    mask[:, 10:] = False
    wanted = net(x[..., :10], coords=t[:, :10], at=at)
    assert torch.allclose(net(x, coords=t, mask=mask, at=at), wanted, atol=1e-12)
    assert torch.allclose(
        net(x, coords=t, mask=mask, density="estimate", at=at),
        net(x[..., :10], coords=t[:, :10], density="estimate", at=at),
        atol=1e-12,
    )


def test_times_of_unseen_samples_may_be_nan_in_training() -> None:
    net = build("CCNN").train()
    x, t = torch.randn(2, 2, 15, dtype=torch.float64), torch.rand(2, 15, 1, dtype=torch.float64) * 20
    mask = torch.arange(15).expand(2, -1) < 10
    y = net(x, coords=t.masked_fill(~mask.unsqueeze(-1), torch.nan), mask=mask, at=t[:, :4])
    assert torch.isfinite(y).all()


def test_networks_and_blocks_that_take_no_questions_refuse_them() -> None:
    """As many questions as points have the right shape for a residual sum, and the wrong places."""
    x, t = torch.randn(1, 3, 9), torch.rand(1, 9, 2)
    with pytest.raises(ValueError, match="at must be None"):
        FlexNet(3, 4, size=9, channels=4, widths=(1,))(x, coords=t, at=t)
    block = CCNNBlock(partial(SeparableConv, dim=2, size=9), 3, 3, norm="batch")
    with pytest.raises(ValueError, match="at must be None"):
        block(x, coords=t, at=t)


@pytest.mark.parametrize("make", [CKConv, FlexConv])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("density", [None, "estimate"])
def test_a_layer_asked_at_its_own_points_answers_as_without_asking(make: Any, causal: bool, density: Any) -> None:
    torch.manual_seed(0)
    layer = make(3, 4, size=20, causal=causal, field=partial(MAGNet, hidden=8)).double()
    x, t = torch.randn(2, 3, 12, dtype=torch.float64), torch.rand(2, 12, 1, dtype=torch.float64) * 20
    wanted = layer(x, coords=t, density=density)
    assert torch.allclose(layer(x, coords=t, density=density, at=t), wanted, atol=1e-12)
    order = torch.randperm(12)
    assert torch.allclose(layer(x, coords=t, density=density, at=t[:, order]), wanted[..., order], atol=1e-12)


@pytest.mark.parametrize("method", ["cells", "grid"])
def test_layers_convolve_points_by_the_method_asked_for(method: str) -> None:
    torch.manual_seed(0)
    field = partial(MAGNet, hidden=8)
    layer = FlexConv(3, 3, size=100, sigma=0.05, field=field, depthwise=True).double()
    if method == "grid":
        layer = CKConv(3, 3, size=100, field=field, depthwise=True).double()
    x, t = torch.randn(2, 3, 80, dtype=torch.float64), torch.rand(2, 80, 1, dtype=torch.float64) * 90
    layer.point_method = "pairs"
    wanted = layer(x, coords=t)
    layer.point_method = method
    assert float(((layer(x, coords=t) - wanted).norm() / wanted.norm()).detach()) < (
        1e-4 if method == "grid" else 1e-12
    )


def test_questions_that_cannot_be_answered_are_refused() -> None:
    x, t, at = torch.randn(1, 2, 9), torch.rand(1, 9, 1), torch.rand(1, 3, 1)
    with pytest.raises(ValueError, match=r"at .*readout='mean'"):
        CCNN(2, 3, size=9, channels=4, blocks=1)(x, coords=t, at=at)
    with pytest.raises(ValueError, match=r"at .*'cumulative'"):
        CKCNN(2, 3, size=9, channels=4, blocks=1, readout="dense")(x, coords=t, at=at)
    net = NETWORKS["CCNN"](size=9)
    with pytest.raises(ValueError, match="at must have shape"):
        net(x, coords=t, at=torch.rand(1, 3, 2))
    with pytest.raises(ValueError, match="at must be finite"):
        net(x, coords=t, at=at * torch.nan)
    layer = CKConv(2, 2, size=9)
    with pytest.raises(ValueError, match="at must be None"):
        layer(x, at=at)
    with pytest.raises(ValueError, match="at must have shape"):
        layer(x, coords=t, at=torch.rand(4, 3, 1, 1))
    with pytest.raises(ValueError, match="queries must be less"):
        layer(x, coords=t, queries=9)


def test_queries_may_be_mapped_over_or_fake() -> None:
    """Where the host cannot read values, queries are not checked; coordinates are treated alike."""
    net = build("CCNN")
    x, at = torch.randn(3, 2, 20, dtype=torch.float64), torch.rand(3, 5, 1, dtype=torch.float64) * 20
    mapped = torch.vmap(lambda x, at: net(x.unsqueeze(0), at=at.unsqueeze(0)).squeeze(0))(x, at)
    torch.testing.assert_close(mapped, net(x, at=at))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert net(mode.from_tensor(x), at=mode.from_tensor(at)).shape == (3, 3, 5)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("causal", [False, True])
def test_times_may_come_in_any_order(name: str, causal: bool) -> None:
    """A causal layer compares times and not positions, so that samples need not be sorted."""
    net = build(name, causal=causal)
    x, t = torch.randn(1, 2, 15, dtype=torch.float64), torch.rand(1, 15, 1, dtype=torch.float64) * 20
    at, order = torch.rand(1, 6, 1, dtype=torch.float64) * 20, torch.randperm(15)
    wanted = net(x, coords=t, at=at)
    assert torch.allclose(net(x[..., order], coords=t[:, order], at=at), wanted, atol=1e-12)
    back = torch.randperm(6)
    assert torch.allclose(net(x, coords=t, at=at[:, back]), wanted[..., back], atol=1e-12)


@pytest.mark.parametrize("name", NETWORKS)
def test_answers_of_a_causal_network_before_the_first_sample_depend_on_no_sample(name: str) -> None:
    net = build(name, causal=True)
    x, t = torch.randn(2, 2, 9, dtype=torch.float64), 5 + torch.rand(2, 9, 1, dtype=torch.float64) * 10
    at = torch.tensor([[0.0], [4.9]], dtype=torch.float64)
    y = net(x, coords=t, at=at)
    assert torch.isfinite(y).all()
    assert torch.allclose(net(3 * x + 1, coords=t, at=at), y, atol=1e-12)
    layer = CKConv(2, 3, size=20, causal=True, bias=False, field=partial(MAGNet, hidden=8)).double()
    assert (layer(x, coords=t, at=at) == 0).all()


def test_empty_clouds_and_wrong_dimensions_are_refused() -> None:
    net = NETWORKS["CCNN"](size=9)
    with pytest.raises(ValueError, match="x must"):
        net(torch.zeros(1, 2, 0), coords=torch.zeros(1, 0, 1), at=torch.zeros(1, 3, 1))
    with pytest.raises(ValueError, match="coords must"):
        net(torch.zeros(1, 2, 4), coords=torch.zeros(1, 4, 2))
    with pytest.raises(ValueError, match="coords must"):
        net(torch.zeros(1, 2, 4), coords=torch.zeros(1, 5, 1))
