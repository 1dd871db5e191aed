"""A replay runs no Python: whatever code outside or inside of a captured function changes, its results stay right.

Every case is a training or a sequence of calls. It takes a function that captures a step, or leaves it as it is.
"""

from __future__ import annotations

import copy
import functools
import pickle
import threading
import types
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import kernelfield as kf
from kernelfield.cuda_graphs import CapturedFunction, CapturedPrediction, CaptureWarning

from .recorded import RecordedGraph, RecordingBackend
from .test_capture import capturable_on_cpu

if TYPE_CHECKING:
    from collections.abc import Callable

    Wrap = Callable[[Callable[..., Any]], Any]

__all__ = ["capturable_on_cpu"]

X = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
SWITCH = 0.0
CASES: dict[str, tuple[Callable[[Any], list[Tensor]], str | None]] = {}


def captured(function: Callable[..., Any]) -> CapturedFunction:
    return CapturedFunction(function, backend=RecordingBackend)


def case(refusal: str | None = None) -> Callable[[Any], Any]:
    """Add a case, which is captured, or refused with a text that contains ``refusal``."""

    def add(function: Callable[[Any], list[Tensor]]) -> Any:
        CASES[function.__name__] = function, refusal
        return function

    return add


def linear(lr: float = 0.01, **options: Any) -> tuple[nn.Linear, torch.optim.Optimizer]:
    torch.manual_seed(0)
    net = nn.Linear(4, 3)
    return net, torch.optim.SGD(net.parameters(), lr=lr, fused=True, **options)


def switched(step: Any, switch: Callable[[float], Any]) -> list[Tensor]:
    """Return the results of 6 calls before and 6 after a switch."""
    found = []
    for i in range(12):
        if i % 6 == 0:
            switch(float(i))
        found.append(step(X))
    return found


# Values that other code changes


@case()
def closure(wrap: Wrap) -> list[Tensor]:
    beta = 0.0

    def switch(value: float) -> None:
        nonlocal beta
        beta = value

    return switched(wrap(lambda x: (x * beta).sum()), switch)


@case()
def global_variable(wrap: Wrap) -> list[Tensor]:
    def switch(value: float) -> None:
        global SWITCH  # noqa: PLW0603
        SWITCH = value

    return switched(wrap(lambda x: (x * SWITCH).sum()), switch)


@case()
def variable_of_a_helper_behind_a_decorator(wrap: Wrap) -> list[Tensor]:
    options = types.SimpleNamespace(model=types.SimpleNamespace(beta=0.0))

    def helper(x: Tensor) -> Tensor:
        return (x * options.model.beta).sum()

    @torch.autocast("cpu", enabled=False)
    def step(x: Tensor) -> Tensor:
        return helper(x)

    return switched(wrap(step), lambda value: setattr(options.model, "beta", value))


@case()
def containers(wrap: Wrap) -> list[Tensor]:
    options: dict[str, Any] = {"weights": [0.0, 1.0]}

    def step(x: Tensor, more: dict[str, Any]) -> Tensor:
        return torch.stack([(x * w).sum() for w in (*options["weights"], *more["weights"])]).sum()

    more: dict[str, Any] = {"weights": np.zeros(1)}

    def switch(value: float) -> None:
        options["weights"][0] = value
        more["weights"][0] = value

    return switched(wrap(functools.partial(step, more=more)), switch)


@case()
def attributes(wrap: Wrap) -> list[Tensor]:
    """Through a property and a method. An attribute that the step does not use may change in every call."""

    class Trainer:
        factor = 1.0

        def __init__(self) -> None:
            self._beta, self.history = 0.0, [0.0]

        @property
        def beta(self) -> float:
            return self._beta

        def loss(self, x: Tensor) -> Tensor:
            return (x * self.beta * self.factor).sum()

        def step(self, x: Tensor) -> Tensor:
            return self.loss(x)

    trainer = Trainer()
    step = wrap(trainer.step)

    def call(x: Tensor) -> Tensor:
        trainer.history.append(0.0)
        return step(x)

    return switched(call, lambda value: setattr(trainer, "_beta", value))


@case()
def default_arguments(wrap: Wrap) -> list[Tensor]:
    weights = [0.0]

    def step(x: Tensor, weights: list[float] = weights) -> Tensor:
        return (x * weights[0]).sum()

    return switched(wrap(step), lambda value: weights.__setitem__(0, value))


@case()
def numbers_of_modules(wrap: Wrap) -> list[Tensor]:
    net = nn.Sequential(nn.LeakyReLU(0.0))
    return switched(wrap(lambda x: net(x).sum()), lambda value: setattr(net[0], "negative_slope", value))


