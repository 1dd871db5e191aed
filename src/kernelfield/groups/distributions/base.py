r"""Distributions over a group, which select the elements that a layer computes (chapter 11, section 3.4).

A layer asks its distribution for elements. A discrete distribution also returns a gate for each of them:

- In training they are drawn at every call, differentiably in the distribution's parameters.
- In evaluation, or if :attr:`Distribution.frozen`, they are the same at every call: the middles of equal parts of the
  support for continuous factors, the elements with probability at least one half for discrete ones.

The *number* of elements follows the learned support. For continuous factors it is read from the parameters when the
mode is switched (once an epoch in an ordinary loop), when a state is loaded, by :meth:`Distribution.adapt_`, and in
evaluation when the parameters have changed. Discrete factors draw it at every call. After each optimiser step, a single
copy brings the probabilities of all layers to the host, so no training pass waits for the device.

Shapes of a compiled program are fixed. In such a program a distribution with :attr:`Distribution.fixed_size` returns
all elements, and those that were not drawn have a gate of 0. Layers and networks of this library leave them out of
every sum, mean, maximum and norm over the group.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..._arguments import checked
from ..._hooks import State, differs, is_vmapped, on_optimizer_step, state_of
from ..._kinds import PROBABILITY
from ..._module_state import ComputedBuffers, in_full_precision, keep_geometry

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..base import Group

__all__ = ["Distribution", "Interval", "Uniform"]


class Distribution(ComputedBuffers):
    """Base class of distributions p(u) over a group.

    A subclass defines :meth:`forward`, :meth:`limits` and :meth:`size`.

    Args:
        group: the group.

    >>> from kernelfield.groups import Cyclic
    >>> class OnlyIdentity(Distribution):
    ...     def forward(self, like):
    ...         return self.group.identity(like.dtype, like.device)[None], None
    ...     def limits(self):
    ...         return torch.tensor([1 / self.group.order])
    ...     def size(self):
    ...         return 1
    >>> OnlyIdentity(Cyclic(4))(torch.zeros(()))
    (tensor([[0.]]), None)
    """

    @checked()
    def __init__(self, group: Group) -> None:
        super().__init__()
        self.group = group
        keep_geometry(self, "group")
        #: whether training also uses the fixed elements of evaluation
        self.frozen = False
        #: whether every pass uses all elements of a finite group, in order and without gates
        self.complete = False
        #: whether evaluation also draws elements
        self.sample_in_eval = False
        #: whether each sample of a batch has its own elements
        self.per_sample = False
        #: whether compiled programs compute all elements, with gates of 0 for those left out, if their number is drawn
        self.fixed_size = False
        self._adapted_to: State | None = None
        _followers.add(self)
        self.register_load_state_dict_post_hook(_adapt_after_loading)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        _followers.add(self)  # copies follow optimiser steps too

    def forward(self, like: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return elements in the dtype and on the device of ``like``, (n, coords), and their gates, (n,) or None.

        The value of a gate is 1, and its gradient is that of the probability to keep the element. If :attr:`gated`,
        elements that are left out are returned too, with gates of 0.
        """
        raise NotImplementedError

    def draw_each(self, like: Tensor, batch: int) -> Tensor:
        """Draw the elements of each sample of a batch independently: (batch, n, coords)."""
        if self.size() is None or self.gated:
            raise ValueError(f"per_sample must be False for {self.group}, whose number of elements is random, got True")
        return torch.stack([self(like)[0] for _ in range(batch)])

    def limits(self) -> Tensor:
        """Return the share of the group in the support, per factor, between 0 and 1, differentiable: (factors,)."""
        raise NotImplementedError

    def size(self) -> int | None:
        """Return the number of elements of the next pass, or None if that number is random."""
        raise NotImplementedError

    def adapt_(self) -> Distribution:
        """Set the number of elements from the learned support."""
        self._adapted_to = self._state()
        return self

    @classmethod
    def read(cls, distributions: Sequence[Any]) -> None:
        """Copy the parameters that ``distributions`` of this class need on the host; called after optimiser steps."""

    def _state(self) -> State:
        """Return the state of the parameters."""
        return state_of(self.parameters(recurse=False))

    def _adapt_if_changed(self) -> None:
        if is_vmapped(self.parameters(recurse=False)):
            raise ValueError(
                f"the parameters of {self} must be the same within torch.vmap, since the number of elements follows "
                "from them: call the networks one after the other"
            )
        # A traced graph keeps the number of elements that it was traced with.
        if not torch.compiler.is_compiling() and not self.random and differs(self._adapted_to, self._state()):
            self.adapt_()

    def freeze(self, frozen: bool = True) -> Distribution:
        """Use the same elements at every call, as in evaluation; ``frozen=False`` draws them again."""
        self.frozen = frozen
        return self

    def fix_size(self, fixed: bool = True) -> Distribution:
        """Compute all elements in compiled programs; see :attr:`fixed_size`. ``fixed=False`` undoes this."""
        for module in self.modules():
            if isinstance(module, Distribution):
                module.fixed_size = fixed
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Distribution:
        # A rounded width is another arc of the group, and may even select another number of elements.
        super()._apply(in_full_precision(fn), recurse)
        return self

    def train(self, mode: bool = True) -> Distribution:
        super().train(mode)
        return self.adapt_()

    @property
    def random(self) -> bool:
        """Whether the next call draws elements at random."""
        return (self.training or self.sample_in_eval) and not self.frozen

    @property
    def gated(self) -> bool:
        """Whether the next call returns all elements, with a gate of 0 for those that are left out."""
        return False

    def extra_repr(self) -> str:
        return f"{self.group}"


