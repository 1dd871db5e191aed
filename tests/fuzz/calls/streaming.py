"""Streams, captured functions, assertions, export and estimators."""

from __future__ import annotations

import inspect
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import kernelfield as kf
from kernelfield import cuda_graphs, streaming, testing
from kernelfield import sklearn as estimators
from kernelfield.export import export_network, read_metadata
from kernelfield.groups import Mirror

from .call import Call, forward_of

_FOLDER = tempfile.TemporaryDirectory()
_NET = kf.CCNN(1, 3, size=16, channels=4, blocks=1, hidden=4).eval()
_TALK = kf.CKCNN(8, 20, size=16, channels=8, blocks=1, readout="dense", vocabulary=20, norm="batch").eval()
_CONV = nn.Conv1d(1, 1, 3, padding=1)


def _path(name: str) -> str:
    return str(Path(_FOLDER.name) / name)


def _exported() -> str:
    path = Path(_path("written.pt2"))
    if not path.exists():
        export_network(_CONV, path, torch.randn(1, 1, 16))
    return str(path)


def _with(function: Any, *inputs: Any) -> Any:
    """Return a function that passes ``inputs`` on behind its first argument."""

    def call(**options: Any) -> Any:
        first, *others = options.items()
        return function(first[1], *inputs, **dict(others))

    own = inspect.signature(function)
    named = [p for p in own.parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    call.__signature__ = own.replace(parameters=named)  # type: ignore[attr-defined]
    return call


def _fit(build: Any, target: Any) -> Any:
    source = np.random.default_rng(0)
    series: Any = source.normal(size=(12, 1, *_SIZES.get(build.__name__, (10,))))
    if isinstance(target, list):
        series = target
    return lambda **options: build(**options).fit(series, target)


def _estimator(name: str, target: Any, module: Any = estimators, **options: Any) -> Call:
    build = getattr(module, name)
    fit = _fit(build, target)
    fit.__signature__ = inspect.signature(build)
    room = module.__name__.rpartition(".")[2]
    # By default a training has 400 steps.
    slow = not name.startswith("RandomKernel")
    return Call(f"{room}.{name}", fit, lambda: dict(options), unchecked=frozenset(["epochs"]), slow=slow)


def _aeon_estimators() -> list[Call]:
    """Return the calls of aeon's classes, none if aeon is not installed."""
    if find_spec("aeon") is None:
        return []
    from kernelfield import aeon  # noqa: PLC0415

    return [
        _estimator("RandomKernelClassifier", _LABELS, aeon, kernels=20),
        _estimator("RandomKernelRegressor", _VALUES, aeon, kernels=20),
        _estimator("CCNNClassifier", _LABELS, aeon, **_TRAINED),
        _estimator("CCNNRegressor", _VALUES, aeon, **_TRAINED),
    ]


#: sizes of the samples of estimators for sounds and images
_SIZES = {"WaveletClassifier": (64,), "GroupClassifier": (8, 8)}
_LABELS, _VALUES = np.arange(12) % 2, np.linspace(0, 1, 12)
_TRAINED = {"channels": 4, "blocks": 1, "epochs": 1, "networks": 1, "random_kernels": 20, "device": "cpu"}
_SIGNAL = torch.randn(1, 1, 9)

CALLS = [
    Call(
        "cuda_graphs.capture_prediction",
        cuda_graphs.capture_prediction,
        lambda: {"net": _NET, "enabled": False},
        lambda predict: predict(torch.randn(2, 1, 16)),
    ),
    Call("cuda_graphs.capture", cuda_graphs.capture, lambda: {"function": torch.square, "enabled": False}),
    Call("streaming.stream", streaming.stream, lambda: {"net": _NET}, lambda s: s.push(torch.randn(s.batch, 1, 3))),
    Call("streaming.Stream", streaming.Stream, lambda: {"net": _NET}, lambda s: s.push(torch.randn(s.batch, 1, 3))),
    Call("streaming.Stream.push", streaming.stream(_NET).push, lambda: {"block": torch.randn(1, 1, 3)}),
    Call("streaming.distil", streaming.distil, lambda: {"net": _NET, "order": 2, "refine": 1}),
    Call(
        "streaming.generate",
        streaming.generate,
        lambda: {"net": _TALK, "prompt": [1, 2], "length": 2, "seed": 0},
    ),
    Call(
        "streaming.OnlineConv",
        streaming.OnlineConv,
        lambda: {"kernel": torch.randn(2, 2, 5)},
        lambda f: f(torch.randn(f.batch, f.channels, 4)),
    ),
    forward_of(
        "streaming.OnlineConv", lambda: streaming.OnlineConv(torch.randn(2, 2, 5)), lambda: {"x": torch.randn(1, 2, 4)}
    ),
    Call(
        "streaming.RecurrentConv",
        streaming.RecurrentConv,
        lambda: {"in_channels": 2, "out_channels": 3, "order": 2},
        lambda f: f(torch.randn(2, f.in_channels, 6)),
    ),
    forward_of(
        "streaming.RecurrentConv",
        lambda: streaming.RecurrentConv(2, 3, order=2),
        lambda: {"x": torch.randn(2, 2, 6)},
        unchecked=frozenset(["coords"]),
    ),
    Call("streaming.StreamStep", streaming.StreamStep, lambda: {"net": _NET}),
    Call(
        "streaming.export_stream",
        streaming.export_stream,
        lambda: {"net": _NET, "path": _path("stream.pt2")},
        slow=True,
    ),
    Call(
        "testing.equivariance_error",
        testing.equivariance_error,
        lambda: {"model": torch.square, "group": Mirror(dim=1), "x": _SIGNAL},
    ),
    Call(
        "testing.assert_equivariant",
        testing.assert_equivariant,
        lambda: {"model": torch.square, "group": Mirror(dim=1), "x": _SIGNAL},
        ends_with=(AssertionError,),
    ),
    Call(
        "testing.assert_causal",
        testing.assert_causal,
        lambda: {"model": lambda x: x.cumsum(-1), "x": _SIGNAL},
        ends_with=(AssertionError,),
    ),
    Call(
        "testing.assert_translation_equivariant",
        testing.assert_translation_equivariant,
        # The network is the user's, and so is what it says of other shapes.
        lambda: {"model": lambda x: x.square(), "x": _SIGNAL, "shift": 2},
        ends_with=(AssertionError,),
    ),
    Call(
        "testing.assert_resolution_consistent",
        testing.assert_resolution_consistent,
        lambda: {
            "model": lambda x, step: step * x.cumsum(-1),
            "signal": _wave,
            "shape": [64],
            "steps": [0.5],
            "rtol": 0.2,
        },
        ends_with=(AssertionError,),
    ),
    Call(
        "testing.assert_exports",
        testing.assert_exports,
        lambda: {
            "model": torch.sin,
            "args": (torch.randn(1, 5),),
            "check_args": [(torch.randn(1, 8),)],
            "dynamic_shapes": ({1: torch.export.Dim("length")},),
        },
        ends_with=(AssertionError,),
        unchecked=frozenset(["dynamic_shapes"]),
        slow=True,
    ),
    Call("testing.count_parameters", testing.count_parameters, lambda: {"model": _NET}),
    Call(
        "testing.assert_compiles",
        _with(testing.assert_compiles, torch.randn(3)),
        lambda: {"model": torch.sin},
        ends_with=(AssertionError,),
        slow=True,
    ),
    Call(
        "testing.assert_state_dict_round_trip",
        _with(testing.assert_state_dict_round_trip, torch.randn(3)),
        lambda: {"build": nn.Identity},
        ends_with=(AssertionError,),
    ),
    Call(
        "export.export_network",
        export_network,
        lambda: {"network": _CONV, "path": _path("net.pt2"), "example": torch.randn(1, 1, 16)},
        slow=True,
    ),
    Call("export.read_metadata", read_metadata, lambda: {"path": _exported()}),
    _estimator("RandomKernelClassifier", _LABELS, kernels=20),
    _estimator("RandomKernelRegressor", _VALUES, kernels=20),
    _estimator("CCNNClassifier", _LABELS, **_TRAINED),
    _estimator("CCNNRegressor", _VALUES, **_TRAINED),
    _estimator("CCNNForecaster", [([0.0, 1.0, 2.5], [1.0, 2.0, 3.0])] * 4, **_TRAINED | {"random_kernels": 0}),
    _estimator("WaveletClassifier", _LABELS, channels=2, epochs=1, device="cpu"),
    _estimator("GroupClassifier", _LABELS, channels=2, epochs=1, device="cpu"),
    *_aeon_estimators(),
]


def _wave(positions: torch.Tensor) -> torch.Tensor:
    return torch.sin(positions[..., 0] / 5)[None, None]
