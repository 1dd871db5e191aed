"""Causal networks that read their input as it arrives."""

from __future__ import annotations

import copy
import hashlib
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .._arguments import checked
from .._hooks import with_hooks_of
from .._kinds import POSITIVE, Int, ListOf
from .._object_kinds import TensorOf
from ..cuda_graphs.backend import CudaBackend
from ..layers import CumulativeNorm
from ..models.readout import Embedding, Readout
from .causality import check_causal, convolutions, separate
from .inference import fold_bias, with_fixed_layers
from .layers import OnlineLayer, RecurrentLayer, RunningNorm, RunningReadout, StatefulLayer
from .recurrent_conv import RecurrentConv
from .static_step import PATIENCE, ReplayedStep

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Stream", "input_channels", "signal_dtype", "stream"]


@checked(step=POSITIVE)
def stream(net: nn.Module, batch: int = 1, *, step: float = 1.0) -> Stream:
    r"""Return the online form of a causal network: it takes samples as they arrive.

    After sample t the stream returns the result of one forward pass over all samples up to t,

    .. math:: y(t) = \mathrm{net}(x_0, \ldots, x_t),

    at the last position if the network is dense. Convolutions are exact (:class:`.OnlineConv`): L samples cost
    :math:`O(L \log^2 L)`, and the memory is that of the kernels' support. The mean readout becomes a running mean. A
    distilled network (:func:`~kernelfield.streaming.distil`) streams with constant memory and work.

    Args:
        net: a causal network in one dimension: :class:`~kernelfield.CKCNN`, :class:`~kernelfield.FlexTCN`,
            :class:`~kernelfield.CCNN`, or a :class:`torch.nn.Sequential` of causal convolutions and pointwise layers.
            The stream uses a copy in evaluation mode.
        batch: number of independent streams.
        step: sampling step of the input in training steps.

    >>> import kernelfield as kf
    >>> net = kf.CCNN(in_channels=1, out_channels=10, size=64, channels=8, blocks=2).eval()
    >>> x = torch.randn(1, 1, 100)
    >>> online = kf.stream(net)
    >>> y = torch.cat([online.push(block) for block in x.split(33, dim=2)], dim=2)
    >>> y.shape
    torch.Size([1, 10, 100])
    >>> with torch.no_grad():
    ...     torch.allclose(y[..., 59], net(x[..., :60]), atol=1e-5)
    True
    """
    return Stream(net, batch, step=step)


