"""Programs for a fresh interpreter in which nothing but torch and numpy can be imported.

``python -m tests.without_extras NAME...`` calls the functions of these names and prints their results as JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

__all__ = ["EXTRAS", "core", "data", "extra"]

#: what the extras bring, and what they bring along
EXTRAS = (
    *("lightning", "pytorch_lightning", "lightning_fabric", "torchmetrics", "tensorboard", "safetensors"),
    *("typer", "click", "rich", "yaml", "sklearn", "scipy", "pandas", "matplotlib", "PIL", "pooch", "h5py"),
    *("onnx", "onnxruntime", "onnxscript", "pytest", "hypothesis", "torchvision", "torchaudio", "aeon", "numba"),
)


def core() -> dict[str, Any]:
    """Use fields, grids, masks and a convolution; return shapes, and the packages that were imported on the way."""
    already = {name for name in sys.modules if name not in EXTRAS}
    import kernelfield as kf  # noqa: PLC0415

    field = kf.fields.MAGNet(1, 3)
    kernel = field(kf.grids.kernel_grid(8)).T.unsqueeze(1)
    y = kf.ops.conv(torch.randn(2, 3, 8), kernel, groups=3)
    mask = kf.masks.GaussianMask(1)(kf.grids.kernel_grid(8))
    new = {name.split(".")[0] for name in set(sys.modules) - already} - {*sys.stdlib_module_names, *EXTRAS}
    return {"output": [*y.shape], "mask": [*mask.shape], "packages": sorted(new)}


def data() -> dict[str, Any]:
    """List the data sets and generate one."""
    import kernelfield.data  # noqa: PLC0415

    return {"names": kernelfield.data.list_data(), "loaded": kernelfield.data.load("adding", train=2).name}


def extra() -> dict[str, Any]:
    """Import an extra, which fails; return the error."""
    try:
        import yaml  # noqa: F401, PLC0415
    except ModuleNotFoundError as error:
        return {"error": str(error)}
    return {}


if __name__ == "__main__":
    # A name that is None in sys.modules cannot be imported, installed or not.
    sys.modules.update(dict.fromkeys(EXTRAS))  # type: ignore[arg-type]
    programs = {"core": core, "data": data, "extra": extra}
    sys.stdout.write(json.dumps([programs[name]() for name in sys.argv[1:]]))
