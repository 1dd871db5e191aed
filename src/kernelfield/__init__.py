"""Layers and networks whose kernels are fields: continuous functions, sampled wherever the data lives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import fields, grids, groups, layers, masks, models, ops, testing
from ._memory import keep_freed_memory
from ._version import __version__
from .layers import (
    AttentiveGroupConv,
    AttentiveLiftingConv,
    CKConv,
    CyclicSelfAttention,
    Degridify,
    FlexConv,
    Gridify,
    GroupBatchNorm,
    GroupConv,
    GroupPool,
    GroupSelfAttention,
    GroupSignal,
    LiftingConv,
    LiftingSelfAttention,
    PartialGroupConv,
    SeparableConv,
    SeparableGroupConv,
    SpatialPool,
    SpatialUpsample,
    aliasing_loss,
    kernel_l2,
    kernel_norm,
    wavelet_loss,
)
from .models import (
    CCNN,
    CKCNN,
    GCNN,
    Augerino,
    DNArch,
    FlexNet,
    FlexTCN,
    GridifiedNet,
    GroupAllCNN,
    GroupDenseNet,
    GroupResNet,
    GroupUNet,
    GSANet,
    PartialGCNN,
    PartialGCNN13,
    WaveletNet,
    create_model,
    from_pretrained,
    list_models,
    save_pretrained,
)

if TYPE_CHECKING:
    import os

    from . import data, parallel
    from .cuda_graphs.decorator import capture
    from .cuda_graphs.prediction import capture_prediction
    from .streaming.distil import distil
    from .streaming.generate import generate
    from .streaming.stream import stream

__all__ = [
    "CCNN",
    "CKCNN",
    "GCNN",
    "AttentiveGroupConv",
    "AttentiveLiftingConv",
    "Augerino",
    "CKConv",
    "CyclicSelfAttention",
    "DNArch",
    "Degridify",
    "FlexConv",
    "FlexNet",
    "FlexTCN",
    "GSANet",
    "GridifiedNet",
    "Gridify",
    "GroupAllCNN",
    "GroupBatchNorm",
    "GroupConv",
    "GroupDenseNet",
    "GroupPool",
    "GroupResNet",
    "GroupSelfAttention",
    "GroupSignal",
    "GroupUNet",
    "LiftingConv",
    "LiftingSelfAttention",
    "PartialGCNN",
    "PartialGCNN13",
    "PartialGroupConv",
    "SeparableConv",
    "SeparableGroupConv",
    "SpatialPool",
    "SpatialUpsample",
    "WaveletNet",
    "__version__",
    "aliasing_loss",
    "capture",
    "capture_prediction",
    "create_model",
    "data",
    "distil",
    "fields",
    "from_pretrained",
    "generate",
    "grids",
    "groups",
    "keep_freed_memory",
    "kernel_l2",
    "kernel_norm",
    "layers",
    "list_models",
    "load_run",
    "masks",
    "models",
    "ops",
    "parallel",
    "save_pretrained",
    "stream",
    "testing",
    "wavelet_loss",
]

#: names that are imported when they are first used
_LATER = {
    **dict.fromkeys(("distil", "generate", "stream"), "streaming"),
    **dict.fromkeys(("capture", "capture_prediction"), "cuda_graphs"),
}


def __getattr__(name: str) -> Any:
    from importlib import import_module  # noqa: PLC0415

    if name in ("data", "parallel"):  # many files, and torch.distributed: both take a while to import
        return import_module(f".{name}", __name__)
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{_LATER[name]}", __name__), name)
    return value


def load_run(
    folder: str | os.PathLike[str], *, select: str | None = None
) -> Any:  # TrainedRun, which is imported when it is used
    """Return the network of a training run with its preprocessing.

    ``load_run("runs/mine").predict("new/")`` predicts the files in a folder; ``.predict(x)`` an array (n, channels, …)
    of samples as they are stored; ``.network`` is the network and ``.prepare(x)`` its input. The training data are not
    needed. Needs the extra ``train``.

    Args:
        folder: of the run.
        select: which weights: "best" by validation, "last", or "average" of the last epochs; as the run's recipe says
            if not given.

    Returns:
        A :class:`~kernelfield.experiments.predict.TrainedRun`.
    """
    import os  # noqa: PLC0415

    from .experiments.predict import TrainedRun  # noqa: PLC0415

    return TrainedRun(os.fspath(folder), select=select)
