"""Public assertions about models: equivariance, causality, resolution, compilation, export, state.

Each takes a module or any callable and raises an :class:`AssertionError` that says what differs, where and by
how much. A tolerance is relative to the largest entry of a tensor, not to each entry: the rounding error of a
Fourier transform is spread evenly over its output, small entries included.

A group is any object with the two methods of :class:`SignalGroup`: it lists its elements and acts on a signal.

The files: ``equivariance``, ``signals`` (shifts, causality, resolution), ``programs`` (compilation, export, state
dicts), ``_compare`` (the comparison of outputs).
"""

from .equivariance import SignalGroup, assert_equivariant, equivariance_error
from .programs import assert_compiles, assert_exports, assert_state_dict_round_trip, count_parameters
from .signals import assert_causal, assert_resolution_consistent, assert_translation_equivariant

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
