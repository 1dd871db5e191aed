"""Networks of chapter 11, fully equivariant or with learned partial equivariance: SE(2), E(2), mirror and T(2)."""

from __future__ import annotations

import functools
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.nn import functional as F

from .._arguments import checked, with_arguments_of
from .._kinds import BOOL, PROBABILITY, Choice, Int, ListOf
from ..fields import SIREN, Field
from ..groups import O2, SO2, Distribution, Group, Mirror, Trivial, monotonicity
from ..layers.group import (
    GroupBatchNorm,
    GroupConv,
    GroupDropout,
    GroupPool,
    GroupSignal,
    LiftingConv,
    PartialGroupConv,
    PartialResidualBlock,
    SpatialPool,
)
from .classifier import GroupNetwork
from .registry import register

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["PartialGCNN", "PartialGCNN13"]

Kernel = functools.partial(SIREN, hidden=32, omega_0=10.0, start="partial")
# Not start="partial", whose zero biases make a kernel zero at the identity: a shortcut on T(2) would pass nothing.
ShortcutKernel = functools.partial(SIREN, hidden=16, omega_0=10.0)
SmallKernel = functools.partial(SIREN, hidden=8, omega_0=10.0, start="partial")


class _Partial(GroupNetwork):
    """Base class of networks with learned distributions over a group."""

    last_name = "linear"
    linear: nn.Module
    group: Group

    def distributions(self) -> list[Distribution]:
        """Return the learned distributions p(u), in order of depth; empty for a fully equivariant network."""
        return [m.distribution for m in self.modules() if isinstance(m, PartialGroupConv)]

    def monotonicity(self) -> Tensor:
        """Return the penalty on supports that grow with depth; see :func:`kernelfield.groups.monotonicity`."""
        return monotonicity(self.distributions())

    def freeze(self, frozen: bool = True) -> None:
        """Use the same elements at every call, in training too; ``frozen=False`` draws them again."""
        for module in self.modules():
            if isinstance(module, Distribution):
                module.freeze(frozen)

    def draw_per_sample(self, each: bool = True) -> None:
        """In training, draw elements for each sample of a batch, or once for the batch if ``each`` is False."""
        if each and any(factor.finite for factor in self.group.factors):
            raise ValueError(f"per_sample must be False for {self.group}, whose number of elements is drawn, got True")
        for module in self.modules():
            if isinstance(module, Distribution):
                module.per_sample = each

    def _fix_sizes(self) -> None:
        """Let compiled programs compute all elements, which all layers of these networks support."""
        for module in self.modules():
            if isinstance(module, Distribution):
                module.fix_size()

    def sample_in_eval(self, sample: bool = True) -> None:
        """Draw elements in evaluation too, or use the same elements at every call if ``sample`` is False."""
        for module in self.modules():
            if isinstance(module, Distribution):
                module.sample_in_eval = sample


@checked(reduction=Choice("mean", "sum"))
def _make_convs(
    *,
    group: Group,
    samples: int | None = None,
    partial: bool = True,
    field: Callable[..., Field],
    kernel_size: int,
    reduction: str = "mean",
) -> tuple[Callable[..., LiftingConv], Callable[..., GroupConv]]:
    """Return functions that make a network's lifting convolution and its group convolutions."""
    kind = PartialGroupConv if partial else GroupConv
    shared: dict[str, Any] = {"group": group, "samples": None if group.finite else samples}
    shared |= {"field": field, "kernel_size": kernel_size}
    return functools.partial(LiftingConv, **shared), functools.partial(kind, **shared, reduction=reduction)