class Stream:
    """A causal network and its state after the samples so far; :func:`~kernelfield.streaming.stream` makes one.

    Args:
        net: the network.
        batch: number of streams.
        step: sampling step of the input in training steps.

    Attributes:
        batch: number of streams.
        step: sampling step of the input in training steps.
        network: copy of the network, with stateful layers.
    """

    @checked(step=POSITIVE)
    def __init__(self, net: nn.Module, batch: int = 1, *, step: float = 1.0) -> None:
        self.batch, self.step = batch, step
        check_causal(net)
        self._fingerprint = _fingerprint(net, self.step)
        self._closed = [False] * batch
        with torch.inference_mode(mode=False):  # states must be writable in any mode
            self.network = _make_stateful(net, self.batch, self.step)
        self._stateful = {name: m for name, m in self.network.named_modules() if isinstance(m, StatefulLayer)}
        embedding = next((m for m in net.modules() if isinstance(m, Embedding)), None)
        self._tokens = None if embedding is None else embedding.num_embeddings
        self._in_channels, self._out_channels = input_channels(net), _output_channels(net)
        self._dtype, self._device = signal_dtype(net), next(net.parameters()).device
        self._samples = [0] * batch
        self._replayed: ReplayedStep | None = None
        self._singles = 0

    @property
    def samples(self) -> tuple[int, ...]:
        """Number of samples that each stream has read."""
        return tuple(self._samples)

    @property
    def memory(self) -> int:
        """Bytes of state of all streams together; weights and kernels are not counted."""
        states = (tensor for layer in self._stateful.values() for tensor in layer.state().values())
        return sum(tensor.numel() * tensor.element_size() for tensor in states)

    @torch.no_grad()
    @checked(block=TensorOf("any", "batch, …"))
    def push(self, block: Tensor) -> Tensor:
        """Read new samples; return the predictions after each of them.

        Args:
            block: (batch, in, n) samples, or (batch, n) token ids; n may be 0. Rows of closed streams are not read.

        Returns:
            (batch, out, n) predictions; those of closed streams are NaN.
        """
        self._check(block)
        if block.shape[-1] == 0:
            return self._empty_output(block)
        closed = None
        if any(self._closed):
            closed = torch.tensor(self._closed, device=block.device)
            block = block.masked_fill(closed.view(-1, *(1,) * (block.dim() - 1)), 0)
        y = self._replay(block) if block.shape[-1] == 1 and block.is_cuda else self.network(block)
        self._samples = [
            n if shut else n + block.shape[-1] for n, shut in zip(self._samples, self._closed, strict=True)
        ]
        return y if closed is None else y.masked_fill(closed.view(-1, 1, 1), float("nan"))

    def _replay(self, sample: Tensor) -> Tensor:
        """Read one sample on a GPU, by CUDA graphs after the first single samples."""
        if self._replayed is None and not torch.is_autocast_enabled("cuda"):
            self._singles += 1
            if self._singles > PATIENCE:
                with torch.inference_mode(mode=False), torch.cuda.device(sample.device):
                    self._replayed = ReplayedStep(self.network, CudaBackend())
        if self._replayed is None or self._replayed.refusal or torch.is_autocast_enabled("cuda"):
            return self.network(sample)
        with torch.cuda.device(sample.device):
            return self._replayed(sample)

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes for a copy, which captures its own graphs."""
        return {**self.__dict__, "_replayed": None}

    @checked(streams=ListOf(Int(0)) | None)
    def reset(self, streams: Sequence[int] | None = None) -> Stream:
        """Restart all streams, or some of them by their row in the batch; closed ones are opened again."""
        for row in self._reset_layers(streams):
            self._closed[row], self._samples[row] = False, 0
        return self

    @checked(streams=ListOf(Int(0)) | None)
    def close(self, streams: Sequence[int] | None = None) -> Stream:
        """End all streams, or some of them. Once all are closed, :meth:`push` raises; :meth:`reset` reopens them."""
        for row in self._reset_layers(streams):
            self._closed[row] = True
        return self

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the state, for :meth:`load_state_dict` of a stream of the same network."""
        return {
            "network": self._fingerprint,
            "closed": list(self._closed),
            "samples": list(self._samples),
            "layers": {name: layer.state() for name, layer in self._stateful.items()},
        }

    @checked()
    def load_state_dict(self, state: dict[str, Any]) -> Stream:
        """Continue from a state of a stream of the same network, with the same weights, step and batch."""
        missing = {"network", "closed", "samples", "layers"} - set(state)
        if missing:
            raise ValueError(f"state must come from Stream.state_dict(), got one without {', '.join(sorted(missing))}")
        if state["network"] != self._fingerprint:
            raise ValueError("state must come from a stream of the same network, weights and step, got another's")
        if len(state["closed"]) != self.batch:
            raise ValueError(f"state must come from a batch of {self.batch} streams, got {len(state['closed'])}")
        self._check_layers(state["layers"])
        for name, layer in self._stateful.items():
            layer.load_state(state["layers"][name])
        self._closed, self._samples = list(state["closed"]), list(state["samples"])
        return self

    def _check_layers(self, layers: Any) -> None:
        """Raise unless all tensors of a state are present, before any of them is loaded."""
        for name, layer in self._stateful.items():
            given = layers.get(name) if isinstance(layers, dict) else None
            for key, tensor in layer.state().items():
                found = given.get(key) if isinstance(given, dict) else None
                if not isinstance(found, Tensor) or found.shape != tensor.shape or found.dtype != tensor.dtype:
                    shape = tuple(found.shape) if isinstance(found, Tensor) else None
                    raise ValueError(
                        f"state must hold {key} of layer {name!r}, {tensor.dtype} of shape {tuple(tensor.shape)}, got "
                        f"{shape}"
                    )

    @checked()
    def to(self, device: torch.device | str) -> Stream:
        """Move the network and its state to another device."""
        self.network.to(device=torch.device(device))
        self._device, self._replayed = torch.device(device), None  # graphs hold the old addresses
        return self

    def _reset_layers(self, streams: Sequence[int] | None) -> Sequence[int]:
        """Clear the states of some streams; return their rows."""
        rows = list(range(self.batch)) if streams is None else list(streams)
        for row in rows:
            if not isinstance(row, int) or not 0 <= row < self.batch:
                raise ValueError(f"streams must be rows of the batch, 0 to {self.batch - 1}, got {streams}")
        for layer in self._stateful.values():
            layer.reset(slice(None) if streams is None else rows)
        return rows

    def _empty_output(self, block: Tensor) -> Tensor:
        readout = next((m for m in self.network.modules() if isinstance(m, RunningReadout)), None)
        channels = self._out_channels if readout is None else readout.out_channels
        return torch.empty(self.batch, channels, 0, dtype=self._dtype, device=block.device)

    def _check(self, block: Tensor) -> None:
        if all(self._closed):
            raise RuntimeError("block must not be pushed after close(); reset() begins a new stream")
        if not isinstance(block, Tensor):
            raise TypeError(f"block must be a torch.Tensor, got {type(block).__name__}")
        tokens = self._tokens is not None
        if tokens and (block.is_floating_point() or block.dtype == torch.bool):
            raise TypeError(f"block must be token ids, integers, got {block.dtype}")
        if not tokens and block.dtype != self._dtype:
            raise TypeError(f"block must have the dtype of the network, {self._dtype}, got {block.dtype}")
        wanted = (self.batch,) if tokens else (self.batch, self._in_channels)
        if block.dim() != len(wanted) + 1 or tuple(block.shape[:-1]) != wanted:
            shape = ", ".join(map(str, (*wanted, "n")))
            raise ValueError(f"block must have shape ({shape}), got {tuple(block.shape)}")
        if block.device.type != self._device.type:
            raise ValueError(f"block must be on the stream's device, {self._device}, got {block.device}")
        if tokens and block.numel():
            low, high = int(block.min()), int(block.max())
            if low < 0 or high >= self._tokens:  # type: ignore[operator]
                raise ValueError(f"block must hold token ids from 0 to {self._tokens - 1}, got {low} to {high}")  # type: ignore[operator]


