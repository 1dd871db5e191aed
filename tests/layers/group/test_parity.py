"""The same weights in an independent library: e2cnn, where it is installed (it needs numpy 1)."""

from __future__ import annotations

import pytest
import torch

from kernelfield.groups import Cyclic, Dihedral
from kernelfield.layers.group import GroupConv, LiftingConv

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def e2cnn():
    pytest.importorskip("e2cnn", reason="e2cnn is not installed; it needs numpy 1 and an environment of its own")
    from e2cnn import gspaces, nn  # noqa: PLC0415

    return gspaces, nn


@pytest.mark.parametrize("n_mirrors", [1, 2])
@pytest.mark.parametrize("kernel_size", [3, 5])
@pytest.mark.parametrize("lifting", [True, False])
def test_regular_convolutions_agree(e2cnn, n_mirrors, kernel_size, lifting):
    gspaces, enn = e2cnn
    space = gspaces.Rot2dOnR2(4) if n_mirrors == 1 else gspaces.FlipRot2dOnR2(4)
    group = Cyclic(4) if n_mirrors == 1 else Dihedral(4)
    ins, outs, n = 3, 5, group.order
    source = space.trivial_repr if lifting else space.regular_repr
    type_in, type_out = enn.FieldType(space, ins * [source]), enn.FieldType(space, outs * [space.regular_repr])
    theirs = enn.R2Conv(type_in, type_out, kernel_size=kernel_size, padding=kernel_size // 2, bias=False)
    weights, _ = theirs.expand_parameters()
    layer = LiftingConv if lifting else GroupConv
    ours = layer(ins, outs, group=group, kernel_size=kernel_size, bias=False)
    # Theirs is a correlation; ours is indexed by output minus input.
    first = weights.detach().flip((-2, -1)).view(outs, n, ins, -1, kernel_size, kernel_size)[:, 0]
    index = ours.kernel.look_up.kernel_index()[:, 0]
    with torch.no_grad():
        ours.kernel.field.coefficients.view(-1)[index] = first
    x = torch.randn(2, ins, *([] if lifting else [n]), 9, 9)
    wanted = theirs(enn.GeometricTensor(x.reshape(2, -1, 9, 9), type_in)).tensor.view(2, outs, n, 9, 9)
    torch.testing.assert_close(ours(x).values, wanted, rtol=1e-5, atol=1e-5)
