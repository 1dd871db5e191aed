"""Captured predictions equal those of the network in evaluation mode."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

import kernelfield as kf
from kernelfield.cuda_graphs import CapturedPrediction, CaptureWarning
from kernelfield.fields import SIREN
from kernelfield.layers.continuous.sampled_kernel import SampledKernel
from kernelfield.layers.group.kernel import GroupKernel

from .recorded import RecordingBackend

if TYPE_CHECKING:
    from collections.abc import Callable


def predictor(net: nn.Module, **options: Any) -> CapturedPrediction:
    return CapturedPrediction(net, backend=RecordingBackend, **options)


def truth(net: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Return the outputs in evaluation mode; the modes of all modules are put back."""
    modes = {m: m.training for m in net.modules()}
    with torch.no_grad():
        result = net.eval()(*args, **kwargs)
    for module, mode in modes.items():
        module.training = mode
    return result


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "CCNN": (lambda: kf.CCNN(1, 3, size=16, channels=4, blocks=1, hidden=4), (1, 16)),
    "FlexNet": (lambda: kf.FlexNet(1, 3, size=8, channels=4, widths=(1, 2)), (1, 8, 8)),
    "p4-CNN": (lambda: kf.create_model("p4cnn", channels=2, out_channels=3), (1, 28, 28)),
    "partial G-CNN": (lambda: kf.create_model("partial_gcnn_se2", channels=(2, 2, 2, 2), kernel_size=3), (1, 12, 12)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_batches_of_any_size(name: str) -> None:
    make, shape = NETWORKS[name]
    net = make()
    predict = predictor(net, max_batch=4)
    for batch in (1, 2, 3, 4, 9, 1, 3, 3):
        x = torch.randn(batch, *shape)
        torch.testing.assert_close(predict(x), truth(net, x), rtol=1e-4, atol=1e-5)
    assert predict.refusal == ""
    assert predict.graphs == 2  # of 4 and 1; those of 2 are met once
    assert net.training


def test_statistics_of_the_batch_are_those_of_the_whole_batch() -> None:
    net = kf.CCNN(1, 3, size=16, channels=4, blocks=1, hidden=4, norm="batch-statistics")
    predict = predictor(net, max_batch=4)
    for batch in (3, 3, 3, 6, 6, 6):
        x = 5 + torch.randn(batch, 1, 16)
        torch.testing.assert_close(predict(x), truth(net, x), rtol=1e-4, atol=1e-5)


def test_changes_through_data_are_followed_after_a_refresh() -> None:
    net = kf.CCNN(1, 3, size=16, channels=4, blocks=1, hidden=4, sigma=0.1)
    predict, x = predictor(net), torch.randn(4, 1, 16)
    for _ in range(3):
        predict(x)
    for name, parameter in net.named_parameters():
        parameter.data.mul_(1.0 if "sigma" in name else 1.5)
    predict.refresh()
    for _ in range(2):
        torch.testing.assert_close(predict(x), truth(net, x), rtol=1e-4, atol=1e-5)


def test_changed_weights_are_followed() -> None:
    """In place, by an optimiser, by a loaded state, and on other addresses."""
    net = kf.CCNN(1, 3, size=16, channels=4, blocks=1, hidden=4, sigma=0.1)
    predict, x = predictor(net), torch.randn(4, 1, 16)

    def check(graphs: int | None = None) -> None:
        for _ in range(4):
            torch.testing.assert_close(predict(x), truth(net, x), rtol=1e-4, atol=1e-5)
        if graphs is not None:
            assert predict.graphs == graphs

    check(1)
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(1.01)
    check(1)  # kernels of the same shape are replaced in place
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net.train()(x).square().sum().backward()
    optimizer.step()
    check()
    with torch.no_grad():
        for name, p in net.named_parameters():
            if "sigma" in name:
                p.fill_(0.6)  # kernels of another shape
    graphs = predict.graphs
    check(graphs + 1)
    net.load_state_dict({name: 1.1 * t for name, t in net.state_dict().items()})
    check()
    net.double()
    x = x.double()
    check()


def test_changes_of_a_shared_kernel_network_are_followed() -> None:
    net, x = kf.CCNN(2, 3, size=16, channels=4, blocks=2, shared_field=True).double().eval(), torch.randn(1, 2, 16)
    predict = kf.capture_prediction(net, enabled=False)
    for _ in range(2):
        torch.testing.assert_close(predict(x.double()), net(x.double()).detach())
        with torch.no_grad():
            for parameter in net.kernel_network.parameters():
                parameter.mul_(1.3)


def test_kernels_are_frozen_for_every_step_and_only_inside() -> None:
    net = kf.CCNN(1, 3, size=16, channels=4, blocks=1, hidden=4)
    predict = predictor(net)
    for _ in range(4):
        for step, length in ((1.0, 16), (0.5, 32)):
            x = torch.randn(2, 1, length)
            torch.testing.assert_close(predict(x, step=step), truth(net, x, step=step), rtol=1e-4, atol=1e-5)
    assert predict.graphs == 2
    layer = net.blocks[0].conv.depthwise
    kernels = dict(predict._kernels)[layer]
    assert set(kernels) == {(1.0,), (0.5,)}
    assert layer.frozen((1.0,), None) is None


ON_GROUPS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "p4-CNN": NETWORKS["p4-CNN"],
    "partial G-CNN": NETWORKS["partial G-CNN"],
    "E(2)": (lambda: kf.create_model("full_gcnn_e2", channels=(2, 2, 2, 2), kernel_size=3), (1, 12, 12)),
    "attentive p4-CNN": (lambda: kf.create_model("p4cnn", channels=2, out_channels=3, attention="full"), (1, 28, 28)),
    "separable": (
        lambda: nn.Sequential(
            kf.LiftingConv(1, 3, group=kf.groups.SO2(), samples=4, kernel_size=3, field=SIREN),
            kf.SeparableGroupConv(3, 3, group=kf.groups.SO2(), samples=4, kernel_size=3, field=SIREN),
            kf.GroupPool(over="all"),
        ),
        (1, 9, 9),
    ),
}


