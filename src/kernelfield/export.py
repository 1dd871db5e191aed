"""Export of trained networks: torch.export programs and ONNX files, checked against the network itself."""

from __future__ import annotations

import copy
import json
import warnings
import zipfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ._arguments import checked
from ._export_lengths import quiet, trace
from ._kinds import NOT_NEGATIVE, POSITIVE, Choice, ListOf
from ._object_kinds import TensorOf
from ._version import __version__
from .layers import ContinuousConv
from .layers.pointwise import BATCH_STATISTICS, uses_batch_statistics

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch.export import ExportedProgram

    from ._export_lengths import Lengths

__all__ = ["METADATA", "describe_export", "export_network", "open_written", "read_metadata"]

#: name of the metadata file inside a .pt2 file, and of the metadata property of an ONNX file
METADATA = "kernelfield.json"


class _Named(nn.Module):
    """Wraps a network so that its inputs are positional; ``names`` are among input, coords, mask, lengths and at."""

    def __init__(self, network: nn.Module, names: tuple[str, ...], step: float | tuple[float, ...] = 1.0) -> None:
        super().__init__()
        self.network, self.names, self.step = network, names, step

    def forward(self, *given: Tensor) -> Tensor:
        sampling = dict(zip(self.names, given, strict=True))
        x, lengths = sampling.pop("input"), sampling.pop("lengths", None)
        if lengths is not None:
            seen = torch.arange(x.shape[-1], device=x.device) < lengths.unsqueeze(1)
            sampling["mask"] = seen & sampling["mask"] if "mask" in sampling else seen
        step = {} if self.step == 1 else {"step": self.step}
        return self.network(x, **sampling, **step)


