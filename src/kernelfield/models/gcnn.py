"""Group-equivariant networks of chapters 7 and 8, on finite groups, with tables as kernels."""

from __future__ import annotations

import functools
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .._arguments import checked, with_arguments_of
from .._kinds import RATE, Choice, Int
from ..groups import Cyclic, Dihedral, Group, Trivial
from ..layers import Dropout
from ..layers.group import GroupBatchNorm, GroupPool, GroupResidualBlock, GroupSignal, SpatialPool
from ..layers.group.factory import KINDS, make_group_conv, make_lifting_conv, make_projection_conv
from .classifier import GroupClassifier
from .registry import register

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["GCNN", "GroupAllCNN", "GroupDenseNet", "GroupResNet"]


@checked(attention=Choice(*KINDS) | None)
def conv_options(*, group: Group, bias: bool = False, attention: str | None = None) -> dict[str, Any]:
    """Return the arguments that all convolutions of a network share, after checking the group."""
    if not group.finite:
        raise ValueError(f"group must be finite for a network with tables as kernels, got {group}")
    return {"group": group, "bias": bias, "attention": attention}


def residual_stages(
    make: Callable[..., nn.Module], channels: Sequence[int], blocks: int, **options: Any
) -> nn.Sequential:
    """Return stages of residual blocks, one per width; the first block of all but the first halves the resolution."""
    widths = [wide for wide in channels for _ in range(blocks)]
    return nn.Sequential(
        *(
            make(before, wide, pool=i > 0 and i % blocks == 0, **options)
            for i, (before, wide) in enumerate(pairwise([channels[0], *widths]))
        )
    )


class GCNN(GroupClassifier):
    """The rotated-MNIST network of chapter 8, section 4.1: seven convolutions without padding, from 28² pixels to one.

    The layers are a 3² lifting convolution with norm, ReLU and dropout; a 3² group convolution with norm and ReLU;
    max-pooling by 2; four 3² group convolutions, each with norm, ReLU and dropout; and a 4² convolution to the classes.
    With the trivial group and 20 channels it is Z2CNN, with ``Cyclic(4)`` and 10 channels p4-CNN. DREN of chapter 7 is
    p4-CNN with biases and ``readout="sum"``; DRENMaxPooling has biases and ``readout="max"``.

    Args:
        in_channels: channels of the input.
        out_channels: number of classes.
        group: a finite group.
        channels: number of channels of the hidden layers.
        dropout: probability to drop a value.
        readout: "max" for a group convolution to the classes and the maximum over the group; "sum" for a
            :class:`~kernelfield.layers.ProjectionConv`, which sums over the group.
        bias: whether the convolutions have a bias.
        attention: None, or a kind of attention. Chapter 7 has "co" after each convolution, "co_filter" on the responses
            of each filter, and "free" without the constraint of equivariance. Chapter 8 has "full", "channel" and
            "spatial" inside the convolution, "input" before it, and "gate", its row α_RH.

    >>> net = GCNN(1, 10, group=Cyclic(4), channels=10)
    >>> net(torch.randn(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """

    @checked(dropout=RATE, readout=Choice("max", "sum"))
    @with_arguments_of(conv_options)
    def __init__(
        self,
        in_channels: int = 1,
        out_channels: int = 10,
        *,
        channels: int = 10,
        dropout: float = 0.3,
        readout: str = "max",
        **options: Any,
    ) -> None:
        super().__init__()
        options = conv_options(**options) | {"boundary": "valid"}
        conv: Callable[..., nn.Module] = functools.partial(make_group_conv, **options)
        # With a dilation of 4, attention on the input of the first layer covers a whole digit.
        self.lift = make_lifting_conv(in_channels, channels, kernel_size=3, dilation=4, **options)
        self.convs = nn.ModuleList(conv(channels, channels, kernel_size=3) for _ in range(5))
        self.norms = nn.ModuleList(GroupBatchNorm(channels) for _ in range(6))
        last = conv if readout == "max" else functools.partial(make_projection_conv, **options)
        self._set_classifier(functools.partial(last, kernel_size=4), channels, out_channels, "max")
        self.pool = SpatialPool(2, dim=options["group"].dim)
        self.dropout = Dropout(dropout)
        self.readout = readout
        self.head = GroupPool("max", "all")

    def forward_features(self, x: Tensor) -> GroupSignal:
        """Return features on the group, at 4² positions for an input of 28² pixels."""
        signal = self.norms[0](self.lift(x)).map(F.relu).map(self.dropout)
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms[1:], strict=True)):
            signal = norm(conv(signal))
            # Maximum and ReLU commute, and after pooling there are fewer values to rectify.
            signal = self.pool(signal).map(F.relu) if i == 0 else signal.map(F.relu).map(self.dropout)
        return signal

    def _classify(self, features: Tensor | GroupSignal) -> Tensor:
        return self.head(self.last(features)) if self.readout == "max" else super()._classify(features)


