"""Published starting values of fields."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch

from kernelfield import CKCNN, FlexNet, create_model
from kernelfield.fields import SIREN, BSpline, FourierFilter, GaborFilter, MAGNet, Table, bind_start
from kernelfield.grids import kernel_grid
from kernelfield.layers import CKConv, FlexConv, SeparableConv


def assert_uniform(values: torch.Tensor, bound: float) -> None:
    """Check that ``values`` look like draws from U(±bound)."""
    values = values.detach()
    assert 0.9 * bound < values.abs().max() <= bound * (1 + 1e-5)
    assert values.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.15)


@pytest.mark.parametrize("field", [MAGNet, GaborFilter, FourierFilter])
def test_filter_networks_of_chapter_3(field: type) -> None:
    network = field(1, 200, hidden=128, start="ccnn", omega_0=600.0)
    assert (network.phase == 0).all()
    for linear in network.linears:
        assert_uniform(linear.weight, math.sqrt(3 / 128))
        assert (linear.bias == 1).all()
    assert_uniform(network.out.weight, math.sqrt(3 / 128))
    assert (network.out.bias == 0).all()


@pytest.mark.parametrize("field", [MAGNet, GaborFilter, FourierFilter])
def test_filter_networks_of_chapter_5(field: type) -> None:
    network = field(1, 200, hidden=128, layers=3, start="flexconv")
    assert_uniform(network.phase, math.pi)
    for linear in (*network.linears, network.out):
        assert_uniform(linear.weight, 1 / math.sqrt(128))
        assert_uniform(linear.bias, 1 / math.sqrt(128))
    # The published input scale: 25.6/√4, or 256/√4 for plain sines, times γ.
    gamma = getattr(network, "gamma", torch.ones(()))
    assert_uniform(network.frequency / gamma, (256 if field is FourierFilter else 25.6) / 2)


@pytest.mark.parametrize("start", ["siren", "ckconv", "flexconv", "partial"])
def test_sirens(start: str) -> None:
    first, hidden, last = SIREN(2, 400, hidden=64, omega_0=20.0, hidden_omega_0=10.0, start=start).linears
    default, intended = 1 / 8, math.sqrt(6 / 64) / 10
    assert_uniform(first.weight, 1 / math.sqrt(2) if start == "ckconv" else 1 / 2)
    for linear in (hidden, last):
        assert_uniform(linear.weight, default if start == "ckconv" else intended)
    biases = {
        "siren": (math.pi / 20, math.pi / 10, 0.0),
        "ckconv": (1.0, 1.0, 1.0),
        "flexconv": (1 / math.sqrt(2), default, default),
        "partial": (0.0, 0.0, 0.0),
    }
    for linear, bound in zip((first, hidden, last), biases[start], strict=True):
        if bound:
            assert_uniform(linear.bias, bound)
        else:
            assert (linear.bias == 0).all()


def test_only_the_start_of_chapter_2_splits_its_weights() -> None:
    assert hasattr(SIREN(1, 1, start="ckconv").linears[0], "direction")
    assert not hasattr(SIREN(1, 1, start="siren").linears[0], "direction")
    assert not hasattr(SIREN(1, 1, start="ckconv", weight_norm=False).linears[0], "direction")


def test_hidden_layers_have_their_own_factor() -> None:
    field = SIREN(1, 3, omega_0=8.0, hidden_omega_0=2.0).double()
    coords = torch.rand(5, 1, dtype=torch.float64)
    first, hidden, last = field.linears
    expected = last(torch.sin(2 * hidden(torch.sin(8 * first(coords)))))
    torch.testing.assert_close(field(coords), expected)
    torch.testing.assert_close(SIREN.together([field, field], coords)[1], expected)


def test_frequencies_double_in_the_units_of_a_layer() -> None:
    # Envelopes and, with them, the frequencies of a published ω₀ are doubled; so are plain sines.
    for field, mean in ((MAGNet, 12.0), (GaborFilter, 3.0)):
        layer = FlexConv(4, 4, size=64, field=partial(field, hidden=2000, omega_0=1.0))
        assert layer.field.gamma[0].mean().item() == pytest.approx(mean, rel=0.1)
    layer = FlexConv(4, 4, size=64, field=partial(FourierFilter, hidden=2000, omega_0=1.0))
    assert_uniform(layer.field.frequency, 2 * 2 * math.pi)


def test_a_layer_starts_like_the_publication_that_used_it() -> None:
    assert FlexConv(2, 2, size=8).field.start == "flexconv"
    assert FlexConv(2, 2, size=8, field=SIREN).field.start == "flexconv"
    assert SeparableConv(2, 2, size=8).depthwise.field.start == "ccnn"
    assert SeparableConv(2, 2, size=8, field=partial(MAGNet, start="flexconv")).depthwise.field.start == "flexconv"
    assert SeparableConv(2, 2, size=8, field=BSpline).depthwise.field.start is None
    assert create_model("flexnet_3", in_channels=1, out_channels=2, size=8).stem.field.start == "flexconv"
    assert create_model("cktcn_2", in_channels=1, out_channels=2, size=8).blocks[0].conv1.field.start == "flexconv"
    assert create_model("partial_gcnn_se2").lift.kernel.field.start == "partial"


def test_output_variance_of_chapter_3_layers_equals_the_authors() -> None:
    # Their formulas give 0.39 on sequences and 0.11 on images, before the mixer.
    for arguments, expected in (({"dim": 1, "size": 784, "causal": True}, 0.39), ({"dim": 2, "size": 32}, 0.11)):
        energies = [
            SeparableConv(140, 140, field=partial(MAGNet, omega_0=2000.0), **arguments).depthwise.energy()
            for _ in range(6)
        ]
        assert torch.stack(energies).mean().item() == pytest.approx(expected, rel=0.3)


def test_a_kernel_is_divided_by_the_root_of_its_first_points() -> None:
    torch.manual_seed(0)
    drawn = FlexConv(3, 3, dim=2, size=32, field=partial(MAGNet, start="ccnn"), gain=None)
    torch.manual_seed(0)
    scaled = FlexConv(3, 3, dim=2, size=32, field=partial(MAGNet, start="ccnn"))
    # σ = 0.0375 leaves 5×5 points, as the authors' crop.
    torch.testing.assert_close(scaled.field.out.weight, drawn.field.out.weight / math.sqrt(3 * 25))


@pytest.mark.parametrize("neighbors", [4, 16])
def test_a_kernel_on_points_is_divided_by_the_root_of_its_neighbors(neighbors: int) -> None:
    layers = []
    for gain in (None, "start"):
        torch.manual_seed(0)
        field = partial(MAGNet, start="ccnn")
        layers.append(FlexConv(3, 3, size=32, sigma=0.3, field=field, neighbors=neighbors, gain=gain))
    drawn, scaled = (layer.field.out.weight for layer in layers)
    torch.testing.assert_close(scaled, drawn / math.sqrt(3 * neighbors))


@pytest.mark.parametrize("sigma", [0.01, 0.1, 0.3, 5.0])
@pytest.mark.parametrize(("dim", "causal"), [(1, True), (1, False), (2, False)])
def test_first_points_are_those_that_the_mask_keeps(dim: int, causal: bool, sigma: float) -> None:
    layer = FlexConv(1, 1, dim=dim, size=9, sigma=sigma, causal=causal)
    kept = layer.mask(kernel_grid(9, dim=dim, causal=causal)) > 0
    assert layer._initial_points() == int(kept.sum())


@pytest.mark.parametrize("causal", [True, False])
def test_envelopes_start_inside_the_kernel_and_its_mask(causal: bool) -> None:
    field = partial(MAGNet, hidden=400)
    for layer, reach in (
        (FlexConv(1, 1, size=32, sigma=0.12, causal=causal, field=field), 1.667 * 0.12),
        (FlexConv(1, 1, size=32, sigma=3.0, causal=causal, field=field), 1.0),
        (CKConv(1, 1, size=32, causal=causal, field=field), 1.0),
    ):
        centres = layer.field.mean.detach()
        low = 0.0 if causal else -reach
        assert low <= centres.min() < low + 0.05 * reach
        assert 0.95 * reach < centres.max() <= reach


def test_causal_phases_are_zero_in_the_middle_of_the_input() -> None:
    # The authors' coordinates go from -1, an input ago, to 1, now.
    field = SeparableConv(3, 3, size=64, causal=True, field=partial(MAGNet, omega_0=2.0)).depthwise.field
    torch.testing.assert_close(field.phase, -field.frequency[..., 0] / 2)
    assert (SeparableConv(3, 3, dim=2, size=32).depthwise.field.phase == 0).all()


def test_mixers_have_the_gain_of_a_rectifier() -> None:
    weight = SeparableConv(256, 256, size=4).pointwise.weight
    assert weight.std().item() == pytest.approx(math.sqrt(2 / 256), rel=0.05)


def test_a_number_for_the_gain_is_measured() -> None:
    layer = CKConv(3, 3, dim=2, size=8, field=MAGNet, gain=0.5)
    assert layer.energy().item() == pytest.approx(0.25, rel=1e-4)
    with pytest.raises((TypeError, ValueError), match="gain"):
        CKConv(3, 3, size=8, gain="unit")


def test_an_unknown_start_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"\bstart must"):
        create_model("ccnn_4_16", start="kaiming")
    with pytest.raises(ValueError, match=r"\bstart must"):
        CKCNN(1, 2, 8, start="ccnn")
    assert FlexNet(1, 2, 8, widths=(1,), channels=2, start="ccnn").stem.field.start == "ccnn"


def test_an_explicit_start_is_kept() -> None:
    bound = bind_start(partial(SIREN, start="partial"), "flexconv")
    assert bound(1, 1).start == "partial"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"field": Table, "omega_0": 5.0}, "omega_0 must be None for field Table, which does not take it, got 5.0"),
        ({"field": MAGNet, "hidden_omega_0": 5.0}, "hidden_omega_0 must be None for field MAGNet, .* got 5.0"),
        ({"field": partial(SIREN, omega_0=10.0), "omega_0": 30.0}, "omega_0 must .* SIREN, which has omega_0=10.0"),
    ],
)
def test_a_frequency_that_the_field_would_ignore_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FlexNet(1, 2, size=8, channels=2, widths=(1,), **options)


def test_a_frequency_that_agrees_with_that_of_the_field_is_accepted() -> None:
    field = partial(SIREN, omega_0=10.0)
    assert FlexNet(1, 2, size=8, channels=2, widths=(1,), field=field, omega_0=10.0).stem.field.omega_0 == 10.0
