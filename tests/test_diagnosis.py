"""What ``kf.diagnose`` finds, and that it finds nothing in networks as they are meant."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

import kernelfield as kf
from kernelfield.diagnosis import Finding, diagnose
from kernelfield.experiments.optim import parameter_groups
from kernelfield.fields import SIREN, MAGNet

if TYPE_CHECKING:
    from collections.abc import Callable

TIMES = torch.arange(60.0).reshape(1, 60, 1)


def ccnn(**options: Any) -> kf.CCNN:
    torch.manual_seed(0)
    return kf.CCNN(1, 2, **{"size": 64, "channels": 8, "blocks": 1, **options})


def turning(field: Callable[..., Any]) -> nn.Module:
    torch.manual_seed(0)
    lift = kf.LiftingConv(1, 8, group=kf.groups.SO2(), samples=4, kernel_size=7, field=field)
    return nn.Sequential(lift, kf.GroupPool(over="all"))


def about(findings: list[Finding], where: str, *words: str) -> bool:
    """Return whether all findings are about one place, and one of them has these words."""
    assert findings
    assert all(found.remedy and where in found.where for found in findings), [str(f) for f in findings]
    return any(all(word in found.what for word in words) for found in findings)


FINE: dict[str, tuple[Callable[[], nn.Module], tuple[Any, ...], dict[str, Any]]] = {
    "series": (ccnn, (torch.randn(3, 1, 64),), {}),
    "a finer step": (ccnn, (torch.randn(3, 1, 128),), {"step": 0.5}),
    "a shorter series": (ccnn, (torch.randn(3, 1, 20),), {}),
    "irregular times": (ccnn, (torch.randn(1, 1, 60),), {"coords": TIMES + 0.4 * torch.rand(1, 60, 1)}),
    "images": (lambda: ccnn(dim=2, size=12), (torch.randn(2, 1, 12, 12),), {}),
    "p4": (lambda: kf.create_model("p4cnn"), (torch.randn(2, 1, 28, 28),), {}),
    "rotations": (lambda: turning(SIREN), (torch.randn(2, 1, 9, 9),), {}),
    "filters under rotations": (lambda: turning(MAGNet), (torch.randn(2, 1, 9, 9),), {}),
    "another library": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 2)), (torch.randn(2, 2, 3),), {}),
}


@pytest.mark.parametrize("name", FINE)
def test_nothing_is_found_in_networks_as_they_are_meant(name: str) -> None:
    make, args, kwargs = FINE[name]
    net = make()
    optimizer = torch.optim.AdamW(parameter_groups(net, lr=0.01, weight_decay=0.1))
    assert diagnose(net, *args, optimizer=optimizer, **kwargs) == []


def test_a_forgotten_step() -> None:
    findings = diagnose(ccnn(), torch.randn(2, 1, 256))
    assert about(findings, "depthwise", "256", "64")
    assert all("step=0.25" in found.remedy for found in findings)


@pytest.mark.parametrize(("unit", "words"), [(2000.0, "no other"), (1e-4, "centre")])
def test_times_in_another_unit(unit: float, words: str) -> None:
    assert about(diagnose(ccnn(), torch.randn(1, 1, 60), coords=unit * TIMES), "depthwise", words)


def test_clouds_of_many_points_are_compared_as_a_whole() -> None:
    layer = kf.CKConv(1, 1, size=8, field=MAGNet)
    times = 2000 * torch.rand(1, 2000, 1)  # one per training step, but the first 256 are far apart
    assert diagnose(layer, torch.randn(1, 1, 2000), coords=times) == []
    fine = 0.003 * torch.arange(1000.0).reshape(1, -1, 1)  # the first 256 lie within one training step
    assert diagnose(layer, torch.randn(1, 1, 1000), coords=fine) == []


def test_points_that_were_not_seen_hide_nothing() -> None:
    layer, mask = kf.CKConv(1, 1, size=8, field=MAGNet), torch.arange(60)[None] < 10
    times = torch.where(mask.unsqueeze(-1), 1000 * TIMES, 9000.0)  # padding repeats the last time
    findings = diagnose(layer, torch.randn(1, 1, 60), coords=times, mask=mask)
    assert about(findings, "", "100 % of the points have no other within")


def test_kernels_that_alias_at_another_step() -> None:
    assert about(diagnose(ccnn(omega_0=2976.49)), "depthwise", "Nyquist")
    layer = kf.CKConv(8, 8, size=(8, 64), dim=2, field=partial(MAGNet, bandwidth=200.0))
    assert about(diagnose(layer), "", "Nyquist")


@pytest.mark.parametrize("field", [partial(SIREN, omega_0=60.0), partial(MAGNet, bandwidth=8.0)])
def test_kernels_that_do_not_commute_with_rotations(field: Callable[..., Any]) -> None:
    assert about(diagnose(turning(field)), "0.kernel", "rotations")


def test_a_kernel_of_a_single_point() -> None:
    layer = kf.FlexConv(1, 1, size=64, sigma=0.01)
    found = [f for f in diagnose(layer, torch.randn(1, 1, 16), step=4.0) if "single point" in f.what]
    assert about(found, "", "axis 0", "step 4")


def test_outputs_that_cannot_be_right() -> None:
    class Constant(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.new_ones(len(x), 2)

    class Centred(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x - x.mean(dim=0)

    x = torch.randn(3, 4)
    assert about(diagnose(Constant(), x), "output", "same")
    assert about(diagnose(Centred(), x), "output", "batch")
    assert about(diagnose(nn.Identity(), x / 0), "output", "12 of 12")


def test_optimisers_that_miss_or_decay_parameters() -> None:
    net = ccnn(sigma=0.2)
    some = list(net.parameters())[3:]
    assert about(diagnose(net, optimizer=torch.optim.Adam(some)), "optimizer", "3 of")
    assert about(diagnose(net, optimizer=torch.optim.AdamW(net.parameters())), "optimizer", "masks")
    partial_conv = kf.PartialGroupConv(1, 1, group=kf.groups.SO2(), samples=4, kernel_size=3)
    assert about(diagnose(partial_conv, optimizer=torch.optim.AdamW(partial_conv.parameters())), "optimizer", "subsets")
    for parameter in net.parameters():
        parameter.requires_grad_(False)
    assert diagnose(net, optimizer=torch.optim.Adam(some)) == []  # frozen parameters need no optimiser


def test_the_network_stays_as_it_is() -> None:
    net = ccnn(dropout=0.5)
    net.blocks[0].eval()
    before = {name: t.clone() for name, t in net.state_dict().items()}
    modes = [m.training for m in net.modules()]
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    diagnose(net, torch.randn(2, 1, 200, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(torch.rand(3), expected)
    assert [m.training for m in net.modules()] == modes
    assert all(torch.equal(t, before[name]) for name, t in net.state_dict().items())
    assert all(not m._forward_pre_hooks for m in net.modules())
    assert all(p.grad is None for p in net.parameters())


@pytest.mark.parametrize(
    ("arguments", "name"),
    [((lambda x: x,), "model"), ((nn.Identity(), torch.randn(2)), "optimizer")],
)
def test_bad_arguments_are_named(arguments: tuple[Any, ...], name: str) -> None:
    with pytest.raises(TypeError, match=name):
        diagnose(*arguments, optimizer="adam")  # type: ignore[arg-type]
