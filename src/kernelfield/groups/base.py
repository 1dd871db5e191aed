"""Base class of groups."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .._arguments import checked
from .._checks import check_int
from .grid import transform

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Group", "strata", "wrap"]


class Group:
    r"""A group H that acts on :math:`\mathbb{R}^d` by matrices (chapter 8, section 2.2; chapter 11, appendix A).

    Its elements are floating-point tensors of shape (…, coords), and every operation broadcasts over the leading axes.
    Together with the translations of space it forms an affine group, :class:`~kernelfield.groups.Affine`.

    A subclass defines :meth:`product`, :meth:`inverse`, :meth:`exp`, :meth:`log`, :meth:`matrix`, :meth:`generator`,
    :meth:`chart`, and either :meth:`elements` (a finite group) or :meth:`spread` (a continuous one). It then works in
    every layer on groups: the attributes below tell a layer how to convolve on the group, and no layer asks which group
    it is.

    Attributes:
        dim: number d of dimensions of the space it acts on.
        coords: number of coordinates of an element.
        order: number of elements, None for a continuous group.
        identity_coords: coordinates of the identity.
        chart_size: number of coordinates of :meth:`chart`.
        table_size: number of values along each coordinate of the chart, None for a continuous group.
        on_grid: whether the action maps a square grid to itself, so that no interpolation is needed.
        isometric: whether the action preserves lengths.
        convolution: how layers convolve a signal on all elements. "stack": all kernels have the same size, and one
            convolution treats the elements as channels. "filter_bank": the kernel of each element has its own size,
            given by :meth:`stretches`.
        ordered: whether the elements form a sequence of steps, so that a kernel may span a few neighbours only
            (``interactions`` in layers). Such a group defines :attr:`window` and :meth:`shortened`, and its only
            coordinate counts steps.

    >>> from kernelfield.groups import Cyclic
    >>> group = Cyclic(4)
    >>> a, b = group.elements()[1:3]
    >>> group.product(a, b), group.inverse(a), group.matrix(a).round().abs()
    (tensor([3.]), tensor([3.]), tensor([[0., 1.],
            [1., 0.]]))
    """

    dim: int
    coords: int = 1
    order: int | None = None
    identity_coords: tuple[float, ...] = (0.0,)
    chart_size: int = 1
    table_size: tuple[int, ...] | None = None
    on_grid: bool = False
    isometric: bool = True
    convolution: str = "stack"
    ordered: bool = False

    @property
    def kind(self) -> str:
        """Name of the convention for an element's coordinates: groups of equal kind can exchange elements.

        By default it contains all attributes of the group, since any of them may change the convention.
        """
        parts = [f"{name}={_described(value)}" for name, value in sorted(vars(self).items())]
        return f"{type(self).__name__}({', '.join(parts)})"

    # Methods that a subclass defines.

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        """Return ab: (…, coords) and (…, coords) to (…, coords)."""
        raise NotImplementedError

    def inverse(self, a: Tensor) -> Tensor:
        """Return the inverse of ``a``."""
        raise NotImplementedError

    def exp(self, v: Tensor) -> Tensor:
        """Return the element at ``v`` of the Lie algebra. Discrete coordinates are rounded to the nearest element."""
        raise NotImplementedError

    def log(self, a: Tensor) -> Tensor:
        """Return the smallest ``v`` whose :meth:`exp` is ``a``. Discrete coordinates are unchanged."""
        raise NotImplementedError

    def matrix(self, a: Tensor) -> Tensor:
        """Return the matrix by which ``a`` acts on coordinates: (…, dim, dim)."""
        raise NotImplementedError

    def generator(self, v: Tensor) -> Tensor:
        """Return the matrix whose exponential is :meth:`matrix`, up to discrete factors: (…, dim, dim)."""
        raise NotImplementedError

    def chart(self, a: Tensor) -> Tensor:
        """Return the coordinates at which a kernel on the group is sampled: (…, chart_size), in [-1, 1].

        The identity lies in the interior, as near to the middle as an even number of values allows. A kernel is
        therefore continuous there. The chart maps the elements of a finite group to the nodes of a ``Table`` of
        ``table_size``.
        """
        raise NotImplementedError

    def spread(self, n: int, at: Tensor) -> Tensor:
        """Return one element from each of n equal parts of the group, at the fraction ``at`` of the part, in [0, 1).

        With several fractions, return n elements for each. A product combines every element of its finite factors with
        an equal share of the n elements of its continuous factor. For rotations, the middle of a single part is the
        identity.
        """
        if self.order is not None:
            raise TypeError(f"group must be continuous to spread elements over it, got {self}; it has elements()")
        finite = math.prod([factor.order for factor in self.factors if factor.order is not None])
        continuous = [factor for factor in self.factors if factor.order is None]
        if len(continuous) != 1 or continuous[0] is self:
            raise TypeError(f"group must have one continuous factor to spread elements over it, got {self}")
        if n == 1:
            return self._single(at)
        if n % finite:
            raise ValueError(f"n must be a multiple of {finite}, the order of the finite factors of {self}, got {n}")
        parts = [
            factor.spread(n // finite, at) if factor.order is None else factor.elements(at.dtype, at.device)
            for factor in self.factors
        ]
        return self.join(parts)

    def elements(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Tensor:
        """Return all elements of a finite group, the identity first: (order, coords)."""
        if self.order is not None and len(self.factors) > 1:
            return self.join([factor.elements(dtype, device) for factor in self.factors])
        raise TypeError(f"group must be finite to list its elements, got {self}; sample(n) draws from it")

    @property
    def window(self) -> int:
        """The number of steps of an :attr:`ordered` group that layers use."""
        raise ValueError(f"group must be ordered to have a window, got {self}")

    def shortened(self, count: int) -> Group:  # noqa: ARG002
        """Return an :attr:`ordered` group without its last ``count`` elements; at least one is left."""
        raise ValueError(f"group must be ordered to be shortened, got {self}")

    # Methods with a default in terms of these.

    @property
    def finite(self) -> bool:
        """Whether layers use all :meth:`elements` rather than a sample."""
        return self.order is not None

    @property
    def factors(self) -> tuple[Group, ...]:
        """Factors of a product, whose elements can be drawn independently; the group itself if it is no product."""
        return (self,)

    def assemble(self, parts: Sequence[Tensor]) -> Tensor:
        """Combine elements, one of each of the :attr:`factors`, into elements of the group: (…, coords)."""
        return torch.cat(list(parts), dim=-1)

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """Return all combinations of elements of the :attr:`factors`: (n₁·n₂·…, coords); the last varies fastest."""
        indices = torch.meshgrid(*(torch.arange(len(p), device=p.device) for p in parts), indexing="ij")
        return self.assemble(
            [part.index_select(0, index.flatten()) for part, index in zip(parts, indices, strict=True)]
        )

    def identity(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Tensor:
        """Return the identity: (coords,)."""
        return torch.tensor(self.identity_coords, dtype=dtype or torch.get_default_dtype(), device=device)

    def relative(self, a: Tensor, b: Tensor) -> Tensor:
        r"""Return :math:`a^{-1} b`, the argument of a kernel on the group."""
        return self.product(self.inverse(a), b)

    def act_on(self, a: Tensor, x: Tensor) -> Tensor:
        """Return the coordinates ``x`` moved by ``a``: (…, coords) and (…, dim) to (…, dim)."""
        return (self.matrix(a) @ x.unsqueeze(-1)).squeeze(-1)

    def determinant(self, a: Tensor) -> Tensor:
        """Return the factor by which ``a`` scales volumes: (…), positive."""
        matrix = self.matrix(a)
        if matrix.dtype in (torch.bfloat16, torch.float16):  # torch has no determinant in half precision
            return torch.linalg.det(matrix.float()).abs().to(matrix.dtype)
        return torch.linalg.det(matrix).abs()

    def stretch(self) -> float:
        """Return the largest factor by which an element stretches lengths."""
        if self.isometric:
            return 1.0
        if len(self.factors) > 1:
            return math.prod(factor.stretch() for factor in self.factors)
        return max(self.stretches())

    def stretches(self) -> tuple[float, ...]:
        """Return the factor by which each of the :meth:`elements` of a finite group stretches lengths."""
        return tuple(v ** (1 / self.dim) for v in self.determinant(self.elements(torch.float64)).tolist())

    def check_interactions(self, interactions: int | None) -> int | None:
        """Return ``interactions``, the number of neighbouring elements that a kernel spans, if the group allows it."""
        if interactions is None:
            return None
        if not self.ordered:
            raise ValueError(
                f"interactions must be None for {self}, whose elements are not ordered, got {interactions}"
            )
        if check_int("interactions", interactions) > self.window:
            raise ValueError(f"interactions must be at most the {self.window} steps of {self}, got {interactions}")
        return interactions

    def density(self, a: Tensor) -> Tensor:
        """Return the density of the left Haar measure in the coordinates of the element: (…)."""
        return torch.ones_like(a[..., 0])

    @checked()
    def weight(self, n: int) -> float:
        """Return the Haar measure of one of ``n`` elements of a signal.

        Elements of a finite group have measure 1, as in G-CNNs. A continuous group has total measure 1, and each of n
        samples 1/n, so that the Monte-Carlo sum of chapter 11 does not grow with the number of samples.
        """
        return 1.0 if self.finite else 1.0 / n

    def distance(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the left-invariant distance, the length of the logarithm of a⁻¹b: (…)."""
        return (self.log(self.relative(a, b)) - self.log(self.identity(a.dtype, a.device))).norm(dim=-1)

    @checked()
    def sample(
        self,
        n: int,
        *,
        stratified: bool = False,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Tensor:
        """Draw ``n`` elements uniformly: (n, coords).

        Args:
            n: number of elements.
            stratified: draw one element from each of n equal parts of the group, all at the same random fraction of
                their parts. Each element is uniform, and together they cover the group evenly.
            generator: random number generator; torch's default if not given.
            dtype: data type of the result.
            device: device of the result.
        """
        if stratified and self.order is not None:
            raise ValueError(f"stratified must be False for {self}, which is finite, got True")
        if stratified:
            return self.spread(n, torch.rand(1, generator=generator, dtype=dtype, device=device))
        return self._draw(n, generator, dtype=dtype, device=device)

    def act(self, element: Tensor, signal: Tensor, elements: Tensor | None = None) -> Tensor:
        r"""Return the signal transformed by ``element``: :math:`(L_g f)(x, h) = f(g^{-1} x, g^{-1} h)`.

        A signal of dim + 2 axes lives on space. One of dim + 3 axes lives on the group, and its group axis is permuted.

        Args:
            element: (coords,) element.
            signal: (batch, channels, \*space) or (batch, channels, group, \*space) signal.
            elements: (group, coords) elements at which a signal on the group is sampled; all of a finite group if not
                given. They must be a set that ``element`` maps to itself.

        The result is exact where the element maps the grid to itself. Otherwise it is interpolated linearly, with zeros
        outside the grid.
        """
        element = element.to(torch.float64).cpu()
        if signal.dim() == self.dim + 3:
            here = self.elements() if elements is None else elements
            signal = signal.index_select(2, self._source_indices(element, here).to(signal.device))
        elif signal.dim() != self.dim + 2:
            raise ValueError(
                f"signal must have shape (batch, channels, *space) or (batch, channels, group, *space) with "
                f"{self.dim} spatial axes, got {tuple(signal.shape)}"
            )
        return transform(signal, self.matrix(element), self._shift(element))

    def _single(self, at: Tensor) -> Tensor:
        """Return one element for each fraction in ``at``, which selects an element of the finite factors first."""
        parts = []
        for factor in self.factors:
            if factor.order is None:
                parts.append((factor, at))
                continue
            at = torch.remainder(at * factor.order + (1 - factor.order) / 2, factor.order)
            index = at.floor().clamp(max=factor.order - 1)
            parts.append((factor, index))
            at = at - index
        rows = [
            factor.spread(1, value)
            if factor.order is None
            else factor.elements(value.dtype, value.device)[value.long()]
            for factor, value in parts
        ]
        return self.assemble(rows)

    def _shift(self, element: Tensor) -> Tensor:
        return torch.zeros(self.dim, dtype=element.dtype)

    def _source_indices(self, element: Tensor, elements: Tensor) -> Tensor:
        """Return, for each i, the index of element⁻¹ · elements[i] among ``elements``."""
        here = elements.detach().to(element)
        sources = self.relative(element, here)
        distances = self.distance(sources[:, None], here)
        nearest, index = distances.min(dim=1)
        if float(nearest.max()) > 1e-4:
            raise ValueError(
                f"elements must be a set that element {element.tolist()} maps to itself, got {len(here)} elements, "
                f"and one moves to a distance of {float(nearest.max()):.3g} from all of them"
            )
        return index

    def _draw(self, n: int, generator: torch.Generator | None, **factory: Any) -> Tensor:
        """Return n independent elements with the dtype and device in ``factory``."""
        if not self.finite:
            # One part is the whole group, so n random fractions of it are n independent elements.
            return self.spread(1, torch.rand(n, generator=generator, **factory))
        everything = self.elements(**factory)
        return everything[torch.randint(len(everything), (n,), generator=generator, device=everything.device)]

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and _are_equal(vars(self), vars(other))

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


def _described(value: Any) -> str:
    """Return an attribute of a group as text; unlike ``repr``, it does not shorten tensors."""
    if isinstance(value, Group):
        return value.kind
    return repr(value.tolist() if hasattr(value, "tolist") else value)


def _are_equal(a: Any, b: Any) -> bool:
    """Return whether two attributes of groups are equal; unlike ``==``, it compares tensors and arrays as a whole."""
    if isinstance(a, (int, float, str)):  # first, since torch.compile cannot ask symbolic numbers for attributes
        return bool(a == b)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_are_equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(_are_equal(x, y) for x, y in zip(a, b, strict=True))
    if hasattr(a, "tolist") and hasattr(b, "tolist"):
        return a is b or bool(a.tolist() == b.tolist())
    return bool(a == b)


def wrap(angle: Tensor, margin: float = 0.0) -> Tensor:
    """Return the angle modulo 2π, in [-π - margin, π - margin).

    >>> wrap(torch.tensor([torch.pi / 2, 3 * torch.pi / 2])) / torch.pi
    tensor([ 0.5000, -0.5000])
    """
    return torch.remainder(angle + (math.pi + margin), 2 * math.pi) - (math.pi + margin)


def strata(n: int, at: Tensor) -> Tensor:
    """Return the points at the fractions ``at`` of n equal parts of [-1, 1): (n·len(at),).

    >>> strata(4, torch.tensor([0.5]))
    tensor([-0.7500, -0.2500,  0.2500,  0.7500])
    """
    parts = torch.arange(n, dtype=at.dtype, device=at.device)
    return ((parts[:, None] + at).flatten() * 2 - n) / n