@case()
def functions(wrap: Wrap) -> list[Tensor]:
    def function(x: Tensor) -> Tensor:
        return x.sum()

    def switch(value: float) -> None:
        nonlocal function

        def function(x: Tensor) -> Tensor:
            return (x * value).sum()

    return switched(wrap(lambda x: function(2 * x)), switch)


@case()
def hooks(wrap: Wrap) -> list[Tensor]:
    net, _ = linear()

    def switch(value: float) -> None:
        net.register_forward_hook(lambda _m, _a, y: value * y)

    return switched(wrap(lambda x: net(x).sum()), switch)


@case()
def host_tensors_of_the_same_address(wrap: Wrap) -> list[Tensor]:
    weights = torch.zeros(4)

    def switch(value: float) -> None:
        nonlocal weights
        weights = torch.full((4,), value)

    return switched(wrap(lambda x: (x * weights).sum()), switch)


# Parts that other code replaces


@case()
def parameters_and_buffers(wrap: Wrap) -> list[Tensor]:
    net = nn.BatchNorm1d(4).eval()

    def switch(value: float) -> None:
        net.weight = nn.Parameter(torch.full((4,), value))
        net.running_mean = torch.full((4,), value)

    return switched(wrap(lambda x: net(x).sum()), switch)


@case()
def heads(wrap: Wrap) -> list[Tensor]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.Identity())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, fused=True)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    def switch(value: float) -> None:
        net[1] = nn.Linear(4, 3)
        optimizer.add_param_group({"params": net[1].parameters(), "lr": 0.001 * value})

    return switched(wrap(step), switch)


@case()
def optimizers(wrap: Wrap) -> list[Tensor]:
    net, optimizer = linear()

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    def switch(value: float) -> None:
        nonlocal optimizer
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01 * value, momentum=0.9, fused=True)

    return switched(wrap(step), switch)


@case()
def options_in_lists(wrap: Wrap) -> list[Tensor]:
    class Scaled(torch.optim.Optimizer):
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {"lr": 0.1, "factors": [1.0]})

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for group in self.param_groups:
                for p in group["params"]:
                    p.sub_(p.grad, alpha=group["lr"] * group["factors"][0])

    net, _ = linear()
    optimizer = Scaled(net.parameters())

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return switched(wrap(step), lambda value: optimizer.param_groups[0]["factors"].__setitem__(0, value / 10))


@case()
def learning_rates_read_in_the_step(wrap: Wrap) -> list[Tensor]:
    net, optimizer = linear()

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for p in net.parameters():
                p.mul_(1 - optimizer.param_groups[0]["lr"])
        return loss

    found, step = [], wrap(step)
    for i in range(10):
        optimizer.param_groups[0]["lr"] = 0.01 * (i + 1)
        found.append(step(X))
        assert optimizer.param_groups[0]["lr"] == 0.01 * (i + 1)
    return found


@case()
def learning_rates_that_become_tensors(wrap: Wrap) -> list[Tensor]:
    net, optimizer = linear()

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    found, step = [], wrap(step)
    for i in range(12):
        if i == 6:
            optimizer.param_groups[0]["lr"] = torch.tensor(0.05)
        if i > 6:
            optimizer.param_groups[0]["lr"].mul_(1.1)
        found.append(step(X))
    return found


# Gradients


@case()
def a_step_with_the_gradients_of_the_call_before(wrap: Wrap) -> list[Tensor]:
    net, optimizer = linear()
    for p in net.parameters():
        p.grad = torch.zeros_like(p)

    def step(x: Tensor) -> Tensor:
        optimizer.step()
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        return loss

    step = wrap(step)
    return [step((1 + 0.1 * i) * X) for i in range(12)]


@case()
def gradients_accumulated_with_their_graph(wrap: Wrap) -> list[Tensor]:
    net, _ = linear()

    def step(x: Tensor) -> Tensor:
        net(x).square().mean().backward(create_graph=True)
        return torch.stack([p.grad.detach().sum() for p in net.parameters() if p.grad is not None]).sum()

    found, step = [], wrap(step)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Using backward.* with create_graph=True")
        for i in range(12):
            found.append(step(X))
            if i % 3 == 2:
                net.zero_grad()
    return found


@case()
def leaves_that_belong_to_no_module(wrap: Wrap) -> list[Tensor]:
    center = torch.zeros(4, requires_grad=True)

    def step(x: Tensor) -> Tensor:
        loss = (x - center).square().mean()
        loss.backward()
        with torch.no_grad():
            center.sub_(0.1 * center.grad)  # type: ignore[operator]
        return loss

    found, step = [], wrap(step)
    for i in range(16):
        found.append(step(X))
        if i % 3 == 2:
            center.grad = None
    return found


