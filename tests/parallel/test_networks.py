"""Split networks equal whole ones in outputs, gradients and trainings; they split memory; wrong inputs end on all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import kernelfield as kf
from kernelfield.models.registry import configuration, options_of

from . import cases
from .test_conv import assert_equal

if TYPE_CHECKING:
    from .workers import Workers

#: functions and classes that build continuous networks
BUILDERS = ("CCNN", "CKCNN", "FlexNet", "FlexTCN", "learned_ccnn")
NAMES = [name for name in kf.list_models() if configuration(name).build.__name__ in BUILDERS]
OTHERS = sorted({configuration(name).build.__name__: name for name in kf.list_models() if name not in NAMES}.values())


def distinct() -> list[str]:
    """Return names of networks that still differ when they are made small."""
    found: dict[str, str] = {}
    for name in NAMES:
        options = {**options_of(name), **cases.network_arguments(name)[0]}
        found.setdefault(f"{configuration(name).build.__name__} {sorted(options.items(), key=str)}", name)
    return list(found.values())


@pytest.mark.parametrize("family", sorted({name.split("_")[0] for name in distinct()}))
def test_every_registered_continuous_network(two: Workers, family: str) -> None:
    for name in distinct():
        if name.split("_")[0] == family:
            assert_equal(two.run(cases.network_case, name, {"dropout": 0.2}, {}))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_registered_continuous_network_on_four(four: Workers, name: str) -> None:
    assert_equal(four.run(cases.network_case, name, {"dropout": 0.2}, {}))


OPTIONS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    *(("ccnn_4_140", {"norm": norm}, {}) for norm in ("batch-statistics", "channel", "cumulative", "layer", "none")),
    *(("ccnn_4_140", {"readout": readout}, {"mask": 0.6}) for readout in ("mean", "last", "dense")),
    ("ccnn_4_140", {"sigma": None, "dropout": 0.3, "dropout_kind": "channels", "input_dropout": 0.2}, {"step": 0.5}),
    ("ccnn_4_140", {"dim": 1, "causal": False, "boundary": "periodic", "shared_field": True}, {}),
    ("ccnn_4_140", {"prenorm": False, "stem": "linear", "kernel_dropout": 0.2}, {"step": 1.7}),
    ("flextcn_2", {"readout": "last", "norm": "layer", "causal": False}, {"mask": 0.5}),
    ("ckcnn_ptb", {"embedding_dropout": 0.2, "input_dropout": 0.2}, {}),
]


@pytest.mark.parametrize(("name", "changes", "how"), OPTIONS)
def test_options_of_networks(two: Workers, name: str, changes: dict[str, Any], how: dict[str, Any]) -> None:
    assert_equal(two.run(cases.network_case, name, changes, how))


def test_a_learned_resolution(two: Workers) -> None:
    assert_equal(two.run(cases.coarse_case, 2))


@pytest.mark.parametrize("name", ["ccnn_4_140", "ckcnn_copy", "flexnet_16", "dnarch_4_140"])
def test_trainings_are_the_same(two: Workers, name: str) -> None:
    for losses, expected in two.run(cases.training_case, name, {"dropout": 0.2}, 8):
        assert losses == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ccnn_4_140", "ccnn_6_380", "ckcnn_ptb", "flextcn_2", "flexnet_16", "dnarch_4_140"])
def test_trainings_on_four_are_the_same(four: Workers, name: str) -> None:
    for losses, expected in four.run(cases.training_case, name, {"dropout": 0.2}, 20):
        assert losses == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["own", "ddp", "fsdp"])
def test_data_parallel_groups_of_split_networks(grid: Workers, strategy: str) -> None:
    for differences in grid.run(cases.parallel_case, strategy, 20):
        assert max(differences) < 1e-9


#: what is wrong, and what the error of every process, or of one of them, says
WRONG = {
    "no context": "mesh must have the axes",
    "no names": "mesh must have the axes",
    "channels": "mesh must have at most",
    "layer": "network must be made of layers",
    "nested layer": "got 1, a Conv1d",
    "pair": "network must not have the readout 'pair'",
    "fixed shapes": "fixed_shapes=True",
    "twice": "network must not be sharded already",
    "scatter": "x must have at least one sample",
    "gather": "x must have the same shape",
    "axis": "axis must be below",
    "full": "x must have at least one sample",
    "batch": "same batch size",
    "empty": "x must have at least one sample",
    "dtype": "same dtype",
    "type": "x must be a torch.Tensor",
    "axes": "same number of axes",
    "coords": "coords must be None",
    "training": "the mode, training or evaluation, must be the same",
    "step": "step must be the same",
    "random": "random state must be the same",
    "part": "x must be the slab",
}


def test_networks_of_other_kinds_are_refused_by_name(two: Workers) -> None:
    for name in OTHERS:
        for message in two.errors(cases.refused_case, name):
            assert "network must be made of layers" in message


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_input_is_an_error_on_every_process(two: Workers, what: str) -> None:
    messages = two.errors(cases.bad_input, what)
    assert any(WRONG[what] in message for message in messages), messages
    assert two.run(cases.still_works) == [True, True]


@pytest.mark.parametrize("what", ["batch", "type", "dtype"])
@pytest.mark.slow
def test_a_wrong_input_is_an_error_on_every_process_of_a_grid(grid: Workers, what: str) -> None:
    messages = grid.errors(cases.bad_input, what)
    assert any(WRONG[what] in message for message in messages), messages
    assert all(grid.run(cases.still_works))


_PLAIN: dict[str, Any] = {"in_channels": 1, "out_channels": 3, "blocks": 2}
MEASURED = {
    "masked": ("ccnn_4_140", {**_PLAIN, "size": 2048, "channels": 32, "dropout": 0.1}, (2, 1, 2048)),
    "global": ("ccnn_4_140", {**_PLAIN, "size": 2048, "channels": 32, "sigma": None}, (2, 1, 2048)),
    "dense": ("ckcnn_2_30", {**_PLAIN, "size": 512, "channels": 16}, (4, 1, 512)),
    "image": ("flexnet_3", {"in_channels": 3, "out_channels": 3, "size": 32, "channels": 8}, (4, 3, 32, 32)),
    "volume": ("ccnn_4_140", {**_PLAIN, "dim": 3, "size": 16, "channels": 16}, (2, 1, 16, 16, 16)),
}


@pytest.mark.parametrize("name", ["masked", "dense"])
def test_activations_of_two(two: Workers, name: str) -> None:
    assert max(two.run(cases.memory_case, *MEASURED[name])) <= 1.15 / 2


@pytest.mark.slow
@pytest.mark.parametrize("name", MEASURED)
def test_activations_of_four(four: Workers, name: str) -> None:
    assert max(four.run(cases.memory_case, *MEASURED[name])) <= 1.15 / 4
