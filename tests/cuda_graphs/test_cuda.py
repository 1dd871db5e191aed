"""Captured steps on a GPU train as eager ones do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import kernelfield as kf
from kernelfield.cuda_graphs import CapturedFunction, CaptureWarning

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")


def small_net() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Linear(4, 8), nn.LayerNorm(8), nn.Dropout(0.3), nn.GELU(), nn.Linear(8, 3)]
    return nn.Sequential(*layers).cuda()


def batches(count: int, sizes: tuple[int, ...] = (6,), shape: tuple[int, ...] = (4,)) -> list[tuple[Tensor, Tensor]]:
    numbers = torch.Generator().manual_seed(1)
    found = []
    for i in range(count):
        n = sizes[i % len(sizes)]
        x = torch.randn(n, *shape, generator=numbers)
        found.append((x.cuda(), torch.randint(3, (n,), generator=numbers).cuda()))
    return found


def train(make: Callable[[], tuple[nn.Module, Callable[..., Any]]], data: Any, capture: bool) -> tuple[list[Any], Any]:
    """Return losses and weights of a training, and its step."""
    net, step = make()
    run: Any = kf.capture(step) if capture else step
    torch.manual_seed(2)
    losses = [run(x, y).detach() for x, y in data]
    return [torch.stack(losses), *(t.detach().clone() for t in net.state_dict().values()), torch.rand(1).cuda()], run


def assert_same(
    make: Callable[[], tuple[nn.Module, Callable[..., Any]]],
    data: Any,
    graphs: int = 1,
    rtol: float = 1e-5,
    atol: float = 1e-6,
) -> None:
    eager, _ = train(make, data, capture=False)
    found, step = train(make, data, capture=True)
    assert isinstance(step, CapturedFunction)
    assert (step.refusal, step.graphs) == ("", graphs)
    torch.testing.assert_close(found, eager, rtol=rtol, atol=atol)


def plain(net: nn.Module, optimizer: torch.optim.Optimizer, clip: float | None = None) -> Callable[..., Any]:
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        optimizer.step()
        return loss

    return step


@pytest.mark.parametrize(
    "name", ["Adadelta", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD", "Adagrad"]
)
def test_optimisers(name: str) -> None:
    """With dropout: the random numbers are those of eager steps too. Adagrad runs eagerly."""

    def make() -> Any:
        net = small_net()
        return net, plain(net, getattr(torch.optim, name)(net.parameters(), lr=0.01))

    if name == "Adagrad":
        eager, _ = train(make, batches(8), capture=False)
        with pytest.warns(CaptureWarning, match="optimiser"):
            found, _ = train(make, batches(8), capture=True)
        torch.testing.assert_close(found, eager, rtol=1e-5, atol=1e-6)
    else:
        assert_same(make, batches(8), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}], ids=str)
def test_capturable_optimisers_give_the_same_bits(options: dict[str, bool]) -> None:
    def make() -> Any:
        net = small_net()
        rate = torch.tensor(0.01, device="cuda")
        return net, plain(net, torch.optim.AdamW(net.parameters(), lr=rate, capturable=True, **options))

    assert_same(make, batches(10), rtol=0, atol=0)


def test_schedule_clipping_and_averages() -> None:
    def make() -> Any:
        net = small_net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, fused=True)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 12)
        average = torch.optim.swa_utils.AveragedModel(net, torch.device("cuda"))
        inner = plain(net, optimizer, clip=0.1)

        def step(x: Tensor, y: Tensor) -> Tensor:
            loss = inner(x, y)
            average.update_parameters(net)
            schedule.step()
            return loss

        return nn.ModuleList([net, average]), step

    assert_same(make, batches(10, (6, 5)), graphs=2)


@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}], ids=str)
def test_gradient_scalers(options: dict[str, bool]) -> None:
    """The first scales are too large for float16, so the first steps are skipped; so is one in the middle."""

    def make() -> Any:
        net = small_net()
        rate = torch.tensor(0.01, device="cuda")
        optimizer = torch.optim.AdamW(net.parameters(), lr=rate, capturable=True, **options)
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0**24)

        def step(x: Tensor, y: Tensor) -> Tensor:
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16):
                loss = F.cross_entropy(net(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            return loss

        return net, step

    data = batches(24)
    data[16][0][0] = 1e30
    eager, _ = train(make, data, capture=False)
    found, step = train(make, data, capture=True)
    assert (step.refusal, step.graphs) == ("", 1)
    torch.testing.assert_close(found, eager, rtol=1e-3, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("where", ["inside", "outside"])
def test_autocast(where: str) -> None:
    def make() -> Any:
        net = small_net()
        inner = plain(net, torch.optim.SGD(net.parameters(), lr=0.1, fused=True))

        def step(x: Tensor, y: Tensor) -> Tensor:
            with torch.autocast("cuda", torch.bfloat16):
                return inner(x, y)

        return net, step if where == "inside" else inner

    # With its cache, torch would use the casts of the first step in all steps inside of one block.
    with torch.autocast("cuda", torch.bfloat16, enabled=where == "outside", cache_enabled=False):
        assert_same(make, batches(10), rtol=2e-2, atol=1e-2)


@pytest.mark.parametrize("name", ["ccnn", "p4cnn", "flexnet"])
def test_networks(name: str) -> None:
    """Kernels with learned sizes, and convolutions on a group."""

    def make() -> Any:
        torch.manual_seed(0)
        if name == "ccnn":
            net: nn.Module = kf.CCNN(1, 3, dim=2, size=12, channels=8, blocks=2, hidden=8, sigma=0.3)
        elif name == "p4cnn":
            # Captured convolutions of planes are in channels-last format, in which dropout would draw other values.
            net = kf.create_model("p4cnn", channels=4, out_channels=3, dropout=0.0)
        else:
            net = kf.FlexNet(1, 3, size=12, channels=8, widths=(1, 2))
        net = net.cuda()
        return net, plain(net, torch.optim.SGD(net.parameters(), lr=1e-3, fused=True))

    data = batches(8, shape=(1, 28, 28) if name == "p4cnn" else (1, 12, 12))
    # In another memory format cuDNN takes other algorithms; with tf32 their products would have 10 bits.
    with torch.backends.cudnn.flags(allow_tf32=False):
        assert_same(make, data, rtol=1e-2, atol=1e-3)


@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores", "ignore:The CUDA Graph is empty")
@pytest.mark.parametrize("name", ["ccnn", "p4cnn", "attentive p4cnn", "gsanet"])
def test_compiled_networks_with_cuda_graphs(name: str) -> None:
    """``mode="reduce-overhead"`` refuses tensors of a first call that stay alive, such as tables."""
    torch.manual_seed(0)
    if name == "ccnn":
        # Channels and length as in chapter 3, for which tensor cores are used.
        net: nn.Module = kf.CCNN(1, 3, size=784, channels=32, blocks=2, hidden=8)
    elif name == "gsanet":
        net = kf.create_model("gsanet_rotmnist_r4", out_channels=3, dropout=0.0)
    else:
        attention = {"attention": "full"} if name.startswith("attentive") else {}
        net = kf.create_model("p4cnn", channels=4, out_channels=3, dropout=0.0, **attention)
    net = net.cuda().train()
    shape = (1, 784) if name == "ccnn" else (1, 28, 28)
    with torch.backends.cudnn.flags(allow_tf32=False):
        for layer in net.modules():
            if isinstance(layer, nn.Dropout):
                layer.p = 0.0
        compiled = torch.compile(net, mode="reduce-overhead")
        for x, y in batches(4, shape=shape):
            net.zero_grad()
            F.cross_entropy(net(x), y).backward()
            wanted = {k: p.grad.clone() for k, p in net.named_parameters() if p.grad is not None}
            net.zero_grad()
            torch.compiler.cudagraph_mark_step_begin()
            F.cross_entropy(compiled(x), y).backward()
            for key, parameter in net.named_parameters():
                if key in wanted:
                    torch.testing.assert_close(parameter.grad, wanted[key], rtol=2e-2, atol=2e-3, msg=key)
    torch.compiler.reset()


@pytest.mark.filterwarnings("ignore:a mask grew so fast")
def test_masks_that_grow_are_captured_again() -> None:
    found = []
    (x, y), *_ = batches(1, shape=(1, 64))
    for capture in (False, True):
        torch.manual_seed(0)
        net = kf.CCNN(1, 3, size=64, channels=8, blocks=2, hidden=8, sigma=0.05).cuda()
        masks = [p for n, p in net.named_parameters() if "sigma" in n]
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, fused=True)
        inner = plain(net, optimizer)

        def function(x: Tensor, y: Tensor, inner: Any = inner, masks: Any = masks) -> Tensor:
            loss = inner(x, y)
            with torch.no_grad():
                torch._foreach_mul_(masks, 1.03)
            return loss

        step: Any = kf.capture(function) if capture else function
        for _ in range(60):
            loss = step(x, y)
        with torch.no_grad():
            found.append([loss, net.eval()(x), *masks])
        if capture:
            assert step.refusal == ""
            assert step.graphs >= 3
    torch.testing.assert_close(found[1], found[0], rtol=2e-2, atol=1e-2)


def test_arguments_on_the_host_are_copied() -> None:
    def make() -> Any:
        net = small_net()
        inner = plain(net, torch.optim.SGD(net.parameters(), lr=0.1, fused=True))

        def step(x: Tensor, y: Tensor) -> Tensor:
            return inner(x.cuda(), y.cuda())

        return net, step

    assert_same(make, [(x.cpu(), y.cpu()) for x, y in batches(8)])


def test_a_step_that_reads_its_loss_runs_eagerly_and_changes_nothing() -> None:
    def make() -> Any:
        net = small_net()
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        inner = plain(net, optimizer)

        def step(x: Tensor, y: Tensor) -> Tensor:
            loss = inner(x, y)
            return loss * (1 + 0 * loss.item())

        return net, step

    eager, _ = train(make, batches(8), capture=False)
    with pytest.warns(CaptureWarning, match="captur") as told:
        found, step = train(make, batches(8), capture=True)
    assert len(told) == 1
    assert "test_cuda.py" in step.refusal
    torch.testing.assert_close(found, eager, rtol=1e-3, atol=1e-5)
    small_net()(torch.randn(2, 4, device="cuda")).sum().backward()  # dropout draws as before


@pytest.mark.parametrize("name", ["ccnn", "p4cnn"])
def test_predictions(name: str) -> None:
    """Batches of any size, and weights that change between them."""
    torch.manual_seed(0)
    if name == "ccnn":
        net: nn.Module = kf.CCNN(1, 3, size=64, channels=8, blocks=2, hidden=8).cuda()
    else:
        net = kf.create_model("p4cnn", channels=4, out_channels=3).cuda()
    predict = kf.capture_prediction(net, max_batch=8)
    for round_ in range(2):
        for batch in (1, 3, 8, 20, 4, 4, 4, 1, 1, 1):
            x = torch.randn(batch, *((1, 64) if name == "ccnn" else (1, 28, 28)), device="cuda")
            net.eval()
            with torch.no_grad():
                expected = net(x)
            net.train(round_ == 1)
            # In another memory format cuDNN takes other algorithms, with products of 10 bits (tf32).
            torch.testing.assert_close(predict(x), expected, rtol=1e-3, atol=1e-4 if name == "ccnn" else 1e-3)
        assert (predict.refusal, predict.graphs) == ("", 3)
        with torch.no_grad():
            for p in net.parameters():
                p.mul_(1.01)


def test_accumulated_gradients() -> None:
    found = []
    for capture in (False, True):
        net = small_net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, fused=True)

        def accumulate(x: Tensor, y: Tensor, net: nn.Module = net) -> Tensor:
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            return loss

        step: Any = kf.capture(accumulate) if capture else accumulate
        torch.manual_seed(2)
        for i, (x, y) in enumerate(batches(18)):
            step(x, y)
            if i % 3 == 2:
                optimizer.step()
                optimizer.zero_grad()
        found.append(list(net.parameters()))
    torch.testing.assert_close(found[0], found[1])