class GroupAllCNN(GroupClassifier):
    """All-CNN-C on a group (chapter 8, section 4.2): nine convolutions, strides replaced by max-pooling.

    Norm and ReLU follow every convolution. The third and sixth also have pooling before the norm and dropout after it.

    Args:
        in_channels: channels of the input.
        out_channels: number of classes.
        group: a finite group.
        channels: width of the first three convolutions; the others have twice as many.
        bias: whether the convolutions have a bias.
        attention: as in :class:`GCNN`; channel attention has a sixteenth of the channels as hidden channels.

    >>> GroupAllCNN(3, 10, group=Cyclic(4), channels=4)(torch.randn(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    @checked()
    @with_arguments_of(conv_options)
    def __init__(self, in_channels: int = 3, out_channels: int = 10, *, channels: int = 48, **options: Any) -> None:
        super().__init__()
        options = conv_options(**options)
        wide = 2 * channels
        self.lift = make_lifting_conv(in_channels, channels, **options)
        widths = [channels, channels, channels, wide, wide, wide, wide, wide]
        sizes = [3, 3, 3, 3, 3, 3, 1]
        self.convs = nn.ModuleList(
            make_group_conv(i, o, kernel_size=k, hidden=max(1, i // 16), **options)
            for i, o, k in zip(widths[:-1], widths[1:], sizes, strict=True)
        )
        make_last = functools.partial(make_group_conv, kernel_size=1, hidden=max(1, wide // 16), **options)
        self._set_classifier(make_last, wide, out_channels, "mean")
        self.norms = nn.ModuleList(GroupBatchNorm(width) for width in widths)
        self.last_norm = GroupBatchNorm(out_channels)
        self.pool = SpatialPool(2, dim=options["group"].dim)
        self.head = GroupPool("mean", "all")
        self.dropout_in, self.dropout = Dropout(0.2), Dropout(0.5)

    def forward_features(self, x: Tensor) -> GroupSignal:
        """Return the features of all layers but the last, a signal on the group."""
        signal = self.norms[0](self.lift(self.dropout_in(x))).map(F.relu)
        for layer, (conv, norm) in enumerate(zip(self.convs, self.norms[1:], strict=True), start=2):
            pooled = layer in (3, 6)
            signal = conv(signal)
            signal = norm(self.pool(signal) if pooled else signal).map(F.relu)
            signal = signal.map(self.dropout) if pooled else signal
        return signal

    def _classify(self, features: Tensor | GroupSignal) -> Tensor:
        return self.head(self.last_norm(self.last(features)).map(F.relu))

    def _replace_classifier(self, num_classes: int) -> None:
        super()._replace_classifier(num_classes)
        self.last_norm = self._like_self(GroupBatchNorm(max(1, num_classes)))


class GroupResNet(GroupClassifier):
    """A ResNet on a group (chapter 8, section 4.2): a stem, stages of pre-activation blocks, and a linear head.

    The head is norm, ReLU, the mean over space, a convolution 1² to the classes, and the mean over the group. The
    chapter does not give this order; it is that of the published code. Without attention the mean over space commutes
    with the convolution. With attention it does not: the last layer attends to one position, and its spatial attention
    sees only the centre of its kernel. All-CNN and DenseNet average after their last layer, as published too.

    Args:
        in_channels: channels of the input.
        out_channels: number of classes.
        group: a finite group.
        channels: width of each stage; all but the first halve the resolution.
        blocks: blocks in each stage; 7 in three stages make 44 layers.
        bias: whether the convolutions have a bias.
        attention: as in :class:`GCNN`; channel attention has 2 hidden channels.

    >>> GroupResNet(3, 10, group=Dihedral(4), channels=(2, 3), blocks=1)(torch.randn(2, 3, 8, 8)).shape
    torch.Size([2, 10])
    """

    @checked(blocks=Int(1, 10_000))
    @with_arguments_of(conv_options)
    def __init__(
        self,
        in_channels: int = 3,
        out_channels: int = 10,
        *,
        channels: Sequence[int] = (11, 23, 45),
        blocks: int = 7,
        **options: Any,
    ) -> None:
        super().__init__()
        options = conv_options(**options)
        self.lift = make_lifting_conv(in_channels, channels[0], **options)
        self.blocks = residual_stages(GroupResidualBlock, channels, blocks, **options)
        self.norm = GroupBatchNorm(channels[-1])
        make_last = functools.partial(make_group_conv, kernel_size=1, hidden=2, **options)
        self._set_classifier(make_last, channels[-1], out_channels, "mean")
        self.head = GroupPool("mean", "all")

    def forward_features(self, x: Tensor) -> GroupSignal:
        """Return the features after the last norm, a signal on the group."""
        return self.norm(self.blocks(self.lift(x))).map(F.relu)

    def _classify(self, features: Tensor | GroupSignal) -> Tensor:
        pooled = features.map(torch.mean, dim=tuple(range(3, features.dim())), keepdim=True)  # type: ignore[union-attr]
        return self.head(self.last(pooled))


class GroupDenseNet(GroupClassifier):
    """The DenseNet for PatchCamelyon on a group (chapter 8, section 4.3), without padding.

    A stem is followed by dense blocks: norm, ReLU and a 3² convolution to ``growth`` channels, which are concatenated
    in front of the block's input, cropped by one pixel at each side. Between the blocks are norm, ReLU, a 1²
    convolution and mean-pooling by 2.

    Args:
        in_channels: channels of the input.
        out_channels: number of classes.
        group: a finite group.
        growth: channels that each block adds.
        blocks: number of dense blocks.
        attention: as in :class:`GCNN`. Channel attention has 2 hidden channels; the reach of spatial attention on the
            input of a layer shrinks with the feature map.

    >>> GroupDenseNet(3, 2, group=Cyclic(4), growth=2, blocks=2)(torch.randn(2, 3, 12, 12)).shape
    torch.Size([2, 2])
    """

    @checked(blocks=Int(1, 10_000))
    @with_arguments_of(conv_options, without=("bias",))
    def __init__(
        self, in_channels: int = 3, out_channels: int = 2, *, growth: int = 13, blocks: int = 5, **options: Any
    ) -> None:
        super().__init__()
        options = conv_options(bias=False, **options) | {"boundary": "valid"}
        conv: Callable[..., nn.Module] = functools.partial(make_group_conv, hidden=2, **options)
        self.lift = make_lifting_conv(in_channels, growth, dilation=4, **options)
        widths = [growth * (i + 1) for i in range(blocks)]
        self.norms = nn.ModuleList(GroupBatchNorm(width) for width in widths)
        # The published dilations of spatial attention. In the last block its kernel is 5 points wide.
        far, near = (4, 4, 3, 2), (4, 4, 3, 1)
        self.convs = nn.ModuleList(
            conv(
                width,
                growth,
                kernel_size=3,
                dilation=far[i] if i < len(far) else 1,
                attention_size=5 if i == blocks - 1 else 7,
            )
            for i, width in enumerate(widths)
        )
        self.between_norms = nn.ModuleList(GroupBatchNorm(width) for width in widths[1:])
        self.between = nn.ModuleList(
            conv(width, width, kernel_size=1, dilation=near[i] if i < len(near) else 1)
            for i, width in enumerate(widths[1:])
        )
        self.pool = SpatialPool(2, "mean", dim=options["group"].dim)
        width = widths[-1] + growth
        self.norm = GroupBatchNorm(width)
        make_last = functools.partial(conv, kernel_size=1, attention_size=3)
        self._set_classifier(make_last, width, out_channels, "mean")
        self.head = GroupPool("mean", "all")

    def forward_features(self, x: Tensor) -> GroupSignal:
        """Return the features after the last norm, a signal on the group."""
        signal = self.lift(x)
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            if i > 0:
                signal = self.between_norms[i - 1](signal).map(F.relu)
                signal = self.pool(self.between[i - 1](signal))
            signal = signal.replace(_join(conv(norm(signal).map(F.relu)).values, signal.values))
        return self.norm(signal).map(F.relu)

    def _classify(self, features: Tensor | GroupSignal) -> Tensor:
        return self.head(self.last(features))


def _join(new: Tensor, old: Tensor) -> Tensor:
    """Concatenate the channels of ``new`` and of ``old``, cropped by a sample at each end of each spatial axis."""
    for axis in range(3, old.dim()):
        old = old.narrow(axis, 1, old.shape[axis] - 2)
    # Folding the group into the channels preserves a channels-last memory format.
    return torch.cat([new.flatten(1, 2), old.flatten(1, 2)], dim=1).unflatten(1, (-1, old.shape[2]))


register("z2cnn", GCNN, "chapter 8: Z2CNN for rotated MNIST", group=Trivial(), channels=20, bias=True)
register("p4cnn", GCNN, "chapter 8: p4-CNN for rotated MNIST", group=Cyclic(4), channels=10)
_DREN: dict[str, Any] = {"group": Cyclic(4), "channels": 10, "dropout": 0.1, "bias": True}
register("dren", GCNN, "chapter 7: DREN, and p4-CNN of the same size, for rotated MNIST", readout="sum", **_DREN)
register("dren_max", GCNN, "chapter 7: DRENMaxPooling for rotated MNIST", readout="max", **_DREN)
for _width in (11, 15, 19):
    register(f"p4cnn_{_width}", GCNN, f"chapter 8: p4-CNN big_{_width}", group=Cyclic(4), channels=_width)
for _name, _group, _all, _res, _dense in (
    ("z2", Trivial(), 96, (32, 64, 128), 26),
    ("p4", Cyclic(4), 48, (16, 32, 64), 13),
    ("p4m", Dihedral(4), 32, (11, 23, 45), 9),
):
    register(f"allcnn_{_name}", GroupAllCNN, f"chapter 8: {_name} All-CNN-C", group=_group, channels=_all)
    register(f"densenet_{_name}", GroupDenseNet, f"chapter 8: {_name} DenseNet", group=_group, growth=_dense)
    register(f"resnet44_{_name}", GroupResNet, f"chapters 7 and 8: {_name} ResNet-44", group=_group, channels=_res)