@pytest.mark.parametrize("name", ON_GROUPS)
def test_kernels_on_groups_are_frozen_in_eager_predictions(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They follow the weights, also those of distributions over the group, and other layers do not see them."""
    make, shape = ON_GROUPS[name]
    net = make()
    predict, x = predictor(net, enabled=False), torch.randn(3, *shape)
    sampled: list[GroupKernel] = []
    sample = GroupKernel._sample

    def counted(kernel: GroupKernel, *elements: Tensor | None, flip: bool) -> tuple[Tensor, bool]:
        sampled.append(kernel)
        return sample(kernel, *elements, flip=flip)

    monkeypatch.setattr(GroupKernel, "_sample", counted)
    predict(x)
    assert sampled
    sampled.clear()
    torch.testing.assert_close(predict(x), predict(x), rtol=0, atol=0)
    assert not sampled
    torch.testing.assert_close(predict(x), truth(net, x), rtol=1e-4, atol=1e-5)
    for parameter in net.parameters():
        before = truth(net, x)
        with torch.no_grad():
            parameter.add_(0.3 * torch.rand_like(parameter))
        torch.testing.assert_close(predict(x), truth(net, x), rtol=1e-4, atol=1e-5)
        assert truth(net, x).shape == before.shape
    net(x).sum().backward()  # kernels of a training step are not the frozen ones
    assert all(p.grad is not None for m in net.modules() if isinstance(m, GroupKernel) for p in m.parameters())
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(predict(x), truth(net, x), rtol=1e-4, atol=1e-4)


def test_kernels_at_changing_elements_are_not_all_kept() -> None:
    kernel = GroupKernel(kf.groups.SO2(), SIREN, 2, 2, kernel_size=3)
    kept: dict[Any, Tensor] = {}
    with torch.no_grad(), kernel.freezing(kept):
        for i in range(20):
            elements = torch.tensor([[0.1 * i]])
            torch.testing.assert_close(kernel(elements, elements), kernel(elements, elements), rtol=0, atol=0)
        first = torch.tensor([[0.0]])
        assert kernel(first, first) is kernel(first, first)
        assert kernel.flipped(first, first) is not kernel(first, first)
    assert len(kept) <= 10
    assert kernel(first, first).requires_grad


def test_tensors_as_options_are_not_padded() -> None:
    net = kf.CCNN(1, 3, size=16, channels=4, blocks=1, hidden=4)
    predict = predictor(net, max_batch=4)
    for batch in (3, 3, 3, 6):
        x, mask = torch.randn(batch, 1, 16), torch.rand(batch, 16) > 0.2
        torch.testing.assert_close(predict(x, mask=mask), truth(net, x, mask=mask), rtol=1e-4, atol=1e-5)


def test_batches_that_share_statistics_are_neither_padded_nor_divided() -> None:
    net = nn.Sequential(nn.Linear(3, 4), kf.layers.make_norm("batch-statistics", 4))
    predict = predictor(net, max_batch=4)
    for batch in (3, 3, 3, 3, 6, 6, 6, 6):
        x = torch.randn(batch, 3)
        torch.testing.assert_close(predict(x), truth(net, x))
    assert predict.graphs == 2


def test_networks_on_signals_run_eagerly_with_whole_batches() -> None:
    lift = kf.layers.LiftingConv(1, 2, group=kf.groups.Cyclic(4))
    conv = kf.layers.GroupConv(2, 3, group=kf.groups.Cyclic(4))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CaptureWarning)
        first, second = predictor(lift, max_batch=4), predictor(conv, max_batch=4)
        for batch in (3, 3, 3, 5):
            signal = first(torch.randn(batch, 1, 5, 5))
            assert second(signal).shape == (batch, 3, 4, 5, 5)


def test_modes_stay() -> None:
    net = kf.CCNN(1, 3, size=16, channels=4, blocks=1, hidden=4, dropout=0.5)
    net.train()
    net.blocks[0].eval()
    before = [m.training for m in net.modules()]
    predictor(net)(torch.randn(2, 1, 16))
    assert [m.training for m in net.modules()] == before


def test_several_inputs_and_outputs() -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
            return {"sum": x + y, "product": x * y}

    predict = predictor(Two(), max_batch=4)
    for batch in (3, 3, 3, 7):
        x, y = torch.randn(batch, 2), torch.randn(batch, 2)
        torch.testing.assert_close(predict(x, y), {"sum": x + y, "product": x * y})


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_cuda_device_kernels_are_frozen_and_one_line_says_so() -> None:
    net = kf.CCNN(1, 3, size=16, channels=4, blocks=1, hidden=4)
    predict = kf.capture_prediction(net, max_batch=4)
    x = torch.randn(6, 1, 16)
    with pytest.warns(CaptureWarning, match="capture_prediction: CCNN") as told:
        results = [predict(x) for _ in range(3)]
    assert len(told) == 1
    for result in results:
        torch.testing.assert_close(result, truth(net, x), rtol=1e-4, atol=1e-5)
    assert all(kernels for _, kernels in predict._kernels)


@pytest.mark.parametrize(("processes", "refusal"), [(1, ""), (2, "several processes train together")])
def test_several_processes_are_refused(monkeypatch: pytest.MonkeyPatch, processes: int, refusal: str) -> None:
    """A group of one process is as good as none."""
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: processes)
    net, x = kf.CCNN(1, 3, size=16, channels=4, blocks=1, hidden=4), torch.randn(2, 1, 16)
    predict = predictor(net)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CaptureWarning)
        for _ in range(3):
            torch.testing.assert_close(predict(x), truth(net, x), rtol=1e-4, atol=1e-5)
    assert predict.refusal == refusal


def test_eager_predictions_pad_no_batch() -> None:
    class Batch(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(len(x))
            return x

    seen: list[int] = []
    predict = kf.capture_prediction(Batch(), max_batch=4, enabled=False)
    for batch in (3, 4, 7):
        assert predict(torch.zeros(batch, 2)).shape == (batch, 2)
    assert seen == [3, 4, 4, 3]


@pytest.mark.parametrize("enabled", [True, False], ids=["captured", "eager"])
def test_replaced_parts_are_noticed(enabled: bool) -> None:
    """A new field, and a new map that is part of no frozen kernel."""
    net, x = kf.CCNN(1, 3, size=16, channels=4, blocks=1, hidden=4), torch.randn(2, 1, 16)
    predict = predictor(net, enabled=enabled)
    other = kf.CCNN(1, 3, size=16, channels=4, blocks=1, hidden=4)
    owners = [(a, b) for a, b in zip(net.modules(), other.modules(), strict=True) if isinstance(a, SampledKernel)]
    (layer, new), *_ = owners
    for owner, name, part in ((layer, "field", new.field), (net, "readout", other.readout)):
        for _ in range(4):
            torch.testing.assert_close(predict(x), truth(net, x), rtol=1e-4, atol=1e-5)
        setattr(owner, name, part)
        torch.testing.assert_close(predict(x), truth(net, x), rtol=1e-4, atol=1e-5)
