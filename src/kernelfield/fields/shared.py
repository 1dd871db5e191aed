"""Fields that share a network and have their own last linear maps (chapter 6)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .._arguments import checked
from .._hooks import has_hooks
from .._object_kinds import Instance
from ._maps import scale_linear_
from .base import Field

__all__ = ["SharedField"]


class SharedField(Field):
    r"""A linear map of the values of a network that several fields share (chapter 6, appendix "General remarks").

    .. math:: \psi(x) = A\, \mathrm{GELU}(\phi(x)) + a

    with a field φ that all layers of a network evaluate. Chapter 6 has one kernel network whose outputs are the kernels
    of all layers. This is the same function, with the last linear map split by layer.

    The shared network is not a submodule: the model that owns it registers it once. Its parameters are therefore not
    among those of this field.

    Args:
        dim: number of coordinates.
        channels: number of values.
        network: the shared field φ.

    >>> from kernelfield.fields import RandomFourier
    >>> network = RandomFourier(dim=1, channels=16, hidden=16)
    >>> first, second = SharedField(1, 3, network=network), SharedField(1, 5, network=network)
    >>> first(torch.rand(7, 1)).shape, second(torch.rand(7, 1)).shape
    (torch.Size([7, 3]), torch.Size([7, 5]))
    >>> sum(p.numel() for p in first.parameters())      # 16·3 + 3
    51
    """

    @checked(network=Instance("kernelfield.fields.Field"))
    def __init__(self, dim: int, channels: int, *, network: Field) -> None:
        super().__init__(dim, channels)
        if network.dim != dim:
            raise ValueError(f"network must have dim={dim}, got {network.dim}")
        # In a tuple, where nn.Module does not find it: a state dict holds the shared network once.
        self._shared = (network,)
        self.out = nn.Linear(network.channels, channels)
        nn.init.kaiming_uniform_(self.out.weight, nonlinearity="linear")
        nn.init.zeros_(self.out.bias)

    @property
    def network(self) -> Field:
        """The shared network."""
        return self._shared[0]

    def evaluate(self, coords: Tensor) -> Tensor:
        return self.out(self.features(coords))

    def features(self, coords: Tensor) -> Tensor:
        network = self.network
        return nn.functional.gelu(network(coords) if has_hooks(network) else network.evaluate(coords))

    def readout(self) -> tuple[Tensor, Tensor]:
        return self.out.weight, self.out.bias

    def hidden_values(self) -> int:
        return max(self.network.channels, self.network.hidden_values())

    @torch.no_grad()
    def scale_(self, factor: float | Tensor) -> SharedField:
        scale_linear_(self.out, factor)
        return self
