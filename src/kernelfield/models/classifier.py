"""Feature extraction and new classifiers, under the names of timm."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from .._arguments import checked
from .._hooks import has_hooks
from .._kinds import Int
from .._object_kinds import TensorOf
from ..layers.group import GroupPool
from ..layers.group.kernel import GroupKernel
from ..layers.group.table_lookup import SharedLookUp

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from typing_extensions import Self

    from ..layers.group import GroupSignal

    Module = TypeVar("Module", bound=nn.Module)

__all__ = ["Classifier", "GroupClassifier", "GroupNetwork", "HeadClassifier"]


class Classifier(nn.Module):
    """Base class of networks, with methods to extract features and to replace the classifier.

    ``net(x)`` is ``net.forward_head(net.forward_features(x))``. These methods raise a TypeError in networks that have
    no classifier.

    >>> import torch
    >>> from kernelfield import create_model
    >>> net = create_model("p4cnn", out_channels=10).eval()
    >>> features = net.forward_features(torch.randn(2, 1, 28, 28))
    >>> features.shape, net.num_features                        # four rotations, 4² positions
    (torch.Size([2, 10, 4, 4, 4]), 10)
    >>> net.forward_head(features, pre_logits=True).shape
    torch.Size([2, 10])
    >>> net.reset_classifier(3)
    >>> net(torch.randn(2, 1, 28, 28)).shape
    torch.Size([2, 3])
    """

    @property
    def num_features(self) -> int:
        """Channels of the features."""
        raise self._no_classifier("num_features")

    @property
    def num_classes(self) -> int:
        """Number of predictions; 0 if the classifier was removed."""
        raise self._no_classifier("num_classes")

    @property
    def head_hidden_size(self) -> int:
        """Length of the vector that the last linear map reads."""
        return self.num_features

    def forward_features(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ARG002
        """Return the features before pooling, (batch, num_features, ...) or a signal on a group.

        The arguments are those of ``forward``.
        """
        raise self._no_classifier("forward_features")

    def forward_head(self, features: Tensor | GroupSignal, *, pre_logits: bool = False) -> Tensor:  # noqa: ARG002
        """Return predictions from features.

        Args:
            features: as :meth:`forward_features` returns them.
            pre_logits: return the pooled features (batch, head_hidden_size) that the last linear map would read.
        """
        raise self._no_classifier("forward_head")

    def reset_classifier(self, num_classes: int) -> None:
        """Replace the classifier by a fresh one.

        Args:
            num_classes: number of classes; 0 removes the classifier, and the network returns pooled features.
        """
        Int(0).check("num_classes", num_classes)
        self._replace_classifier(num_classes)
        known = vars(self).get("pretrained_config")
        if known is not None:  # the new classifier does not predict the classes of the weight
            vars(self)["pretrained_config"] = {**known, "classes": []}

    def save_pretrained(self, folder: str | Path, **options: Any) -> Path:
        """Write the network to a folder; see :func:`kernelfield.save_pretrained`."""
        from .pretrained import save_pretrained  # noqa: PLC0415

        return save_pretrained(self, folder, **options)

    @classmethod
    def from_pretrained(cls, path: str | Path, **options: Any) -> Self:
        """Load a network from a folder or a hub repository; see :func:`kernelfield.from_pretrained`."""
        from .pretrained import from_pretrained  # noqa: PLC0415

        network = from_pretrained(path, **options)
        if not isinstance(network, cls):
            raise TypeError(f"path must hold a {cls.__name__}, got {path} with a {type(network).__name__}")
        return network

    def _replace_classifier(self, num_classes: int) -> None:  # noqa: ARG002
        raise self._no_classifier("reset_classifier")

    def _like_self(self, module: Module) -> Module:
        """Return a new module with the device, dtype and mode of this network."""
        # In a network of half precision only kernels stay in float32, so any half parameter gives its dtype.
        half = (p for p in self.parameters() if p.dtype in (torch.bfloat16, torch.float16))
        parameter = next(half, next(self.parameters()))
        return module.to(device=parameter.device, dtype=parameter.dtype).train(self.training)

    def _no_classifier(self, method: str) -> TypeError:
        return TypeError(f"{method} needs a network with a classifier, got {type(self).__name__}, which has none")


class GroupNetwork(Classifier):
    """Base class of networks on groups, whose features are a signal on a group.

    A subclass defines ``forward_features`` and ``forward_head``, and calls :meth:`_set_last`.
    """

    #: name of the attribute that holds the last map
    last_name: ClassVar[str] = "last"
    #: shared look-up of all kernels that are tables, and these kernels; set at the first forward pass
    _tables: tuple[SharedLookUp, list[GroupKernel]] | None = None

    @checked(x=TensorOf("float", "batch, channels, *space", empty=False))
    def forward(self, x: Tensor) -> Tensor:
        r"""Return predictions for ``x`` (batch, in_channels, \*space).

        They are (batch, out_channels), or (batch, out_channels, \*space) if the network predicts at every position.
        """
        with self._kernels():
            return self.forward_head(self.forward_features(x))

    def _kernels(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which all kernels that are tables are looked up at once."""
        if torch.compiler.is_compiling():
            return contextlib.nullcontext()
        if self._tables is None:
            kernels = [m for m in self.modules() if isinstance(m, GroupKernel) and m.rotation is None]
            look_ups = {k.look_up: k for k in kernels if k.look_up is not None}
            self._tables = SharedLookUp(list(look_ups)), list(look_ups.values())
        shared, kernels = self._tables
        if has_hooks(*[kernel.field for kernel in kernels]):
            return contextlib.nullcontext()
        return shared.kernels([kernel.spline.coefficients for kernel in kernels])

    def _set_last(
        self, make: Callable[[int, int], nn.Module], channels: int, out_channels: int, *, hidden: int | None = None
    ) -> None:
        """Make the last map, and keep the function that makes another.

        Args:
            make: makes the map from channels in and out.
            channels: channels of the features.
            out_channels: number of predictions.
            hidden: length of the vector that the map reads; ``channels`` if not given.
        """
        self._make_last, self._channels, self._out_channels = make, channels, out_channels
        self._hidden = channels if hidden is None else hidden
        setattr(self, self.last_name, make(self._hidden, out_channels))

    @property
    def num_features(self) -> int:
        """Channels of the features."""
        return self._channels

    @property
    def head_hidden_size(self) -> int:
        """Length of the vector that the last map reads."""
        return self._hidden

    @property
    def num_classes(self) -> int:
        """Number of predictions; 0 if the classifier was removed."""
        return self._out_channels

    def _replace_classifier(self, num_classes: int) -> None:
        made = self._make_last(self._hidden, num_classes) if num_classes else nn.Identity()
        setattr(self, self.last_name, self._like_self(made))
        self._out_channels = num_classes
        self._tables = None


