"""Dropout by random bits."""

from __future__ import annotations

import pytest
import torch

from kernelfield import CCNN, CKCNN, CKConv, FlexNet, SeparableConv, create_model
from kernelfield.layers import Dropout
from kernelfield.models.readout import Embedding


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5])
def test_how_many_are_dropped_and_the_mean_is_kept(p: float) -> None:
    torch.manual_seed(0)
    x = torch.ones(200_000)
    y = Dropout(p)(x)
    assert abs((y == 0).double().mean() - p) < 5e-3
    assert abs(y.double().mean() - 1) < 1e-2
    assert len(y.unique()) == 2


def test_neighbours_are_dropped_independently() -> None:
    torch.manual_seed(0)
    kept = (Dropout(0.5)(torch.ones(100_000)) > 0).double() - 0.5
    for lag in range(1, 9):  # four values come of one word
        assert abs((kept[lag:] * kept[:-lag]).mean()) < 3e-3


@pytest.mark.parametrize("shape", [(7,), (3, 5, 4, 6), (1, 1)])
def test_layouts_and_gradients(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape).transpose(0, -1).requires_grad_()
    torch.manual_seed(1)
    y = Dropout(0.4)(x)
    assert y.shape == x.shape
    assert y.stride() == torch.empty_like(x).stride()
    (grad,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(y, x * grad)


def test_strided_tensors() -> None:
    x = torch.randn(6, 8)[:, ::2]
    y = Dropout(0.4)(x)
    kept = y != 0
    torch.testing.assert_close(y[kept], x[kept] / (1 - round(0.4 * 65536) / 65536))


def test_nothing_is_dropped_in_evaluation_or_with_probability_zero() -> None:
    x = torch.randn(4, 5)
    assert torch.equal(Dropout(0.5).eval()(x), x)
    assert torch.equal(Dropout(0.0)(x), x)
    assert torch.equal(Dropout(1.0)(x), torch.zeros_like(x))


def test_a_seed_decides() -> None:
    x, drop = torch.ones(1000), Dropout(0.3)
    found = []
    for _ in range(2):
        torch.manual_seed(3)
        found.append(drop(x))
    assert torch.equal(*found)


@pytest.mark.parametrize("space", [(), (50,), (5, 6)])
def test_whole_channels(space: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x = torch.ones(100, 50, *space)
    y = Dropout(0.3, kind="channels")(x)
    assert (y.flatten(2) == y.flatten(2)[..., :1]).all() if space else True
    dropped = (y == 0).flatten(2).all(dim=2) if space else y == 0
    assert abs(dropped.double().mean() - 0.3) < 0.03
    torch.testing.assert_close(y.max(), torch.tensor(1 / 0.7))
    assert torch.equal(Dropout(0.3, kind="channels").eval()(x), x)


def test_unknown_kinds_are_refused_by_name() -> None:
    for make in (
        lambda: Dropout(0.5, kind="rows"),
        lambda: CCNN(1, 2, size=8, channels=2, dropout_kind="rows"),
        lambda: CKCNN(1, 2, size=8, channels=2, dropout_kind="rows"),
        lambda: FlexNet(1, 2, size=8, channels=2, dropout_kind="rows"),
    ):
        with pytest.raises(ValueError, match=r"kind .*'values', 'channels', got 'rows'"):
            make()


@pytest.mark.parametrize("block", ["ccnn", "s4", "resnet"])
@pytest.mark.parametrize("kind", ["values", "channels"])
def test_networks_drop_in_training_alone(block: str, kind: str) -> None:
    net = CCNN(1, 2, size=16, channels=8, blocks=1, block=block, dropout=0.5, dropout_kind=kind, norm="none")
    x = torch.randn(2, 1, 16)
    assert not torch.equal(net(x), net(x))
    net.eval()
    assert torch.equal(net(x), net(x))


def test_values_of_sampled_kernels() -> None:
    torch.manual_seed(0)
    layer = CKConv(1, 1, size=64, kernel_dropout=0.25)
    impulse = torch.zeros(1, 1, 127)
    impulse[..., 63] = 1
    kernel = layer.kernel().flatten()
    y = layer(impulse).flatten().detach()
    dropped = y.abs() < 1e-5
    assert 0.1 < dropped.double().mean() < 0.4
    torch.testing.assert_close(y[~dropped], kernel[~dropped] / 0.75, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(layer.eval()(impulse).flatten(), kernel, rtol=1e-3, atol=1e-4)
    assert SeparableConv(2, 2, size=8, kernel_dropout=0.1).depthwise.kernel_dropout == 0.1
    with pytest.raises(ValueError, match="kernel_dropout"):
        CKConv(1, 1, size=8, kernel_dropout=1.0)


def test_embedding_dropout_drops_all_occurrences_of_a_token() -> None:
    torch.manual_seed(0)
    embed = Embedding(1000, 3, dropout=0.25)
    tokens = torch.arange(1000).repeat(2, 2)
    values = embed(tokens)
    dropped = (values == 0).all(dim=1)
    assert dropped.float().mean() == pytest.approx(0.25, abs=0.05)
    assert dropped[:, :1000].equal(dropped[:, 1000:])
    whole = embed.eval()(tokens)
    torch.testing.assert_close(values, torch.where(dropped.unsqueeze(1), 0.0, whole / 0.75))


def test_the_character_model_has_both_dropouts() -> None:
    net = create_model("ckcnn_ptb", size=12, channels=(6, 4), in_channels=4, hidden=4, embedding_dropout=0.1)
    assert net.embedding.dropout == 0.1
    with pytest.raises(ValueError, match=r"embedding_dropout .*got 1\.5"):
        create_model("ckcnn_ptb", size=12, embedding_dropout=1.5)
