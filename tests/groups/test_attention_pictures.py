from __future__ import annotations

import pytest
import torch

from kernelfield.groups import Cyclic, Dihedral, Trivial
from kernelfield.layers.group import CyclicSelfAttention, GroupSelfAttention, LiftingSelfAttention
from kernelfield.models import GCNN, GroupDenseNet, GSANet
from kernelfield.viz.attention import attention_maps, orientations, plot_attention, plot_equivariance, plot_sample
from kernelfield.viz.coattention import co_attention, plot_co_attention
from kernelfield.viz.self_attention import attention_of_position, plot_position_attention

SMALL = {"channels": 4, "widths": ((6,), (6,)), "heads": 2, "neighborhood": 3}


@pytest.mark.parametrize("attention", ["self", "full"])
def test_maps_of_a_turned_input_are_the_turned_maps(tmp_path, attention):
    group = Cyclic(4)
    if attention == "self":
        net, size = GSANet(1, 3, group=group, **SMALL), 10
    else:
        net, size = GCNN(1, 3, group=group, channels=3, attention=attention), 28
    image = torch.randn(1, size, size, dtype=torch.float64)
    assert plot_equivariance(net.double(), image, group, tmp_path / "maps.png") < 1e-9
    assert (tmp_path / "maps.png").stat().st_size > 1000
    assert net.training
    names = list(attention_maps(net, image[None]))
    assert names[0] == "lift"
    assert len(names) == (3 if attention == "self" else 7)


def test_maps_of_other_networks_do_not_turn(tmp_path):
    net = GSANet(1, 3, group=Trivial(), **SMALL).double()
    image = torch.randn(1, 10, 10, dtype=torch.float64)
    maps = attention_maps(net, torch.stack([image, image.rot90(1, (-2, -1))]))
    assert (maps["lift"][1] - maps["lift"][0].rot90(1, (-2, -1))).abs().max() > 1e-4
    with pytest.raises(ValueError, match="attention maps"):
        plot_equivariance(torch.nn.Identity(), image, Cyclic(4), tmp_path / "none.png")


def test_arrows_turn_with_the_map():
    group = Dihedral(4)
    maps = torch.rand(2, 8, 5, 5, dtype=torch.float64)
    for element in group.elements(torch.float64):
        turned = group.act(element, maps.unsqueeze(1)).squeeze(1)
        moved = group.act(element, orientations(group, maps))
        wanted = torch.einsum("ij,bjyx->biyx", group.matrix(element), moved)
        torch.testing.assert_close(orientations(group, turned), wanted)


def test_pictures_are_written_where_there_is_attention(tmp_path):
    plot_attention(torch.rand(1, 8, 8), torch.rand(4, 4, 4), Cyclic(4), tmp_path / "one.png", title="a map")
    assert (tmp_path / "one.png").exists()
    net = GSANet(1, 3, group=Dihedral(4), **SMALL)
    assert plot_sample(net, torch.rand(2, 1, 10, 10), tmp_path / "attention.png")
    assert (tmp_path / "attention.png").exists()
    assert not plot_sample(torch.nn.Identity(), torch.rand(2, 1, 10, 10), tmp_path / "no.png")


@pytest.mark.parametrize("attention", ["co", "co_filter", "free"])
def test_co_attention_moves_with_the_input_unless_it_is_free(tmp_path, attention):
    net = GCNN(1, 3, group=Cyclic(4), channels=3, bias=True, readout="sum", attention=attention).double()
    for layer in net.modules():
        if isinstance(layer, CyclicSelfAttention):
            for p in layer.parameters():
                torch.nn.init.normal_(p)
    image = torch.randn(1, 28, 28, dtype=torch.float64)
    worst = plot_co_attention(net, image, tmp_path / "co.png", layer="convs.1.attention", channels=2)
    assert (worst > 1e-2) if attention == "free" else (worst < 1e-9)
    assert (tmp_path / "co.png").stat().st_size > 1000
    assert list(co_attention(net, image[None])) == [
        "lift.attention",
        *(f"convs.{i}.attention" for i in range(5)),
        "last.attention",
    ]


def test_co_attention_is_drawn_of_networks_that_have_it(tmp_path):
    image = torch.randn(1, 28, 28)
    with pytest.raises(ValueError, match=r"\bmodel must"):
        plot_co_attention(GCNN(group=Cyclic(4)), image, tmp_path / "none.png")
    with pytest.raises(ValueError, match=r"\blayer must"):
        plot_co_attention(GCNN(group=Cyclic(4), attention="co"), image, tmp_path / "none.png", layer="lift")


@pytest.mark.parametrize("neighborhood", [3, None])
def test_attention_of_positions_is_that_of_the_reference(neighborhood):
    group = Dihedral(4)
    options = {"heads": 2, "neighborhood": neighborhood, "size": None if neighborhood else 4}
    lift = LiftingSelfAttention(2, 4, group=group, **options).double().eval()
    attend = GroupSelfAttention(4, 4, group=group, **options).double().eval()
    x = torch.randn(1, 2, 4, 4, dtype=torch.float64)
    for layer, read in ((lift, x), (attend, lift(x).values)):
        total = sum(attention_of_position(layer, read, (i, j)) for i in range(4) for j in range(4))
        # What a layer's own map says: how much each position is attended to by all queries.
        torch.testing.assert_close(total / 16, layer.maps(read))


def test_attention_of_positions_turns_with_the_input():
    group = Cyclic(4)
    layer = LiftingSelfAttention(1, 4, group=group, heads=2, neighborhood=3).double().eval()
    x = torch.randn(1, 1, 6, 6, dtype=torch.float64)
    first = attention_of_position(layer, x, (1, 2))[:, 0]
    turned = attention_of_position(layer, x.rot90(1, (-2, -1)), (6 - 1 - 2, 1))[:, 0]
    torch.testing.assert_close(turned, group.act(torch.tensor([1.0], dtype=torch.float64), first[:, None])[:, 0])


def test_attention_of_positions_is_drawn(tmp_path):
    net = GSANet(3, 3, group=Cyclic(4), **SMALL)
    image = torch.randn(3, 10, 10)
    path = tmp_path / "positions.png"
    assert plot_position_attention(net, image, path, positions=[(0, 0), (4, 5)]) < 1e-5
    assert plot_position_attention(net, image, path, positions=[(1, 1)], layer="stages.1.0.attention") < 1e-5
    assert path.stat().st_size > 1000
    with pytest.raises(ValueError, match=r"\bpositions must"):
        plot_position_attention(net, image, path, positions=[(0, 10)])
    with pytest.raises(ValueError, match=r"\blayer must"):
        plot_position_attention(net, image, path, positions=[(0, 0)], layer="norm")
    with pytest.raises(ValueError, match=r"\bmodel must"):
        plot_position_attention(torch.nn.Identity(), image, path)


@pytest.mark.parametrize("attention", ["input", pytest.param("gate", marks=pytest.mark.slow)])
def test_maps_of_patchcamelyon_networks_turn_with_the_image(tmp_path, attention):
    """Colour images of tissue: maps of all layers of the DenseNet, for the four quarter turns."""
    group = Cyclic(4)
    net = GroupDenseNet(3, 2, group=group, growth=2, blocks=2, attention=attention).double()
    image = torch.rand(3, 24, 24, dtype=torch.float64)
    assert plot_equivariance(net, image, group, tmp_path / "maps.png") < 1e-9
    assert len(attention_maps(net, image[None])) == 5