class GroupClassifier(GroupNetwork):
    """Base class of networks whose classifier is a group convolution, followed by pooling over group and space.

    A subclass has ``last``, the convolution, and calls :meth:`_set_classifier`.
    """

    last: nn.Module

    def _set_classifier(self, make: Callable[..., nn.Module], channels: int, out_channels: int, pool: str) -> None:
        """Make the classifier, and the pooling of features for use without it.

        Args:
            make: makes the convolution from channels in and out.
            channels: channels of the features.
            out_channels: number of classes.
            pool: reduction over group and space, "max" or "mean".
        """
        self._set_last(make, channels, out_channels)
        self.pool_features = GroupPool(pool, "all")

    def forward_head(self, features: Tensor | GroupSignal, *, pre_logits: bool = False) -> Tensor:
        """Return predictions from a signal on the group, or its invariant pooled features."""
        if pre_logits or not self._out_channels:
            return self.pool_features(features)
        return self._classify(features)

    def _classify(self, features: Tensor | GroupSignal) -> Tensor:
        """Return the logits of a signal on the group: the mean over space of a last map that sums over the group."""
        return self.last(features).flatten(2).mean(dim=2)


class HeadClassifier(Classifier):
    """Base class of networks whose last module maps features to predictions.

    The module has ``channels``, ``out_channels`` and ``reset``, which replaces its last map.
    """

    def _head(self) -> Any:
        """Return the module that maps features to predictions."""
        raise NotImplementedError

    @property
    def num_features(self) -> int:
        """Channels of the features."""
        return self._head().channels

    @property
    def num_classes(self) -> int:
        """Number of predictions, at every position for a dense readout; 0 if the classifier was removed."""
        return self._head().out_channels

    def _replace_classifier(self, num_classes: int) -> None:
        head = self._head()
        head.reset(num_classes)
        self._like_self(head)
