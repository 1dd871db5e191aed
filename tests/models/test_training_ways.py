"""Eager, compiled and captured training of every registered network end in the same weights and predictions."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from kernelfield.cuda_graphs import CapturedFunction, CaptureWarning
from kernelfield.layers import GroupDropout
from kernelfield.models.registry import configuration
from tests.cuda_graphs.recorded import RecordingBackend
from tests.models.registered import NAMES, example

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

STEPS = 6
HEAVY = "gsanet_(.*_r(8|12|16)|pcam_r)|cifar_resnet_44|resnet44_p4m|w3|m3"
#: networks that draw a subset of a group with mirrors, whose number of elements is a Python number
DRAWN = "(augerino|partial_gcnn)_(e2|mirror)"
#: networks whose compilation takes a few seconds: those with fields, masks and groups, one each
QUICK = ("ccnn_4_140", "flextcn_2", "p4cnn")
#: one network of each family
FAMILIES = {configuration(name).build: name for name in reversed(NAMES) if not re.search(HEAVY, name)}


def train(name: str, wrap: Callable[[Any, Any], Any], *, dropout: bool = True) -> dict[str, Tensor]:
    """Train a network for a few steps; return its state and what it then predicts.

    Args:
        name: of the network.
        wrap: makes the step of the loop from the step and the network.
        dropout: False turns dropout off.
    """
    case = example(name)
    network = case.network.double()
    for module in network.modules():
        if isinstance(module, (nn.Dropout, GroupDropout)) and not dropout:
            module.p = 0.0
    # Small, or masks would outgrow each graph. A power of two is the same number in float32, as captured steps keep it.
    optimizer = torch.optim.SGD(network.parameters(), lr=1 / 4096, momentum=0.9)

    def step(inputs: Tensor, options: dict[str, Tensor]) -> Tensor:
        optimizer.zero_grad()
        y = network(inputs, **options)
        loss = y.tanh().square().mean() + y.tanh().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        return loss

    def as_double(x: Tensor) -> Tensor:
        return x.double() if x.is_floating_point() else x

    wrapped = wrap(step, network)
    torch.manual_seed(2)
    options = {key: as_double(value) for key, value in case.options.items()}
    for _ in range(STEPS):
        inputs = torch.randn_like(case.inputs) if case.inputs.is_floating_point() else case.inputs
        assert wrapped(as_double(inputs), options).isfinite()
    state = {key: value.detach().clone() for key, value in network.state_dict().items()}
    network.eval()
    with torch.no_grad():
        return {**state, "prediction": network(as_double(case.inputs), **options)}


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=1e-7, atol=1e-9, msg=lambda text, key=key: f"{key}: {text}")


def eager(step: Any, _: Any) -> Any:
    return step


@pytest.mark.parametrize(
    "name", [n if n in FAMILIES.values() else pytest.param(n, marks=pytest.mark.slow) for n in NAMES]
)
def test_captured_training_ends_in_the_weights_of_eager_training(name: str) -> None:
    backend = RecordingBackend()

    def capture(step: Any, _: Any) -> Any:
        return CapturedFunction(step, backend=lambda: backend)

    if re.search(DRAWN, name):
        with pytest.warns(CaptureWarning, match="number of elements"):
            found = train(name, capture)
    else:
        found = train(name, capture)  # a refusal would be a warning, and that an error
        assert backend.recordings
    assert_same(found, train(name, eager))


@pytest.mark.parametrize("name", [n if n in QUICK[1:] else pytest.param(n, marks=pytest.mark.slow) for n in NAMES])
def test_compiled_training_has_no_graph_break_and_ends_in_the_weights_of_eager_training(name: str) -> None:
    torch.compiler.reset()

    def compile_network(step: Any, network: Any) -> Any:
        network.compile(fullgraph=True, backend="aot_eager")
        return step

    # Without dropout: torch draws in the order of memory, which compiled code chooses by itself.
    try:
        found = train(name, compile_network, dropout=False)
    finally:
        torch.compiler.reset()
    assert_same(found, train(name, eager, dropout=False))