# Steps that a replay would not repeat


@case("'total'")
def sums_in_variables(wrap: Wrap) -> list[Tensor]:
    total = torch.zeros(())

    def step(x: Tensor) -> Tensor:
        nonlocal total
        total = total + x.sum()
        return total.clone()

    step = wrap(step)
    return [step(X) for _ in range(8)]


@case("'state'")
def states_in_containers(wrap: Wrap) -> list[Tensor]:
    state = {"h": torch.zeros(8, 4)}

    def step(x: Tensor) -> Tensor:
        state["h"] = 0.5 * state["h"] + x
        return state["h"].sum()

    step = wrap(step)
    return [step(X) for _ in range(8)]


@case("Recurrent.h")
def states_of_modules(wrap: Wrap) -> list[Tensor]:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.h = torch.zeros(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            self.h = 0.5 * self.h + x
            return self.h.sum()

    net = nn.Sequential(Recurrent())
    step = wrap(lambda x: net(2 * x))
    return [step(X) for _ in range(8)]


@case("an argument in place")
def sums_in_arguments(wrap: Wrap) -> list[Tensor]:
    total = torch.zeros(())

    def step(x: Tensor, total: Tensor) -> Tensor:
        total += x.sum()
        return x.sum()

    step = wrap(step)
    return [step(X, total) for _ in range(8)] + [total]


@case("sets the learning rate")
def learning_rates_set_in_the_step(wrap: Wrap) -> list[Tensor]:
    net, optimizer = linear()

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.param_groups[0]["lr"] *= 0.9
        return loss

    step = wrap(step)
    return [step(X) for _ in range(8)] + [torch.tensor(optimizer.param_groups[0]["lr"])]


@case("variables changed in almost every call")
def values_that_change_in_every_call_after_a_while(wrap: Wrap) -> list[Tensor]:
    beta, found = 0.0, []
    step = wrap(lambda x: (x * beta).sum())
    for i in range(80):
        beta = float(max(0, i - 6))
        found.append(step(X))
    return found


@pytest.mark.parametrize("name", CASES)
def test_results_equal_those_of_eager_calls(name: str) -> None:
    run, refusal = CASES[name]
    made: list[CapturedFunction] = []

    def wrap(function: Callable[..., Any]) -> CapturedFunction:
        made.append(captured(function))
        return made[-1]

    torch.manual_seed(1)
    expected = [t.clone() for t in run(lambda function: lambda *args: function(*args).detach())]
    torch.manual_seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CaptureWarning)
        found = run(wrap)
    torch.testing.assert_close(found, expected)
    (step,) = made
    if refusal is None:
        assert step.refusal == ""
        assert step.graphs > 0
    else:
        assert refusal in step.refusal


def test_modules_that_compute_an_attribute_before_each_call_are_captured() -> None:
    net = nn.utils.spectral_norm(nn.Linear(4, 3))
    step = captured(lambda x: net(x).sum())
    for _ in range(6):
        step(X)
    assert (step.refusal, step.graphs) == ("", 1)


def test_captured_functions_inside_of_others_become_part_of_their_graphs() -> None:
    """A teacher whose weights follow those of the student: no kernel of it stays frozen in the graph."""
    found = []
    x = torch.randn(4, 1, 16, generator=torch.Generator().manual_seed(0))
    for replayed in (False, True):
        torch.manual_seed(0)
        student = kf.CCNN(1, 3, size=16, channels=4, blocks=1, hidden=4)
        teacher = copy.deepcopy(student).eval()
        optimizer = torch.optim.SGD(student.parameters(), lr=0.01, fused=True)
        predict: Any = CapturedPrediction(teacher, backend=RecordingBackend) if replayed else teacher
        weights = torch.ones(3)
        scale: Any = captured(lambda y, w=weights: y * w) if replayed else weights.mul

        def step(
            x: Tensor,
            student: Any = student,
            predict: Any = predict,
            scale: Any = scale,
            optimizer: Any = optimizer,
            followed: Any = tuple(teacher.parameters()),  # noqa: B008
        ) -> Tensor:
            with torch.no_grad():
                target = scale(predict(x))
            optimizer.zero_grad()
            loss = F.mse_loss(student(x), target) + student(x).square().mean()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                torch._foreach_lerp_(followed, list(student.parameters()), 0.3)
            return loss

        run: Any = captured(step) if replayed else step
        found.append([run(x).detach() for _ in range(9)])
        if replayed:
            assert (run.refusal, run.graphs, scale.graphs, predict.graphs) == ("", 1, 0, 0)
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)


