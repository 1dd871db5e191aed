"""Layers and networks whose kernels are fields: continuous functions, sampled wherever the data lies."""

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
    from .diagnosis import diagnose
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
    "diagnose",
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

#: names that are imported at their first use, and the packages that define them
_LATER = {
    **dict.fromkeys(("distil", "generate", "stream"), "streaming"),
    **dict.fromkeys(("capture", "capture_prediction"), "cuda_graphs"),
    "diagnose": "diagnosis",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module  # noqa: PLC0415

    if name in ("data", "parallel"):  # slow to import: many files, and torch.distributed
        return import_module(f".{name}", __name__)
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{_hint(name)}")
    value = globals()[name] = getattr(import_module(f".{_LATER[name]}", __name__), name)
    return value


def _hint(name: str) -> str:
    """Return where a name is that is not here, or the closest name.

    >>> _hint("SIREN"), _hint("GroupConvolution"), _hint("__path__")
    ('; it is kernelfield.fields.SIREN', "; the closest is 'GroupConv'", '')
    """
    from ._checks import closest  # noqa: PLC0415

    if name.startswith("_"):
        return ""
    places = [part.__name__ for part in (fields, groups, layers, masks, models, ops) if name in part.__all__]
    return f"; it is {places[0]}.{name}" if places else closest(name, __all__)


def load_run(
    folder: str | os.PathLike[str], *, select: str | None = None
) -> Any:  # TrainedRun; the import at the top would need the extra "train"
    """Load the network of a training run together with its preprocessing.

    ``load_run("runs/mine").predict("new/")`` predicts the files in a folder. ``.predict(x)`` predicts an array
    (n, channels, …) of raw samples, ``.prepare(x)`` turns them into inputs of ``.network``. Loading a run does not need
    its training data. Needs the extra ``train``.

    Args:
        folder: the folder of the run.
        select: the weights to load: "best" on the validation data, "last", or the "average" of the last epochs; by
            default those that the run's recipe selects.

    Returns:
        A :class:`~kernelfield.experiments.predict.TrainedRun`.
    """
    import os  # noqa: PLC0415

    from .experiments.predict import TrainedRun  # noqa: PLC0415

    return TrainedRun(os.fspath(folder), select=select)
