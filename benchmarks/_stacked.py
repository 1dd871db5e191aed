"""Training of small networks, several at once or one after the other, as one CUDA graph on a GPU."""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernelfield._hooks import pause_step_hooks

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from _physionet import Stays

__all__ = ["Training"]


class Training:
    """AdamW, a learning rate that rises and falls, clipped gradients and averaged weights.

    The networks of one call differ in their weights and in the order of the stays. A network maps stays with the axes
    (networks, batch, …) to scores (networks, batch). If it holds several networks, the first axis of each parameter
    numbers them. On a GPU nothing waits for the device within an epoch.

    Args:
        make: makes the network. :meth:`begin` calls it again for new weights.
        stays: all stays, on the device.
        options: batch, lr, weight_decay, thin, smoothing, ema.
    """

    def __init__(self, make: Callable[[], nn.Module], stays: Stays, options: argparse.Namespace) -> None:
        self.make, self.stays, self.options = make, stays, options
        self.device = stays.values.device
        self.network = make().to(self.device)
        self.average = copy.deepcopy(self.network).eval()
        self.tables = torch.zeros(2, 1, device=self.device)  # learning rate and weight of the average at each step
        self.taken = torch.zeros(1, dtype=torch.long, device=self.device)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.index = torch.zeros(0, dtype=torch.long, device=self.device)
        groups: dict[bool, list[nn.Parameter]] = {True: [], False: []}
        for name, p in self.network.named_parameters():
            matrix = p.dim() > 1 and not any(word in name for word in ("field", "gather", "bias", "input_decay"))
            groups[matrix].append(p)
        self.optimizer = torch.optim.AdamW(
            [
                {"params": groups[matrix], "weight_decay": options.weight_decay if matrix else 0.0}
                for matrix in (True, False)
            ],
            lr=torch.tensor(options.lr, device=self.device) if self.device.type == "cuda" else options.lr,
            capturable=self.device.type == "cuda",
            foreach=True,
        )

    def begin(self, steps: int) -> None:
        """Restart with new weights, for a training of ``steps`` steps."""
        fresh = self.make()
        self.network.load_state_dict(fresh.state_dict())
        self.average.load_state_dict(fresh.state_dict())
        for state in self.optimizer.state.values():
            for value in state.values():
                value.zero_()
        step = torch.arange(steps, dtype=torch.float64)
        rise = 0.2 * steps
        share = torch.where(step < rise, step / rise, 1 - (step - rise) / (steps - rise))
        rate = self.options.lr * (0.04 + 0.96 * (1 - torch.cos(math.pi * share)) / 2)
        weight = 1 - ((step + 1) / (step + 11)).clamp(max=self.options.ema)
        tables = torch.stack([rate, weight]).float().to(self.device)
        if tables.shape == self.tables.shape:
            self.tables.copy_(tables)
        else:
            self.tables, self.graph = tables, None
        self.taken.zero_()

    def steps(self, orders: Tensor) -> None:
        """Take training steps on the stays (steps, networks, batch)."""
        orders = orders.to(self.device)
        self.network.train()
        if self.graph is None and self.device.type == "cuda":
            self._capture(orders[0])
        for index in orders:
            if self.graph is None:
                self._step(index)
            else:
                self.index.copy_(index)
                self.graph.replay()
        # A replay does not count the versions of tensors, by which layers know whether a kernel is current.
        for network in (self.network, self.average):
            torch.autograd.graph.increment_version([*network.parameters(), *network.buffers()])

    @torch.no_grad()
    def predict(self, index: Tensor) -> Tensor:
        """Return the scores of the averaged networks for the stays (networks, n)."""
        parts = index.to(self.device).split(max(64, 512 // len(index)), dim=1)
        return torch.cat([self.average(self.stays.take(part)) for part in parts], dim=1).float().cpu()

    def _capture(self, index: Tensor) -> None:
        before = [copy.deepcopy(network.state_dict()) for network in (self.network, self.average)]
        self.index = index.clone()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):  # libraries make their plans
                self._step(self.index)
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            self._step(self.index)
        self.graph = graph
        for network, state in zip((self.network, self.average), before, strict=True):
            network.load_state_dict(state)
        for state in self.optimizer.state.values():
            for value in state.values():
                value.zero_()
        self.taken.zero_()

    def _step(self, index: Tensor) -> None:
        options, stays = self.options, self.stays.take(index)
        kept = torch.rand(stays.observed.shape, device=self.device) >= options.thin
        stays = stays._replace(observed=stays.observed & kept)
        target = stays.death * (1 - 2 * options.smoothing) + options.smoothing
        scores = self.network(stays)
        loss = F.binary_cross_entropy_with_logits(scores, target, reduction="none").mean(dim=1).sum()
        self.optimizer.zero_grad(set_to_none=False)
        loss.backward()
        parameters = [p for p in self.network.parameters() if p.grad is not None]
        gradients = [p.grad for p in parameters if p.grad is not None]
        _clip(gradients, len(index), 1.0)
        rate, weight = self.tables.index_select(1, self.taken).unbind(0)
        for group in self.optimizer.param_groups:
            if self.device.type == "cuda":
                group["lr"].copy_(rate.squeeze(0))
            else:
                group["lr"] = float(rate)
        with pause_step_hooks():
            self.optimizer.step()
        with torch.no_grad():
            for a, b in zip(self.average.state_dict().values(), self.network.state_dict().values(), strict=True):
                a.lerp_(b, weight.to(a.dtype).squeeze(0)) if a.is_floating_point() else a.copy_(b)
        self.taken += 1


@torch.no_grad()
def _clip(gradients: list[Tensor], networks: int, most: float) -> None:
    """Clip the norm of the gradients of each network."""
    squares = torch.stack([g.reshape(networks, -1).square().sum(dim=1) for g in gradients]).sum(dim=0)
    share = (most / squares.sqrt().clamp(min=1e-12)).clamp(max=1.0)
    for g in gradients:
        g.mul_(share.view(-1, *(1,) * (g.dim() - 1)) if networks > 1 else share.squeeze(0))
