from __future__ import annotations

import pytest
import torch

from kernelfield.groups import (
    E2,
    O2,
    SE2,
    SO2,
    Affine,
    Cyclic,
    Dihedral,
    Mirror,
    Product,
    Scale,
    Trivial,
    scale_translation,
    transform,
)
from kernelfield.testing import SignalGroup
from tests.contracts.groups import GroupContract

MEMBERS = {
    "Trivial": Trivial,
    "Trivial1D": lambda: Trivial(dim=1),
    "Cyclic1": lambda: Cyclic(1),
    "Cyclic3": lambda: Cyclic(3),
    "Cyclic4": lambda: Cyclic(4),
    "Cyclic8": lambda: Cyclic(8),
    "Dihedral4": lambda: Dihedral(4),
    "Dihedral6": lambda: Dihedral(6),
    "Mirror": Mirror,
    "Mirror1D": lambda: Mirror(dim=1),
    "SO2": SO2,
    "SO2Circle": lambda: SO2(chart="circle"),
    "O2": O2,
    "Scale": lambda: Scale(4),
    "ScaleContinuous": lambda: Scale(4, continuous=True),
    "Scale2D": lambda: Scale(3, base=2**0.5, dim=2),
    "ProductScaleCyclic": lambda: Product(Scale(2, dim=2), Cyclic(4)),
    "ProductScaleSO2": lambda: Product(Scale(2, dim=2), SO2()),
    "SE2": SE2,
    "E2": E2,
    "ScaleTranslation": lambda: scale_translation(3),
    "p4m": lambda: Affine(Dihedral(4)),
}

for _name, _make in MEMBERS.items():
    globals()[f"Test{_name}"] = type(f"Test{_name}", (GroupContract,), {"make": staticmethod(_make)})


def test_quarter_turn_is_rot90_and_mirror_is_flip():
    x = torch.randn(2, 3, 6, 6)
    for group in (Cyclic(4), Dihedral(4)):
        for element in group.elements():
            turned = x.flip(-1) if len(element) == 2 and element[1] < 0 else x
            assert group.act(element, x).equal(torch.rot90(turned, int(element[0]), (-2, -1)))


def test_products_match_matrices_for_both_orders():
    group = Dihedral(4)
    e = group.elements(torch.float64)
    table = group.product(e[:, None], e[None])
    torch.testing.assert_close(group.matrix(table), group.matrix(e)[:, None] @ group.matrix(e)[None])
    assert group.product(e[1], e[4]).tolist() != group.product(e[4], e[1]).tolist()


def test_act_on_a_group_signal_moves_the_group_axis():
    group = Cyclic(4)
    x = torch.randn(2, 3, 4, 5, 5)
    turned = group.act(torch.tensor([1.0]), x)
    assert turned.equal(torch.rot90(x, 1, (-2, -1)).roll(1, dims=2))
    for g in Dihedral(4).elements():
        for h in Dihedral(4).elements():
            x = torch.randn(1, 1, 8, 4, 4)
            once = Dihedral(4).act(Dihedral(4).product(g, h), x)
            assert Dihedral(4).act(g, Dihedral(4).act(h, x)).equal(once)


def test_act_refuses_elements_that_are_not_closed():
    with pytest.raises(ValueError, match=r"\belements must"):
        Cyclic(4).act(torch.tensor([1.0]), torch.randn(1, 1, 2, 5, 5), torch.tensor([[0.0], [1.0]]))
    with pytest.raises(ValueError, match=r"\bsignal must"):
        Cyclic(4).act(torch.tensor([1.0]), torch.randn(5, 5))


def test_interpolated_action_approaches_an_action_as_the_grid_grows():
    group = SO2()
    errors = []
    for n in (16, 32, 64):
        axis = torch.arange(n, dtype=torch.float64) - (n - 1) / 2
        y, x = torch.meshgrid(axis / n, axis / n, indexing="ij")
        blob = torch.exp(-((y - 0.1) ** 2 + (x + 0.05) ** 2) * 60)[None, None]
        there = group.act(torch.tensor([0.6]), blob)
        back = group.act(torch.tensor([-0.6]), there)
        errors.append(float((back - blob).abs().max()))
    assert errors[1] < errors[0] / 2
    assert errors[2] < errors[1] / 3


