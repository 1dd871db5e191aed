"""The bundled experiment: digits read as a sequence, and the same weights at half the resolution."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F

from ..data.digits import digit_sequences
from ..layers import aliasing_loss
from ..models import CCNN

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import Tensor, nn

__all__ = ["DemoResult", "make_network", "run_demo"]

RESOLUTION = 16


@dataclass(frozen=True)
class DemoResult:
    """What the experiment saw.

    Args:
        accuracy: share of the test digits recognised.
        half_accuracy: the same, with every second sample of each sequence, by the same weights.
        parameters: number of parameters.
        epochs: passes over the training digits.
        seed: of split, weights and order.
        seconds: time spent training.
        torch: version.
    """

    accuracy: float
    half_accuracy: float
    parameters: int
    epochs: int
    seed: int
    seconds: float
    torch: str


def make_network() -> nn.Module:
    """Return the small CCNN of the experiment: causal, global kernels over a sequence of 256."""
    return CCNN(1, 10, dim=1, size=RESOLUTION**2, channels=32, blocks=2, hidden=16, sigma=0.1)


def run_demo(
    out: Path, *, epochs: int = 20, seed: int = 0, batch: int = 64, on_step: Callable[[int, int, float], None] | None = None
) -> DemoResult:
    """Train, test at both resolutions, and write ``result.json``, ``network.pt`` and ``kernels.png`` to ``out``.

    Args:
        out: folder to make; must not hold a result yet.
        epochs: passes over the training digits.
        seed: of split, weights and order.
        batch: digits per step.
        on_step: called after every step with the steps done, the steps in all, and the loss.
    """
    if (out / "result.json").exists():
        raise FileExistsError(f"out must not hold a result yet, got {out}")
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    x, y, x_test, y_test = digit_sequences(RESOLUTION, seed=seed)
    net = make_network()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=1e-4)
    total = epochs * (len(x) // batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.01, total_steps=total, pct_start=0.1)
    started = time.perf_counter()
    done = 0
    for _ in range(epochs):
        for index in torch.randperm(len(x))[: len(x) // batch * batch].split(batch):
            # The second term keeps the kernels free of frequencies that half the resolution could not hold.
            loss = F.cross_entropy(net(x[index]), y[index]) + 1e-4 * aliasing_loss(net, nyquist_factor=0.5)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
            done += 1
            if on_step is not None:
                on_step(done, total, float(loss.detach()))
    seconds = time.perf_counter() - started
    result = DemoResult(
        accuracy=accuracy(net, x_test, y_test),
        half_accuracy=accuracy(net, x_test[..., ::2], y_test, step=2.0),
        parameters=sum(p.numel() for p in net.parameters()),
        epochs=epochs,
        seed=seed,
        seconds=round(seconds, 1),
        torch=torch.__version__,
    )
    from ..viz.kernels import plot_kernels  # noqa: PLC0415

    plot_kernels(net, out / "kernels.png")
    torch.save(net.state_dict(), out / "network.pt")
    (out / "result.json").write_text(json.dumps(asdict(result), indent=2) + "\n")
    return result


@torch.no_grad()
def accuracy(net: nn.Module, x: Tensor, y: Tensor, step: float = 1.0) -> float:
    """Return the share of ``x`` that ``net`` labels as ``y``."""
    net.eval()
    return float((net(x, step=step).argmax(dim=1) == y).float().mean())