@checked(
    example=TensorOf("any", "batch, …"),
    coords=TensorOf("float", "batch, points, dim") | None,
    mask=TensorOf("bool", "batch, *space") | None,
    lengths=TensorOf("int", "batch") | None,
    at=TensorOf("float", "batch, queries, dim") | None,
    step=POSITIVE | ListOf(POSITIVE),
    to=Choice("pt2", "onnx"),
    rtol=NOT_NEGATIVE,
    atol=NOT_NEGATIVE,
)
def export_network(
    network: nn.Module,
    path: str | Path,
    example: Tensor,
    *,
    coords: Tensor | None = None,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
    at: Tensor | None = None,
    step: float | tuple[float, ...] = 1.0,
    to: str = "pt2",
    dynamic_length: bool = True,
    metadata: Mapping[str, Any] | None = None,
    rtol: float = 1e-3,
    atol: float = 1e-4,
) -> float:
    r"""Export a network to a file and return the largest difference between their outputs.

    The exported network takes ``input``, then those of ``coords``, ``mask``, ``lengths`` and ``at`` that are given
    here. The batch size is dynamic. In a ``.pt2`` file the length of a sequence, or the number of points and of
    queries, is dynamic too. Before it returns, this function loads the file again and compares it with the network, at
    the example's size and at others. The metadata hold the lengths that the file accepts; a warning names them if the
    network accepts more.

    Args:
        network: a module; a copy in evaluation mode is exported.
        path: file to write.
        example: (batch, channels, \*space) input, (batch, channels, points) values, or (batch, length) token ids.
        coords: (batch, points, dim) coordinates in training steps, for networks on irregular times or points.
        mask: (batch, \*space) or (batch, points) whether a sample was observed, for missing values and unequal lengths.
        lengths: (batch,) number of valid samples at the beginning of each sequence; replaces a mask for unequal
            lengths.
        at: (batch, queries, dim) coordinates, in training steps, at which a dense network predicts.
        step: sampling step of the inputs in training steps, which becomes part of the exported network.
        to: "pt2" for :func:`torch.export.save`, "onnx" for ONNX.
        dynamic_length: whether the length of a sequence, or the number of points, is dynamic; "pt2" only.
        metadata: values that JSON can hold, such as classes and normalisation, to store in the file;
            :func:`read_metadata` returns them with the version, the shapes of the inputs and the accepted lengths.
        rtol: allowed difference, relative to the largest output.
        atol: allowed absolute difference, added to the relative one.

    >>> import tempfile
    >>> from kernelfield import CCNN
    >>> net = CCNN(1, 10, size=32, channels=4, blocks=1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     error = export_network(net, f"{folder}/net.pt2", torch.randn(2, 1, 32), metadata={"classes": ["a", "b"]})
    ...     error < 1e-4, read_metadata(f"{folder}/net.pt2")["classes"], read_metadata(f"{folder}/net.pt2")["lengths"]
    (True, ['a', 'b'], {'input': [1, None]})
    """
    if 0 in example.shape:
        raise ValueError(f"example must not be empty, got shape {tuple(example.shape)}")
    given = {"input": example, "coords": coords, "mask": mask, "lengths": lengths, "at": at}
    examples: dict[str, Tensor] = {name: t.cpu() for name, t in given.items() if t is not None}
    for name, tensor in examples.items():
        if len(tensor) != len(example):
            raise ValueError(f"{name} must have the batch size of example, {len(example)}, got {len(tensor)}")
    if len(example) < 2:  # torch.export specialises on a batch of one
        examples = {name: torch.cat([t, t]) for name, t in examples.items()}
    if uses_batch_statistics(network):
        warnings.warn(BATCH_STATISTICS, stacklevel=3)
    named = _Named(copy.deepcopy(network).cpu().eval(), tuple(examples), step)
    try:
        with torch.no_grad():
            named(*examples.values())
    except RuntimeError as refused:
        what = f"{example.dtype} of shape {tuple(example.shape)}"
        raise ValueError(f"example must be an input that the network takes, got {what}: {refused}") from refused
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    one_axis = example.dim() - (2 if example.is_floating_point() else 1) == 1
    # The output of a network with the statistics of the batch is rounding noise for a single sample.
    few = 2 if uses_batch_statistics(network) else 1
    trials = [examples, {name: t[:few] for name, t in examples.items()}]
    counts = {"input": example.shape[-1]} | ({} if at is None else {"at": at.shape[1]})
    fixed: Lengths = {name: (count, count) for name, count in counts.items()} if one_axis else {}
    if to == "onnx":
        outputs = _save_onnx(named, path, trials, describe_export(to, examples, metadata, fixed))
    else:
        program, accepted, others = trace(named, examples, dynamic_length and one_axis)
        trials += [{name: t[:few] for name, t in other.items()} for other in others]
        described = describe_export(to, examples, metadata, accepted or fixed)
        outputs = _save_program(program, path, trials, described)
    with torch.no_grad():
        wanted = [named(*trial.values()) for trial in trials]
    worst = 0.0
    for trial, got, want in zip(trials, outputs, wanted, strict=True):
        error = float((got - want).abs().max())
        allowed = atol + rtol * float(want.abs().max())
        if not error <= allowed:
            path.unlink(missing_ok=True)
            shape = tuple(trial["input"].shape)
            raise RuntimeError(f"the exported network differs by {error:.2e} at input {shape}, more than {allowed:.2e}")
        worst = max(worst, error)
    return worst