class Uniform(Distribution):
    """All elements of a finite group, or samples spread evenly over a continuous one.

    Args:
        group: the group.
        samples: number of elements of a continuous group.

    >>> from kernelfield.groups import SO2
    >>> elements, gates = Uniform(SO2(), samples=4).eval()(torch.zeros(()))
    >>> elements.squeeze(-1) / torch.pi
    tensor([-0.7500, -0.2500,  0.2500,  0.7500])
    """

    everything: Tensor

    @checked()
    def __init__(self, group: Group, samples: int | None = None) -> None:
        super().__init__(group)
        if group.finite:
            if samples not in (None, group.order):
                raise ValueError(f"samples must be None or {group.order} for {group}, got {samples}")
        elif samples is None:
            raise ValueError(f"samples must be an int of at least 1 for {group}, which is continuous, got None")
        self.samples = samples
        self.complete = group.finite
        # A buffer on the module's device: a copy from the host could not be part of a CUDA graph.
        self.register_computed("everything", group.elements() if group.finite else None)

    def forward(self, like: Tensor) -> tuple[Tensor, Tensor | None]:
        if self.everything is not None or self.samples is None:
            return self.everything, None
        return self.group.spread(self.samples, _fraction(self.random, like)), None

    def limits(self) -> Tensor:
        return torch.ones(len(self.group.factors))

    def size(self) -> int | None:
        return self.group.order or self.samples


class Interval(Distribution):
    r"""A uniform distribution on a learned interval of a one-dimensional group that contains the identity.

    .. math:: u = \exp(\omega\, \log u_0), \qquad u_0 \sim \mathrm{Uniform}(H), \quad \omega \in [0, 1]

    For rotations this is U(ω·[-π, π]) on the Lie algebra, pushed forward by the exponential map; for a continuous
    window of n dilations, the exponents are uniform on ω·[0, n - 1]. Samples are stratified: the interval is cut into
    equal parts with one sample each, all at the same random fraction of their parts. The gradient reaches ω through
    every element. Values of ω outside [0, 1] are clamped but still get a gradient, so an interval that has reached a
    limit can leave it again.

    Args:
        group: a one-dimensional continuous group.
        samples: number of elements at full width; :attr:`count` of them are used, ⌈ω·samples⌉.
        width: initial ω.

    >>> from kernelfield.groups import SO2
    >>> interval = Interval(SO2(), samples=8, width=0.5).eval()
    >>> elements, _ = interval(torch.zeros(()))
    >>> elements.squeeze(-1).detach() / torch.pi
    tensor([-0.3750, -0.1250,  0.1250,  0.3750])
    """

    count: int

    @checked(width=PROBABILITY)
    def __init__(self, group: Group, samples: int, width: float = 1.0) -> None:
        super().__init__(group)
        if group.finite or group.coords != 1:
            raise ValueError(f"group must be continuous and of one dimension for an interval, got {group}")
        self.samples = samples
        self.width = nn.Parameter(torch.tensor(float(width)))
        self.adapt_()

    def forward(self, like: Tensor) -> tuple[Tensor, Tensor | None]:
        self._adapt_if_changed()
        full_width = self.group.spread(self.count, _fraction(self.random, like))
        return self.group.exp(self.limits().to(like) * self.group.log(full_width)), None

    def limits(self) -> Tensor:
        return (self.width + (self.width.clamp(0, 1) - self.width).detach())[None]

    def size(self) -> int | None:
        return self.count

    @torch.no_grad()
    def adapt_(self) -> Interval:
        if isinstance(self.width, nn.Parameter):  # and not computed for one call, whose graph a change would break
            self.width.clamp_(0, 1)
        width = 1.0 if self.width.is_meta else float(self.width)
        # The margin absorbs rounding: at a width of 0.50000003, half of 8 samples are still 4. After a training that
        # has diverged the width is NaN.
        needed = self.samples * width * (1 - 1e-6) if math.isfinite(width) else self.samples
        self.count = min(self.samples, max(1, math.ceil(needed)))
        super().adapt_()
        return self

    def extra_repr(self) -> str:
        return f"{self.group}, samples={self.samples}, count={self.count}"


def _after_step(distributions: list[Distribution]) -> None:
    for kind in {type(distribution) for distribution in distributions}:
        kind.read([distribution for distribution in distributions if type(distribution) is kind])


_followers = on_optimizer_step(lambda distribution: distribution.parameters(recurse=False), _after_step)


def _adapt_after_loading(module: nn.Module, incompatible: object) -> None:  # noqa: ARG001
    if isinstance(module, Distribution):
        module.adapt_()


def _fraction(random: bool, like: Tensor) -> Tensor:
    if random:
        return torch.rand(1, dtype=like.dtype, device=like.device)
    return torch.full((1,), 0.5, dtype=like.dtype, device=like.device)