class PartialGCNN(_Partial):
    r"""The two-block residual network of chapter 11 (section 5; appendix, figure of the network).

    It consists of a lifting convolution with norm, pooling and ReLU; two residual blocks; a group convolution without
    padding, with norm and ReLU; the maximum over group and space; and a linear map. Every convolution draws its output
    elements from the whole group or, if ``partial``, from its learned distribution.

    Args:
        in_channels: channels of the input.
        out_channels: number of classes.
        group: the group; the trivial one makes a T(2)-CNN.
        samples: number of elements of a continuous group, including reflected ones.
        partial: whether the subsets of the group are learned.
        channels: widths of the lift, of the two blocks, and of the last convolution.
        kernel_size: points of the kernels along each axis.
        field: makes the kernels' field from (dim, channels).
        shortcut_field: makes the field of the shortcuts' kernels, on the group alone.
        pool: whether to halve the resolution after the lift and after each block.
        dropout: probability to drop a channel inside the blocks.
        head: "max" for the maximum over group and space, or one of three ablations. "t2" takes the mean over the group
            and convolves over space. "linear", as in the authors' code, is a linear map of all positions and elements;
            "mlp" has two such layers with a ReLU between. Both need ``size`` and ``partial=False``.
        size: length of the input along each axis, for ``head="linear"`` and ``head="mlp"`` only.
        reduction: "mean" over the elements of a convolution's input, or "sum" as in the authors' code.
        sample_in_eval: whether to draw elements in evaluation too, as the authors' code does.
        per_sample: whether training draws elements for each sample instead of each batch; for continuous groups.
            Kernels are then sampled once for every sample (chapter 11, section 6).

    >>> import torch
    >>> net = PartialGCNN(1, 10, group=SO2(), samples=4, channels=(4, 4, 8, 8), kernel_size=5)
    >>> net(torch.randn(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    >>> len(net.distributions())
    5
    """

    @checked(
        channels=ListOf(Int(1), count=4),
        pool=ListOf(BOOL, count=3),
        dropout=PROBABILITY,
        head=Choice("max", "t2", "linear", "mlp"),
        reduction=Choice("mean", "sum"),
    )
    def __init__(
        self,
        in_channels: int = 1,
        out_channels: int = 10,
        *,
        group: Group,
        samples: int | None = None,
        partial: bool = True,
        channels: Sequence[int] = (32, 32, 64, 64),
        kernel_size: int = 7,
        field: Callable[..., Field] = Kernel,
        shortcut_field: Callable[..., Field] = ShortcutKernel,
        pool: Sequence[bool] = (True, True, False),
        dropout: float = 0.0,
        head: str = "max",
        size: int | None = None,
        reduction: str = "mean",
        sample_in_eval: bool = False,
        per_sample: bool = False,
    ) -> None:
        super().__init__()
        self.group = group
        flat = head in ("linear", "mlp")
        if flat and partial:
            raise ValueError(f"partial must be False for head={head!r}, whose number of elements is fixed, got True")
        lift, conv = _make_convs(
            group=group, samples=samples, partial=partial, field=field, kernel_size=kernel_size, reduction=reduction
        )
        self.lift = lift(in_channels, channels[0])
        self.norm_in = GroupBatchNorm(channels[0])
        self.pool = SpatialPool(2, dim=group.dim) if pool[0] else nn.Identity()
        self.blocks = nn.ModuleList()
        width = channels[0]
        for wide, halve in zip(channels[1:3], pool[1:], strict=True):
            # If channels and elements do not change, the input itself is the shortcut.
            needed = width != wide or partial or not group.finite
            shortcut = (
                GroupConv(width, wide, group=group, field=shortcut_field, kernel_size=1, resample=False, bias=False)
                if needed
                else None
            )
            self.blocks.append(
                PartialResidualBlock(conv(width, wide), conv(wide, wide), shortcut, wide, pool=halve, dropout=dropout)
            )
            width = wide
        self.last = (
            LiftingConv(
                width,
                channels[3],
                group=Trivial(group.dim),
                field=field,
                kernel_size=kernel_size,
                boundary="valid",
            )
            if head == "t2"
            else conv(width, channels[3], boundary="valid")
        )
        self.mean = GroupPool("mean") if head == "t2" else None
        self.norm_out = GroupBatchNorm(channels[3])
        features = channels[3]
        if flat:
            if size is None:
                raise ValueError(f"size must be given for head={head!r}, got None")
            left = size
            for halve in pool:
                left = (left + 1) // 2 if halve else left
            features *= (group.order or samples or 1) * (left - kernel_size + 1) ** group.dim
        self.head = None if flat else GroupPool("max", "all")
        hidden = channels[3] if head == "mlp" else features
        self.hidden = nn.Linear(features, hidden) if head == "mlp" else None
        self._set_last(nn.Linear, channels[3], out_channels, hidden=hidden)
        self.sample_in_eval(sample_in_eval)
        self.draw_per_sample(per_sample)
        self._fix_sizes()

    def forward_features(self, x: Tensor) -> GroupSignal:
        """Return the features of the last convolution, a signal on the group."""
        signal = self.pool(self.norm_in(self.lift(x))).map(F.relu)
        for block in self.blocks:
            signal = block(signal)
        signal = self.last(signal if self.mean is None else self.mean(signal))
        return self.norm_out(signal).map(F.relu)

    def forward_head(self, features: Tensor | GroupSignal, *, pre_logits: bool = False) -> Tensor:
        """Return predictions from a signal on the group, or the input of the last linear map."""
        assert isinstance(features, GroupSignal)
        if self.head is not None:
            pooled = self.head(features)
        else:
            flat = features.values.flatten(1)
            pooled = flat if self.hidden is None else F.relu(self.hidden(flat))
        return pooled if pre_logits else self.linear(pooled)


