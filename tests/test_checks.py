"""Argument checks: what passes is returned, and what does not is named."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import kernelfield as kf
from kernelfield._arguments import checked
from kernelfield._checks import (
    check_choice,
    check_coords,
    check_int,
    check_positive,
    floats_per_axis,
    ints_per_axis,
)
from kernelfield._kinds import POSITIVE, Int, Kind, PerAxis


def test_valid_values_are_returned() -> None:
    assert check_choice("method", "fft", ("auto", "fft")) == "fft"
    assert check_int("size", 3) == 3
    assert check_int("order", 0, least=0) == 0
    assert ints_per_axis("size", 4, 3) == (4, 4, 4)
    assert ints_per_axis("size", [4, 5], 2) == (4, 5)
    assert floats_per_axis("step", (1, 0.5), 2) == (1.0, 0.5)
    coords = torch.rand(4, 2)
    assert check_coords(coords, 2) is coords


def test_numbers_come_back_as_floats() -> None:
    assert type(check_positive("step", 2)) is float
    assert [type(s) for s in floats_per_axis("step", 2, 2)] == [float, float]


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (
            lambda: check_choice("method", "dct", ["a", "b"]),
            ValueError,
            "method must be one of 'a', 'b', got 'dct'",
        ),
        (lambda: check_int("n", 0), ValueError, "n must be an int of at least 1, got 0"),
        (lambda: check_int("n", True), TypeError, "n must be an int, got True of type bool"),
        (lambda: check_int("n", 2.0), TypeError, "n must be an int, got 2.0 of type float"),
        (lambda: check_int("n", None), TypeError, "n must be an int, got None of type NoneType"),
        (lambda: check_positive("s", 0), ValueError, "s must be a finite number above 0, got 0"),
        (lambda: check_positive("s", math.nan), ValueError, "s must be a finite number above 0, got nan"),
        (lambda: check_positive("s", math.inf), ValueError, "s must be a finite number above 0, got inf"),
        (lambda: check_positive("s", -math.inf), ValueError, "s must be a finite number above 0, got -inf"),
        (lambda: check_positive("s", True), TypeError, "s must be a number, got True of type bool"),
        (lambda: check_positive("s", "1"), TypeError, "s must be a number, got '1' of type str"),
        (
            lambda: ints_per_axis("n", (1, 2), 3),
            ValueError,
            "n must be an int or 3 ints for dim=3, got (1, 2)",
        ),
        (
            lambda: ints_per_axis("n", (1, 2.5), 2),
            TypeError,
            "n must be an int or 2 ints for dim=2, got (1, 2.5)",
        ),
        (lambda: ints_per_axis("n", (1, 0), 2), ValueError, "n must be an int of at least 1, got 0"),
        (lambda: ints_per_axis("n", "12", 2), TypeError, "n must be an int or 2 ints for dim=2, got '12'"),
        (lambda: ints_per_axis("n", None, 1), TypeError, "n must be an int or 1 int for dim=1, got None"),
        (
            lambda: floats_per_axis("s", (1, math.nan), 2),
            ValueError,
            "s must be a finite number above 0, got nan",
        ),
        (
            lambda: check_coords(torch.rand(3, 2), 3),
            ValueError,
            "coords must have shape (…, 3) for dim=3, got (3, 2)",
        ),
        (
            lambda: check_coords(torch.ones(3).int(), 3),
            TypeError,
            "coords must be a floating-point tensor, got torch.int32",
        ),
        (lambda: check_coords(np.ones((3, 2)), 2), TypeError, "coords must be a torch.Tensor, got ndarray"),
    ],
)
def test_invalid_values_are_refused_by_name(call: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=re.escape(says)):
        call()


@pytest.mark.parametrize(
    ("kind", "value"),
    [(Int(1), 2**29), (POSITIVE, 1e13), (POSITIVE | None, 1e-13), (PerAxis(POSITIVE), (1.0, 1e13))],
)
def test_a_number_beyond_the_limits_is_told_the_limits(kind: Kind, value: Any) -> None:
    with pytest.raises(ValueError, match=r"^size must .*limits: 268435456 .*1e-12 to 1e\+12"):
        kind.check("size", value)


def test_a_number_that_is_not_finite_is_told_no_limits() -> None:
    with pytest.raises(ValueError, match=r"got inf$"):
        POSITIVE.check("size", math.inf)


def test_an_error_before_a_module_is_made_is_not_replaced() -> None:
    class Early(nn.Module):
        @checked()
        def __init__(self, width: int) -> None:
            raise RuntimeError(f"no room for {width}")

    with pytest.raises(RuntimeError, match="no room for 3"):
        Early(3)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: kf.CCNN(1, 2, size=16, chanels=4), "CCNN takes no argument 'chanels'; the closest is 'channels'"),
        (lambda: kf.FlexTCN(1, 2, size=16, chanels=4), "FlexTCN takes no argument 'chanels'"),
        (lambda: kf.GCNN(1, 2, chanels=4), "GCNN takes no argument 'chanels'"),
        (lambda: kf.CCNN(1, 2, size=16, kernel_dropuot=0.1), "the closest is 'kernel_dropout'"),
        (lambda: kf.CKConv(1, 2), "size must be given for CKConv"),
    ],
)
def test_a_constructor_names_itself_for_options_that_it_passes_on(build: Any, message: str) -> None:
    with pytest.raises(TypeError, match=re.escape(message)):
        build()
