"""Export of trained networks: torch.export programs and ONNX files, checked against the network itself."""

from __future__ import annotations

import copy
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ._checks import check_choice
from .layers import ContinuousConv

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["export_network", "quiet_exporter"]


class _Plain(nn.Module):
    """Wraps a network so that its input is its only argument."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)


def export_network(
    network: nn.Module,
    path: str | Path,
    example: Tensor,
    *,
    to: str = "pt2",
    dynamic_length: bool = True,
    rtol: float = 1e-3,
    atol: float = 1e-4,
) -> float:
    r"""Export a network to a file and return the largest difference between their outputs.

    The batch size is dynamic. In a ``.pt2`` file of a 1D network the length is dynamic too. The file is loaded again
    and compared with the network, at the example's size and at others, before this function returns.

    Args:
        network: a module with one input; a copy in evaluation mode is exported.
        path: where to write.
        example: (batch, channels, \*space) input, or (batch, length) token ids.
        to: "pt2" for :func:`torch.export.save`, "onnx" for ONNX.
        dynamic_length: whether the length of a sequence is dynamic; "pt2" only.
        rtol: difference allowed, relative to the largest output.
        atol: difference allowed on top of that.

    >>> import tempfile
    >>> from kernelfield import CCNN
    >>> net = CCNN(1, 10, size=32, channels=4, blocks=1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     export_network(net, f"{folder}/net.pt2", torch.randn(2, 1, 32)) < 1e-4
    True
    """
    check_choice("to", to, ("pt2", "onnx"))
    plain = _Plain(copy.deepcopy(network).cpu().eval())
    example = example.cpu()
    if example.shape[0] < 2:
        example = torch.cat([example, example])  # torch.export specialises on a batch of one
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    one_axis = example.dim() - (2 if example.is_floating_point() else 1) == 1
    others = [example[:1]]
    if to == "pt2":
        lengths = dynamic_length and one_axis
        program = _save_program(plain, path, example, lengths)
        if lengths:
            others.append(example[..., : max(2, 3 * example.shape[-1] // 4)])
        with torch.no_grad():
            answers = [program(x) for x in (example, *others)]
    else:
        answers = _save_onnx(plain, path, [example, *others])
    with torch.no_grad():
        wanted = [plain(x) for x in (example, *others)]
    worst = 0.0
    for x, got, want in zip((example, *others), answers, wanted, strict=True):
        error = float((got - want).abs().max())
        allowed = atol + rtol * float(want.abs().max())
        if not error <= allowed:
            path.unlink(missing_ok=True)
            raise RuntimeError(
                f"the exported network differs by {error:.2e} at input {tuple(x.shape)}, more than {allowed:.2e}"
            )
        worst = max(worst, error)
    return worst


def _save_program(plain: nn.Module, path: Path, example: Tensor, lengths: bool) -> Any:
    shapes: dict[int, Any] = {0: torch.export.Dim.AUTO}
    if lengths:
        shapes[example.dim() - 1] = torch.export.Dim.AUTO
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(plain, (example,), dynamic_shapes=(shapes,), strict=False)
        torch.export.save(program, path)
        return torch.export.load(path).module()


def _save_onnx(plain: nn.Module, path: Path, inputs: list[Tensor]) -> list[Tensor]:
    try:
        import onnxruntime  # type: ignore[import-untyped]  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"export to ONNX needs {error.name}: pip install 'kernelfield[export]'", name=error.name
        ) from error

    with torch.no_grad(), warnings.catch_warnings(), _direct(plain), quiet_exporter():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            plain,
            (inputs[0],),
            input_names=["input"],
            output_names=["output"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            dynamo=True,
            verbose=False,
            external_data=False,
        )
        assert program is not None
        program.save(str(path))
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return [torch.from_numpy(session.run(None, {"input": x.numpy()})[0]) for x in inputs]


@contextmanager
def _direct(network: nn.Module) -> Iterator[None]:
    """Use frozen kernels and direct convolutions inside the block: ONNX has convolutions but no FFT for every opset."""
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


@contextmanager
def quiet_exporter() -> Iterator[None]:
    """Silence the exporter's log messages."""
    import logging  # noqa: PLC0415

    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
