"""Planned convolutions between points: traced, exported, and without waiting for the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import kernelfield as kf
from kernelfield.ops import plan_points, point_conv
from tests.contracts.point_cases import Case, relative

if TYPE_CHECKING:
    from collections.abc import Callable

METHODS = ["cells", "grid"]
#: operators whose result, or its shape, the host has to wait for
WAITS = {"_local_scalar_dense", "nonzero", "item", "masked_select", "unique_dim", "_unique2", "equal", "is_nonzero"}


class NoWaiting(TorchDispatchMode):
    """Refuse operators that make the host wait for a device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in WAITS:
            raise AssertionError(f"the host waits in {name}")
        if name == "repeat_interleave" and isinstance(args[0], Tensor) and "output_size" not in (kwargs or {}):
            raise AssertionError("the host waits in repeat_interleave")
        if name in ("index", "index_put", "index_put_") and any(
            i is not None and i.dtype == torch.bool for i in args[1]
        ):
            raise AssertionError(f"the host waits in {name}, by a mask")
        return func(*args, **(kwargs or {}))


def case_for(method: str, dim: int, causal: bool = False, masked: bool = False) -> Case:
    shape: dict[str, Any] = {"dim": dim, "points": 60, "queries": 20, "masked": masked, "out_channels": 6}
    return Case(**shape, causal=causal, long=method == "grid", seed=1)


def planned(method: str, dim: int, causal: bool = False, masked: bool = False) -> tuple[Any, ...]:
    """Return a convolution by its plan as a function of values, coordinates and queries; its arguments; and pairs."""
    (x, coords, kernel, size), how = case_for(method, dim, causal, masked).build()
    plan = plan_points(coords, kernel, size, in_channels=3, method=method, **how)
    at = how.pop("at")

    class Planned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kernel = kernel

        def forward(self, x: Tensor, coords: Tensor, at: Tensor) -> Tensor:
            return point_conv(x, coords, self.kernel, size, at=at, plan=plan, **how)

    return Planned(), (x, coords, at), lambda x, coords, at: point_conv(x, coords, kernel, size, at=at, **how)


#: dimensions, and whether causal
TRACED: list[Any] = [(1, False), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((1, True), (2, False)))]
CASES: list[Any] = [(method, dim, causal) for method in METHODS for dim, causal in ((1, False), (1, True), (2, False))]
CASES += [("cells", 3, False), pytest.param("grid", 3, False, marks=pytest.mark.slow)]  # 12³ points for each sample


@pytest.mark.parametrize(("method", "dim", "causal"), CASES)
@pytest.mark.parametrize("masked", [False, True])
def test_plans_agree_with_all_pairs_and_nothing_waits(method: str, dim: int, causal: bool, masked: bool) -> None:
    run, inputs, pairs = planned(method, dim, causal, masked)
    inputs = tuple(t.requires_grad_() for t in inputs)
    with NoWaiting():
        y = run(*inputs)
        found = torch.autograd.grad(y.square().sum(), [*inputs, *run.parameters()])
    wanted = pairs(*inputs)
    assert relative(y, wanted) < (1e-12 if method == "cells" else 1e-4)
    expected = torch.autograd.grad(wanted.square().sum(), [*inputs, *run.parameters()])
    for a, b in zip(found[1:], expected[1:], strict=True):
        assert relative(a, b) < (1e-9 if method == "cells" else 3e-3)


def test_what_waits_is_noticed() -> None:
    (x, coords, kernel, size), how = case_for("cells", 1).build()
    with NoWaiting(), pytest.raises(AssertionError, match="the host waits"):
        point_conv(x, coords, kernel, size, method="cells", **how)


