"""Wrong arguments of every public constructor and function: refused by name, or they work in use too.

One argument of a working call is replaced at a time, by a value from a pool of mistakes or by a drawn one. The whole
pool runs with ``--slow``; ``python -m tests.fuzz.count`` prints how many calls there are and how they end.
"""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kernelfield
from kernelfield._arguments import declared_kinds
from kernelfield._kinds import Choice

from .attempt import Outcome, attempt, cases
from .calls import INTERNAL, PACKAGES, ROOMS, Call

if TYPE_CHECKING:
    from collections.abc import Iterator

DRAWN = st.one_of(
    st.integers(-3, 40),
    st.floats(),
    st.text(max_size=3),
    st.lists(st.integers(-1, 5), max_size=3),
    st.tuples(st.floats(), st.floats()),
    st.sampled_from([True, False, None]),
)


@pytest.fixture(autouse=True, scope="module")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("arguments"))  # drawn text may be taken for a path to write to
        yield


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a value that works may still deserve a warning
        yield


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_has_a_working_call(package: str) -> None:
    module = getattr(kernelfield, package)
    called = {call.name.split(" ")[0] for calls in ROOMS.values() for call in calls}
    public = {f"{package}.{name}" for name in module.__all__ if callable(getattr(module, name))}
    assert public - called - INTERNAL == set()


@pytest.mark.parametrize("call", [call for calls in ROOMS.values() for call in calls], ids=lambda call: call.name)
def test_the_call_works(call: Call) -> None:
    root = call.arguments().get("root")
    if isinstance(root, str) and Path(root).is_dir() and not any(Path(root).iterdir()):
        with pytest.raises(call.ends_with, match=re.escape(root)):  # a data set without its files
            call()
    else:
        call.use(call())


@pytest.mark.parametrize("room", ROOMS)
@settings(max_examples=60)
@given(data=st.data())
def test_a_mistake_is_refused_by_name_or_works(room: str, data: st.DataObject) -> None:
    call = data.draw(st.sampled_from([call for call in ROOMS[room] if not call.slow]))
    argument, label = data.draw(st.sampled_from(list(cases(call))))
    _assert_fine(attempt(call, argument, label))


@pytest.mark.parametrize("room", ROOMS)
@settings(max_examples=30)
@given(data=st.data(), value=DRAWN)
def test_a_drawn_value_is_refused_by_name_or_works(room: str, data: st.DataObject, value: Any) -> None:
    call = data.draw(st.sampled_from([call for call in ROOMS[room] if not call.slow]))
    argument = data.draw(st.sampled_from(sorted(call.annotations()) or [""]))
    if argument:
        _assert_fine(attempt(call, argument, value=value))


@pytest.mark.parametrize("room", ROOMS)
def test_every_declared_choice_works_or_is_refused_by_name(room: str) -> None:
    for call in (call for call in ROOMS[room] if not call.slow):
        for argument, kind in declared_kinds(call.function).items():
            for part in getattr(kind, "kinds", (kind,)):
                for name in part.names if isinstance(part, Choice) else ():
                    _assert_fine(attempt(call, argument, value=name))


@pytest.mark.slow
@pytest.mark.parametrize("room", ROOMS)
def test_all_mistakes_are_refused_by_name_or_work(room: str) -> None:
    outcomes = [attempt(call, argument, label) for call in ROOMS[room] for argument, label in cases(call)]
    assert [f"{o.kind} {o.case}: {o.detail}" for o in outcomes if not o.fine] == []


def _assert_fine(outcome: Outcome) -> None:
    assert outcome.fine, f"{outcome.kind}: {outcome.case}: {outcome.detail}"
