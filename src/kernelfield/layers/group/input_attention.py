"""Attention on the input of a group convolution (chapter 8, section 3.5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..._checks import check_int
from ...fields import Table
from ...ops.backend import use_triton
from .gconv import folded
from .kernel import GroupKernel

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...groups import Group

__all__ = ["InputAttention", "hidden_width", "same_conv", "takes_kernels"]

_CONVS: dict[int, Callable[..., Tensor]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


class InputAttention(nn.Module):
    r"""Channel and spatial attention of a signal on space or on a group, on the residual branch (chapter 8, Eq. 19).

    .. math::
        \alpha_C(h) &= \sigma\big(W_2 *_H [W_1 *_H \bar f]^+ + W_2 *_H [W_1 *_H \hat f]^+\big), \\
        \alpha_X(x, h) &= \sigma\big([\overline{\alpha_C f}, \widehat{\alpha_C f}] * \psi\big), \qquad
        f \mapsto (1 - \alpha_X \alpha_C)\, f

    with mean and maximum over space for the channels, over channels for space: a sequence of group convolutions and
    pointwise functions. For the trivial group, W₁ and W₂ alone are squeeze-and-excitation (with a maximum beside the
    mean), both together are CBAM, each on a branch that is subtracted instead of multiplied.

    Args:
        channels: channels of the signal.
        group: a finite group.
        lifting: the signal lives on space; ψ is then lifted, and the maximum taken over the group.
        hidden: channels between W₁ and W₂.
        kernel_size: points of ψ along each axis, odd.
        dilation: distance of its points.

    >>> from kernelfield.groups import Cyclic
    >>> InputAttention(4, group=Cyclic(4))(torch.randn(2, 4, 4, 8, 8)).shape
    torch.Size([2, 4, 4, 8, 8])
    """

    def __init__(
        self,
        channels: int,
        *,
        group: Group,
        lifting: bool = False,
        hidden: int | None = None,
        kernel_size: int = 7,
        dilation: int = 1,
    ) -> None:
        super().__init__()
        self.group, self.channels, self.lifting = group, check_int("channels", channels), lifting
        hidden = hidden_width(channels, hidden, lifting)
        if check_int("kernel_size", kernel_size) % 2 == 0:
            raise ValueError(f"kernel_size must be odd, got {kernel_size}")
        self.dilation = check_int("dilation", dilation)
        if lifting:
            self.squeeze: nn.Module = nn.Linear(channels, hidden, bias=False)
            self.excite: nn.Module = nn.Linear(hidden, channels, bias=False)
        else:
            # These sums run over the group too.
            n = group.order or 1
            self.squeeze = GroupKernel(
                group, Table, hidden, channels, kernel_size=1, on_space=False, fan_in=channels * n
            )
            self.excite = GroupKernel(group, Table, channels, hidden, kernel_size=1, on_space=False, fan_in=hidden * n)
        terms = 2 * kernel_size**group.dim * (1 if lifting else group.order or 1)
        self.kernel = GroupKernel(group, Table, 1, 2, kernel_size=kernel_size, on_group=not lifting, fan_in=terms)

    def maps(self, x: Tensor) -> tuple[Tensor, Tensor]:
        r"""Return the residual maps α_C, (batch, channels, [group,] 1, …), and α_X, (batch, 1, [group,] \*space)."""
        space = tuple(range(x.dim() - self.group.dim, x.dim()))
        mean, peak = x.mean(dim=space), x.amax(dim=space)
        channel = torch.sigmoid(self._channel(mean) + self._channel(peak))
        channel = channel.view(*channel.shape, *[1] * len(space))
        weighted = channel * x
        statistics = torch.stack([weighted.mean(dim=1), weighted.amax(dim=1)], dim=1)
        return channel, torch.sigmoid(self._space(statistics))

    def forward(self, x: Tensor) -> Tensor:
        r"""Return (batch, channels, \*space), with a group axis before space unless ``lifting``, attended to."""
        if not self.lifting and takes_kernels(x, self.group.dim):
            return self._fused(x)
        channel, space = self.maps(x)
        return x - space * channel * x

    def _fused(self, x: Tensor) -> Tensor:
        from ...ops.attentive.triton.input_launch import attend_to_input  # noqa: PLC0415

        with torch.autocast("cuda", enabled=False):
            psi = folded(self.kernel()).flip((2, 3))
            return attend_to_input(x, _matrix(self.squeeze()), _matrix(self.excite()), psi, self.dilation)

    def _channel(self, statistic: Tensor) -> Tensor:
        if self.lifting:
            return self.excite(F.relu(self.squeeze(statistic)))
        shape = statistic.shape
        hidden = F.relu(F.linear(statistic.flatten(1), _matrix(self.squeeze())))
        return F.linear(hidden, _matrix(self.excite())).view(shape)

    def _space(self, statistics: Tensor) -> Tensor:
        flat = statistics if self.lifting else statistics.flatten(1, 2)
        y = same_conv(flat, folded(self.kernel()), dilation=self.dilation).unsqueeze(1)
        return y.amax(dim=2) if self.lifting else y


def same_conv(x: Tensor, kernel: Tensor, *, groups: int = 1, dilation: int = 1) -> Tensor:
    """Convolve with zeros beyond the signal, which may be much smaller than the kernel; kernels are odd."""
    dim = x.dim() - 2
    flipped = kernel.flip(tuple(range(2, 2 + dim))).to(x.dtype)  # torch correlates
    padding = [dilation * (n // 2) for n in kernel.shape[2:]]
    return _CONVS[dim](x, flipped, padding=padding, dilation=dilation, groups=groups)


def takes_kernels(x: Tensor, dim: int) -> bool:
    """Return whether a signal is one that Triton's kernels take, and they run here."""
    return dim == 2 and use_triton(x)


def hidden_width(channels: int, hidden: int | None, lifting: bool) -> int:
    """Return the width between the two maps of channel attention: all of a lifted signal's, else half by default."""
    if lifting:
        return channels
    return max(1, channels // 2) if hidden is None else check_int("hidden", hidden)


def _matrix(kernel: Tensor) -> Tensor:
    return folded(kernel).flatten(1)
