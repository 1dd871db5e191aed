"""Materialised networks are ordinary networks with the outputs of the masked ones."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch

from kernelfield import CCNN
from kernelfield.masks import Mask
from kernelfield.testing import assert_compiles, assert_exports
from tests.models.dnarch.nets import SHAPES, build, moved, signal


@pytest.mark.parametrize(("dim", "size", "options"), SHAPES, ids=str)
@pytest.mark.parametrize("fixed_shapes", [True, False])
def test_materialised_equals_masked(dim: int, size: Any, options: dict[str, Any], fixed_shapes: bool) -> None:
    net = moved(build(dim, size, readout="dense", fixed_shapes=fixed_shapes, **options)).eval()
    small = net.materialize()
    assert type(small) is CCNN
    assert not [m for m in small.modules() if isinstance(m, Mask) and list(m.parameters())]
    assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in net.parameters())
    x = signal(dim, size)
    torch.testing.assert_close(small(x), net(x), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(small(x, step=0.5), net(x, step=0.5), rtol=1e-4, atol=1e-5)
    again = CCNN(**small.arguments)
    again.load_state_dict(small.state_dict())
    torch.testing.assert_close(again.eval()(x), small(x))
    for other in (copy.deepcopy(small), pickle.loads(pickle.dumps(small))):
        torch.testing.assert_close(other(x), small(x))


@pytest.mark.slow  # by default a CCNN compiles, and a materialised network is one
@pytest.mark.parametrize("fixed_shapes", [True, False])
def test_compiles_without_graph_breaks(fixed_shapes: bool) -> None:
    trained, x = moved(build(1, 16, blocks=1)).eval(), signal(1, 16)
    net = build(1, 16, blocks=1, fixed_shapes=fixed_shapes).eval()
    net.load_state_dict(trained.state_dict())
    torch.testing.assert_close(torch.compile(net, fullgraph=True, backend="eager")(x), trained(x))


@pytest.mark.slow
def test_materialised_with_a_band_compiles() -> None:
    assert_compiles(moved(build(2, 12)).eval().materialize(), signal(2, 12), rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_materialised_with_a_band_exports() -> None:
    small = moved(build(2, 12, blocks=1)).eval().materialize()
    x = signal(2, 12)
    shapes = {"x": {0: torch.export.Dim("batch")}}
    assert_exports(small, (x,), shapes, [(torch.randn(5, 2, 12, 12),)], rtol=1e-4, atol=1e-5)