@pytest.mark.parametrize("method", ["cells", pytest.param("grid", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("dim", "causal"), TRACED)
def test_plans_compile_without_graph_breaks(method: str, dim: int, causal: bool) -> None:
    run, inputs, _ = planned(method, dim, causal)
    inputs = tuple(t.requires_grad_() for t in inputs)
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    found, wanted = compiled(*inputs), run(*inputs)
    assert torch.allclose(found, wanted, atol=1e-10)
    gradients = [torch.autograd.grad(y.square().sum(), inputs) for y in (found, wanted)]
    for a, b in zip(*gradients, strict=True):
        assert torch.allclose(a, b, atol=1e-8)


@pytest.mark.parametrize("method", [pytest.param("cells", marks=pytest.mark.slow), "grid"])
@pytest.mark.parametrize(("dim", "causal"), TRACED)
def test_plans_export_with_any_number_of_points(method: str, dim: int, causal: bool) -> None:
    run, (x, coords, at), _ = planned(method, dim, causal)
    points, queries = torch.export.Dim("points", min=2), torch.export.Dim("queries", min=2)
    shapes = ({2: points}, {1: points}, {1: queries})
    program = torch.export.export(run, (x, coords, at), dynamic_shapes=shapes).module()
    some = (x[..., :37], coords[:, :37], at[:, :11])
    assert torch.allclose(program(*some), run(*some), atol=1e-10)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("change", [lambda t: 3 * t, lambda t: t * torch.nan], ids=["wider", "NaN"])
def test_points_that_do_not_fit_give_nan(method: str, change: Callable[[Tensor], Tensor]) -> None:
    run, (x, coords, at), _ = planned(method, 1)
    moved = torch.cat([coords[:1], change(coords[1:])])
    if method == "cells" and moved.isfinite().all():
        moved[1] = coords[1] / 50  # denser, not wider
        at = at / 50
    y = run(x, moved, at)
    assert y[1].isnan().any()
    assert method == "cells" or y[0].isfinite().all()


@pytest.mark.parametrize("neighbors", [None, 4])
@pytest.mark.parametrize("name", ["coords", "at"])
def test_coordinates_that_are_not_finite_give_nan_in_a_graph(neighbors: int | None, name: str) -> None:
    """The host cannot look at them there. The kernel returns a number for a NaN, and a sample would be lost."""
    x, coords, at = torch.randn(2, 1, 9), torch.rand(2, 9, 1), torch.rand(2, 5, 1)
    (coords if name == "coords" else at)[1, 3] = torch.nan

    @torch.compile(fullgraph=True, backend="eager")
    def convolve(x: Tensor, coords: Tensor, at: Tensor) -> Tensor:
        return point_conv(x, coords, torch.ones_like, torch.ones(1), out_channels=1, neighbors=neighbors, at=at)

    y = convolve(x, coords, at)
    assert y[0].isfinite().all()
    assert y[1].isnan().all()


def test_plans_of_whole_networks() -> None:
    torch.manual_seed(0)
    network = kf.CCNN(2, 3, size=700, channels=4, blocks=1, hidden=4, sigma=0.01, causal=False).eval()
    x, coords = torch.randn(1, 2, 700), 700 * torch.rand(1, 700, 1).sort(dim=1).values
    with torch.no_grad():
        wanted = network(x, coords=coords)
        kf.layers.use_point_plans(network, x, coords=coords)
        with NoWaiting():
            found = network(x, coords=coords)
        compiled = torch.compile(network, fullgraph=True, backend="eager")(x, coords=coords)
    plans = [m.point_plan for m in network.modules() if isinstance(m, kf.layers.ContinuousConv)]
    assert {plan.method for plan in plans if plan is not None} == {"cells"}
    assert torch.allclose(found, wanted, atol=1e-5)
    assert torch.allclose(compiled, wanted, atol=1e-5)
    with pytest.raises(ValueError, match="network"):
        kf.layers.use_point_plans(nn.Linear(2, 2), x)


def test_slack_below_one_and_no_points_are_refused() -> None:
    coords, size = torch.rand(1, 5, 1), torch.ones(1)
    how: dict[str, Any] = {"in_channels": 1, "out_channels": 1}
    with pytest.raises(ValueError, match="slack"):
        plan_points(coords, torch.cos, size, slack=0.5, **how)
    with pytest.raises(ValueError, match="coords"):
        plan_points(coords[:, :0], torch.cos, size, **how)
    assert plan_points(coords, torch.cos, size, **how).method == "pairs"
