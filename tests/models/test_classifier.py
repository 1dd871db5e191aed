"""The contract of features and classifiers: every registered network."""

from __future__ import annotations

import copy
import pickle
import re
from typing import TYPE_CHECKING

import pytest
import torch

from kernelfield import CCNN, create_model, from_pretrained
from kernelfield.models import Augerino, ImageField
from kernelfield.models.registry import configuration
from tests.models.registered import NAMES, example
from tests.models.test_registered import HEAVY

if TYPE_CHECKING:
    from pathlib import Path

WITHOUT = [name for name in NAMES if configuration(name).build is ImageField]
WITH = [name for name in NAMES if name not in WITHOUT]
#: networks whose classifier shares the weight of their embedding
TIED = [name for name in WITH if configuration(name).arguments.get("vocabulary")]
FAMILIES = {configuration(name).build: name for name in reversed(WITH) if not re.match(HEAVY, name)}
each_family = pytest.mark.parametrize("name", FAMILIES.values())


#: one network of each family by default, all of them with --slow
EACH = [name if name in FAMILIES.values() else pytest.param(name, marks=pytest.mark.slow) for name in WITH]


@pytest.mark.parametrize("name", EACH)
@torch.no_grad()
def test_forward_is_the_head_of_the_features(name: str) -> None:
    case = example(name)
    net = case.network.eval()
    features = net.forward_features(case.inputs, **case.options)
    assert features.shape[:2] == (len(case.inputs), net.num_features)
    y = case()
    torch.testing.assert_close(net.forward_head(features), y, rtol=1e-4, atol=1e-5)
    pooled = net.forward_head(features, pre_logits=True)
    assert pooled.shape[:2] == (len(case.inputs), net.head_hidden_size)
    assert pooled.dim() == y.dim()


@pytest.mark.parametrize("name", EACH)
@torch.no_grad()
def test_reset_changes_the_classifier_alone(name: str) -> None:
    if name in TIED:
        pytest.skip("its classifier is its embedding")
    case = example(name)
    net = case.network.eval()
    pooled = net.forward_head(net.forward_features(case.inputs, **case.options), pre_logits=True)
    before = {key: t.clone() for key, t in net.state_dict().items()}
    net.reset_classifier(5)
    y = case()
    assert (net.num_classes, y.shape[1]) == (5, 5)
    assert y.isfinite().all()
    after = net.state_dict()
    changed = [key for key in after if key not in before or after[key].shape != before[key].shape]
    assert all(torch.equal(after[key], before[key]) for key in before if key in after and key not in changed)
    net.reset_classifier(0)
    torch.testing.assert_close(case(), pooled, rtol=1e-4, atol=1e-5)


@each_family
def test_reset_networks_train_copy_and_pickle(name: str) -> None:
    if name in TIED:
        pytest.skip("its classifier is its embedding")
    case = example(name)
    case.network.double().reset_classifier(4)
    assert {p.dtype for p in case.network.parameters()} == {torch.float64}
    case.network.float()
    case().float().square().sum().backward()
    assert pickle.loads(pickle.dumps(case.network)).num_classes == 4
    assert copy.deepcopy(case.network).num_classes == 4


@each_family
@torch.no_grad()
def test_networks_return_from_their_folder_with_another_classifier(name: str, tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    case = example(name)
    net = case.network.eval()
    for classes in (net.num_classes, 5):
        if name not in TIED:
            net.reset_classifier(classes)
        back = from_pretrained(net.save_pretrained(tmp_path / str(classes))).eval()
        torch.manual_seed(0)  # some networks draw elements of their group
        y = case()
        torch.manual_seed(0)
        assert torch.equal(back(case.inputs, **case.options), y)
        assert back.num_classes == net.num_classes


@pytest.mark.parametrize("name", TIED)
def test_a_classifier_that_shares_its_weight_stays(name: str) -> None:
    with pytest.raises(ValueError, match="num_classes"):
        example(name).network.reset_classifier(5)


@pytest.mark.parametrize("name", WITHOUT[:1])
def test_networks_without_a_classifier_refuse_by_name(name: str) -> None:
    net = create_model(name)
    for call in (net.forward_features, net.forward_head, net.reset_classifier):
        with pytest.raises(TypeError, match="ImageField"):
            call(3)
    with pytest.raises(TypeError, match="ImageField"):
        _ = net.num_features


def test_augerino_of_another_network_refuses_by_name() -> None:
    net = Augerino(torch.nn.Flatten(), group=create_model("p4cnn").lift.group)
    with pytest.raises(TypeError, match="Flatten"):
        net.reset_classifier(3)


def test_number_of_classes_is_checked() -> None:
    net = CCNN(1, 3, size=8, channels=4, blocks=1, hidden=4)
    with pytest.raises(ValueError, match="num_classes"):
        net.reset_classifier(-1)
    with pytest.raises(TypeError, match="num_classes"):
        net.reset_classifier("three")  # type: ignore[arg-type]
    net.reset_classifier(7)
    assert CCNN(**net.arguments).num_classes == 7


def test_masked_positions_do_not_reach_pooled_features() -> None:
    net = CCNN(1, 3, size=16, channels=4, blocks=1, hidden=4).eval()
    x, mask = torch.randn(2, 1, 16), torch.arange(16).expand(2, 16) < 9
    features = net.forward_features(x, mask=mask)
    torch.testing.assert_close(net.forward_head(features, mask=mask), net(x, mask=mask))
