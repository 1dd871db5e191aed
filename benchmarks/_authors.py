"""Times of training steps of the authors' published code, measured on an H200."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kernelfield.groups import Cyclic

__all__ = ["COMPARABLE", "PUBLISHED", "Published", "published_step"]


@dataclass(frozen=True)
class Published:
    """A step of the authors' code, and the registered network that is the same.

    Args:
        shape: of the batch.
        milliseconds: of the step.
        model: name of the network in the registry.
        options: arguments of the network, beside the numbers of channels.
        gib: peak memory, if it was measured.
    """

    shape: tuple[int, ...]
    milliseconds: float
    model: str
    options: dict[str, Any] = field(default_factory=dict)
    gib: float | None = None


def _ccnn(model: str, milliseconds: float, *shape: int) -> Published:
    return Published(shape, milliseconds, model, {"dim": len(shape) - 2, "size": shape[-1], "sigma": None})


def _attentive(model: str, kind: str, milliseconds: float, gib: float, *shape: int) -> Published:
    return Published(shape, milliseconds, model, {"attention": kind}, gib)


def _self_attention(rotations: int, neighborhood: int, batch: int, milliseconds: float, gib: float) -> Published:
    options = {"group": Cyclic(rotations), "neighborhood": neighborhood, "size": 28}
    return Published((batch, 1, 28, 28), milliseconds, "gsanet_rotmnist", options, gib)


#: CCNNs have kernels as long as their inputs here; a step of continuous and of attentive networks has no optimiser
PUBLISHED = {
    "CCNN_4,140 sMNIST": _ccnn("ccnn_4_140", 27.3, 100, 1, 784),
    "CCNN_6,380 sMNIST": _ccnn("ccnn_6_380", 54.9, 100, 1, 784),
    "CCNN_4,140 CIFAR-10 2D": _ccnn("ccnn_4_140", 81.0, 50, 3, 32, 32),
    "CCNN_6,380 CIFAR-10 2D": _ccnn("ccnn_6_380", 295.0, 50, 3, 32, 32),
    "CCNN_4,140 sCIFAR": _ccnn("ccnn_4_140", 26.0, 50, 3, 1024),
    "CCNN_6,380 sCIFAR": _ccnn("ccnn_6_380", 41.8, 50, 3, 1024),
    "CCNN_4,140 raw speech": _ccnn("ccnn_4_140", 131.0, 20, 1, 16_000),
    "CCNN_6,380 raw speech": _ccnn("ccnn_6_380", 312.0, 20, 1, 16_000),
    # The mask of the published code.
    "FlexTCN-2 sMNIST": Published((64, 1, 784), 30.0, "flextcn_2", {"size": 784, "sigma": 0.0375}),
    "CKTCN-2 sMNIST": Published((64, 1, 784), 24.0, "cktcn_2", {"size": 784}),
    # Half of the thesis's mask width of 0.5: its coordinates span [-1, 1] over one image.
    "FlexNet-16 CIFAR-10": Published((64, 3, 32, 32), 198.0, "flexnet_16", {"size": 32, "sigma": 0.25}),
    "p4-CNN": Published((128, 1, 28, 28), 6.9, "p4cnn"),
    "p4 All-CNN": Published((128, 3, 32, 32), 15.1, "allcnn_p4"),
    "p4m All-CNN": Published((128, 3, 32, 32), 35.0, "allcnn_p4m"),
    "p4-CNN full": _attentive("p4cnn", "full", 31, 2.7, 128, 1, 28, 28),
    "p4-CNN channel": _attentive("p4cnn", "channel", 18, 1.9, 128, 1, 28, 28),
    "p4-CNN spatial": _attentive("p4cnn", "spatial", 24, 2.2, 128, 1, 28, 28),
    "p4-CNN input": _attentive("p4cnn", "input", 24, 0.15, 128, 1, 28, 28),
    "p4 All-CNN input": _attentive("allcnn_p4", "input", 33, 1.8, 128, 3, 32, 32),
    "p4m All-CNN input": _attentive("allcnn_p4m", "input", 118, 2.4, 128, 3, 32, 32),
    "R4, 5×5, batch 8": _self_attention(4, 5, 8, 38.0, 2.0),
    "R4, 5×5, batch 64": _self_attention(4, 5, 64, 180.0, 15.4),
    "R4, 9×9, batch 8": _self_attention(4, 9, 8, 71.0, 6.2),
    "R8, 5×5, batch 64": _self_attention(8, 5, 64, 779.0, 91.0),
    "R12, 5×5, batch 8": _self_attention(12, 5, 8, 285.0, 36.0),
}
#: networks of the guide and registered ones with the settings of their recipes that equal a published one
COMPARABLE = {
    "CCNN_4,140": "CCNN_4,140 sMNIST",
    "attentive p4-CNN": "p4-CNN full",
    "ccnn_6_380": "CCNN_6,380 CIFAR-10 2D",
    "p4cnn": "p4-CNN",
    "allcnn_p4": "p4 All-CNN",
    "allcnn_p4m": "p4m All-CNN",
    "gsanet_rotmnist": "R4, 5×5, batch 8",
    "gsanet_rotmnist_r4": "R4, 5×5, batch 8",
    "gsanet_rotmnist_r12": "R12, 5×5, batch 8",
}


def published_step(name: str, batch: int) -> Published | None:
    """Return the step of the authors' code for a row of this name and batch; None if it was not timed.

    >>> published_step("CCNN_4,140", 100).milliseconds, published_step("CCNN_4,140", 64)
    (27.3, None)
    """
    step = PUBLISHED.get(COMPARABLE.get(name, name))
    return step if step is not None and step.shape[0] == batch else None
