"""What every group is held to. A test class gives ``make`` and inherits the rest."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernelfield.groups import Affine, Group

seeds = st.integers(0, 2**31 - 1)
# One contract, inherited by many classes, is what that health check warns of; derandomised runs keep no database.
quick = settings(max_examples=8, suppress_health_check=[HealthCheck.differing_executors])
F64 = {"dtype": torch.float64}


class GroupContract:
    """The group axioms, exp and log, the action, and the Haar measure."""

    def make(self) -> Group:
        raise NotImplementedError

    def draw(self, seed: int, n: int = 5) -> torch.Tensor:
        return self.make().sample(n, generator=torch.Generator().manual_seed(seed), **F64)

    def same(self, a: torch.Tensor, b: torch.Tensor) -> None:
        assert float(self.make().distance(a, b).abs().max()) < 1e-6

    @quick
    @given(seeds)
    def test_axioms(self, seed):
        group = self.make()
        a, b, c = self.draw(seed), self.draw(seed + 1), self.draw(seed + 2)
        e = group.identity(**F64)
        self.same(group.product(group.product(a, b), c), group.product(a, group.product(b, c)))
        self.same(group.product(a, e.expand_as(a)), a)
        self.same(group.product(e.expand_as(a), a), a)
        self.same(group.product(a, group.inverse(a)), e.expand_as(a))
        self.same(group.product(group.inverse(a), a), e.expand_as(a))
        self.same(group.relative(a, b), group.product(group.inverse(a), b))

    @quick
    @given(seeds)
    def test_exp_of_log(self, seed):
        group, a = self.make(), self.draw(seed)
        self.same(group.exp(group.log(a)), a)

    @quick
    @given(seeds)
    def test_action_is_compatible_with_the_product(self, seed):
        group = self.make()
        a, b = self.draw(seed), self.draw(seed + 1)
        x = torch.randn(5, group.dim, generator=torch.Generator().manual_seed(seed), **F64)
        torch.testing.assert_close(group.act_on(a, group.act_on(b, x)), group.act_on(group.product(a, b), x))
        torch.testing.assert_close(group.act_on(group.identity(**F64).expand_as(a), x), x)
        torch.testing.assert_close(group.matrix(group.product(a, b)), group.matrix(a) @ group.matrix(b))
        torch.testing.assert_close(group.determinant(a), torch.linalg.det(group.matrix(a)).abs())
        if group.isometric:
            torch.testing.assert_close(group.determinant(a), torch.ones(5, **F64))

    @quick
    @given(seeds)
    def test_generator_exponentiates_to_the_matrix(self, seed):
        """… up to the mirror, which is its own inverse."""
        group, a = self.make(), self.draw(seed)
        linear = getattr(group, "group", group)
        turned = torch.linalg.matrix_exp(linear.generator(group.log(a)[..., -linear.coords :]))
        mirror = torch.linalg.solve(turned, group.matrix(a))
        torch.testing.assert_close(mirror @ mirror, torch.eye(group.dim, **F64).expand_as(mirror), atol=1e-9, rtol=0)

    @quick
    @given(seeds)
    def test_distance_is_left_invariant(self, seed):
        group = self.make()
        a, b, g = self.draw(seed), self.draw(seed + 1), self.draw(seed + 2)
        moved = group.distance(group.product(g, a), group.product(g, b))
        torch.testing.assert_close(moved, group.distance(a, b), atol=1e-6, rtol=1e-6)
        assert bool((group.distance(a, a) < 1e-9).all())

    @quick
    @given(seeds)
    def test_haar_measure_is_left_invariant(self, seed):
        """|∂(gh)/∂h| · density(gh) = density(h), where coordinates are continuous."""
        group = self.make()
        g, h = self.draw(seed, 1)[0], self.draw(seed + 1, 1)[0]
        jacobian = torch.autograd.functional.jacobian(lambda x: group.product(g, x), h)
        stretch = torch.linalg.det(jacobian).abs()
        torch.testing.assert_close(stretch * group.density(group.product(g, h)), group.density(h))

    @quick
    @given(seeds)
    def test_elements_or_samples_are_invariant_as_a_set(self, seed):
        """The sum over the group does not change if the group is moved by one of its elements."""
        group = self.make()
        if isinstance(group, Affine) or not group.isometric:
            pytest.skip("not compact: no finite set of elements fills it")
        g = self.draw(seed, 1)[0]
        whole = group.elements(**F64) if group.finite else group.spread(64, torch.tensor([0.5], **F64))
        moved = group.product(g, whole)
        value = lambda a: group.matrix(a).square()[..., 0, 0] + group.matrix(a)[..., 0, -1]  # noqa: E731
        torch.testing.assert_close(value(moved).mean(), value(whole).mean())

    def test_copies_are_equal(self):
        group = self.make()
        assert copy.deepcopy(group) == group
        assert hash(copy.deepcopy(group)) == hash(group)

    def test_infinite_groups_have_no_list_of_elements(self):
        group = self.make()
        if group.order is not None:
            pytest.skip("finite")
        with pytest.raises(TypeError, match="finite"):
            group.elements()

    def test_elements(self):
        group = self.make()
        if group.order is None:
            pytest.skip("infinite")
        elements = group.elements(**F64)
        assert elements.shape == (group.order, group.coords)
        self.same(elements[:1], group.identity(**F64)[None])
        apart = group.distance(elements[:, None], elements) + torch.eye(group.order, **F64) * 9
        assert float(apart.min()) > 1e-3
        chart = group.chart(elements)
        assert chart.shape == (group.order, group.chart_size)

    def test_float32_and_float64_agree(self):
        group = self.make()
        a, b = self.draw(3), self.draw(4)
        low = group.product(a.float(), group.inverse(b.float()))
        assert low.dtype == torch.float32
        assert float(group.distance(low.double(), group.product(a, group.inverse(b))).max()) < 1e-4

    def test_chart_is_finite(self):
        assert bool(torch.isfinite(self.make().chart(self.draw(5))).all())

    def test_chart_is_continuous_at_the_identity(self):
        group = self.make()
        if group.finite:
            pytest.skip("finite")
        e = group.identity(**F64)
        v = group.log(e)
        nudge = torch.zeros_like(v)
        nudge[0] = 1e-6
        up, down = group.chart(group.exp(v + nudge)), group.chart(group.exp(v - nudge))
        assert float((up - down).abs().max()) < 1e-5

    def test_act_on_signals_is_an_action_where_the_grid_allows_it(self):
        group = self.make()
        if not (group.on_grid and group.finite):
            pytest.skip("moves samples between the points of the grid, or is infinite")
        for size in (4, 5):
            x = torch.randn(2, 3, *[size] * group.dim, **F64)
            for a in group.elements(**F64):
                for b in group.elements(**F64):
                    twice = group.act(a, group.act(b, x))
                    assert twice.equal(group.act(group.product(a, b), x))