def test_transform_shifts_exactly_and_in_one_dimension():
    x = torch.arange(5.0).view(1, 1, 5)
    assert transform(x, torch.eye(1), torch.tensor([2.0])).flatten().tolist() == [0, 0, 0, 1, 2]
    half = transform(x, torch.eye(1), torch.tensor([0.5]))
    torch.testing.assert_close(half.flatten(), torch.tensor([0.0, 0.5, 1.5, 2.5, 3.5]))
    wide = transform(x, torch.tensor([[2.0]]))
    torch.testing.assert_close(wide.flatten(), torch.tensor([1.0, 1.5, 2.0, 2.5, 3.0]))


@pytest.mark.parametrize("axis", [0, 1])
def test_a_single_row_is_interpolated_with_zeros_around_it(axis):
    row = torch.randn(1, 1, 5, dtype=torch.float64).unsqueeze(2 + axis)
    room = (2, 2, 0, 0) if axis else (0, 0, 2, 2)
    wide = torch.nn.functional.pad(row, room)
    angle = torch.tensor([1.0])
    moved = Cyclic(8).act(angle, wide).narrow(2 + axis, 2, 1)
    torch.testing.assert_close(Cyclic(8).act(angle, row), moved)
    line = torch.ones(1, 1, 1, dtype=torch.float64)
    half = transform(line, torch.eye(1, dtype=torch.float64), torch.tensor([0.25], dtype=torch.float64))
    torch.testing.assert_close(half, 0.75 * line)


def test_affine_translation_acts_on_signals():
    x = torch.randn(1, 1, 6, 6)
    moved = Affine(Cyclic(4)).act(torch.tensor([1.0, 0.0, 1.0]), x)
    assert moved[..., 1:, :].equal(torch.rot90(x, 1, (-2, -1))[..., :-1, :])


def test_exp_of_se2_is_the_matrix_exponential():
    group = SE2()
    v = torch.tensor([0.3, -0.7, 1.1], dtype=torch.float64)
    affine = torch.zeros(3, 3, dtype=torch.float64)
    affine[:2, :2], affine[:2, 2] = group.group.generator(v[2:]), v[:2]
    wanted = torch.linalg.matrix_exp(affine)
    got = group.exp(v)
    torch.testing.assert_close(got[:2], wanted[:2, 2])
    torch.testing.assert_close(group.matrix(got), wanted[:2, :2])


def test_stratified_samples_are_one_per_part():
    for _ in range(5):
        angles = SO2().sample(8, stratified=True).squeeze(-1)
        parts = ((angles + torch.pi) / (2 * torch.pi) * 8).floor()
        assert sorted(parts.tolist()) == list(range(8))
    assert O2().sample(6, stratified=True).shape == (6, 2)
    with pytest.raises(ValueError, match=r"\bn must"):
        O2().sample(5, stratified=True)


def test_half_a_turn_has_one_chart_coordinate_whatever_its_rounding():
    group = SO2()
    near = torch.tensor([[torch.pi - 1e-6], [-torch.pi + 1e-6], [torch.pi], [-torch.pi]])
    assert float(group.chart(near).std()) < 1e-5


def test_circle_chart_is_continuous_at_half_a_turn_too():
    ends = torch.tensor([[torch.pi - 0.01], [-torch.pi + 0.01]])
    torch.testing.assert_close(*SO2(chart="circle").chart(ends), atol=0.03, rtol=0)


def test_products_refuse_factors_that_do_not_commute():
    with pytest.raises(ValueError, match="commute"):
        Product(Cyclic(4), Mirror())
    with pytest.raises(ValueError, match="one space"):
        Product(Scale(2), Cyclic(4))


def test_finite_groups_meet_the_testing_protocol():
    assert isinstance(Cyclic(4), SignalGroup)


@pytest.mark.parametrize(
    ("name", "make"),
    [("n", lambda: Cyclic(0)), ("base", lambda: Scale(3, base=1.0)), ("chart", lambda: SO2(chart="polar"))],
)
def test_errors_name_the_argument(name, make):
    with pytest.raises(ValueError, match=rf"^{name}\b"):
        make()
