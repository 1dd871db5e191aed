"""The sum of softmaxes as Triton kernels: one launch reads three tensors and writes one."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...autograd import EagerFunction, grads_by_formula
from ...launch_sizes import ceil_div, power_of_2
from ..softmax import softmax_sum

__all__ = ["fused_softmax_sum"]

# One program computes one position and a few output elements h. It loops over the query's elements g. For a tile of
# neighbours j it holds two (h, m, j) tensors, the weights of one g and their sum so far. It writes no tensor with all
# four indices.


# Sizes that are not specialised, so that one compiled kernel serves all maps of a network.
SIZES = ["P", "H", "M", "cx", "cp", "cg", "cm", "sx", "sp", "sg", "sh", "ex", "ep", "eg", "eh", "valid_p"]


@triton.jit
def _offsets(pid, P, cx, cp, sx, sp, ex, ep):
    """Return where one position begins in the three tensors of scores."""
    x, p = pid // P, pid % P
    return x * cx + p * cp, x * sx + p * sp, x * ex + p * ep


@triton.jit
def _load_gradient(source, hh, m, j, H, M, J: tl.constexpr):
    """Load the gradients of the weights of a tile: (h, m, j), zeros past the end."""
    there = (hh < H)[:, None, None] & (m < M)[None, :, None] & (j < J)[None, None, :]
    at = (hh[:, None, None] * M + m[None, :, None]) * J + j[None, None, :]
    return tl.load(source + at, mask=there, other=0.0)


@triton.jit
def _scores(
    content, place, element, valid, g, j, hh, m, cg, cm, sg, sh, eg, eh, H, M, J: tl.constexpr, VALID: tl.constexpr
):
    """Return the scores of one element of the query, -1e30 for missing keys: (h, m, j)."""
    real = (j < J)[None, :] & (m < M)[:, None]
    if VALID:
        seen = tl.load(valid + j, mask=j < J, other=0)
        real = real & (seen != 0)[None, :]
    by_content = tl.load(content + g * cg + m[:, None] * cm + j[None, :], mask=real, other=-1e30)
    by_place = tl.load(
        place + g * sg + hh[:, None] * sh + j[None, :], mask=(hh < H)[:, None] & (j < J)[None, :], other=0.0
    )
    by_element = tl.load(
        element + g * eg + hh[:, None] * eh + m[None, :], mask=(hh < H)[:, None] & (m < M)[None, :], other=0.0
    )
    return by_content[None, :, :] + by_place[:, None, :] + by_element[:, :, None]


@triton.jit(do_not_specialize=SIZES)
def _forward(
    content, place, element, valid, out, lse,
    P, H, M, cx, cp, cg, cm, sx, sp, sg, sh, ex, ep, eg, eh, valid_p,
    J: tl.constexpr, VALID: tl.constexpr, HP: tl.constexpr, MP: tl.constexpr, JT: tl.constexpr, GS: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0).to(tl.int64)
    of_content, of_place, of_element = _offsets(pid, P, cx, cp, sx, sp, ex, ep)
    content += of_content
    place += of_place
    element += of_element
    valid += pid % P * valid_p
    hh, m = tl.program_id(1) * HP + tl.arange(0, HP), tl.arange(0, MP)
    target = out + pid * H * M * J
    norms = lse + pid * GS * H
    if J <= JT:
        j = tl.arange(0, JT)
        total = tl.zeros((HP, MP, JT), dtype=tl.float32)
        for g in range(GS):
            z = _scores(content, place, element, valid, g, j, hh, m, cg, cm, sg, sh, eg, eh, H, M, J, VALID)
            largest = tl.max(tl.max(z, axis=2), axis=1)
            z = tl.exp(z - largest[:, None, None])
            normaliser = tl.sum(tl.sum(z, axis=2), axis=1)
            total += z * (1.0 / normaliser)[:, None, None]
            tl.store(norms + g * H + hh, largest + tl.log(normaliser), mask=hh < H)
        there = (hh < H)[:, None, None] & (m < M)[None, :, None] & (j < J)[None, None, :]
        tl.store(target + (hh[:, None, None] * M + m[None, :, None]) * J + j[None, None, :], total, mask=there)
    else:
        for g in range(GS):
            largest = tl.full((HP,), -3e38, dtype=tl.float32)
            normaliser = tl.zeros((HP,), dtype=tl.float32)
            for start in range(0, J, JT):
                j = start + tl.arange(0, JT)
                z = _scores(content, place, element, valid, g, j, hh, m, cg, cm, sg, sh, eg, eh, H, M, J, VALID)
                new = tl.maximum(largest, tl.max(tl.max(z, axis=2), axis=1))
                added = tl.sum(tl.sum(tl.exp(z - new[:, None, None]), axis=2), axis=1)
                normaliser = normaliser * tl.exp(largest - new) + added
                largest = new
            tl.store(norms + g * H + hh, largest + tl.log(normaliser), mask=hh < H)
        tl.debug_barrier()  # threads load values that other threads stored
        for start in range(0, J, JT):
            j = start + tl.arange(0, JT)
            total = tl.zeros((HP, MP, JT), dtype=tl.float32)
            for g in range(GS):
                z = _scores(content, place, element, valid, g, j, hh, m, cg, cm, sg, sh, eg, eh, H, M, J, VALID)
                norm = tl.load(norms + g * H + hh, mask=hh < H, other=3e38)
                total += tl.exp(z - norm[:, None, None])
            there = (hh < H)[:, None, None] & (m < M)[None, :, None] & (j < J)[None, None, :]
            tl.store(target + (hh[:, None, None] * M + m[None, :, None]) * J + j[None, None, :], total, mask=there)


@triton.jit(do_not_specialize=SIZES)
def _backward(
    content, place, element, valid, lse, dout, dcontent, dplace, delement,
    P, H, M, cx, cp, cg, cm, sx, sp, sg, sh, ex, ep, eg, eh, valid_p,
    J: tl.constexpr, VALID: tl.constexpr, HP: tl.constexpr, MP: tl.constexpr, JT: tl.constexpr, GS: tl.constexpr,
    SHARED: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0).to(tl.int64)
    of_content, of_place, of_element = _offsets(pid, P, cx, cp, sx, sp, ex, ep)
    content += of_content
    dcontent += of_content
    place += of_place
    dplace += of_place
    element += of_element
    delement += of_element
    valid += pid % P * valid_p
    hh, m = tl.program_id(1) * HP + tl.arange(0, HP), tl.arange(0, MP)
    source = dout + pid * H * M * J
    norms = lse + pid * GS * H
    for g in range(GS):
        norm = tl.load(norms + g * H + hh, mask=hh < H, other=3e38)
        mean = tl.zeros((HP,), dtype=tl.float32)
        for start in range(0, J, JT):
            j = start + tl.arange(0, JT)
            gradient = _load_gradient(source, hh, m, j, H, M, J)
            z = _scores(content, place, element, valid, g, j, hh, m, cg, cm, sg, sh, eg, eh, H, M, J, VALID)
            mean += tl.sum(tl.sum(tl.exp(z - norm[:, None, None]) * gradient, axis=2), axis=1)
        by_element = tl.zeros((HP, MP), dtype=tl.float32)
        for start in range(0, J, JT):
            j = start + tl.arange(0, JT)
            gradient = _load_gradient(source, hh, m, j, H, M, J)
            z = _scores(content, place, element, valid, g, j, hh, m, cg, cm, sg, sh, eg, eh, H, M, J, VALID)
            z = tl.exp(z - norm[:, None, None]) * (gradient - mean[:, None, None])
            spots = dcontent + g * cg + m[:, None] * cm + j[None, :]
            real = (m < M)[:, None] & (j < J)[None, :]
            if SHARED:  # programs of other output elements add to the same gradient
                tl.atomic_add(spots, tl.sum(z, axis=0), mask=real)
            else:
                tl.store(spots, tl.sum(z, axis=0), mask=real)
            tl.store(
                dplace + g * sg + hh[:, None] * sh + j[None, :],
                tl.sum(z, axis=1),
                mask=(hh < H)[:, None] & (j < J)[None, :],
            )
            by_element += tl.sum(z, axis=2)
        tl.store(
            delement + g * eg + hh[:, None] * eh + m[None, :],
            by_element,
            mask=(hh < H)[:, None] & (m < M)[None, :],
        )


class _SoftmaxSum(EagerFunction):
    @staticmethod
    def forward(ctx: Any, content: Tensor, place: Tensor, element: Tensor, valid: Tensor | None) -> Tensor:
        n, p, g, m, j = content.shape
        h = place.shape[3]
        out, lse = content.new_empty(n, p, h, m, j), content.new_empty(n, p, g, h)
        arguments = _arguments(content, place, element, valid)
        grid = (n * p, ceil_div(h, arguments["HP"]))
        _forward[grid](content, place, element, content if valid is None else valid, out, lse, **arguments)
        ctx.save_for_backward(content, place, element, lse)
        ctx.valid = valid
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        content, place, element, lse = ctx.saved_tensors
        valid = ctx.valid
        if torch.is_grad_enabled():  # second derivatives need differentiable operations
            seen = None if valid is None else valid.bool()
            formula = partial(softmax_sum, valid=seen, fused=False)
            return (*grads_by_formula(formula, (content, place, element), dout), None)
        arguments = _arguments(content, place, element, valid)
        grid = (content.shape[0] * content.shape[1], ceil_div(place.shape[3], arguments["HP"]))
        shared = grid[1] > 1
        gradients = [torch.empty_like(t) for t in (content, place, element)]
        if shared:
            gradients[0].zero_()
        assert all(a.stride() == b.stride() for a, b in zip(gradients, (content, place, element), strict=True))
        _backward[grid](
            content, place, element, content if valid is None else valid, lse, dout.contiguous(), *gradients,
            SHARED=shared, **arguments)  # fmt: skip
        return (*gradients, None)


def _arguments(content: Tensor, place: Tensor, element: Tensor, valid: Tensor | None) -> dict[str, Any]:
    _, p, g, m, j = content.shape
    h = place.shape[3]
    # A few output elements and a tile of neighbours: 16 values of each tensor per thread, and at most 4 warps.
    hp, mp = min(4, power_of_2(h)), power_of_2(m)
    tile = max(4, min(64, power_of_2(j), 2048 // (hp * mp)))
    names = ("cx", "cp", "cg", "cm"), ("sx", "sp", "sg", "sh"), ("ex", "ep", "eg", "eh")
    strides = {
        name: stride
        for group, t in zip(names, (content, place, element), strict=True)
        for name, stride in zip(group, t.stride()[:4], strict=True)
    }
    return {
        "P": p, "H": h, "M": m, **strides, "valid_p": 0 if valid is None or valid.shape[0] == 1 else j,
        "J": j, "VALID": valid is not None, "HP": hp, "MP": mp, "JT": tile, "GS": g,
        "num_warps": max(1, min(4, hp * mp * tile // 512)),
    }  # fmt: skip


def fused_softmax_sum(content: Tensor, place: Tensor, element: Tensor, valid: Tensor | None) -> Tensor:
    """Compute :func:`kernelfield.ops.attention.softmax.softmax_sum` of float32 tensors."""
    tensors = [_dense(t) for t in (content, place, element)]
    mask = None if valid is None else valid.contiguous().view(torch.uint8)
    return _SoftmaxSum.apply(*tensors, mask)


def _dense(t: Tensor) -> Tensor:
    """Return a tensor with a contiguous last axis and strides that ``empty_like`` reproduces."""
    if t.stride(-1) == 1 and torch.empty_like(t, device="meta").stride() == t.stride():
        return t
    return t.contiguous()
