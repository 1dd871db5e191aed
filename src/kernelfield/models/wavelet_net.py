"""Wavelet networks for raw time series, and the plain networks that they extend (chapter 10)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from .._arguments import checked
from .._checks import is_symbolic
from .._kinds import BOOL, MOST, POSITIVE, RATE, Choice, Int, ListOf, Number
from .._object_kinds import Instance, TensorOf
from ..fields import BSpline, Field
from ..groups import Scale
from ..layers import seen_only
from ..ops import resample
from .classifier import HeadClassifier
from .registry import register
from .wavelet_stages import ConvLayer, Head, ResidualBlock, Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..layers.group import GroupSignal

__all__ = ["WaveletNet"]

HEADS = ("conv", "dense", "linear")


class WaveletNet(HeadClassifier):
    r"""A network on raw time series, equivariant to translation and scale (chapter 10, sections 5 and 6).

    It consists of a lifting convolution to a window of dilations, convolutions on translations and dilations, and a
    head that pools over time and takes the maximum over dilations. Every convolution is followed by a norm, ReLU and
    perhaps max-pooling. Pooling by 4 shortens the signal by two octaves. The first convolution after it therefore spans
    three dilations and drops the two coarsest outputs, which lack some of their inputs. With ``scales=0`` it is the
    plain network of the same stages, without dilations.

    Inputs may have any length and other sampling rates: ``step`` is the distance between samples, in training steps,
    and the input is resampled in the frequency domain.

    Args:
        in_channels: channels of the input.
        out_channels: number of predictions.
        stages: the convolutions in order; the first one is the lifting convolution.
        scales: number of dilations after lifting; 0 for a plain network; None for all dilations whose kernel is no
            longer than an input of ``size`` samples.
        base: ratio of one dilation to the next.
        field: field of the kernels on dilations.
        head: "conv" for the mean over time, a convolution of one point and the maximum over dilations; "dense" for the
            maximum over dilations and linear maps of six time steps; "linear" for the maximum over dilations, the mean
            over time and one linear map.
        head_interactions: number of dilations that the convolution of the head spans.
        hidden: widths of the hidden layers of a dense head.
        dropout: dropout rate before (or between) the linear maps of the head.
        eps: added to the variance in the norms.
        size: length of the inputs, for ``scales=None``.

    >>> import torch
    >>> net = WaveletNet(1, 10, stages=[Stage(8, 9, stride=4), Stage(8, interactions=3, pool=4)], scales=5)
    >>> net(torch.randn(2, 1, 500)).shape
    torch.Size([2, 10])
    """

    @checked(
        stages=ListOf(Instance("kernelfield.models.wavelet_stages.Stage") | ListOf(Int(0) | RATE | BOOL)),
        scales=Int(0, 10_000) | None,
        base=Number(1, without_low=True),
        head=Choice(*HEADS),
        hidden=ListOf(Int(1), least=0),
        dropout=RATE,
        eps=POSITIVE,
    )
    def __init__(
        self,
        in_channels: int = 1,
        out_channels: int = 10,
        *,
        stages: Sequence[Stage],
        scales: int | None = 9,
        base: float = 2.0,
        field: Callable[..., Field] = BSpline,
        head: str = "conv",
        head_interactions: int = 1,
        hidden: Sequence[int] = (),
        dropout: float = 0.0,
        eps: float = 2e-5,
        size: int | None = None,
    ) -> None:
        super().__init__()
        stages = [Stage(*stage) for stage in stages]
        for stage in stages:
            # Kernels are dilated around their middle point, and only odd sizes have one.
            if stage.kernel_size < 1 or (scales != 0 and stage.kernel_size % 2 == 0):
                raise ValueError(f"stages must have positive kernel sizes, and odd ones with scales, got {stage}")
        group: Scale | None = None
        if scales is None:
            if size is None:
                raise ValueError("size must be given for scales=None, which derives the scales from it, got None")
            group = Scale.fitting(size, stages[0].kernel_size, base)
        elif scales:
            group = Scale(scales, base)
        self.in_channels = in_channels
        self.lifted = group is not None
        self.stages = nn.Sequential()
        width = in_channels
        for i, stage in enumerate(stages):
            made = ResidualBlock if stage.residual else ConvLayer
            layer = made(width, stage, group, field, eps, lift=i == 0)
            self.stages.append(layer)
            width, group = stage.channels, layer.group
        self.head = Head(width, out_channels, group, field, head, head_interactions, hidden, dropout)

    @checked(
        x=TensorOf("float", "batch, .in_channels, time", empty=False),
        step=POSITIVE,
        mask=TensorOf("bool", "batch, time") | None,
    )
    def forward(self, x: Tensor, *, step: float = 1.0, mask: Tensor | None = None) -> Tensor:
        r"""Return the predictions for (batch, in_channels, time): (batch, out_channels).

        Args:
            x: the signals.
            step: their sampling step, in training steps.
            mask: (batch, time), True where a sample was seen; values elsewhere, which may be NaN, are set to zero.
        """
        return self.head(self.forward_features(x, step=step, mask=mask))

    def forward_features(self, x: Tensor, *, step: float = 1.0, mask: Tensor | None = None) -> Tensor | GroupSignal:
        """Return features (batch, channels, time), or a signal on dilations; arguments as in ``forward``."""
        if x.dim() != 3 or x.shape[1] != self.in_channels:
            raise ValueError(f"x must have shape (batch, {self.in_channels}, time), got {tuple(x.shape)}")
        if mask is not None:
            x = seen_only(x, mask)
        if step != 1:
            length = x.shape[-1] * step
            if not is_symbolic(x.shape[-1]) and length > MOST:
                raise ValueError(f"step must be at most {MOST / x.shape[-1]:.4g} for {x.shape[-1]} samples, got {step}")
            x = resample(x, max(1, round(length)))
        return self.stages(x)

    @property
    def head_hidden_size(self) -> int:
        """Length of the vector that the last linear map reads."""
        return self.head.hidden_size

    def forward_head(self, features: Tensor | GroupSignal, *, pre_logits: bool = False) -> Tensor:
        """Return predictions from features, or the input of the last linear map."""
        return self.head(features, pre_logits)

    def _head(self) -> Head:
        return self.head


def levels(
    channels: int, counts: Sequence[int], first: int, *, residual: bool = False, last_pool: int = 1
) -> list[Stage]:
    """Return the stages of a network of Dai et al. (2017): a stem, and levels that double the channels.

    Args:
        channels: channels of the stem and of the first level.
        counts: number of convolutions, or blocks, in each level; between levels the signal is pooled by 4.
        first: kernel size of the stem.
        residual: whether levels consist of residual blocks.
        last_pool: factor of the pooling after the last level.
    """
    stages = [Stage(channels, first, stride=4, pool=4)]
    for level, count in enumerate(counts):
        for i in range(count):
            ends = i == count - 1
            pool = (4 if level < len(counts) - 1 else last_pool) if ends else 1
            # Pooling by 4 is two octaves, so the first convolution after it spans three dilations and drops two.
            stages.append(Stage(channels * 2**level, 3, 3 if i == 0 else 1, pool=pool, residual=residual))
    return stages


_M: dict[int, tuple[int, int, list[int], int, dict[str, Any]]] = {
    3: (256, 150, [1], 3, {"last_pool": 4}),
    5: (128, 74, [1, 1, 1], 3, {"last_pool": 4}),
    11: (64, 51, [2, 2, 3, 2], 1, {}),
    18: (64, 57, [4, 4, 4, 4], 1, {}),
    34: (48, 45, [3, 4, 6, 3], 1, {"residual": True}),
}
for _n, (_plain, _wide, _counts, _head, _more) in _M.items():
    register(
        f"m{_n}",
        WaveletNet,
        f"chapter 10: M{_n}-Net, plain",
        stages=levels(_plain, _counts, 80, **_more),
        scales=0,
    )
    register(
        f"w{_n}",
        WaveletNet,
        f"chapter 10: W{_n}-Net, on nine octaves",
        stages=levels(_wide, _counts, 79, **_more),
        head_interactions=_head,
    )

for _name, _summary, _c, _taps, _scales in (
    ("cnn1d", "1DCNN, plain", 16, (64, 32, 16, 8, 4), 0),
    ("w_cnn1d", "W-1DCNN, on nine octaves", 12, (63, 31, 15, 7, 3), 9),
):
    register(
        _name,
        WaveletNet,
        f"chapter 10: {_summary}",
        stages=[
            Stage(_c * 2**i, k, 3, stride=2, pool=p)
            for i, (k, p) in enumerate(zip(_taps, (8, 8, 1, 1, 5), strict=True))
        ],
        scales=_scales,
        head="dense",
        hidden=(8 * _c, 4 * _c),
        dropout=0.25,
    )

for _name, _summary, _c, _bias, _scales in (
    ("m39", "3⁹-Net, plain", 128, True, 0),
    ("w39", "W3⁹-Net, on nine octaves", 90, False, 9),
):
    _widths = [_c] * 3 + [2 * _c] * 6 + [4 * _c] * 2
    _spans = (1, 3, 1, 1, 3, 1, 1, 3, 1, 1, 3)
    register(
        _name,
        WaveletNet,
        f"chapter 10: {_summary}",
        out_channels=50,
        stages=[
            Stage(
                width,
                3,
                span,
                stride=3 if i == 0 else 1,
                pool=3 if 0 < i < 10 else 1,
                dropout=0.5 if i == 5 else 0.0,
                bias=_bias,
            )
            for i, (width, span) in enumerate(zip(_widths, _spans, strict=True))
        ],
        scales=_scales,
        head="linear",
        dropout=0.5,
        eps=1e-5,
    )