def test_an_interrupted_recording_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    net, optimizer = linear(momentum=0.9)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    run = captured(step)
    for _ in range(3):
        run(X)
    gradient, momentum = net.weight.grad, optimizer.state[net.weight]["momentum_buffer"]

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(RecordedGraph, "__exit__", interrupt)
    monkeypatch.setattr(RecordedGraph, "__enter__", lambda self: self)
    with pytest.raises(KeyboardInterrupt):
        run(X)
    assert net.weight.grad is gradient
    assert optimizer.state[net.weight]["momentum_buffer"] is momentum
    assert optimizer.param_groups[0]["lr"] == 0.01


class Trainer:
    """Has a captured method that is not named like its function, as by ``step = kf.capture(_step)``."""

    def __init__(self, factor: float) -> None:
        self.factor = torch.tensor(factor)

    def _step(self, x: Tensor) -> Tensor:
        return self.factor * x

    step = captured(_step)


def doubled(x: Tensor) -> Tensor:
    return 2 * x


captured_doubled = captured(doubled)


def test_methods_are_captured_under_their_own_names_and_copied_with_their_instances() -> None:
    first = Trainer(2.0)
    for _ in range(5):
        first.step(torch.ones(1))
    assert first.step.graphs == 1
    assert "_step" not in vars(first)
    for second in (copy.deepcopy(first), pickle.loads(pickle.dumps(first))):
        second.factor = torch.tensor(3.0)
        assert second.step.graphs == 0
        assert [second.step(torch.ones(1)).item(), first.step(torch.ones(1)).item()] == [3, 2]


def test_copies_and_pickles() -> None:
    for _ in range(5):
        captured_doubled(X)
    for other in (copy.deepcopy(captured_doubled), pickle.loads(pickle.dumps(captured_doubled))):
        assert torch.equal(other(X), 2 * X)
    net = kf.CCNN(1, 3, size=16, channels=4, blocks=1, hidden=4)
    predict, x = CapturedPrediction(net, backend=RecordingBackend), torch.randn(2, 1, 16)
    for _ in range(4):
        expected = predict(x)
    for copied in (copy.deepcopy(predict), pickle.loads(pickle.dumps(predict))):
        assert copied.net is not net
        torch.testing.assert_close(copied(x), expected, rtol=1e-4, atol=1e-5)


def test_threads_take_turns() -> None:
    """The static inputs of a graph belong to one call at a time."""
    step = captured(lambda x: (x + 1) * 2)
    for _ in range(4):
        step(torch.zeros(3))
    wrong: list[float] = []

    def work(value: float) -> None:
        for _ in range(100):
            result = step(torch.full((3,), value))
            wrong.extend(r for r in result.tolist() if r != 2 * (value + 1))

    threads = [threading.Thread(target=work, args=(float(i),)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert step.graphs == 1


# Predictions


@pytest.mark.parametrize("backend", [None, RecordingBackend], ids=["eager", "captured"])
def test_new_parts_are_in_evaluation_mode_during_predictions_only(backend: Any) -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.Identity()).eval()
    predict = CapturedPrediction(net, backend=backend, enabled=backend is not None)
    for _ in range(4):
        predict(X)
    net[1] = nn.Dropout(0.5)
    expected = net[0](X).detach()
    for _ in range(4):
        torch.testing.assert_close(predict(X), expected)
        assert net[1].training


@pytest.mark.parametrize("backend", [None, RecordingBackend], ids=["eager", "captured"])
def test_predictions_in_inference_mode(backend: Any) -> None:
    """Kernels that were sampled there are replaced later, outside of it."""
    net, x = kf.CCNN(1, 3, size=16, channels=4, blocks=1, hidden=4).eval(), torch.randn(2, 1, 16)
    predict = CapturedPrediction(net, backend=backend, enabled=backend is not None)
    with torch.inference_mode():
        for _ in range(4):
            predict(x)
    for _ in range(4):
        with torch.no_grad():
            for p in net.parameters():
                p.mul_(1.01)
            torch.testing.assert_close(predict(x), net(x), rtol=1e-4, atol=1e-5)


def test_networks_made_in_inference_mode() -> None:
    with torch.inference_mode():
        net, x = kf.CCNN(1, 3, size=16, channels=4, blocks=1, hidden=4).eval(), torch.randn(2, 1, 16)
    predict = CapturedPrediction(net, backend=RecordingBackend)
    with pytest.warns(CaptureWarning, match="inference_mode"):
        predict(x)
    for _ in range(3):
        with torch.inference_mode():
            for p in net.parameters():
                p.mul_(1.1)
            expected = net(x)
        torch.testing.assert_close(predict(x), expected, rtol=1e-4, atol=1e-5)
