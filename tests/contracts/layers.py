"""What every continuous layer promises. A new layer names its constructor and inherits the tests."""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from kernelfield import grids
from kernelfield.testing import (
    assert_causal,
    assert_compiles,
    assert_exports,
    assert_state_dict_round_trip,
    assert_translation_equivariant,
)

LENGTH = {1: 24, 2: 9, 3: 5}
_TIMES = {"coords": torch.arange(24.0).view(-1, 1)}


class ContinuousLayerContract:
    """Tests of one layer; a subclass sets :attr:`layer`, and what else it needs."""

    #: the class
    layer: ClassVar[type[nn.Module]]
    #: keyword arguments it is built with
    arguments: ClassVar[dict[str, Any]] = {}

    def build(self, dim: int = 1, dtype: torch.dtype = torch.float64, **changes: Any) -> nn.Module:
        arguments = {"dim": dim, "size": LENGTH[dim], **self.arguments, **changes}
        torch.manual_seed(1)
        layer = self.layer(3, 4, **arguments)
        for name, parameter in layer.named_parameters():
            if name.endswith("bias"):
                nn.init.normal_(parameter)  # zero at first, when a forgotten bias would not show
        return layer.to(dtype)

    def signal(self, dim: int = 1, batch: int = 2, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        return torch.randn(batch, 3, *(LENGTH[dim],) * dim, dtype=dtype)

    @pytest.mark.parametrize("dim", [1, 2, 3])
    def test_gives_a_signal_on_the_same_grid(self, dim: int, dtype: torch.dtype) -> None:
        y = self.build(dim, dtype)(self.signal(dim, dtype=dtype))
        assert y.shape == (2, 4, *(LENGTH[dim],) * dim)
        assert y.dtype == dtype

    @pytest.mark.parametrize(
        ("dim", "step"),
        [
            *((dim, step) for dim in (1, 2) for step in (1.0, 0.5, 2.0, 0.37)),
            *((3, step) for step in (1.0, 0.37)),
            *(pytest.param(3, step, marks=pytest.mark.slow) for step in (0.5, 2.0)),
        ],
    )
    def test_grid_equals_coords(self, dim: int, step: float) -> None:
        layer = self.build(dim)
        count = min(int(LENGTH[dim] / step), {1: 64, 2: 8, 3: 4}[dim])
        x = torch.randn(2, 3, *(count,) * dim, dtype=torch.float64)
        coords = grids.positions((count,) * dim, step, dtype=torch.float64).flatten(0, -2)
        on_grid = layer(x, step=step).flatten(2)
        if dim < 3:
            torch.testing.assert_close(layer(x.flatten(2), coords=coords, step=step), on_grid, rtol=0, atol=1e-9)
        own = coords.expand(2, -1, -1)
        torch.testing.assert_close(layer(x.flatten(2), coords=own, step=step), on_grid, rtol=0, atol=1e-9)
        # The density of a grid is known, and its estimate on a line exact: both stand for the step.
        density = torch.full((2, count**dim), step**-dim, dtype=torch.float64)
        torch.testing.assert_close(layer(x.flatten(2), coords=own, density=density), on_grid, rtol=0, atol=1e-9)
        if dim == 1:
            estimated = layer(x, coords=own, density="estimate")
            torch.testing.assert_close(estimated, on_grid, rtol=0, atol=1e-9)

    def test_unequal_steps_per_axis(self) -> None:
        layer = self.build(2)
        x = torch.randn(1, 3, 6, 11, dtype=torch.float64)
        coords = grids.positions((6, 11), (1.4, 0.8), dtype=torch.float64).flatten(0, -2)
        on_grid = layer(x, step=(1.4, 0.8)).flatten(2)
        at_points = layer(x.flatten(2), coords=coords, step=(1.4, 0.8))
        torch.testing.assert_close(at_points, on_grid, rtol=0, atol=1e-9)

    def test_causal(self) -> None:
        assert_causal(self.build(causal=True), self.signal())

    def test_causal_at_real_times(self) -> None:
        layer = self.build(causal=True)
        times = (24 * torch.rand(1, 24, 1, dtype=torch.float64)).sort(dim=1).values
        assert_causal(lambda x: layer(x, coords=times), self.signal())

    @pytest.mark.parametrize("dim", [1, 2])
    def test_translation_equivariant(self, dim: int) -> None:
        assert_translation_equivariant(self.build(dim, size=3), self.signal(dim), shift=2)
        assert_translation_equivariant(self.build(dim, boundary="periodic"), self.signal(dim), shift=2, periodic=True)

    def test_moving_all_points_changes_nothing(self) -> None:
        layer, x = self.build(2), torch.randn(2, 3, 30, dtype=torch.float64)
        coords = 9 * torch.rand(2, 30, 2, dtype=torch.float64)
        torch.testing.assert_close(layer(x, coords=coords), layer(x, coords=coords + 5.25), rtol=0, atol=1e-9)

    def test_order_of_points_does_not_matter(self) -> None:
        layer, x = self.build(2), torch.randn(2, 3, 30, dtype=torch.float64)
        coords = 9 * torch.rand(2, 30, 2, dtype=torch.float64)
        order = torch.randperm(30)
        torch.testing.assert_close(layer(x, coords=coords)[..., order], layer(x[..., order], coords=coords[:, order]))

    def test_masked_samples_are_ignored(self) -> None:
        layer, x = self.build(), self.signal()
        seen = torch.rand(2, 24) < 0.6
        changed = torch.where(seen.unsqueeze(1), x, torch.randn_like(x))
        torch.testing.assert_close(layer(x, mask=seen), layer(changed, mask=seen))
        times = torch.arange(24, dtype=torch.float64).view(1, -1, 1)
        for coords in (times, times.expand(2, -1, -1)):  # outputs at unseen samples too
            torch.testing.assert_close(layer(x, mask=seen), layer(x, coords=coords, mask=seen), rtol=0, atol=1e-9)

    @pytest.mark.parametrize("causal", [False, True])
    @pytest.mark.parametrize("density", [None, "estimate"])
    def test_samples_at_one_time(self, causal: bool, density: str | None) -> None:
        """Their outputs are equal, in any order, and a query there gets the same; with a density their mean counts."""
        layer, x = self.build(causal=causal), self.signal()
        times = 24 * torch.rand(2, 24, 1, dtype=torch.float64)
        times[:, 3:6] = times[:, :1]
        how = {"density": density, "step": 0.5}
        y = layer(x, coords=times, **how)
        torch.testing.assert_close(y[..., 3:6], y[..., :1].expand(-1, -1, 3), rtol=0, atol=1e-9)
        order = torch.randperm(24)
        torch.testing.assert_close(
            layer(x[..., order], coords=times[:, order], **how), y[..., order], rtol=0, atol=1e-9
        )
        torch.testing.assert_close(layer(x, coords=times, at=times, **how), y, rtol=0, atol=1e-9)
        if density is not None:
            first = torch.cat([x[..., [0, 3, 4, 5]].mean(dim=2, keepdim=True), x[..., 1:3], x[..., 6:]], dim=2)
            kept = torch.cat([times[:, :3], times[:, 6:]], dim=1)
            torch.testing.assert_close(layer(first, coords=kept, **how)[..., 1:3], y[..., 1:3], rtol=0, atol=1e-9)

    def test_one_sample(self) -> None:
        layer = self.build(2)
        x, coords = torch.randn(2, 3, 1, dtype=torch.float64), torch.rand(2, 1, 2, dtype=torch.float64)
        wanted = layer(x.unsqueeze(-1))[..., 0]
        torch.testing.assert_close(layer(x, coords=coords), wanted, rtol=0, atol=1e-9)
        torch.testing.assert_close(layer(x, coords=coords, density="estimate"), wanted, rtol=0, atol=1e-9)

    @pytest.mark.parametrize("causal", [False, True])
    def test_a_mask_may_hide_everything(self, causal: bool) -> None:
        layer, x = self.build(causal=causal), self.signal()
        hidden = torch.tensor([[True], [False]]).expand(2, 24)
        coords = torch.rand(2, 24, 1, dtype=torch.float64)
        nothing = layer(0 * x, coords=coords)[1]
        for density in (None, "estimate"):
            y = layer(x, coords=coords, mask=hidden, density=density)
            torch.testing.assert_close(y[1], nothing, rtol=0, atol=1e-12)
            assert not torch.allclose(y[0], nothing)
        torch.testing.assert_close(layer(x, mask=hidden)[1], nothing, rtol=0, atol=1e-12)

    def test_queries_before_the_first_sample_of_a_causal_layer(self) -> None:
        layer, x = self.build(causal=True), self.signal()
        coords, at = 5 + torch.rand(2, 24, 1, dtype=torch.float64), torch.rand(2, 7, 1, dtype=torch.float64)
        torch.testing.assert_close(layer(x, coords=coords, at=at), layer(0 * x, coords=coords, at=at), rtol=0, atol=0)

    def test_dates_keep_their_digits(self) -> None:
        """Seconds since 1970 differ by 128 in float32; a layer in float32 takes them in float64."""
        layer, x = self.build(dtype=torch.float32), self.signal(dtype=torch.float32)
        times = 24 * torch.rand(2, 24, 1, dtype=torch.float64)
        mask = torch.rand(2, 24) < 0.8
        for more in ({}, {"mask": mask}, {"at": times[:, :5] + 0.5}):
            late = {key: value + 1.7e9 if key == "at" else value for key, value in more.items()}
            y = layer(x, coords=times + 1.7e9, **late)
            torch.testing.assert_close(y, layer(x, coords=times.float(), **more), rtol=1e-3, atol=1e-3)

    def test_all_neighbors_equal_the_full_sum(self) -> None:
        # A fixed gain: that of chapter 3 depends on the number of neighbours.
        every, some = self.build(2, neighbors=30, gain=1.0), self.build(2, neighbors=5, gain=1.0)
        x, coords = torch.randn(2, 3, 30, dtype=torch.float64), 9 * torch.rand(2, 30, 2, dtype=torch.float64)
        torch.testing.assert_close(
            every(x, coords=coords), self.build(2, gain=1.0)(x, coords=coords), rtol=0, atol=1e-9
        )
        assert not torch.allclose(some(x, coords=coords), every(x, coords=coords))

    def test_positions_beyond_the_size_contribute_nothing(self) -> None:
        layer = self.build(size=4)
        x = self.signal()
        y = layer(x)
        x[..., 0] += 100
        torch.testing.assert_close(layer(x)[..., 5:], y[..., 5:], rtol=0, atol=1e-11)

    @pytest.mark.parametrize("length", [1, 4])
    def test_a_periodic_kernel_may_be_longer_than_two_periods(self, length: int) -> None:
        layer = self.build(boundary="periodic")
        x = torch.randn(2, 3, length, dtype=torch.float64)
        periods = -(-LENGTH[1] // length)
        torch.testing.assert_close(layer(x), layer(x.repeat(1, 1, periods))[..., :length], rtol=0, atol=1e-9)
        assert layer(x, step=0.37).shape == layer.eval().freeze()(x).shape

    def test_gradients_reach_everything(self) -> None:
        layer, x = self.build(), self.signal().requires_grad_()
        layer(x).square().sum().backward()
        for name, parameter in [*layer.named_parameters(), ("x", x)]:
            assert parameter.grad is not None, name
            assert parameter.grad.abs().max() > 0, name

    def test_pruned_weights_are_computed_at_every_call(self) -> None:
        """Torch computes them in a hook, so a layer must call the parts of its field and not only read them."""
        layer, x = self.build(), self.signal()
        twin = copy.deepcopy(layer)
        maps = [m for m in layer.modules() if isinstance(m, nn.Linear)]
        for module in maps:
            prune.identity(module, "weight")
        with torch.no_grad():
            for module in maps:
                module.weight_orig.mul_(1.1)
            for module in twin.modules():
                if isinstance(module, nn.Linear):
                    module.weight.mul_(1.1)
        assert maps
        for sampling in ({}, {"coords": 24 * torch.rand(24, 1, dtype=torch.float64)}):
            torch.testing.assert_close(layer(x, **sampling), twin(x, **sampling), rtol=0, atol=1e-9)
            for _ in range(2):
                layer(x, **sampling).sum().backward()

    def test_frozen_kernels_are_reused_until_training(self) -> None:
        layer, x = self.build().eval(), self.signal()
        wanted = layer(x)
        layer.freeze()
        with torch.no_grad():
            for name, parameter in layer.named_parameters():
                if "field" in name:
                    parameter.mul_(1.5)
        # Without gradients of the kernel another method may be the fastest: equal to rounding.
        torch.testing.assert_close(layer(x), wanted, rtol=0, atol=1e-12)
        layer.train()
        assert not torch.allclose(layer(x), wanted)

    def test_freeze_changes_no_output(self) -> None:
        layer, x = self.build().eval(), self.signal()
        wanted = [layer(x), layer(x[..., :12], step=2), layer(x[..., :7]), layer(x, step=0.5)]
        layer.freeze().freeze(step=2)
        got = [layer(x), layer(x[..., :12], step=2), layer(x[..., :7]), layer(x, step=0.5)]
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)
        layer.unfreeze()
        torch.testing.assert_close(layer(x), wanted[0], rtol=0, atol=1e-12)

    def test_a_field_in_use_keeps_its_scale(self) -> None:
        layer, x = self.build(dtype=torch.float32), self.signal(dtype=torch.float32)
        wanted = layer(x)
        field = getattr(layer, "depthwise", layer).field
        assert self.layer(3, 4, **{**self.arguments, "size": 5, "field": field})(x).shape == wanted.shape
        assert torch.equal(layer(x), wanted)
        loaded = copy.deepcopy(field)
        loaded._keeps_scale = False
        loaded.load_state_dict(field.state_dict())
        self.layer(3, 4, **{**self.arguments, "size": 5, "field": loaded})
        assert all(map(torch.equal, loaded.parameters(), field.parameters()))

    def test_does_not_modify_its_inputs(self) -> None:
        layer, x = self.build(), self.signal()
        before, state = x.clone(), copy.deepcopy(layer.state_dict())
        layer(x, step=0.5)
        layer(x[..., :10])
        assert torch.equal(x, before)
        assert all(torch.equal(a, b) for a, b in zip(state.values(), layer.state_dict().values(), strict=True))

    def test_bf16_autocast(self) -> None:
        layer, x = self.build(dtype=torch.float32), self.signal(dtype=torch.float32)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = layer(x)
        assert y.dtype == torch.bfloat16
        wanted = layer(x)
        assert (y - wanted).norm() < 0.02 * wanted.norm()
        y.float().square().sum().backward()

    @pytest.mark.parametrize("dim", [1, pytest.param(2, marks=pytest.mark.slow)])
    def test_compiles(self, dim: int) -> None:
        assert_compiles(self.build(dim, torch.float32), self.signal(dim, dtype=torch.float32))

    def test_exports_with_dynamic_length_and_batch(self) -> None:
        layer = self.build(dtype=torch.float32).eval()
        x = self.signal(dtype=torch.float32)
        shapes = {"x": {0: torch.export.Dim("batch"), 2: torch.export.Dim("length", min=2)}}
        assert_exports(layer, (x,), shapes, [(torch.randn(b, 3, n),) for b, n in ((1, 24), (3, 17), (2, 61))])

    def test_state_dict_round_trip(self) -> None:
        assert_state_dict_round_trip(self.build, self.signal())

    def test_deepcopy_is_independent(self) -> None:
        layer, x = self.build(), self.signal()
        twin, y = copy.deepcopy(layer), layer(x)
        torch.testing.assert_close(twin(x), y)
        with torch.no_grad():
            for p in layer.parameters():
                p.mul_(2)
        torch.testing.assert_close(twin(x), y)
        assert not torch.allclose(layer(x), y)

    @pytest.mark.parametrize("dim", [1, 2, 3])
    def test_white_noise_keeps_its_variance(self, dim: int) -> None:
        sizes = {1: 256, 2: 32, 3: 12}
        layer = self.layer(16, 16, **{"dim": dim, "size": sizes[dim], **self.arguments, "bias": False, "gain": 1.0})
        expected = 2.0 if hasattr(layer, "pointwise") else 1.0  # a mixer has the gain √2
        x = torch.randn(4, 16, *(({1: 1024, 2: 64, 3: 24}[dim],) * dim))
        y = layer(x)
        inner = tuple(slice(n // 4, 3 * n // 4) for n in y.shape[2:])  # away from the zeros beyond the signal
        assert 0.5 < y[(..., *inner)].var() / expected < 2

    @pytest.mark.parametrize(
        ("change", "error", "message"),
        [
            ({"size": 0}, ValueError, "size .*got 0"),
            ({"size": (3, 3)}, ValueError, r"size .*got \(3, 3\)"),
            ({"size": 2.5}, TypeError, "size .*got 2.5"),
            ({"dim": 2, "causal": True}, ValueError, "causal must"),
            ({"dim": 4}, ValueError, "dim .*got 4"),
            (
                {"boundary": "reflect"},
                ValueError,
                "boundary .*got 'reflect'",
            ),
            ({"method": "dct"}, ValueError, "method must"),
            ({"field": 3}, TypeError, "field must"),
            ({"neighbors": 0}, ValueError, "neighbors .*got 0"),
        ],
        ids=lambda v: str(v) if isinstance(v, dict) else "",
    )
    def test_bad_arguments(self, change: dict[str, Any], error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=rf"\b{message}"):
            self.layer(3, 4, **{"size": 8, **self.arguments, **change})

    @pytest.mark.parametrize(
        ("call", "error", "message"),
        [
            ({"x": torch.randn(2, 5, 24)}, ValueError, "x must"),
            (
                {"x": torch.randn(2, 3, 8, 8)},
                ValueError,
                "x must",
            ),
            ({"step": 0.0}, ValueError, "step .*got 0.0"),
            ({"step": float("nan")}, ValueError, "step .*got nan"),
            ({"step": (1, 2)}, ValueError, "step must"),
            ({"coords": torch.randn(2, 24)}, ValueError, "coords must"),
            ({"coords": torch.randn(2, 23, 1)}, ValueError, "coords must"),
            ({"coords": torch.randn(2, 24, 2)}, ValueError, "coords must"),
            ({"coords": torch.randn(3, 24, 1)}, ValueError, "coords must"),
            ({"coords": torch.ones(2, 24, 1).long()}, TypeError, "coords must"),
            ({"coords": torch.full((2, 24, 1), torch.nan)}, ValueError, "coords must be finite"),
            ({"coords": torch.full((24, 1), torch.inf)}, ValueError, "coords must be finite"),
            ({"at": torch.rand(2, 5, 1)}, ValueError, "at must be None without coords"),
            ({**_TIMES, "at": torch.full((2, 5, 1), torch.nan)}, ValueError, "at must be finite"),
            ({**_TIMES, "at": torch.rand(2, 5, 2)}, ValueError, "at must have shape"),
            ({**_TIMES, "at": torch.rand(3, 5, 1)}, ValueError, "at must have shape"),
            ({**_TIMES, "at": torch.rand(2, 0, 1)}, ValueError, "at must hold"),
            ({**_TIMES, "at": torch.ones(2, 5, 1).long()}, TypeError, "at must"),
            ({**_TIMES, "density": torch.zeros(2, 24)}, ValueError, "density must .*got 0.0"),
            ({**_TIMES, "density": torch.full((2, 24), torch.nan)}, ValueError, "density must .*got nan"),
            ({"mask": torch.ones(2, 24)}, TypeError, "mask must"),
            ({"mask": torch.ones(2, 23, dtype=torch.bool)}, ValueError, "mask must"),
            ({"density": "guess"}, ValueError, "density must"),
            ({"density": "estimate"}, ValueError, "density must"),
        ],
        ids=lambda v: list(v)[-1] if isinstance(v, dict) else "",
    )
    def test_bad_inputs(self, call: dict[str, Any], error: type[Exception], message: str) -> None:
        arguments = {"x": torch.randn(2, 3, 24), **call}
        with pytest.raises(error, match=rf"\b{message}"):
            self.build(dtype=torch.float32)(**arguments)