class PartialGCNN13(_Partial):
    """The "13-layer" network of chapter 11, section 5.1: a lift, eight group convolutions, a mean and a linear map.

    Args:
        in_channels: channels of the input.
        out_channels: number of classes.
        group: the group.
        samples: number of elements of a continuous group, including reflected ones.
        partial: whether the subsets of the group are learned.
        channels: width of the lift and of the first convolution; the others are twice as wide.
        kernel_size: points of the kernels along each axis.
        field: makes the kernels' field from (dim, channels).
        dropout: probability to drop a channel after the 2nd, 5th and 8th convolution.
        reduction: "mean" over the elements of a convolution's input, or "sum" as in the authors' code.
        sample_in_eval: whether to draw elements in evaluation too, as the authors' code does.
        per_sample: whether training draws elements for each sample instead of each batch; for continuous groups.
            Kernels are then sampled once for every sample (chapter 11, section 6).

    >>> import torch
    >>> PartialGCNN13(1, 10, group=SO2(), samples=2, channels=4)(torch.randn(2, 1, 16, 16)).shape
    torch.Size([2, 10])
    """

    @checked(dropout=PROBABILITY)
    @with_arguments_of(_make_convs)
    def __init__(
        self,
        in_channels: int = 1,
        out_channels: int = 10,
        *,
        channels: int = 128,
        kernel_size: int = 3,
        field: Callable[..., Field] = SmallKernel,
        dropout: float = 0.3,
        sample_in_eval: bool = False,
        per_sample: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        lift, conv = _make_convs(field=field, kernel_size=kernel_size, **options)
        self.lift = lift(in_channels, channels)
        widths = [channels, channels, *[2 * channels] * 7]
        self.convs = nn.ModuleList(conv(i, o) for i, o in pairwise(widths))
        self.norms = nn.ModuleList(GroupBatchNorm(width) for width in widths)
        self.group = options["group"]
        self.pool, self.dropout = SpatialPool(2, dim=self.group.dim), GroupDropout(dropout)
        self.head = GroupPool("mean", "all")
        self._set_last(nn.Linear, widths[-1], out_channels)
        self.sample_in_eval(sample_in_eval)
        self.draw_per_sample(per_sample)
        self._fix_sizes()

    def forward_features(self, x: Tensor) -> GroupSignal:
        """Return the features of the last convolution, a signal on the group."""
        signal = self.norms[0](self.lift(x)).map(F.relu)
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms[1:], strict=True), start=1):
            signal = norm(conv(signal)).map(F.relu)
            if i in (2, 5):
                signal = self.pool(signal)
            if i in (2, 5, 8):
                signal = self.dropout(signal)
        return signal

    def forward_head(self, features: Tensor | GroupSignal, *, pre_logits: bool = False) -> Tensor:
        """Return predictions from a signal on the group, or its mean, the input of the last linear map."""
        pooled = self.head(features)
        return pooled if pre_logits else self.linear(pooled)


for _name, _words, _group, _samples in (
    ("se2", "SE(2)", SO2(), 8),
    ("e2", "E(2)", O2(), 8),
    ("mirror", "mirror", Mirror(), None),
):
    _options = {"group": _group, "samples": _samples}
    _title = f"chapter 11: {{}} {_words} network"
    register(f"partial_gcnn_{_name}", PartialGCNN, _title.format("partial"), **_options, partial=True)
    register(f"full_gcnn_{_name}", PartialGCNN, _title.format("fully equivariant"), **_options, partial=False)
register("full_gcnn_t2", PartialGCNN, "chapter 11: T(2) network, an ordinary CNN", group=Trivial(), partial=False)
register(
    "partial_gcnn13_se2", PartialGCNN13, "chapter 11: partial SE(2) 13-layer CNN", group=SO2(), samples=8, partial=True
)
register("full_gcnn13_t2", PartialGCNN13, "chapter 11: T(2) 13-layer CNN", group=Trivial(), partial=False)
register("full_gcnn13_se2", PartialGCNN13, "chapter 11: SE(2) 13-layer CNN", group=SO2(), samples=8, partial=False)
