"""Streams as torch.export programs and ONNX files: the state goes in and comes out with every sample."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .._arguments import checked
from .._export_lengths import quiet
from .._hooks import with_hooks_of
from .._kinds import NOT_NEGATIVE, POSITIVE, Choice
from .._object_kinds import TensorOf
from ..export import METADATA, describe_export, open_written
from ..layers import CumulativeNorm
from ..models.readout import Embedding, Readout
from .causality import check_causal, convolutions, separate
from .inference import fold_bias, with_fixed_layers
from .layers import RecurrentLayer, RunningNorm, RunningReadout
from .recurrent_conv import RecurrentConv
from .stream import Stream, input_channels, signal_dtype

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..layers import ContinuousConv

__all__ = ["ExportedStream", "StreamStep", "export_stream"]

FORMATS = ("pt2", "onnx")
#: number of samples on which an exported stream is compared with the network's own
CHECKED = 12


class _Window(nn.Module):
    """A convolution that was not distilled: the state is its window of past samples."""

    state_names = ("window",)

    def __init__(self, layer: ContinuousConv, *, step: float, batch: int) -> None:
        super().__init__()
        kernel = layer.kernel(step).detach()
        last = (kernel != 0).flatten(0, -2).any(dim=0).nonzero()
        kernel = kernel[..., : int(last[-1]) + 1 if len(last) else 1]
        self.groups, self.bias = layer.groups, layer.bias
        self.register_buffer("reversed", kernel.flip(-1).contiguous(), persistent=False)
        window = kernel.new_zeros(batch, layer.in_channels, kernel.shape[-1] - 1)
        self.register_buffer("window", window, persistent=False)

    reversed: Tensor

    def advance(self, x: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        seen = torch.cat([states[0], x], dim=-1)
        y = nn.functional.conv1d(seen, self.reversed, groups=self.groups)
        return y, (seen[..., x.shape[-1] :],)


class _StateStore:
    """The states of all layers during one call."""

    def __init__(self) -> None:
        self.before: dict[str, tuple[Tensor, ...]] = {}
        self.after: dict[str, tuple[Tensor, ...]] = {}


class _StoredStateLayer(nn.Module):
    """A layer that reads its state from a store and writes the next state there."""

    def __init__(self, layer: Any, name: str, store: _StateStore) -> None:
        super().__init__()
        self.layer, self.name, self.store = layer, name, store
        self.bias = getattr(layer, "bias", None)
        self.kind = getattr(layer, "kind", None)  # networks read the kind of their readout

    def forward(self, x: Tensor, mask: None = None, *, add_bias: bool = True, **_: Any) -> Tensor:  # noqa: ARG002
        dtype = x.dtype
        if isinstance(self.layer, RecurrentLayer):
            x = x.double()
        y, self.store.after[self.name] = self.layer.advance(x, self.store.before[self.name])
        y = y.to(dtype)
        if self.bias is None or not add_bias or isinstance(self.layer, RunningReadout):
            return y
        return y + self.bias.unsqueeze(-1)


class StreamStep(nn.Module):
    """One sample in, one prediction out, with the state as further inputs and outputs; nothing is kept in between.

    Args:
        net: a causal network, preferably distilled: other kernels need a window of past samples as state.
        batch: number of streams.
        step: sampling step of the input in training steps.

    Attributes:
        states: the initial states, zeros, by name.

    >>> import kernelfield as kf
    >>> net = kf.CCNN(in_channels=1, out_channels=3, size=16, channels=4, blocks=1).eval()
    >>> one = StreamStep(net)
    >>> prediction, *states = one(torch.randn(1, 1, 1), *one.states.values())
    >>> prediction.shape, len(states) == len(one.states)
    (torch.Size([1, 3]), True)
    """

    @checked(step=POSITIVE)
    def __init__(self, net: nn.Module, batch: int = 1, *, step: float = 1.0) -> None:
        super().__init__()
        check_causal(net)
        network = separate(copy.deepcopy(net)).eval().requires_grad_(False).cpu()
        store = _StateStore()
        layers: dict[str, Any] = {}
        with torch.no_grad():
            for module in network.modules():
                fold_bias(module)
            for name, layer in convolutions(network).items():
                kind: Any = RecurrentLayer if isinstance(layer, RecurrentConv) else _Window
                layers[name] = kind(layer, step=step, batch=batch)
            for name, module in network.named_modules():
                if isinstance(module, Readout) and module.kind == "mean":
                    layers[name] = RunningReadout(module, batch=batch)
                elif isinstance(module, Readout):
                    layers[name] = module.linear
                elif isinstance(module, CumulativeNorm):
                    layers[name] = RunningNorm(module, batch=batch)
        self._sizes: list[tuple[str, int]] = []
        self.states: dict[str, Tensor] = {}
        for name, layer in layers.items():
            stateful = hasattr(layer, "state_names")
            made = _StoredStateLayer(layer, name, store) if stateful else _PlainReadout(layer)
            with_hooks_of(network.get_submodule(name), made)
            if name == "":
                network = made
            else:
                network.set_submodule(name, made)
            if stateful:
                self._sizes.append((name, len(layer.state_names)))
                label = name.replace(".", "_") or "layer"
                self.states |= {f"{label}_{key}": getattr(layer, key).clone() for key in layer.state_names}
        self.network, self._store = with_fixed_layers(network), store

    def forward(self, sample: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        """Return the prediction (batch, out) after a sample (batch, in, 1), or token (batch, 1), and the new states."""
        given = iter(states)
        self._store.before = {name: tuple(next(given) for _ in range(n)) for name, n in self._sizes}
        y = self.network(sample)
        after = [state for name, _ in self._sizes for state in self._store.after[name]]
        self._store.before, self._store.after = {}, {}
        return (y.squeeze(-1), *after)


class _PlainReadout(nn.Module):
    """The linear map of a readout, at every position."""

    def __init__(self, linear: nn.Module) -> None:
        super().__init__()
        self.linear, self.kind = linear, "dense"

    def forward(self, x: Tensor, mask: None = None) -> Tensor:  # noqa: ARG002
        return self.linear(x)


@checked(to=Choice(*FORMATS), step=POSITIVE, rtol=NOT_NEGATIVE, atol=NOT_NEGATIVE)
def export_stream(
    net: nn.Module,
    path: str | Path,
    *,
    to: str = "pt2",
    batch: int = 1,
    step: float = 1.0,
    metadata: Mapping[str, Any] | None = None,
    rtol: float = 1e-3,
    atol: float = 1e-5,
) -> float:
    """Write a stream to a file, compare it with the network's own stream, and return the largest difference.

    The file is a function of one sample and the states, and returns the prediction and the next states. States are zero
    at first. The network takes prepared samples and returns its own outputs; ``metadata`` may tell how to convert them.
    :class:`ExportedStream` runs it; so does any runtime of the format.

    Args:
        net: a causal network; a distilled one has small states.
        path: file to write.
        to: "pt2" for :func:`torch.export.save`, "onnx" for ONNX.
        batch: number of streams.
        step: sampling step of the input in training steps.
        metadata: values that JSON can hold, such as classes and normalisation, to store in the file;
            :func:`~kernelfield.export.read_metadata` returns them with the version and the shape of a sample.
        rtol: difference allowed, relative to the largest output.
        atol: difference allowed on top of that.

    >>> import tempfile, kernelfield as kf
    >>> net = kf.CCNN(in_channels=1, out_channels=3, size=16, channels=4, blocks=1).eval()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     export_stream(net, f"{folder}/net.pt2") < 1e-4
    True
    """
    half = signal_dtype(net) in (torch.bfloat16, torch.float16)
    if half and to == "onnx":
        raise ValueError(f"net must be in float32 or float64 for a stream in ONNX, got {signal_dtype(net)}")
    one = StreamStep(net, batch, step=step)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    samples = _samples(net, batch)
    arguments = (samples[..., :1].contiguous(), *one.states.values())
    described = describe_export(to, {"sample": arguments[0]}, metadata)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if to == "pt2":
            program = torch.export.export(one, arguments, strict=False)
            torch.export.save(program, path, extra_files={METADATA: described})
        else:
            _save_onnx(one, arguments, path, described)
    exported = ExportedStream(path)
    got = torch.stack([exported.push(x) for x in samples.split(1, dim=-1)], dim=-1)
    wanted = Stream(copy.deepcopy(net).cpu(), batch, step=step).push(samples)
    error = float((got - wanted).abs().max())
    # In half precision both round values to about eight bits, at different points of the computation.
    allowed = atol + max(rtol, 0.05 if half else 0.0) * float(wanted.abs().max())
    if not error <= allowed:
        path.unlink(missing_ok=True)
        raise RuntimeError(f"the exported stream differs by {error:.2e}, more than {allowed:.2e}")
    return error


class ExportedStream:
    """A stream that :func:`export_stream` has written.

    Args:
        path: the file, .pt2 or .onnx.
    """

    @checked()
    def __init__(self, path: str | Path) -> None:
        path = Path(path)
        self._session: Any = None
        if path.suffix == ".onnx":
            self._session = _onnx_session(path)
            first, *states = self._session.get_inputs()
            self._names = [first.name, *(state.name for state in states)]
            self._initial = [torch.zeros(state.shape, dtype=_DTYPES[state.type]) for state in states]
            self._shape, self._dtype = tuple(first.shape), _DTYPES[first.type]
        else:
            program = torch.export.load(path)
            self._program = program.module()
            sample, *states = program.example_inputs[0]
            self._shape, self._dtype = tuple(sample.shape), sample.dtype
            self._initial = [torch.zeros_like(state) for state in states]
        self.reset()

    def reset(self) -> None:
        """Restart the stream."""
        self._states = [state.clone() for state in self._initial]

    @torch.no_grad()
    @checked(sample=TensorOf("any", "batch, …"))
    def push(self, sample: Tensor) -> Tensor:
        """Return the prediction (batch, out) after one more sample, (batch, in, 1) or (batch, 1) token."""
        if tuple(sample.shape) != self._shape or sample.dtype != self._dtype:
            wanted = f"{self._dtype} of shape {self._shape}"
            raise ValueError(f"sample must be {wanted}, got {sample.dtype} of shape {tuple(sample.shape)}")
        if self._session is None:
            y, *self._states = self._program(sample, *self._states)
            return y
        feed = dict(zip(self._names, (t.numpy() for t in (sample, *self._states)), strict=True))
        y, *self._states = (torch.from_numpy(array) for array in self._session.run(None, feed))
        return y


_DTYPES = {"tensor(float)": torch.float32, "tensor(double)": torch.float64, "tensor(int64)": torch.int64}


def _samples(net: nn.Module, batch: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    embedding = next((m for m in net.modules() if isinstance(m, Embedding)), None)
    if embedding is not None:
        return torch.randint(0, embedding.num_embeddings, (batch, CHECKED), generator=generator)
    return torch.randn(batch, input_channels(net), CHECKED, generator=generator).to(signal_dtype(net))


def _save_onnx(one: StreamStep, arguments: tuple[Tensor, ...], path: Path, described: str) -> None:
    with quiet("torch.onnx"):
        names = list(one.states)
        program = torch.onnx.export(
            one,
            arguments,
            input_names=["sample", *names],
            output_names=["prediction", *(f"next_{name}" for name in names)],
            dynamo=True,
            verbose=False,
            external_data=False,
        )
    assert program is not None
    program.model.metadata_props[METADATA] = described
    program.save(str(path))
    open_written(path, arguments[0].dtype)


def _onnx_session(path: Path) -> Any:
    try:
        import onnxruntime  # type: ignore[import-untyped]  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"streams in ONNX need {error.name}: pip install 'kernelfield[export]'", name=error.name
        ) from error
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
