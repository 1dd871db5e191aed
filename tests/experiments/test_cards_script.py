"""scripts/cards.py: the page says where each card was measured, and no weight is left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kernelfield.experiments.run_files import read_json
from tests.scripts import ROOT, load_script

if TYPE_CHECKING:
    from types import ModuleType


@pytest.fixture(scope="module")
def cards() -> ModuleType:
    return load_script(ROOT / "scripts" / "cards.py")


def test_the_page_names_the_machine_of_each_card(cards: ModuleType) -> None:
    measured = read_json(cards.FILE)
    first, second, third = list(measured)[:3]
    machines = {first: "Some GPU", second: "Another CPU", third: "Some GPU"}
    made = {"torch": "2.0", "date": "2026-01-01"}
    some = {name: {**measured[name], "machine": {**made, "device": device}} for name, device in machines.items()}
    text = cards.page(some)
    rows = {line.split("`")[1]: line for line in text.splitlines() if line.startswith("| `")}
    assert "| Another CPU |" in rows[second]
    assert "Another CPU" not in rows[first] + rows[third]
    assert "one Some GPU with torch 2.0 on 2026-01-01 (2 weights); one Another CPU with torch" in text
    assert "measured on Another CPU." in text


def test_every_weight_has_a_card_and_a_budget_of_steps(cards: ModuleType) -> None:
    measured = read_json(cards.FILE)
    assert set(measured) == set(cards.list_weights()) == set(cards.STEPS)
