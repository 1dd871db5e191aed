"""Compare outputs: all of their tensors, relative to the largest entry."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["assert_close", "assert_same_shape_and_dtype", "evaluation", "scale_of", "signal_of", "tensors_of"]


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
    return output[0] if isinstance(output, tuple) else output


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
    least = torch.finfo(x.dtype).tiny if x.is_floating_point() else 1.0
    return max(float(x.detach().abs().amax()), least) if x.numel() else 1.0


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