@checked()
def read_metadata(path: str | Path) -> dict[str, Any]:
    """Return the metadata of an exported network or stream: version, format, inputs, and what the export was given.

    Args:
        path: a .pt2 or .onnx file.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"path must be an existing file, got {str(path)!r}")
    if path.suffix == ".onnx":
        onnxruntime = _onnxruntime()
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        text = session.get_modelmeta().custom_metadata_map.get(METADATA)
    else:
        try:
            with zipfile.ZipFile(path) as archive:
                stored = [name for name in archive.namelist() if name.endswith(f"/{METADATA}")]
                text = archive.read(stored[0]).decode() if stored else None
        except zipfile.BadZipFile as error:
            raise ValueError(f"{path} must be a valid .pt2 or .onnx file: {error}") from error
    if text is None:
        raise ValueError(f"{path} must be a file that export_network or export_stream wrote, got one without metadata")
    return json.loads(text)


def describe_export(
    to: str, examples: Mapping[str, Tensor], metadata: Mapping[str, Any] | None, lengths: Lengths | None = None
) -> str:
    """Return the metadata of a file as JSON: version, format, dtype and shape of each input, and ``metadata``.

    Args:
        to: format of the file.
        examples: inputs by name, with a batch axis.
        metadata: further values.
        lengths: accepted lengths of the input, and of ``at``.
    """
    inputs = {
        name: {"shape": list(t.shape[1:]), "dtype": str(t.dtype).removeprefix("torch.")} for name, t in examples.items()
    }
    accepted = {"lengths": lengths} if lengths else {}
    return json.dumps({"version": __version__, "format": to, "inputs": inputs, **accepted, **(metadata or {})})


def _save_program(program: ExportedProgram, path: Path, trials: list[dict[str, Tensor]], metadata: str) -> list[Tensor]:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(program, path, extra_files={METADATA: metadata})
        loaded = torch.export.load(path).module()
        return [loaded(*trial.values()) for trial in trials]


def _onnxruntime() -> Any:
    try:
        import onnxruntime  # type: ignore[import-untyped]  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"export to ONNX needs {error.name}: pip install 'kernelfield[export]'", name=error.name
        ) from error
    return onnxruntime


def open_written(path: Path, dtype: torch.dtype) -> Any:
    """Return ONNX Runtime's session of a file that was just written; delete a file that it cannot run.

    Args:
        path: the file.
        dtype: dtype of the inputs.
    """
    runtime = _onnxruntime()
    try:
        return runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception as error:  # its errors have no common base class
        path.unlink(missing_ok=True)
        raise ValueError(
            f"to must be 'pt2' for this network in {dtype}, which ONNX Runtime cannot run: {error}"
        ) from error


def _save_onnx(named: nn.Module, path: Path, trials: list[dict[str, Tensor]], metadata: str) -> list[Tensor]:
    _onnxruntime()  # raises before the export if it is missing
    names = list(trials[0])
    batch = torch.export.Dim("batch")
    with torch.no_grad(), warnings.catch_warnings(), _direct(named), quiet("torch.onnx"):
        warnings.simplefilter("ignore")
        try:
            program = torch.onnx.export(
                named,
                tuple(trials[0].values()),
                input_names=names,
                output_names=["output"],
                dynamic_shapes=(tuple({0: batch} for _ in names),),
                dynamo=True,
                verbose=False,
                external_data=False,
                custom_translation_table={torch.ops.aten.sort.stable: _stable_sort},
            )
        except torch.onnx.errors.OnnxExporterError as error:
            reason = next((line for line in str(error).splitlines() if "No ONNX function" in line), str(error)[:200])
            raise ValueError(f"to must be 'pt2' for this network, which ONNX cannot express: {reason}") from error
        assert program is not None
        program.model.metadata_props[METADATA] = metadata
        program.save(str(path))
    session = open_written(path, trials[0]["input"].dtype)
    kept = {entry.name for entry in session.get_inputs()}
    missing = [name for name in names if name not in kept]
    if missing:
        path.unlink(missing_ok=True)
        raise RuntimeError(f"the exported network must take {', '.join(missing)}, but its outputs do not depend on it")
    feeds = [{name: t.numpy() for name, t in trial.items()} for trial in trials]
    return [torch.from_numpy(session.run(None, feed)[0]) for feed in feeds]


def _stable_sort(x: Any, dim: int = -1, descending: bool = False, **_: Any) -> Any:
    """Return values and indices in order as ONNX operators: TopK keeps the order of equal values."""
    import onnxscript  # noqa: PLC0415

    op: Any = onnxscript.opset18

    count = op.Gather(op.Shape(x), op.Constant(value_ints=[dim]))
    return op.TopK(x, count, axis=dim, largest=int(descending), sorted=1)


@contextmanager
def _direct(network: nn.Module) -> Iterator[None]:
    """Use frozen kernels and direct convolutions inside the block: some ONNX opsets have no FFT."""
    layers = [m for m in network.modules() if isinstance(m, ContinuousConv)]
    methods = [layer.method for layer in layers]
    for layer in layers:
        layer.method = "direct"
        layer.freeze()
    try:
        yield
    finally:
        for layer, method in zip(layers, methods, strict=True):
            layer.method = method
            layer.unfreeze()
