"""The public assertions: each holds for a right model and fails, saying where, for a wrong one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from kernelfield.groups import SO2, Cyclic
from kernelfield.layers import GroupSignal
from kernelfield.testing import (
    SignalGroup,
    assert_causal,
    assert_compiles,
    assert_equivariant,
    assert_exports,
    assert_resolution_consistent,
    assert_state_dict_round_trip,
    assert_translation_equivariant,
    count_parameters,
    equivariance_error,
)

if TYPE_CHECKING:
    from collections.abc import Iterable


class Rotations:
    """Quarter turns of (batch, channels, [4,] height, width) signals."""

    def elements(self) -> Iterable[int]:
        return range(4)

    def act(self, element: int, signal: torch.Tensor) -> torch.Tensor:
        signal = signal.rot90(element, dims=(-2, -1))
        return signal.roll(element, dims=2) if signal.dim() == 5 else signal


class Nothing(Rotations):
    def elements(self) -> Iterable[int]:
        return ()


def lift(x: torch.Tensor) -> torch.Tensor:
    """Correlate with the four quarter turns of one kernel."""
    kernel = torch.arange(9.0).reshape(1, 1, 3, 3)
    return torch.stack([nn.functional.conv2d(x, kernel.rot90(k, (-2, -1)), padding=1) for k in range(4)], dim=2)


@pytest.fixture
def image() -> torch.Tensor:
    return torch.randn(2, 1, 6, 6)


class TestEquivariance:
    def test_a_group_has_elements_and_an_action(self) -> None:
        assert isinstance(Rotations(), SignalGroup)
        assert not isinstance(object(), SignalGroup)

    def test_models_with_the_property_pass(self, image: torch.Tensor) -> None:
        assert_equivariant(torch.relu, Rotations(), image)
        assert_equivariant(lift, Rotations(), image)
        assert_equivariant(lambda x: (lift(x), "elements"), Rotations(), image)
        assert_equivariant(lambda x: x.amax(dim=(-2, -1)), Rotations(), image, invariant=True)
        assert equivariance_error(lift, Rotations(), image) < 1e-6

    def test_models_without_the_property_fail(self, image: torch.Tensor) -> None:
        with pytest.raises(AssertionError, match=r"not equivariant to element 1: differs by .* at \(\d, 0, \d, \d\)"):
            assert_equivariant(lambda x: x.cumsum(-1), Rotations(), image)
        with pytest.raises(AssertionError, match="not invariant to element 1"):
            assert_equivariant(lambda x: x[..., 0, 0], Rotations(), image, invariant=True)
        with pytest.raises(AssertionError, match=r"shape \(2, 1, 5, 6\), expected \(2, 1, 6, 5\)"):
            assert_equivariant(lambda x: x[:, :, 1:], Rotations(), image)
        assert equivariance_error(lambda x: x.cumsum(-1), Rotations(), image) > 0.1

    def test_a_wrong_order_of_the_group_axis_fails(self, image: torch.Tensor) -> None:
        with pytest.raises(AssertionError, match="not equivariant to element 1"):
            assert_equivariant(lambda x: lift(x).flip(2), Rotations(), image)

    def test_output_action(self, image: torch.Tensor) -> None:
        def poses(x: torch.Tensor) -> torch.Tensor:
            return lift(x).amax(dim=(-2, -1))

        assert_equivariant(poses, Rotations(), image, output_action=lambda g, y: y.roll(g, dims=2))
        with pytest.raises(AssertionError, match="not equivariant"):
            assert_equivariant(poses, Rotations(), image, output_action=lambda _, y: y)

    def test_tolerance_is_relative_to_the_output(self, image: torch.Tensor) -> None:
        def almost(x: torch.Tensor) -> torch.Tensor:
            return 1000 * x + 0.5 * x.cumsum(-1)

        assert_equivariant(almost, Rotations(), image, rtol=0.1)
        with pytest.raises(AssertionError, match="not equivariant"):
            assert_equivariant(almost, Rotations(), image)

    def test_not_a_number_is_never_equal(self, image: torch.Tensor) -> None:
        def broken(x: torch.Tensor) -> torch.Tensor:
            return torch.where(x == image.max(), torch.nan, x)

        with pytest.raises(AssertionError, match="differs by nan"):
            assert_equivariant(broken, Rotations(), image)
        assert equivariance_error(broken, Rotations(), image) != equivariance_error(broken, Rotations(), image)

    @pytest.mark.parametrize("scale", [1e-8, 1e-30])
    def test_tiny_outputs_are_compared(self, image: torch.Tensor, scale: float) -> None:
        assert_equivariant(lambda x: scale * lift(x), Rotations(), image)
        with pytest.raises(AssertionError, match="not equivariant"):
            assert_equivariant(lambda x: scale * x.cumsum(-1), Rotations(), image)
        with pytest.raises(AssertionError, match=r"with atol=1e-06 an output counts as zero"):
            assert_equivariant(lambda x: scale * x.cumsum(-1), Rotations(), image, atol=1e-6)

    @pytest.mark.parametrize("invariant", [False, True])
    @pytest.mark.parametrize("value", [0.0, 3.0])
    def test_an_output_that_ignores_its_input_is_refused(
        self, image: torch.Tensor, value: float, invariant: bool
    ) -> None:
        def dead(x: torch.Tensor) -> torch.Tensor:
            return torch.full_like(x, value)

        for check in (assert_equivariant, equivariance_error):
            with pytest.raises(AssertionError, match="the output is the same for another input"):
                check(dead, Rotations(), image, invariant=invariant)

    def test_a_symmetric_signal_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"\bx must not be symmetric"):
            assert_equivariant(torch.relu, Rotations(), torch.ones(1, 1, 5, 5))

    @pytest.mark.parametrize("output", [dict, list, None])
    def test_other_outputs_are_refused(self, image: torch.Tensor, output: Any) -> None:
        with pytest.raises(TypeError, match=r"\bmodel must return a tensor, .* got"):
            assert_equivariant(lambda _: output and output(), Rotations(), image)

    def test_an_output_that_the_group_does_not_act_on_fails(self, image: torch.Tensor) -> None:
        with pytest.raises(AssertionError, match=r"does not act on the output, of shape .*invariant=True"):
            assert_equivariant(lambda x: x.mean(dim=(-2, -1)), Cyclic(4), image)

    def test_signals_at_some_elements(self, image: torch.Tensor) -> None:
        def signal(x: torch.Tensor, *elements: float) -> GroupSignal:
            values = torch.stack([lift(x)[:, :, int(e)] for e in elements], dim=2)
            return GroupSignal(values, torch.tensor(elements)[:, None], group=Cyclic(4))

        assert_equivariant(lambda x: signal(x, 1.0, 0.0, 3.0, 2.0), Cyclic(4), image)
        with pytest.raises(AssertionError, match="elements must be a set that element"):
            assert_equivariant(lambda x: signal(x, 0.0, 1.0), Cyclic(4), image)
        with pytest.raises(AssertionError, match="the output has other elements"):
            assert_equivariant(lambda x: signal(x, *((0.0, 2.0) if x is image else (2.0, 0.0))), Cyclic(4), image)

    def test_chosen_elements(self, image: torch.Tensor) -> None:
        def half_turns(x: torch.Tensor) -> torch.Tensor:
            return x * torch.linspace(-1, 1, 6).square()

        assert_equivariant(half_turns, Rotations(), image, elements=[0, 2])
        with pytest.raises(AssertionError, match="not equivariant to element 1"):
            assert_equivariant(half_turns, Rotations(), image)
        with pytest.raises(AssertionError, match="not equivariant to element 3"):
            assert_equivariant(half_turns, Rotations(), image, elements=[0, 3])

    def test_elements_of_a_continuous_group(self, image: torch.Tensor) -> None:
        group, turns = SO2(), torch.pi / 2 * torch.arange(4)[:, None]

        def turned(x: torch.Tensor, order: tuple[int, ...] = (2, 0, 3, 1)) -> GroupSignal:
            parts = [group.act(turns[i], group.act(-turns[i], x).cumsum(-1)) for i in order]
            return GroupSignal(torch.stack(parts, dim=2), turns[list(order)], group=group)

        assert_equivariant(turned, group, image, elements=turns)
        with pytest.raises(ValueError, match=r"\belements must be given for SO2"):
            assert_equivariant(turned, group, image)
        with pytest.raises(AssertionError, match="elements must be a set that element"):
            assert_equivariant(lambda x: turned(x, (0, 1)), group, image, elements=turns)

    def test_a_group_without_elements_is_refused(self, image: torch.Tensor) -> None:
        with pytest.raises(ValueError, match=r"\bgroup must"):
            assert_equivariant(torch.relu, Nothing(), image)
        with pytest.raises(ValueError, match=r"\bgroup must"):
            equivariance_error(torch.relu, Nothing(), image)

    def test_modules_are_evaluated_and_left_in_their_mode(self, image: torch.Tensor) -> None:
        model = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm2d(1), nn.ReLU().eval())
        assert_equivariant(model, Rotations(), image)
        assert [m.training for m in model] == [True, True, False]
        assert (model[1].running_mean == 0).all()


class TestCausality:
    def test_models_with_the_property_pass(self) -> None:
        x = torch.randn(2, 3, 12)
        conv = nn.Conv1d(3, 4, 5)
        assert_causal(lambda x: conv(nn.functional.pad(x, (4, 0))), x)
        assert_causal(lambda x: x.cumsum(-1), x, atol=0)

    @pytest.mark.parametrize("lead", [1, 3, 11])
    def test_models_without_the_property_fail(self, lead: int) -> None:
        with pytest.raises(AssertionError, match="the output at time 0 changes by"):
            assert_causal(lambda x: x + x.roll(-lead, -1), torch.randn(1, 2, 12))

    def test_the_first_offending_time_is_reported(self) -> None:
        def leaks(x: torch.Tensor) -> torch.Tensor:
            y = x.clone()
            y[..., 5] += x[..., 8]
            y[..., 9] += x[..., 10]
            return y

        with pytest.raises(AssertionError, match=r"the output at time 5 changes by .* with the input after time 5"):
            assert_causal(leaks, torch.randn(1, 2, 12))
        with pytest.raises(AssertionError, match=r"the output at time 9 changes by .* with the input after time 9"):
            assert_causal(leaks, torch.randn(1, 2, 12), times=[2, 9])
        assert_causal(leaks, torch.randn(1, 2, 12), times=[2, 4, 8])

    def test_a_leak_behind_a_rectifier_fails(self) -> None:
        x = torch.randn(1, 1, 6).abs()
        with pytest.raises(AssertionError, match="the output at time 0"):
            assert_causal(lambda x: x + torch.relu(-x.roll(-1, -1)), x)

    def test_an_infinite_entry_hides_nothing(self) -> None:
        def leaks(x: torch.Tensor) -> torch.Tensor:
            y = x + x.roll(-1, dims=-1)
            return torch.cat([y[..., :-1], torch.full_like(y[..., -1:], torch.inf)], dim=-1)

        with pytest.raises(AssertionError, match="not causal: the output at time"):
            assert_causal(leaks, torch.randn(1, 1, 8), times=range(6))

    def test_an_output_that_ignores_its_input_is_refused(self) -> None:
        x = torch.randn(1, 2, 8)
        with pytest.raises(AssertionError, match="nothing to compare: no output changes"):
            assert_causal(torch.ones_like, x)
        assert_causal(torch.ones_like, x, times=[7])  # the whole input: nothing to change

    def test_rounding_is_allowed_unless_asked_otherwise(self) -> None:
        x = torch.randn(1, 1, 12)

        def rounds(x: torch.Tensor) -> torch.Tensor:
            return x + 1e-6 * x.mean()

        assert_causal(rounds, x)
        with pytest.raises(AssertionError, match=re.escape("(allowed 0)")):
            assert_causal(rounds, x, atol=0.0)

    def test_other_lengths(self) -> None:
        with pytest.raises(AssertionError, match=re.escape("12 times in, output of shape (1, 2, 10)")):
            assert_causal(lambda x: x[..., 2:], torch.randn(1, 2, 12))

    def test_times_beyond_the_signal_are_refused(self) -> None:
        with pytest.raises(ValueError, match=r"\btimes\b"):
            assert_causal(torch.relu, torch.ones(1, 1, 4), times=[1, 4])

    def test_random_numbers_are_left_alone(self) -> None:
        state = torch.get_rng_state()
        assert_causal(torch.relu, torch.ones(1, 1, 4))
        assert torch.get_rng_state().equal(state)


class TestTranslation:
    @pytest.mark.parametrize("shift", [0, 1, -4, 9])
    def test_models_with_the_property_pass(self, shift: int) -> None:
        x = torch.randn(1, 2, 9)
        padded = nn.Sequential(nn.Conv1d(2, 3, 5, padding=2), nn.ReLU(), nn.Conv1d(3, 2, 5, padding=2))
        assert_translation_equivariant(padded, x, shift)
        assert_translation_equivariant(nn.Conv1d(2, 3, 5, padding=2, padding_mode="circular"), x, shift, periodic=True)

    def test_planes(self) -> None:
        x = torch.randn(1, 2, 5, 6)
        assert_translation_equivariant(nn.Conv2d(2, 3, 3, padding=1), x, (2, -1))
        with pytest.raises(AssertionError, match=re.escape("not equivariant to a shift of (0, 1)")):
            assert_translation_equivariant(lambda x: x * torch.arange(x.shape[-1]), x, (0, 1))
        assert_translation_equivariant(lambda x: x * torch.arange(x.shape[-1]), x, (1, 0))

    def test_models_without_the_property_fail(self) -> None:
        x = torch.randn(1, 2, 9)
        with pytest.raises(AssertionError, match=re.escape("not equivariant to a shift of (3,)")):
            assert_translation_equivariant(lambda x: x + torch.arange(x.shape[-1]), x, 3)
        with pytest.raises(AssertionError, match="not equivariant"):
            assert_translation_equivariant(nn.Conv1d(2, 3, 5, padding=2), x, 3, periodic=True)
        with pytest.raises(AssertionError, match="output of shape"):
            assert_translation_equivariant(nn.Conv1d(2, 3, 5), x, 3)

    def test_the_margin_keeps_edges_out(self) -> None:
        # The edges' influence reaches 4 samples inwards, through the bias.
        model = nn.Sequential(nn.Conv1d(1, 3, 5, padding=2), nn.Conv1d(3, 1, 5, padding=2))
        assert_translation_equivariant(model, torch.randn(1, 1, 9), 2, margin=4)
        with pytest.raises(AssertionError, match="not equivariant"):
            assert_translation_equivariant(model, torch.randn(1, 1, 9), 2, margin=0)

    def test_wrong_shift(self) -> None:
        with pytest.raises(ValueError, match=r"\bshift must"):
            assert_translation_equivariant(torch.relu, torch.randn(1, 1, 4, 4), (1, 2, 3))


def smooth(positions: torch.Tensor) -> torch.Tensor:
    return torch.sin(positions.sum(dim=-1) / 4)[None, None]


def integral(x: torch.Tensor, step: Any) -> torch.Tensor:
    steps = step if isinstance(step, tuple) else (step,) * (x.dim() - 2)
    for axis, s in enumerate(steps, start=2):
        x = s * (x.cumsum(axis) - x / 2)
    return x


class TestResolution:
    @pytest.mark.parametrize("step", [1, 2, 3, 0.5, 0.4, 0.37, 2.5])
    def test_models_with_the_property_pass(self, step: float) -> None:
        assert_resolution_consistent(integral, smooth, shape=[80], steps=[step], rtol=0.05, border=1)
        assert_resolution_consistent(lambda x, step: x, smooth, shape=[80], steps=[step], rtol=1e-5)

    def test_planes_and_unequal_steps(self) -> None:
        assert_resolution_consistent(integral, smooth, shape=[30, 24], steps=[(0.5, 2), (2, 0.4)], rtol=0.1)
        with pytest.raises(
            AssertionError, match=re.escape("step (0.5, 2.0) disagrees with step 1 on the 360 positions")
        ):
            assert_resolution_consistent(
                lambda x, step: integral(x, step[::-1] if isinstance(step, tuple) else step) + x.shape[2],
                smooth,
                shape=[30, 24],
                steps=[(0.5, 2)],
            )

    def test_an_output_that_ignores_its_input_is_refused(self) -> None:
        with pytest.raises(AssertionError, match="the output is the same for another input"):
            assert_resolution_consistent(lambda x, step: torch.ones_like(x), torch.randn(1, 1, 8), steps=[2])

    @pytest.mark.parametrize("step", [2, 0.4])
    def test_a_forgotten_measure_fails(self, step: float) -> None:
        with pytest.raises(AssertionError, match=re.escape(f"step ({float(step)},) disagrees with step 1")):
            assert_resolution_consistent(lambda x, step: integral(x, 1), smooth, shape=[80], steps=[step])

    def test_displaced_positions_fail(self) -> None:
        # Off by half of its own step: right only in the limit.
        def displaced(x: torch.Tensor, step: float) -> torch.Tensor:
            return (x + x.roll(1, -1)) / 2

        assert_resolution_consistent(displaced, smooth, shape=[80], steps=[0.5], rtol=0.2, border=2)
        with pytest.raises(AssertionError, match="disagrees"):
            assert_resolution_consistent(displaced, smooth, shape=[80], steps=[0.5], rtol=0.01, border=2)

    def test_sampled_signals(self) -> None:
        x = torch.randn(2, 3, 20)
        assert_resolution_consistent(lambda x, step: 2 * x, x, steps=[2, 3], rtol=0.0)
        with pytest.raises(AssertionError, match="disagrees"):
            assert_resolution_consistent(lambda x, step: step * x, x, steps=[2])
        with pytest.raises(ValueError, match=r"\bsteps must"):
            assert_resolution_consistent(lambda x, step: x, x, steps=[0.5])

    def test_the_border_is_left_out(self) -> None:
        def edges(x: torch.Tensor, step: float) -> torch.Tensor:
            x = x.clone()
            x[..., 0], x[..., -1] = step, step
            return x

        assert_resolution_consistent(edges, smooth, shape=[41], steps=[0.5, 2], rtol=1e-5, border=1)
        with pytest.raises(AssertionError, match="disagrees"):
            assert_resolution_consistent(edges, smooth, shape=[41], steps=[2], border=0)

    def test_no_common_positions_is_an_error(self) -> None:
        with pytest.raises(ValueError, match=r"\bsteps must"):
            assert_resolution_consistent(lambda x, step: x, smooth, shape=[8], steps=[0.5], border=8)
        with pytest.raises(ValueError, match=r"\bshape must"):
            assert_resolution_consistent(lambda x, step: x, smooth, steps=[0.5])


class TestCompilation:
    def test_models_with_the_property_pass(self) -> None:
        model = nn.Sequential(nn.Conv1d(2, 3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
        assert_compiles(model, torch.randn(4, 2, 9, requires_grad=True))
        assert (model[1].running_mean == 0).all()
        assert_compiles(lambda x, power: {"y": [x**power]}, torch.randn(3), power=2)

    def test_graph_breaks_fail(self) -> None:
        def branches(x: torch.Tensor) -> torch.Tensor:
            return x if x.sum() > 0 else -x

        with pytest.raises(AssertionError, match="does not compile as one graph"):
            assert_compiles(branches, torch.randn(3))

    def test_different_outputs_fail(self) -> None:
        with pytest.raises(AssertionError, match="compiled output: differs by 1 "):
            assert_compiles(lambda x: x + float(torch.compiler.is_compiling()), torch.zeros(3))

    def test_different_gradients_fail(self) -> None:
        def doubles(x: torch.Tensor) -> torch.Tensor:
            return x + (x - x.detach()) if torch.compiler.is_compiling() else x * 1.0

        with pytest.raises(AssertionError, match="compiled gradient of argument 0: differs"):
            assert_compiles(doubles, torch.randn(3, requires_grad=True))


class Affine(nn.Module):
    """A module with a parameter, and a shift that is, or is not, in its state."""

    def __init__(self, persistent: bool) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(3))
        self.register_buffer("shift", torch.randn(3), persistent=persistent)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * x + self.shift


class TestExport:
    dynamic = ({1: torch.export.Dim("length")},)

    def test_models_with_the_property_pass(self) -> None:
        others = [(torch.randn(1, n),) for n in (4, 9)]
        assert_exports(lambda x: x.cumsum(-1), (torch.randn(1, 5),), self.dynamic, others)
        model = nn.Sequential(nn.ReLU())
        assert_exports(model, (torch.randn(1, 5),), self.dynamic, others)

    def test_models_of_a_fixed_length_fail(self) -> None:
        with pytest.raises(AssertionError, match="does not export with dynamic_shapes="):
            assert_exports(lambda x: x + torch.ones(5), (torch.randn(1, 5),), self.dynamic, [])

    def test_a_remembered_length_fails(self) -> None:
        def remembers(x: torch.Tensor) -> torch.Tensor:
            return x * (2.0 if torch.compiler.is_exporting() else 1.0 + (x.shape[1] == 5))

        with pytest.raises(AssertionError, match=re.escape("exported output at sizes [(1, 8)]: differs")):
            assert_exports(remembers, (torch.randn(1, 5),), self.dynamic, [(torch.randn(1, 8),)])


class TestState:
    def test_models_with_the_property_pass(self) -> None:
        assert_state_dict_round_trip(lambda: Affine(persistent=True), torch.randn(3))

    def test_a_tensor_outside_the_state_fails(self) -> None:
        with pytest.raises(AssertionError, match="restored output: differs"):
            assert_state_dict_round_trip(lambda: Affine(persistent=False), torch.randn(3))

    def test_a_constant_initialisation_fails(self) -> None:
        class Hides(nn.Linear):
            def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
                state = super().state_dict(*args, **kwargs)
                return {**state, "bias": torch.zeros_like(self.bias)}

        def build() -> nn.Module:
            module = Hides(3, 2)
            nn.init.zeros_(module.bias)
            return module

        with pytest.raises(AssertionError, match="restored output: differs"):
            assert_state_dict_round_trip(build, torch.randn(3))

    def test_different_keys_fail(self) -> None:
        modules = iter([nn.Linear(3, 2), nn.Linear(3, 2, bias=False)])
        with pytest.raises(AssertionError, match="a fresh module does not accept the state dict"):
            assert_state_dict_round_trip(lambda: next(modules), torch.randn(3))


def test_count_parameters() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(3, 2))
    assert count_parameters(model) == 16
    model[0].bias.requires_grad_(False)
    assert count_parameters(model, trainable_only=True) == 14
    model[1].weight = model[0].weight
    assert count_parameters(model) == 10
