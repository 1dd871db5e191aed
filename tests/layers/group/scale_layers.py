"""Seeded layers and smooth fields for the tests of layers on dilations."""

from __future__ import annotations

import functools

import torch

from kernelfield.fields import SIREN

F64 = {"dtype": torch.float64}
Smooth = functools.partial(SIREN, omega_0=3.0, hidden=16)


def seeded(layer, *args, **options):
    """Return a layer in double precision whose weights are the same in every call."""
    torch.manual_seed(0)
    return layer(*args, **options).double()


def burst(t):
    """Return waves under a Gaussian: zero beyond |t| = 12, no wave shorter than three units."""
    return torch.exp(-0.5 * (t / 3) ** 2) * torch.cos(1.9 * t + 0.4) + torch.exp(-0.5 * ((t + 2) / 2) ** 2)
