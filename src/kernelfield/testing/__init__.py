"""Public assertions about models: equivariance, causality, resolution, compilation, export, state.

Each takes a module or any callable and raises an :class:`AssertionError` that says what differed, where and
by how much. A tolerance is relative to the largest entry of what is compared, not to each entry: the rounding
of a Fourier transform is spread evenly over its output, small entries included.

Groups are met through a protocol of two methods, :class:`SignalGroup`: anything that lists its elements and
acts on a signal will do.
"""

from .programs import assert_compiles, assert_exports, assert_state_dict_round_trip, count_parameters
from .signals import (
    SignalGroup,
    assert_causal,
    assert_equivariant,
    assert_resolution_consistent,
    assert_translation_equivariant,
    equivariance_error,
)

__all__ = [
    "SignalGroup",
    "assert_causal",
    "assert_compiles",
    "assert_equivariant",
    "assert_exports",
    "assert_resolution_consistent",
    "assert_state_dict_round_trip",
    "assert_translation_equivariant",
    "count_parameters",
    "equivariance_error",
]
