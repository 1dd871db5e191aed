"""The public names. A name that goes or comes changes this list, on purpose."""

from __future__ import annotations

import importlib

import pytest

NAMES = {
    "kernelfield": [
        "Augerino",
        "CCNN",
        "CKCNN",
        "CKConv",
        "FlexConv",
        "FlexNet",
        "FlexTCN",
        "GCNN",
        "GroupAllCNN",
        "GroupConv",
        "GroupDenseNet",
        "GroupResNet",
        "LiftingConv",
        "PartialGCNN",
        "PartialGCNN13",
        "PartialGroupConv",
        "SeparableConv",
        "SeparableGroupConv",
        "__version__",
        "aliasing_loss",
        "create_model",
        "fields",
        "grids",
        "groups",
        "kernel_l2",
        "layers",
        "list_models",
        "masks",
        "models",
        "ops",
        "testing",
    ],
    "kernelfield.fields": [
        "BSpline",
        "Field",
        "FilterNetwork",
        "FourierFilter",
        "GaborFilter",
        "MAGNet",
        "MLP",
        "RandomFourier",
        "SIREN",
        "Table",
        "bind_field",
        "build_field",
        "cardinal_bspline",
    ],
    "kernelfield.grids": ["kernel_axis", "kernel_grid", "local_grid", "positions", "reach", "signal_grid"],
    "kernelfield.groups": [
        "Affine",
        "Bernoulli",
        "Cyclic",
        "Dihedral",
        "Distribution",
        "E2",
        "Group",
        "Independent",
        "Interval",
        "Mirror",
        "O2",
        "Product",
        "SE2",
        "SO2",
        "Scale",
        "Trivial",
        "Uniform",
        "learned",
        "monotonicity",
        "parameter_groups",
        "scale_translation",
        "transform",
        "warp",
    ],
    "kernelfield.layers": [
        "BatchNorm",
        "CCNNBlock",
        "CKConv",
        "ContinuousConv",
        "FlexConv",
        "GroupBatchNorm",
        "GroupConv",
        "GroupDropout",
        "GroupKernel",
        "GroupLayerNorm",
        "GroupPool",
        "GroupResidualBlock",
        "GroupSignal",
        "LiftingConv",
        "PartialGroupConv",
        "PartialResidualBlock",
        "Pointwise",
        "SeparableConv",
        "SeparableGroupConv",
        "SpatialPool",
        "TwoConvBlock",
        "aliasing_loss",
        "kernel_frequency",
        "kernel_l2",
        "nyquist",
        "sample_kernels",
    ],
    "kernelfield.masks": ["GaussianMask", "Mask", "SigmoidMask"],
    "kernelfield.models": [
        "Augerino",
        "CCNN",
        "CKCNN",
        "FlexNet",
        "FlexTCN",
        "GCNN",
        "GroupAllCNN",
        "GroupDenseNet",
        "GroupResNet",
        "ImageField",
        "PartialGCNN",
        "PartialGCNN13",
        "create_model",
        "list_models",
        "register",
    ],
    "kernelfield.ops": [
        "conv",
        "conv_reference",
        "point_conv",
        "point_sums",
        "resample",
        "resample_reference",
        "sample_density",
    ],
    "kernelfield.testing": [
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
    ],
}


@pytest.mark.parametrize("module", NAMES)
def test_public_names(module: str) -> None:
    assert sorted(importlib.import_module(module).__all__) == NAMES[module]


@pytest.mark.parametrize("module", NAMES)
def test_public_names_exist_and_say_what_they_are(module: str) -> None:
    imported = importlib.import_module(module)
    for name in NAMES[module]:
        assert getattr(imported, name).__doc__, name


def test_version_is_that_of_the_package() -> None:
    kernelfield = importlib.import_module("kernelfield")
    assert [int(part) >= 0 for part in kernelfield.__version__.split(".")[:2]] == [True, True]
