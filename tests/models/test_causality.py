"""Causal networks: every registered one keeps the causality contract, and norms that look ahead are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from kernelfield import CCNN, CKCNN, DNArch, FlexTCN, create_model
from kernelfield.layers.pointwise import NORMS_THAT_LOOK_AHEAD, ChannelNorm, CumulativeNorm, make_norm
from kernelfield.models.registry import configuration
from kernelfield.ops import sample_density
from kernelfield.testing import assert_causal, assert_exports
from tests.contracts.causality import assert_looks_back_only, features_of, is_causal
from tests.models.registered import CAUSAL, NAMES, example, small_by_default

if TYPE_CHECKING:
    from collections.abc import Callable

FAMILIES = {"CCNN", "CKCNN", "FlexTCN", "FlexNet", "learned_ccnn", "GridifiedNet"}
SEQUENCE_NETWORKS = pytest.mark.parametrize("model", [CKCNN, FlexTCN, CCNN])


def test_the_sequence_networks_of_chapters_2_3_and_5_are_causal() -> None:
    built = [name for name in NAMES if configuration(name).build.__name__ in FAMILIES]
    assert [name for name in built if is_causal(example(name).network)] == CAUSAL
    assert {"ckcnn_2_30", "ckcnn_ptb", "ckcnn_copy", "flextcn_6", "cktcn_2", "ccnn_4_140", "fccnn_4_140"} <= set(CAUSAL)


class TestEveryRegisteredNetwork:
    @pytest.mark.parametrize("name", small_by_default(CAUSAL))
    def test_looks_back_only(self, name: str) -> None:
        case = example(name, batch=1)
        assert_looks_back_only(case.network.eval(), case.inputs)

    @pytest.mark.parametrize("name", small_by_default(CAUSAL))
    def test_looks_back_only_in_training_unless_it_has_batch_norms(self, name: str) -> None:
        case = example(name, batch=1)
        if any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in case.network.modules()):
            pytest.skip("batch norms look at the whole batch in training")
        assert_looks_back_only(case.network.train(), case.inputs)


@pytest.mark.parametrize("norm", ["cumulative", "channel", "batch", "none"])
@SEQUENCE_NETWORKS
class TestDenseReadouts:
    def network(self, model: type[nn.Module], norm: str, **options: Any) -> nn.Module:
        torch.manual_seed(0)
        return model(2, 3, size=16, channels=4, blocks=2, readout="dense", norm=norm, **options).eval()

    def test_on_a_grid(self, model: type[nn.Module], norm: str) -> None:
        assert_looks_back_only(self.network(model, norm), torch.randn(1, 2, 16))

    def test_at_another_step(self, model: type[nn.Module], norm: str) -> None:
        assert_looks_back_only(self.network(model, norm), torch.randn(1, 2, 16), step=0.5)

    def test_with_missing_samples(self, model: type[nn.Module], norm: str) -> None:
        mask = torch.rand(1, 16) < 0.7
        assert_looks_back_only(self.network(model, norm), torch.randn(1, 2, 16), mask=mask)

    @pytest.mark.parametrize("density", [pytest.param(None, marks=pytest.mark.slow), "estimate"])
    def test_at_real_times(self, model: type[nn.Module], norm: str, density: str | None) -> None:
        coords = 16 * torch.rand(1, 16, 1, dtype=torch.float64).sort(dim=1).values
        assert_looks_back_only(self.network(model, norm), torch.randn(1, 2, 16), coords=coords, density=density)

    def test_later_times_have_no_effect(self, model: type[nn.Module], norm: str) -> None:
        network, x = self.network(model, norm).double(), torch.randn(1, 2, 16, dtype=torch.float64)
        coords = 16 * torch.rand(1, 16, 1, dtype=torch.float64).sort(dim=1).values
        other = torch.cat([coords[:, :9], coords[:, 9:] + 3], dim=1)
        outputs = [network(x, coords=c, density="estimate")[..., :9] for c in (coords, other)]
        torch.testing.assert_close(*outputs, rtol=0, atol=1e-9)


class TestNormsThatLookAhead:
    @pytest.mark.parametrize("norm", NORMS_THAT_LOOK_AHEAD)
    @SEQUENCE_NETWORKS
    def test_are_refused_for_dense_readouts(self, model: type[nn.Module], norm: str) -> None:
        with pytest.raises(ValueError, match=r"\bnorm must"):
            model(1, 2, size=8, readout="dense", norm=norm)
        model(1, 2, size=8, channels=2, blocks=1, readout="dense", norm=norm, causal=False)

    def test_are_refused_for_language_models(self) -> None:
        with pytest.raises(ValueError, match=r"\bnorm must"):
            create_model("ckcnn_ptb", size=20, norm="layer")

    @pytest.mark.parametrize("readout", ["last", "mean"])
    @SEQUENCE_NETWORKS
    def test_stay_a_choice_for_readouts_of_the_whole_sequence(self, model: type[nn.Module], readout: str) -> None:
        norms = model(1, 2, size=8, channels=2, blocks=1, readout=readout, norm="layer").modules()
        assert any(isinstance(norm, nn.GroupNorm) for norm in norms)

    @SEQUENCE_NETWORKS
    def test_are_caught_by_the_contract(self, model: type[nn.Module]) -> None:
        network = model(2, 3, size=16, channels=4, readout="mean", norm="layer")
        with pytest.raises(AssertionError, match="not causal"):
            assert_looks_back_only(network, torch.randn(1, 2, 16))

    def test_networks_that_are_not_causal_keep_the_published_norm(self) -> None:
        networks = [CKCNN(1, 2, size=8, channels=2, causal=causal) for causal in (True, False)]
        found = [{type(m) for m in n.modules()} & {CumulativeNorm, ChannelNorm, nn.GroupNorm} for n in networks]
        assert found == [{CumulativeNorm}, {nn.GroupNorm}]

    def test_published_parameter_counts_are_the_same(self) -> None:
        counts = {
            sum(p.numel() for p in make_norm(name, 8).parameters())
            for name in ("cumulative", "channel", "layer", "batch")
        }
        assert counts == {16}


class TestLearnedResolution:
    def test_is_refused_for_causal_networks_with_dense_readouts(self) -> None:
        base = CCNN(1, 1, size=16, channels=4, blocks=1, readout="dense")
        with pytest.raises(ValueError, match=r"\blearn must"):
            DNArch(base, learn=("resolution",))
        network = DNArch(base, learn=("kernel", "width", "depth")).double().eval()
        assert_causal(network, torch.randn(1, 1, 16, dtype=torch.float64), atol=1e-9)

    def test_registered_networks_that_learn_it_are_not_called_causal(self) -> None:
        assert not is_causal(example("dnarch_4_140").network)


class TestChannelNorm:
    @pytest.mark.parametrize("shape", [(2, 6, 9), (2, 6, 4, 5), (3, 6, 2, 3, 4), (4, 6)])
    def test_is_layer_norm_of_every_position(self, shape: tuple[int, ...]) -> None:
        norm, x = ChannelNorm(6).double(), torch.randn(shape, dtype=torch.float64)
        with torch.no_grad():
            norm.weight.normal_()
            norm.bias.normal_()
        y = norm(x)
        assert y.is_contiguous()
        mean, variance = x.mean(1, keepdim=True), x.var(1, keepdim=True, correction=0)
        sides = (1, -1, *(1,) * (len(shape) - 2))
        wanted = (x - mean) / (variance + norm.eps).sqrt() * norm.weight.view(sides) + norm.bias.view(sides)
        torch.testing.assert_close(y, wanted)

    def test_refuses_other_channels(self) -> None:
        with pytest.raises(ValueError, match=r"\bx must"):
            ChannelNorm(4)(torch.randn(2, 3, 8))

    def test_exports_with_dynamic_length(self) -> None:
        x = torch.randn(2, 4, 8)
        shapes = {"x": {0: torch.export.Dim("batch"), 2: torch.export.Dim("length", min=2)}}
        assert_exports(ChannelNorm(4), (x,), shapes, [(torch.randn(3, 4, 5),)])

    @pytest.mark.parametrize("norm", ["channel", "cumulative"])
    def test_padding_is_ignored(self, norm: str) -> None:
        network = CKCNN(2, 3, size=12, channels=4, norm=norm).eval()
        x, seen = torch.randn(1, 2, 12), torch.arange(12).unsqueeze(0) < 8
        torch.testing.assert_close(network(x, mask=seen), network(x[..., :8]), rtol=1e-4, atol=1e-5)


class TestCumulativeNorm:
    def test_is_the_norm_of_every_beginning(self) -> None:
        norm, x = CumulativeNorm(3).double(), 5 + torch.randn(2, 3, 7, dtype=torch.float64)
        with torch.no_grad():
            norm.weight.normal_()
            norm.bias.normal_()
        whole = nn.GroupNorm(1, 3).double()
        whole.load_state_dict(norm.state_dict())
        wanted = torch.stack([whole(x[..., : t + 1])[..., -1] for t in range(7)], dim=-1)
        torch.testing.assert_close(norm(x), wanted)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
    def test_long_signals_far_from_zero(self, dtype: torch.dtype) -> None:
        y = CumulativeNorm(4).to(dtype)((30 + torch.randn(1, 4, 20_000)).to(dtype))
        assert y.dtype == dtype
        assert float(y[..., -1000:].detach().float().std()) == pytest.approx(1, abs=0.05)

    def test_exports_with_dynamic_length(self) -> None:
        shapes = {"x": {0: torch.export.Dim("batch"), 2: torch.export.Dim("length", min=2)}}
        assert_exports(CumulativeNorm(4), (torch.randn(2, 4, 8),), shapes, [(torch.randn(3, 4, 5),)])

    def test_needs_a_line(self) -> None:
        with pytest.raises(ValueError, match=r"\bx must"):
            CumulativeNorm(4)(torch.randn(2, 4, 8, 8))
        with pytest.raises(ValueError, match=r"\bnorm must"):
            CCNN(1, 2, dim=2, size=8, norm="cumulative")

    @pytest.mark.parametrize("readout", ["dense", "last", "mean"])
    @SEQUENCE_NETWORKS
    def test_the_order_of_samples_does_not_matter(self, model: type[nn.Module], readout: str) -> None:
        network = model(2, 3, size=16, channels=4, blocks=1, norm="cumulative", readout=readout).double().eval()
        x, coords = torch.randn(2, 2, 9, dtype=torch.float64), 16 * torch.rand(2, 9, 1, dtype=torch.float64)
        seen, mixed = torch.rand(2, 9) < 0.8, torch.randperm(9)
        density = 1 + torch.rand(2, 9, dtype=torch.float64)
        y = network(x, coords=coords, mask=seen, density=density)
        moved = {"coords": coords[:, mixed], "mask": seen[:, mixed], "density": density[:, mixed]}
        other = network(x[..., mixed], **moved)
        if readout == "dense":
            y, other = y[..., mixed].movedim(1, -1)[seen[:, mixed]], other.movedim(1, -1)[seen[:, mixed]]
        torch.testing.assert_close(other, y)


def test_density_of_causal_layers_is_that_of_the_past() -> None:
    coords = torch.rand(2, 10, 1).sort(dim=1).values
    other = torch.cat([coords[:, :6], coords[:, 6:] + 1], dim=1)
    torch.testing.assert_close(*(sample_density(c, causal=True)[:, :6] for c in (coords, other)))


@pytest.mark.parametrize("make", [lambda n: n, lambda n: n.train()], ids=["evaluation", "training"])
def test_features_are_those_of_the_readout(make: Callable[[nn.Module], nn.Module]) -> None:
    network, x = make(CKCNN(1, 2, size=8, channels=3).eval()), torch.randn(2, 1, 8)
    assert features_of(network, x).shape == (2, 3, 8)
