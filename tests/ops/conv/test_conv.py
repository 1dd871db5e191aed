"""The convolution: the contract for every method, and the choice between them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
import torch

from kernelfield.ops import conv
from kernelfield.ops.conv import METHODS
from kernelfield.ops.conv.cost import Work, cheapest, seconds
from tests.contracts.convolutions import KINDS, Case, ConvContract

if TYPE_CHECKING:
    from collections.abc import Callable


class TestDirect(ConvContract):
    method = "direct"


class TestFFT(ConvContract):
    method = "fft"


FEW = ("dense", "depthwise", "cylinder")


class TestAuto(ConvContract):
    """The contract for "auto", on a few kinds: enough to see that it passes all arguments on."""

    method = "auto"

    @pytest.fixture(params=[KINDS[name] for name in FEW], ids=FEW)
    def case(self, request: pytest.FixtureRequest) -> Case:
        found: Case = request.param
        return found


@pytest.mark.parametrize("name", ["dense", "depthwise", "causal", "periodic, twice as long", "cylinder"])
def test_every_kind_exports_with_any_length_and_batch(name: str) -> None:
    TestFFT().assert_exports(KINDS[name])


@pytest.mark.parametrize("method", ["dct", "FFT", None, 3])
def test_unknown_method(method: Any) -> None:
    says = f"method must be one of 'auto', {', '.join(map(repr, METHODS))}, got {method!r}"
    with pytest.raises(ValueError if isinstance(method, str) else TypeError, match=re.escape(says)):
        conv(torch.ones(1, 1, 4), torch.ones(1, 1, 3), method=method)


@pytest.mark.parametrize("requires_grad", [False, True], ids=["forward", "training"])
@pytest.mark.parametrize("dim", [1, 2, 3])
def test_auto_sums_short_kernels_and_transforms_long_ones(dim: int, requires_grad: bool) -> None:
    length = {1: 16384, 2: 128, 3: 32}[dim]
    x = torch.empty(8, 64, *[length] * dim, device="meta", requires_grad=requires_grad)
    for points, method in ((1, "direct"), (2 * length - 1, "fft")):
        kernel = torch.empty(64, 1, *[points] * dim, device="meta")
        # Costs of the machine that the tests run on, whatever the device of these shapes.
        work = Work.of(tuple(x.shape), tuple(kernel.shape), (points // 2,) * dim, [False] * dim)
        times = {name: seconds(name, work, "cpu", requires_grad) for name in ("direct", "fft")}
        assert min(times, key=times.__getitem__) == method


def test_auto_equals_one_of_the_methods_exactly() -> None:
    x, kernel = torch.randn(2, 3, 40), torch.randn(3, 1, 40)
    method = cheapest(x, kernel, False, ("zero",))
    assert method in METHODS
    assert conv(x, kernel, groups=3).equal(conv(x, kernel, groups=3, method=method))


def test_work_is_counted_in_closed_form() -> None:
    work = Work.of((2, 6, 10), (4, 3, 5), (2,), [False])
    assert not work.depthwise
    assert work.outputs == 2 * 4 * 10
    assert work.multiplies == work.outputs * 3 * 5
    assert work.products == 2 * 4 * 3 * (12 // 2 + 1)  # transforms of 10 + 2 samples


def test_inputs_of_many_lengths_are_compiled_twice() -> None:
    """Once for the first length, and once for all others: the choice of a method must not depend on the length."""
    compiled = []

    def count(module: torch.fx.GraphModule, _: object) -> Callable[..., object]:
        compiled.append(module)
        return module.forward

    torch.compiler.reset()
    run = torch.compile(lambda x, kernel: conv(x, kernel, groups=2), backend=count, fullgraph=True)
    kernel = torch.randn(2, 1, 13)
    for length in (64, 65, 100, 31, 300):
        x = torch.randn(2, 2, length)
        torch.testing.assert_close(run(x, kernel), conv(x, kernel, groups=2), rtol=1e-4, atol=1e-5)
    torch.compiler.reset()
    assert len(compiled) == 2
