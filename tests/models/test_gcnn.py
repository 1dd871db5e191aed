from __future__ import annotations

import pytest
import torch

from kernelfield.groups import SO2, Cyclic, Dihedral, Trivial
from kernelfield.models.gcnn import GCNN, GroupAllCNN, GroupDenseNet, GroupResNet
from kernelfield.models.registry import create_model
from kernelfield.testing import assert_compiles, assert_equivariant, assert_exports, count_parameters

PUBLISHED = {
    "z2cnn": (21_750, "21.75k"),
    "p4cnn": (24_610, "24.61k"),
    "p4cnn_11": (29_051, "29.05k"),
    "p4cnn_15": (50_415, "50.42k"),
    "p4cnn_19": (77_539, "77.54k"),
    "allcnn_z2": (1_370_996, "1.372M with biases"),
    "allcnn_p4": (1_370_372, "1.37M"),
    "allcnn_p4m": (1_219_252, "1.22M"),
    "resnet44_p4m": (2_621_683, "2.62M"),
    "dren": (19_880, "19.88k (p4-CNN and DREN of chapter 7)"),
    "dren_max": (24_680, "24.68k"),
    "nin": (966_986, "0.967M"),
    "r_nin_x4": (958_122, "0.958M"),
    "resnet20": (334_698, "0.335M"),
    "r_resnet20_x4": (332_986, "0.333M"),
    "densenet_z2": (130_598, "130.60k"),
    "densenet_p4": (129_649, "129.65k"),
    "densenet_p4m": (124_209, "124.21k"),
}
WITH_BIAS = {
    "p4cnn": (24_680, "24.68k (chapter 7, with maximum over the group)"),
    "allcnn_z2": (1_372_254, "1.372M (chapter 7)"),
    "allcnn_p4": (1_371_006, "1.371M (chapter 7)"),
    "allcnn_p4m": (1_219_678, "1.219M (chapter 7)"),
    "resnet44_z2": (2_639_434, "2.639M (chapter 7)"),
    "resnet44_p4m": (2_622_878, "2.623M (chapter 7)"),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameter_counts(name):
    assert count_parameters(create_model(name)) == PUBLISHED[name][0], PUBLISHED[name][1]


@pytest.mark.parametrize("name", WITH_BIAS)
def test_parameter_counts_of_chapter_7(name):
    assert count_parameters(create_model(name, bias=True)) == WITH_BIAS[name][0], WITH_BIAS[name][1]


def settle(net):
    """Give the norms statistics of their own, as training would."""
    for name, buffer in net.named_buffers():
        if name.endswith("running_var"):
            buffer.uniform_(0.5, 1.5)
        if name.endswith("running_mean"):
            buffer.normal_(std=0.1)
    return net.double()


NETWORKS = {
    "p4cnn": lambda g: (GCNN(1, 10, group=g, channels=4), 1, (28, 29)),
    "allcnn": lambda g: (GroupAllCNN(3, 5, group=g, channels=3), 3, (12, 13)),
    "resnet": lambda g: (GroupResNet(3, 5, group=g, channels=(2, 3, 4), blocks=2), 3, (12, 13)),
    "densenet": lambda g: (GroupDenseNet(3, 2, group=g, growth=2, blocks=3), 3, (28, 29)),
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("group", [Cyclic(4), Dihedral(4)], ids=str)
def test_networks_are_exactly_invariant(name, group):
    net, channels, sizes = NETWORKS[name](group)
    settle(net)
    for size in sizes:
        x = torch.randn(2, channels, size, size, dtype=torch.float64)
        assert_equivariant(net, group, x, invariant=True, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_trivial_group_is_not_invariant(name):
    net, channels, sizes = NETWORKS[name](Trivial())
    x = torch.randn(2, channels, sizes[0], sizes[0], dtype=torch.float64)
    with pytest.raises(AssertionError, match="not invariant"):
        assert_equivariant(settle(net), Cyclic(4), x, invariant=True, rtol=1e-3)


def test_the_named_p4cnn_is_invariant_in_both_precisions(dtype):
    net = settle(create_model("p4cnn")).to(dtype)
    x = torch.randn(2, 1, 28, 28, dtype=dtype)
    tight = dtype == torch.float64
    assert_equivariant(net, Cyclic(4), x, invariant=True, rtol=1e-10 if tight else 1e-4)


def test_sizes_of_the_feature_maps():
    sizes = []
    net = create_model("densenet_p4")
    for conv in net.convs:
        conv.register_forward_hook(lambda _, __, out: sizes.append(out.values.shape[-1]))
    net.eval()(torch.randn(1, 3, 96, 96))
    assert sizes == [92, 44, 20, 8, 2]


def test_all_parameters_get_gradients_and_bf16_trains():
    net = create_model("p4cnn")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = net(torch.randn(4, 1, 28, 28)).float().square().mean()
    loss.backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in net.parameters())


@pytest.mark.slow
def test_compiles_and_exports():
    net = GCNN(1, 10, group=Dihedral(4), channels=2).eval()
    assert_compiles(net, torch.randn(2, 1, 28, 28))
    batch = torch.export.Dim("batch", min=2, max=64)
    assert_exports(net, (torch.randn(2, 1, 28, 28),), ({0: batch},), [(torch.randn(5, 1, 28, 28),)])


def test_arguments_are_checked():
    with pytest.raises(ValueError, match=r"\bgroup must"):
        GCNN(group=SO2())
    with pytest.raises(TypeError, match=r"\bgroup must"):
        GCNN(group="p4")
