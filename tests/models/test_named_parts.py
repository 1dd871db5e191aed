"""Fields, masks, groups and networks by name."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

import pytest
import torch

import kernelfield as kf
from kernelfield.models import import_network
from kernelfield.models.registry import resolve_parts

if TYPE_CHECKING:
    from pathlib import Path


def test_parts_by_name_build_the_same_networks_as_parts_in_code() -> None:
    pairs = (
        ({"field": "SIREN(omega_0=20)"}, {"field": partial(kf.fields.SIREN, omega_0=20)}),
        (
            {"mask": "GaussianMask(sigma=0.3)", "causal": False},
            {"mask": kf.masks.GaussianMask(1, 0.3), "causal": False},
        ),
    )
    for named, coded in pairs:
        nets = []
        for arguments in (named, coded):
            torch.manual_seed(0)
            nets.append(
                kf.create_model("ccnn_4_140", in_channels=1, out_channels=2, size=8, channels=4, blocks=1, **arguments)
            )
        x = torch.randn(2, 1, 8)
        torch.testing.assert_close(nets[0](x), nets[1](x))


def test_groups_by_name_may_be_nested() -> None:
    assert repr(resolve_parts({"group": "Dihedral(2)"})["group"]) == "Dihedral(2)"
    product = resolve_parts({"group": "Product(Cyclic(4), Scale(2, dim=2))"})["group"]
    assert product.order == 8
    assert resolve_parts({"group": kf.groups.Cyclic(3)})["group"].order == 3


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("field", "SIRENE"),
        ("field", "__import__('os')"),
        ("field", "SIREN(omega_0=open('x'))"),
        ("field", "1 + 1"),
        ("field", ""),
        ("group", "Cyclic"),
        ("group", "Cyclic(**{'n': 4})"),
        ("mask", "Mask"),
        ("group", "GaussianMask"),
        ("group", "Group()"),
        ("group", "(" * 10_000),
    ],
)
def test_wrong_names_are_refused_by_the_argument(name: str, text: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name} must"):
        resolve_parts({name: text})


def test_own_networks_are_imported_only_when_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_network.py").write_text(
        "from torch import nn\n"
        "class Pooled(nn.Module):\n"
        "    def __init__(self, in_channels, out_channels):\n"
        "        super().__init__()\n"
        "        self.linear = nn.Linear(in_channels, out_channels)\n"
        "    def forward(self, x):\n"
        "        return self.linear(x.mean(dim=-1))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    name = "own_network:Pooled"
    with pytest.raises(ValueError, match=rf"\bname\b.*{name}.*import_network"):
        kf.create_model(name, in_channels=1, out_channels=2)
    assert "own_network" not in sys.modules
    assert import_network(name) is import_network(name)
    assert kf.create_model(name, in_channels=1, out_channels=2)(torch.randn(3, 1, 5)).shape == (3, 2)


@pytest.mark.parametrize("name", ["os:system", "no_such_module:Net", "torch.nn:Nothing", "torch.nn", ":Net", "a:b:c"])
def test_only_modules_of_networks_are_imported(name: str) -> None:
    with pytest.raises(ValueError, match=r"\bname must be package.module:Class"):
        import_network(name)
