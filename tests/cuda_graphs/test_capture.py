"""Captured steps train as eager ones do. Operations are recorded on the CPU in place of CUDA graphs."""

from __future__ import annotations

import dataclasses
import random
import sys
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import kernelfield as kf
from kernelfield.cuda_graphs import CapturedFunction, CaptureWarning, capture
from kernelfield.experiments.optim import Average
from kernelfield.ops.backend import fast_paths

from .recorded import RecordingBackend

if TYPE_CHECKING:
    from collections.abc import Callable

_OPTIMIZER_FILES = ("adadelta", "adam", "adamax", "asgd", "nadam", "radam", "rmsprop", "rprop")


@pytest.fixture(autouse=True)
def capturable_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let optimisers of torch be ``capturable`` for parameters on the CPU."""
    for name in _OPTIMIZER_FILES:
        module = sys.modules[f"torch.optim.{name}"]
        monkeypatch.setattr(module, "_get_capturable_supported_devices", lambda *_, **__: ["cpu"])


def captured(function: Callable[..., Any], **options: Any) -> CapturedFunction:
    options = {"backend": RecordingBackend, **options}
    return CapturedFunction(function, **options)


def small_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 3))


def batches(count: int, sizes: tuple[int, ...] = (6,)) -> list[tuple[Tensor, Tensor]]:
    numbers = torch.Generator().manual_seed(1)
    sizes = tuple(sizes[i % len(sizes)] for i in range(count))
    return [(torch.randn(n, 4, generator=numbers), torch.randint(3, (n,), generator=numbers)) for n in sizes]


def everything(*modules: nn.Module) -> list[Tensor]:
    """Return weights, running statistics and gradients, and the next random number."""
    found = [t.clone() for m in modules for t in m.state_dict().values()]
    found += [p.grad.clone() for m in modules for p in m.parameters() if p.grad is not None]
    return [*found, torch.rand(1)]


def train(
    make: Callable[[nn.Module], Callable[..., Any]],
    data: list[tuple[Tensor, Tensor]],
    *,
    replayed: bool,
    **options: Any,
) -> tuple[list[Any], CapturedFunction | None]:
    """Train a small network and return the losses and the final state, and the captured function."""
    net = small_net()
    step = make(net)
    wrapped = captured(step, **options) if replayed else None
    torch.manual_seed(2)
    losses = [(wrapped or step)(x, y).detach() for x, y in data]
    return [losses, everything(net)], wrapped


def assert_same(make: Callable[[nn.Module], Callable[..., Any]], graphs: int = 1, **options: Any) -> CapturedFunction:
    """Assert that captured training equals eager training, bit for bit, and how many graphs it took."""
    data = options.pop("data", batches(9))
    eager, _ = train(make, data, replayed=False)
    replayed, step = train(make, data, replayed=True, **options)
    assert step is not None
    assert (step.refusal, step.graphs) == ("", graphs)
    torch.testing.assert_close(replayed, eager, rtol=0, atol=0)
    return step


def plain(net: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[..., Any]:
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step


#: optimisers as a captured step uses them: capturable, with the learning rate as a tensor
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    name: getattr(torch.optim, name)
    for name in ("Adadelta", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop")
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_capturable_optimiser_trains_as_it_does_eagerly(name: str) -> None:
    eager = {"lr": torch.tensor(0.01), "capturable": True, "foreach": True}
    data = batches(9)
    expected, _ = train(lambda net: plain(net, OPTIMIZERS[name](net.parameters(), **eager)), data, replayed=False)
    found, step = train(lambda net: plain(net, OPTIMIZERS[name](net.parameters(), lr=0.01)), data, replayed=True)
    assert step is not None
    assert (step.refusal, step.graphs) == ("", 1)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["Adam", "AdamW", "SGD"])
def test_fused_optimisers(name: str) -> None:
    kind = getattr(torch.optim, name)
    assert_same(lambda net: plain(net, kind(net.parameters(), lr=torch.tensor(0.01), fused=True)))


def test_an_ordinary_optimiser_gives_the_same_weights_within_rounding() -> None:
    for kind in (torch.optim.AdamW, torch.optim.SGD):
        eager, _ = train(lambda net, k=kind: plain(net, k(net.parameters(), lr=0.01)), batches(9), replayed=False)
        found, _ = train(lambda net, k=kind: plain(net, k(net.parameters(), lr=0.01)), batches(9), replayed=True)
        torch.testing.assert_close(found[0], eager[0], rtol=1e-4, atol=1e-5)


def test_state_made_before_the_capture_is_kept() -> None:
    """An optimiser that has taken ordinary steps continues from its moments and counters."""

    def make(net: nn.Module) -> Callable[..., Any]:
        step = plain(net, torch.optim.AdamW(net.parameters(), lr=torch.tensor(0.01), fused=True))
        for x, y in batches(3):
            step(x, y)
        return step

    assert_same(make)


def sgd(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, fused=True)


@pytest.mark.parametrize("where", ["inside", "before"])
def test_schedules(where: str) -> None:
    def make(net: nn.Module) -> Callable[..., Any]:
        optimizer = sgd(net)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 12)
        inner = plain(net, optimizer)

        def step(x: Tensor, y: Tensor) -> Tensor:
            if where == "before":
                schedule.step()
            loss = inner(x, y)
            if where == "inside":
                schedule.step()
            return loss

        return step

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
        assert_same(make)


def test_learning_rates_that_a_loop_sets() -> None:
    weights = []
    for replayed in (False, True):
        net = small_net()
        optimizer = sgd(net)
        step = captured(plain(net, optimizer)) if replayed else plain(net, optimizer)
        torch.manual_seed(2)
        for i, (x, y) in enumerate(batches(9)):
            optimizer.param_groups[0]["lr"] = 0.1 / (i + 1)
            step(x, y)
            assert optimizer.param_groups[0]["lr"] == 0.1 / (i + 1)
        weights.append(everything(net))
    torch.testing.assert_close(weights[0], weights[1], rtol=0, atol=0)


def test_plateau_schedules_read_the_loss_of_each_call() -> None:
    def make(net: nn.Module) -> Callable[..., Any]:
        optimizer = sgd(net)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
        inner = plain(net, optimizer)

        def step(x: Tensor, y: Tensor) -> Tensor:
            loss = inner(x, y)
            schedule.step(loss.detach())  # type: ignore[arg-type]
            return loss

        return step

    assert_same(make)


def test_clipping_and_gradients_cleared_in_place() -> None:
    def make(net: nn.Module) -> Callable[..., Any]:
        optimizer = sgd(net)

        def step(x: Tensor, y: Tensor) -> Tensor:
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
            return loss

        return step

    assert_same(make)


def test_gradients_are_those_of_the_last_call() -> None:
    def make(net: nn.Module) -> Callable[..., Any]:
        return plain(net, sgd(net))

    assert_same(make, graphs=2, data=batches(12, (6, 5)))


def test_accumulated_gradients_with_steps_outside() -> None:
    found = []
    for replayed in (False, True):
        net = small_net()
        optimizer = sgd(net)

        def accumulate(x: Tensor, y: Tensor, net: nn.Module = net) -> Tensor:
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            return loss

        step = captured(accumulate) if replayed else accumulate
        torch.manual_seed(2)
        for i, (x, y) in enumerate(batches(18)):
            step(x, y)
            if i % 3 == 2:
                optimizer.step()
                optimizer.zero_grad()
        found.append(everything(net))
        if isinstance(step, CapturedFunction):
            assert (step.refusal, step.graphs) == ("", 2)  # with and without gradients before the call
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)


@pytest.mark.parametrize("unscale", [False, True])
@pytest.mark.parametrize("fused", [False, True])
def test_gradient_scalers_skip_bad_steps(fused: bool, unscale: bool) -> None:
    """One batch in the middle has an infinite loss: the step is skipped and the scale is halved."""

    def make(net: nn.Module) -> Callable[..., Any]:
        how: Any = {"fused": True} if fused else {"foreach": True}
        optimizer = torch.optim.AdamW(net.parameters(), lr=torch.tensor(0.01), capturable=True, **how)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)

        def step(x: Tensor, y: Tensor) -> Any:
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y)
            scaler.scale(loss).backward()
            if unscale:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            return loss + 0 * scaler._scale  # type: ignore[operator]

        return step

    data = batches(10)
    data[6][0][0] = torch.inf
    for x, _ in data[6:7]:
        assert not x.isfinite().all()
    # Batch norm and losses would keep the infinity: only the gradients see it.
    spoiled = [(x.nan_to_num(posinf=1e30), y) for x, y in data]
    assert_same(make, data=spoiled)


def test_the_first_steps_of_a_scaler_may_all_be_skipped() -> None:
    def make(net: nn.Module) -> Callable[..., Any]:
        optimizer = torch.optim.AdamW(net.parameters(), lr=torch.tensor(0.01), capturable=True, foreach=True)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, backoff_factor=2.0**-24)

        def step(x: Tensor, y: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y)
            scaler.scale(100 * loss).backward()
            scaler.step(optimizer)
            scaler.update()
            return loss

        return step

    assert_same(make, data=batches(20))


def test_weight_averages() -> None:
    found = []
    for replayed in (False, True):
        net = small_net()
        optimizer = sgd(net)
        mean = torch.optim.swa_utils.AveragedModel(net)
        moving = torch.optim.swa_utils.AveragedModel(
            net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9), use_buffers=True
        )
        ours = Average(net, 0.9)
        inner = plain(net, optimizer)

        def step(
            x: Tensor, y: Tensor, inner: Any = inner, mean: Any = mean, moving: Any = moving, net: Any = net
        ) -> Any:
            loss = inner(x, y)
            mean.update_parameters(net)
            moving.update_parameters(net)
            return loss

        run = captured(step) if replayed else step
        torch.manual_seed(2)
        for x, y in batches(9):
            run(x, y)
            ours.update()
        found.append([everything(net, mean, moving), *ours.shadow.values()])
        if isinstance(run, CapturedFunction):
            assert (run.refusal, run.graphs) == ("", 1)
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)


# Arguments and results


class Pair(NamedTuple):
    x: Tensor
    y: Tensor


@dataclasses.dataclass(frozen=True)
class Record:
    x: Tensor
    y: Tensor | None
    scale: float = 1.0


def test_nested_arguments_and_results() -> None:
    def function(pair: Pair, record: Record, *, options: dict[str, Any]) -> Any:
        total = pair.x + pair.y + record.x * record.scale + options["list"][0]
        return {"total": total, "pair": Pair(total + 1, total + 2), "none": None, "name": options["name"]}

    step = captured(function)
    for i in range(6):
        t = [torch.full((2,), float(i + k)) for k in range(4)]
        result = step(Pair(t[0], t[1]), Record(t[2], None, 2.0), options={"list": [t[3]], "name": "a"})
        expected = function(Pair(t[0], t[1]), Record(t[2], None, 2.0), options={"list": [t[3]], "name": "a"})
        torch.testing.assert_close([result["total"], *result["pair"]], [expected["total"], *expected["pair"]])
        assert isinstance(result["pair"], Pair)
        assert (result["none"], result["name"]) == (None, "a")
    assert step.graphs == 1


def test_one_graph_for_each_kind_of_arguments() -> None:
    step = captured(lambda x, scale: x * scale)
    for x, scale in [(torch.ones(2), 2), (torch.ones(3), 2), (torch.ones(2), 3), (torch.ones(2).double(), 2)] * 5:
        torch.testing.assert_close(step(x, scale), x * scale)
    assert step.graphs == 4


def test_results_of_earlier_calls_stay() -> None:
    step = captured(lambda x: x + 1)
    results = [step(torch.full((2,), float(i))) for i in range(6)]
    assert [r[0].item() for r in results] == [1, 2, 3, 4, 5, 6]
    assert step.graphs == 1


def test_more_kinds_than_graphs_run_eagerly() -> None:
    step = captured(lambda x: x.sum(), max_graphs=2)
    with pytest.warns(CaptureWarning, match="max_graphs=2") as told:
        sums = [step(torch.ones(n)).item() for n in (2, 3, 4) * 5]
    assert sums == [2, 3, 4] * 5
    assert step.graphs == 2
    assert len(told) == 1


def test_results_do_not_require_gradients() -> None:
    weight = torch.ones(2, requires_grad=True)
    for enabled in (True, False):
        step = captured(lambda x: (weight * x).sum(), enabled=enabled)
        assert not any(step(torch.ones(2)).requires_grad for _ in range(5))


def test_methods_have_graphs_of_their_own() -> None:
    class Trainer:
        def __init__(self, factor: float) -> None:
            self.factor = torch.tensor(factor)

        def _step(self, x: Tensor) -> Tensor:
            return self.factor * x

        step = captured(_step)

    first, second = Trainer(2.0), Trainer(3.0)
    for _ in range(5):
        assert first._step(torch.ones(1)).item() == 2
        assert (first.step(torch.ones(1)).item(), second.step(torch.ones(1)).item()) == (2, 3)


# Changes from outside


def test_modes_and_trained_parameters_have_graphs_of_their_own() -> None:
    """Dropout stops in evaluation mode, and a parameter that is frozen later stops changing."""
    found = []
    for replayed in (False, True):
        net = small_net()
        step: Any = plain(net, sgd(net))
        step = captured(step) if replayed else step
        torch.manual_seed(2)
        for i, (x, y) in enumerate(batches(18)):
            net.train(i < 6)
            net[0].requires_grad_(i < 12)
            step(x, y)
        found.append(everything(net))
        if replayed:
            assert (step.refusal, step.graphs) == ("", 3)
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)


def test_loaded_states_and_moved_weights_are_captured_again() -> None:
    found = []
    for replayed in (False, True):
        net = small_net()
        optimizer = torch.optim.AdamW(net.parameters(), lr=torch.tensor(0.01), capturable=True, foreach=True)
        step: Any = captured(plain(net, optimizer)) if replayed else plain(net, optimizer)
        torch.manual_seed(2)
        data = batches(18)
        for x, y in data[:6]:
            step(x, y)
        kept = {name: t.clone() for name, t in net.state_dict().items()}, optimizer.state_dict()
        for x, y in data[6:9]:
            step(x, y)
        net.load_state_dict(kept[0])
        optimizer.load_state_dict(kept[1])
        for x, y in data[9:14]:
            step(x, y)
        for p in net.parameters():
            p.data = p.data.clone()
        for x, y in data[14:]:
            step(x, y)
        found.append(everything(net))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)


def test_hyperparameters_other_than_the_learning_rate_make_a_new_graph() -> None:
    found = []
    for replayed in (False, True):
        net = small_net()
        optimizer = sgd(net)
        step: Any = captured(plain(net, optimizer)) if replayed else plain(net, optimizer)
        torch.manual_seed(2)
        for i, (x, y) in enumerate(batches(10)):
            optimizer.param_groups[0]["momentum"] = 0.9 if i < 5 else 0.5
            step(x, y)
        found.append(everything(net))
        if replayed:
            assert step.graphs == 2
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)


def learned(sigma: float) -> kf.CCNN:
    torch.manual_seed(0)
    return kf.CCNN(1, 3, size=32, channels=4, blocks=1, sigma=sigma, hidden=4)


def test_learned_sizes_are_followed() -> None:
    """A mask grows from a few samples to the whole input, and an evaluation in between reads it too."""
    found = []
    x, y = torch.randn(8, 1, 32), torch.randint(3, (8,))
    for replayed in (False, True):
        net = learned(0.05)
        masks = [p for name, p in net.named_parameters() if "sigma" in name]
        rest = [p for name, p in net.named_parameters() if "sigma" not in name]
        optimizer = torch.optim.SGD([{"params": rest, "lr": 0.01}, {"params": masks, "lr": 0.0}], fused=True)

        def function(x: Tensor, y: Tensor, net: Any = net, optimizer: Any = optimizer, masks: Any = masks) -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for mask in masks:
                    mask.mul_(1.03)
            return loss

        step: Any = captured(function) if replayed else function
        torch.manual_seed(2)
        for i in range(60):
            step(x, y)
            if i == 30:
                with torch.no_grad():
                    net.eval()(x)
                    net.train()
        found.append([net.eval()(x), *net.parameters()])
        if replayed:
            assert step.refusal == ""
            assert step.graphs >= 3
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-4)


def test_subsets_whose_size_is_drawn_are_refused() -> None:
    torch.manual_seed(0)
    net = kf.create_model("partial_gcnn_mirror", channels=(2, 2, 2, 2), kernel_size=3)
    step = captured(plain(net, torch.optim.SGD(net.parameters(), lr=0.01)))
    x, y = torch.randn(2, 1, 12, 12), torch.randint(10, (2,))
    with pytest.warns(CaptureWarning, match="number of elements of a group"):
        repeat(step, x, y)


# Fallbacks


def repeat(step: Callable[..., Any], *args: Any, calls: int = 6) -> None:
    for _ in range(calls):
        step(*args)


def refusal(function: Callable[..., Any], *args: Any, **options: Any) -> str:
    """Return why a function is not captured; there is exactly one warning."""
    step = captured(function, **options)
    with pytest.warns(CaptureWarning) as told:
        repeat(step, *args)
    assert len(told) == 1
    assert str(told[0].message).count("\n") == 0
    assert step.refusal in str(told[0].message)
    return step.refusal


def test_a_step_that_reads_its_loss_is_refused_with_its_line() -> None:
    def step(x: Tensor) -> float:
        return (x + 1).sum().item()

    reason = refusal(step, torch.ones(2))
    assert "capturing" in reason
    assert "test_capture.py" in reason
    assert ".item()" in reason


COUNT = 0


def test_changes_of_python_variables_are_refused() -> None:
    count, seen = 0, []

    def with_global(x: Tensor) -> Tensor:
        global COUNT  # noqa: PLW0603
        COUNT += 1
        return x + COUNT

    def with_closure(x: Tensor) -> Tensor:
        nonlocal count
        count += 1
        return x + count

    def with_list(x: Tensor) -> Tensor:
        seen.append(x)
        return x

    class Holder:
        calls = 0

        def __call__(self, x: Tensor) -> Tensor:
            self.calls += 1
            return x

    holder = Holder()
    holder.calls = 0
    for function, name in [
        (with_global, "COUNT"),
        (with_closure, "count"),
        (with_list, "seen"),
        (holder.__call__, "self.calls"),
    ]:
        assert repr(name) in refusal(function, torch.ones(2))


def test_random_numbers_of_the_host_are_refused() -> None:
    for draw in (random.random, lambda: float(np.random.rand())):  # noqa: NPY002
        assert "random" in refusal(lambda x, draw=draw: x * draw(), torch.ones(2))


def test_other_refusals() -> None:
    assert "gradient" in refusal(lambda x: x, torch.ones(2, requires_grad=True))
    assert "numpy.ndarray" in refusal(torch.tensor, np.ones(2))
    assert "number" in refusal(lambda x: (x, 0.5), torch.ones(2))
    assert "object" in refusal(lambda x: (x, object()), torch.ones(2))

    class Rebinding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(2))

        def forward(self, x: Tensor) -> Tensor:
            self.mean = 0.9 * self.mean + 0.1 * x
            return self.mean

    assert "'mean'" in refusal(Rebinding(), torch.ones(2))


def test_arguments_that_change_in_every_call_are_refused() -> None:
    step = captured(lambda x, n: x * n)
    with pytest.warns(CaptureWarning, match="arguments changed"):
        results = [step(torch.ones(1), n).item() for n in range(100)]
    assert results == list(range(100))


def test_optimisers_with_state_on_the_host() -> None:
    class Counting(torch.optim.Optimizer):
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {"lr": 0.1})

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for group in self.param_groups:
                for p in group["params"]:
                    state = self.state[p]
                    state["step"] = state.get("step", 0) + 1
                    p.sub_(p.grad, alpha=group["lr"] / state["step"])

    found = []
    for replayed in (False, True):
        net = small_net()
        step: Any = plain(net, Counting(net.parameters()))
        step = captured(step, warn=False) if replayed else step
        torch.manual_seed(2)
        for x, y in batches(6):
            step(x, y)
        found.append(everything(net))
        if replayed:
            assert "optimiser" in step.refusal
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)


@pytest.mark.parametrize("fail_after", [0, 3, 20, 40, 60])
def test_a_capture_that_fails_changes_nothing(fail_after: int) -> None:
    """Weights, gradients, the optimiser and random numbers go on as if nothing had been tried."""

    def make(net: nn.Module) -> Callable[..., Any]:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, fused=True)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)

        def step(x: Tensor, y: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            schedule.step()
            return loss

        return step

    eager, _ = train(make, batches(9), replayed=False)
    found, step = train(make, batches(9), replayed=True, backend=lambda: RecordingBackend(fail_after), warn=False)
    assert step is not None
    assert step.refusal.startswith("this operation cannot be captured")
    torch.testing.assert_close(found, eager, rtol=0, atol=0)


def test_a_refused_optimiser_is_put_back() -> None:
    net = small_net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    before = {k: v for k, v in optimizer.param_groups[0].items() if k != "params"}
    step = captured(plain(net, optimizer), backend=lambda: RecordingBackend(5), warn=False)
    for x, y in batches(5):
        step(x, y)
    assert step.refusal
    assert {k: v for k, v in optimizer.param_groups[0].items() if k != "params"} == before
    assert not optimizer.state[net[0].weight]["step"].is_cuda


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_cuda_device_the_function_runs_eagerly_and_says_so_once() -> None:
    step = capture(torch.square)
    with pytest.warns(CaptureWarning, match="no CUDA device") as told:
        assert [step(torch.tensor(3.0)).item() for _ in range(3)] == [9, 9, 9]
    assert len(told) == 1


def test_disabled_functions_run_eagerly_without_a_word() -> None:
    @capture(enabled=False)
    def square(x: Tensor) -> Tensor:
        """Square x."""
        return x**2

    assert square(torch.tensor(3.0)).item() == 9
    assert square.__doc__ == "Square x."
    assert kf.capture is capture


def test_slices_are_arguments() -> None:
    step = captured(lambda x, where: 2 * x[where])
    x = torch.randn(6)
    for _ in range(5):
        for where in (slice(1, 4), slice(None, None, 2)):
            assert torch.equal(step(x, where), 2 * x[where])
    assert step.graphs == 2


def test_a_replay_follows_the_switch_of_fast_paths() -> None:
    allowed: list[bool] = []

    def note(x: Tensor) -> Tensor:
        return x + 1 if fast_paths() else x - 1

    step, x = captured(note), torch.zeros(2)
    for enabled in (True, True, True, True, False, False, False, False, True):
        with kf.ops.use_fast_paths(enabled):
            allowed.append(bool((step(x) == 1).all()))
    assert allowed == [True] * 4 + [False] * 4 + [True]
