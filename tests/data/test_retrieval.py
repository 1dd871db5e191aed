"""Pairs of papers are read from the files of the Long Range Arena, and a network compares them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from kernelfield import CCNN, DNArch, stream
from kernelfield.data import load
from kernelfield.data.registry import data_shape
from kernelfield.data.sets.text.retrieval import FILES, retrieval

if TYPE_CHECKING:
    from pathlib import Path

LINES = ["0.0\ta\tb\t\"b'first paper'\"\t\"b'x'\"", "1.0\tc\td\tthird\tfourth paper"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in FILES.values():
        (tmp_path / name).write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return tmp_path


def test_pairs_are_read_one_after_the_other(root: Path) -> None:
    data = load("lra_retrieval", root, length=8)
    batch = data.test.batch(slice(0, 2))
    assert batch.inputs.shape == (2, 16)
    assert bytes(batch.inputs[0].tolist()) == b"first pa" + b"x" + bytes(7)
    assert batch.mask.sum(dim=1).tolist() == [9, 5 + 8]
    assert batch.target.tolist() == [0, 1]
    shape = data_shape("lra_retrieval", length=8)
    assert (shape.size, shape.vocabulary, shape.out_channels) == ([16], 256, 2)


@pytest.mark.parametrize("line", ["0.0\ta\tb\tone text", "2.0\ta\tb\tc\td", ""], ids=["columns", "label", "empty"])
def test_damaged_files_are_refused_by_name(root: Path, line: str) -> None:
    (root / FILES["eval"]).write_text(f"{LINES[0]}\n{line}\n" if line else "", encoding="utf-8")
    with pytest.raises(ValueError, match=r"new_aan_pairs\.eval\.tsv.* (must hold|expected)"):
        retrieval(root)


def build(**options: object) -> CCNN:
    torch.manual_seed(0)
    return CCNN(4, 2, size=8, channels=6, blocks=1, readout="pair", vocabulary=10, causal=False, **options)


def test_a_pair_is_read_as_two_sequences() -> None:
    net = build().eval()
    x = torch.randint(10, (3, 16))
    y = net(x)
    assert y.shape == (3, 2)
    torch.testing.assert_close(net(x[:1]), y[:1], atol=1e-5, rtol=1e-4)
    swapped = net(torch.cat([x[:, 8:], x[:, :8]], dim=1))
    assert not torch.allclose(swapped, y)  # X₁ - X₂ tells them apart
    features = []
    net.final_norm.register_forward_hook(lambda _, __, out: features.append(out.mean(dim=2)))
    net(x)
    first, second = features[0].chunk(2)
    both = torch.stack([first, second, first * second, first - second], dim=2).flatten(1)
    hidden = torch.nn.functional.gelu(net.readout.compare(both[..., None])[..., 0])
    torch.testing.assert_close(net.readout.linear(hidden[..., None])[..., 0], y)


def test_masked_positions_of_both_do_not_count() -> None:
    net, x = build(sigma=None).eval(), torch.randint(10, (2, 16))
    mask = torch.ones(2, 16, dtype=torch.bool)
    mask[:, 5:8] = mask[:, 14:] = False
    changed = torch.where(mask, x, (x + 1) % 10)
    torch.testing.assert_close(net(x, mask=mask), net(changed, mask=mask))


def test_learned_architectures_compare_pairs_too() -> None:
    net, x = DNArch(build()).eval(), torch.randint(10, (2, 16))
    torch.testing.assert_close(net.materialize().eval()(x), net(x), atol=1e-5, rtol=1e-4)
    net.complexity_loss().backward()


def test_what_is_no_pair_is_refused() -> None:
    with pytest.raises(ValueError, match="x must be two sequences"):
        build()(torch.randint(10, (2, 15)))
    with pytest.raises(ValueError, match="net must read one input"):
        stream(CCNN(2, 2, size=8, channels=4, blocks=1, readout="pair"))
    with pytest.raises(ValueError, match="readout must not be 'pair' for dim=2"):
        CCNN(1, 2, dim=2, size=8, readout="pair")