def _make_stateful(net: nn.Module, batch: int, step: float) -> nn.Module:
    """Return a copy of a network in evaluation mode, with stateful convolutions, cumulative norms and readout."""
    network = separate(copy.deepcopy(net)).eval().requires_grad_(False)
    replaced: dict[str, nn.Module] = {}
    with torch.no_grad():
        for module in network.modules():
            fold_bias(module)
        for name, layer in convolutions(network).items():
            kind = RecurrentLayer if isinstance(layer, RecurrentConv) else OnlineLayer
            replaced[name] = kind(layer, step=step, batch=batch)  # type: ignore[arg-type]
        for name, module in network.named_modules():
            if isinstance(module, Readout):
                replaced[name] = RunningReadout(module, batch=batch)
            elif isinstance(module, CumulativeNorm):
                replaced[name] = RunningNorm(module, batch=batch)
    for name, module in replaced.items():
        with_hooks_of(network.get_submodule(name), module)
        if name == "":
            return module
        network.set_submodule(name, module)
    return with_fixed_layers(network)


def input_channels(net: nn.Module) -> int:
    """Return the number of input channels: ``in_channels`` of the first layer that has them."""
    for module in net.modules():
        if isinstance(getattr(module, "in_channels", None), int):
            return module.in_channels  # type: ignore[return-value]
    raise ValueError(f"net must hold a convolution or a linear map, got {type(net).__name__} without either")


def _output_channels(net: nn.Module) -> int:
    """Return the number of output channels of a network without a readout: ``out_channels`` of its last layer."""
    found = [m.out_channels for m in net.modules() if isinstance(getattr(m, "out_channels", None), int)]
    return found[-1] if found else input_channels(net)  # type: ignore[return-value]


def signal_dtype(net: nn.Module) -> torch.dtype:
    """Return the dtype of the input; oscillations stay in float32 in a network of half precision."""
    found = [p.dtype for p in net.parameters() if p.is_floating_point()]
    half = [dtype for dtype in found if dtype in (torch.bfloat16, torch.float16)]
    return (half or found)[0]


def _fingerprint(net: nn.Module, step: float) -> str:
    """Return a digest of a network's weights, its layers with their settings, and the step."""
    digest = hashlib.sha256(f"{type(net).__name__} {step}".encode())
    for name, module in net.named_modules():
        public = ((key, value) for key, value in vars(module).items() if key[0] != "_" and key != "training")
        digest.update(f"{name} {type(module).__name__} {sorted(item for item in public if _plain(item[1]))}".encode())
    for name, tensor in net.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().double().numpy().tobytes())
    return digest.hexdigest()


def _plain(value: Any) -> bool:
    return all(map(_plain, value)) if isinstance(value, tuple) else isinstance(value, (str, int, float))
