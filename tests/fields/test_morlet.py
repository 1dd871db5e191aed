"""Morlet wavelets: the contract, and what makes them wavelets."""

from __future__ import annotations

import math
from typing import ClassVar

import pytest
import torch

import kernelfield as kf
from kernelfield.fields import Morlet
from tests.contracts.fields import FieldContract


class TestMorlet(FieldContract):
    field = Morlet
    # Not so narrow that most of the domain is zero.
    arguments: ClassVar = {"width": 1.5, "spread": 1.0}
    counts: ClassVar = {(1, 2): 4, (2, 5): 3 + 3 + 5}
    bad_arguments: ClassVar = [
        ("bandwidth", 0.0, ValueError, r"bandwidth .*got 0\.0"),
        ("frequency", -1.0, ValueError, r"frequency .*got -1\.0"),
        ("width", 0.0, ValueError, r"width .*got 0\.0"),
    ]


@pytest.mark.parametrize("bandwidth", [1.0, 1.5, 3.0])
def test_energy_and_mean_in_closed_form(bandwidth):
    wavelet = Morlet(1, 2, bandwidth=bandwidth, frequency=1.25).double()
    u = torch.arange(-8, 8, 1e-3, dtype=torch.float64)
    values = wavelet(u[:, None] / 8).detach()
    assert float(values.square().sum() * 1e-3) == pytest.approx(1 / math.sqrt(2 * math.pi * bandwidth), rel=1e-6)
    mean = math.exp(-(math.pi**2) * bandwidth * 1.25**2)
    assert float(values[:, 0].sum() * 1e-3) == pytest.approx(mean, abs=1e-6)


def test_a_pair_is_a_wavelet_of_pywavelets():
    pywt = pytest.importorskip("pywt")
    theirs, at = pywt.ContinuousWavelet("cmor1.5-1.0").wavefun(length=401)
    ours = Morlet(1, 2, bandwidth=1.5, frequency=1.0).double()(torch.tensor(at)[:, None] / 8).detach()
    torch.testing.assert_close(torch.complex(ours[:, 0], ours[:, 1]), torch.tensor(theirs), atol=1e-8, rtol=0)


def test_continuous_layers_leave_the_envelope_alone():
    """The bandwidth of a wavelet is not that of the layer's grid."""
    layer = kf.CKConv(1, 2, size=256, field=Morlet)
    torch.testing.assert_close(layer.field.log_bandwidth.exp(), torch.tensor([1.5]))
