"""The contract of every registered network: tests that need only its name."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from kernelfield.models.registry import configuration
from kernelfield.testing import assert_compiles, assert_state_dict_round_trip
from tests.models.registered import NAMES, example, small_by_default

HEAVY = "gsanet_(.*_r(8|12|16)|pcam_r)|cifar_resnet_44|resnet44_p4m|w3"
#: a network of each family
FIRST = {configuration(name).build: name for name in reversed(NAMES) if not re.match(HEAVY, name)}
every_network = pytest.mark.parametrize("name", small_by_default(NAMES, HEAVY))
a_network_of_each_family = pytest.mark.parametrize(
    "name", [name if name in FIRST.values() else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]
)


class TestRegistered:
    @every_network
    def test_trains(self, name: str) -> None:
        case = example(name)
        y = case()
        assert len(y) == len(case.inputs)
        (y.float().square().sum() + y.float().sum()).backward()
        missing = [n for n, p in case.network.named_parameters() if p.grad is None]
        if name.startswith("dnarch"):
            missing = [n for n in missing if ".blocks." not in n]  # a learned depth skips the last blocks
        assert missing == []
        assert all(p.grad.isfinite().all() for p in case.network.parameters() if p.grad is not None)

    @a_network_of_each_family
    def test_predictions_do_not_depend_on_the_batch(self, name: str) -> None:
        if "statistics" in str(configuration(name).arguments.get("norm", "")):
            pytest.skip("normalises by the batch at hand")
        case = example(name, batch=3).double()
        network = case.network.eval()
        with torch.no_grad():
            together = case()
            alone = network(case.inputs[1:2], **{key: value[1:2] for key, value in case.options.items()})
        torch.testing.assert_close(alone, together[1:2], rtol=1e-8, atol=1e-10)

    @a_network_of_each_family
    def test_state_dict_round_trip(self, name: str) -> None:
        case = example(name)
        assert_state_dict_round_trip(lambda: example(name).network, case.inputs, **case.options)

    @a_network_of_each_family
    def test_bf16_autocast(self, name: str) -> None:
        case = example(name)
        case.network.eval()
        with torch.no_grad():
            wanted = case()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                y = case()
            for parameter in case.network.parameters():
                parameter.copy_(parameter.bfloat16())
            rounded = case()
        assert y.isfinite().all()
        # Loose: random networks, deep ones above all, amplify rounding. A wrong cast gives an error of order one.
        amplified = (rounded - wanted).norm()
        assert (y.float() - wanted).norm() <= 0.2 * wanted.norm() + 2 * amplified + 1e-3

    @pytest.mark.slow
    @pytest.mark.parametrize("name", NAMES)
    def test_compiles(self, name: str) -> None:
        # In float64: some gradients are sums that cancel, such as that of a bias before a norm.
        case = example(name).double()
        assert_compiles(case.network.eval(), case.inputs, rtol=1e-7, atol=1e-9, **case.options)


def test_every_family_has_an_example() -> None:
    assert all(isinstance(example(name).network, nn.Module) for name in ("ccnn_4_140", "p4cnn", "w3"))
