"""Compare outputs: all of their tensors, relative to the largest entry."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "assert_close",
    "assert_same_shape_and_dtype",
    "check_depends",
    "evaluation",
    "other_signal",
    "scale_of",
    "signal_of",
    "tensors_of",
]


@contextmanager
def evaluation(model: Callable[..., Any]) -> Iterator[None]:
    modes = {m: m.training for m in model.modules()} if isinstance(model, nn.Module) else {}
    try:
        for module in modes:
            module.training = False
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def signal_of(output: Any) -> Tensor:
    values = getattr(output, "values", None)  # of a signal on a group
    if isinstance(values, Tensor):
        return values
    first = output[0] if isinstance(output, tuple) and output else output
    if not isinstance(first, Tensor):
        kind = type(first).__name__
        raise TypeError(f"model must return a tensor, a signal on a group, or a tuple that begins with one, got {kind}")
    return first


def other_signal(x: Tensor) -> Tensor:
    """Return a signal, or token ids of the same range, that differ from ``x`` nearly everywhere."""
    if not x.is_floating_point():
        return x.amin() + x.amax() - x
    # A separate generator: an assertion must not advance the global random state.
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(0)).to(x)
    return noise - x  # mostly of the other sign, so that a rectifier cannot hide the dependence


def check_depends(model: Callable[[Tensor], Any], x: Tensor, y: Tensor, atol: float) -> None:
    """Raise an AssertionError if ``y``, the output for ``x``, is the same for another input, or nowhere above atol."""
    if not y.numel() or not y.is_floating_point():
        return
    if torch.equal(signal_of(model(other_signal(x))), y):
        raise AssertionError(f"nothing to compare: the output is the same for another input, {_range(y)}")
    if scale_of(y) <= atol:
        raise AssertionError(f"nothing to compare: with atol={atol:g} an output counts as zero, {_range(y)}")


def _range(y: Tensor) -> str:
    return f"from {y.min().item():.3g} to {y.max().item():.3g}"


def tensors_of(output: Any, name: str = "output") -> Iterator[tuple[str, Tensor]]:
    if isinstance(output, Tensor):
        yield name, output
    elif isinstance(getattr(output, "values", None), Tensor):  # a signal on a group
        yield f"{name}.values", output.values
        yield f"{name}.elements", output.elements
    elif isinstance(output, (tuple, list)):
        for i, part in enumerate(output):
            yield from tensors_of(part, f"{name}[{i}]")
    elif isinstance(output, dict):
        for key, part in output.items():
            yield from tensors_of(part, f"{name}[{key!r}]")


def scale_of(x: Tensor) -> float:
    """Return the largest finite entry: an infinite one would allow any difference."""
    if not (x.is_floating_point() or x.is_complex()):
        return max(float(x.double().abs().amax()), 1.0) if x.numel() else 1.0
    sizes = x.detach().abs()
    largest = torch.where(sizes.isinf(), 0.0, sizes).amax() if x.numel() else torch.ones(())
    return max(float(largest), torch.finfo(x.dtype).tiny)


def assert_same_shape_and_dtype(what: str, got: Tensor, wanted: Tensor) -> None:
    if got.shape != wanted.shape:
        raise AssertionError(f"{what}: shape {tuple(got.shape)}, expected {tuple(wanted.shape)}")
    if got.dtype != wanted.dtype:
        raise AssertionError(f"{what}: {got.dtype}, expected {wanted.dtype}")


def assert_close(what: str, got: Tensor, wanted: Tensor, rtol: float, atol: float) -> None:
    assert_same_shape_and_dtype(what, got, wanted)
    if not wanted.numel():
        return
    got, wanted = got.detach(), wanted.detach()
    if not (wanted.is_floating_point() or wanted.is_complex()):
        got, wanted = got.double(), wanted.double()
    difference = (got - wanted).abs()
    allowed = atol + rtol * scale_of(wanted)
    bad = ~(difference <= allowed)  # true for NaN too
    if not bool(bad.any()):
        return
    worst = int(torch.where(difference.isnan(), torch.inf, difference).argmax())
    where = tuple(int(i) for i in torch.unravel_index(torch.tensor(worst), difference.shape))
    raise AssertionError(
        f"{what}: differs by {difference[where].item():.3g} (allowed {allowed:.2g}) at {where}: "
        f"got {got[where].item():.6g}, expected {wanted[where].item():.6g}; "
        f"{int(bad.sum())} of {bad.numel()} entries differ"
    )
