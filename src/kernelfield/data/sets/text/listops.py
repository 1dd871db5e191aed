"""ListOps: nested lists of digits under MAX, MIN, MED and SM, as in the Long Range Arena; made or read."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np
import torch

from ...._checks import check_int
from ...base import Data, Split
from ...io.files import find, folder, read_lines
from ...transforms.batch import AsTokens

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["evaluate", "expression", "listops"]

OPERATORS = ("[MAX", "[MIN", "[MED", "[SM")
#: token ids; 0 is padding
TOKENS = {"": 0, **{str(d): d + 1 for d in range(10)}, **{op: 11 + i for i, op in enumerate(OPERATORS)}, "]": 15}


def listops(
    root: str | os.PathLike[str] | None = None,
    *,
    min_length: int = 500,
    max_length: int = 2_000,
    max_depth: int = 10,
    max_args: int = 10,
    train: int = 10_000,
    validation: int = 2_000,
    test: int = 2_000,
    seed: int = 0,
) -> Data:
    """Return ListOps: the value, 0 to 9, of an expression such as ``[MAX 2 9 [MIN 4 7 ] 0 ]``.

    Source: made in code by the grammar of the Long Range Arena (Tay et al., 2021; Nangia and Bowman, 2018), whose
    settings are the defaults, or read from its files ``basic_train.tsv``, ``basic_val.tsv`` and ``basic_test.tsv`` in
    ``root``. Licence: none needed; Apache 2.0 for the files. Split: different expressions in each, under one seed; the
    published task has 96,000 to train on, which take minutes to make, so that fewer are the default. Normalisation:
    none.

    Args:
        root: folder of the published files; None makes expressions.
        min_length: least number of tokens, of made ones.
        max_length: most tokens; expressions are padded to this length.
        max_depth: depth of nesting at which only digits are left.
        max_args: most arguments of an operator.
        train: number of training expressions to make.
        validation: number of validation expressions to make; 0 for none.
        test: number of test expressions to make.
        seed: of the expressions.

    Returns:
        Token ids (n, max_length), kept as bytes, with mask (n, max_length); classes (n,) of ten. 16 tokens, 0 is
        padding.

    >>> data = listops(min_length=5, max_length=30, max_depth=3, max_args=4, train=8, validation=0, test=2)
    >>> data.train.inputs.shape, data.vocabulary
    (torch.Size([8, 30]), 16)
    """
    check_int("max_length", max_length, least=4 if root is not None else max(check_int("min_length", min_length), 4))
    check_int("max_depth", max_depth, 2)
    check_int("max_args", max_args, 2)
    counts = check_int("train", train), check_int("validation", validation, 0), check_int("test", test)
    if root is not None:
        where = folder(root, "ListOps", "listops-1000", "lra_release/listops-1000")
        parts = [
            _read(find(where, [f"basic_{part}.tsv"], "expressions"), max_length) for part in ("train", "val", "test")
        ]
    else:
        # Twice the same expression would be a test question with a known answer.
        made: dict[tuple[str, ...], int] = {}
        source = random.Random(seed)
        tries = 0
        while len(made) < sum(counts):
            drawn = expression(source, max_depth, max_args, max_length)
            if drawn is not None and len(drawn[0]) >= min_length:
                made[tuple(drawn[0])] = drawn[1]
            tries += 1
            if tries > 10_000 + 10_000 * sum(counts):
                raise ValueError(
                    f"max_depth and max_args must allow {sum(counts)} expressions of {min_length} to {max_length} "
                    f"tokens, got {max_depth} and {max_args} ({len(made)} found)"
                )
        pairs = list(made.items())
        ends = counts[0], counts[0] + counts[1]
        parts = [pairs[: ends[0]], pairs[ends[0] : ends[1]], pairs[ends[1] :]]
    splits = [_split(part, max_length) for part in parts]
    return Data(
        name="listops",
        train=splits[0],
        validation=splits[1] if len(splits[1]) else None,
        test=splits[2],
        in_channels=1,
        out_channels=10,
        dim=1,
        size=(max_length,),
        task="classification",
        classes=tuple("0123456789"),
        vocabulary=len(TOKENS),
    )


def expression(source: random.Random, max_depth: int, max_args: int, max_length: int) -> tuple[list[str], int] | None:
    """Return a random expression's tokens and value; None if it grew beyond ``max_length``.

    A node is an operator with probability 1/4, of 2 to ``max_args`` arguments, and else a digit; always a digit at
    ``max_depth``. A digit alone counts as no expression.
    """
    tokens: list[str] = []

    def node(depth: int) -> int:
        if depth >= max_depth or source.random() > 0.25:
            digit = source.randrange(10)
            tokens.append(str(digit))
            return digit
        operator = source.choice(OPERATORS)
        tokens.append(operator)
        values = []
        for _ in range(source.randint(2, max_args)):
            values.append(node(depth + 1))
            if len(tokens) >= max_length:
                raise _TooLongError
        tokens.append("]")
        return _apply(operator, values)

    try:
        value = node(1)
    except _TooLongError:
        return None
    return None if len(tokens) == 1 else (tokens, value)


class _TooLongError(Exception):
    pass


def evaluate(tokens: Sequence[str]) -> int:
    """Return the value of an expression.

    >>> evaluate("[SM 8 [MED 1 4 7 2 ] [MAX 0 3 ] ]".split())
    4
    """
    stack: list[list[int]] = [[]]
    operators = []
    for token in tokens:
        if token in OPERATORS:
            operators.append(token)
            stack.append([])
        elif token == "]":
            if not operators or not stack[-1]:
                raise ValueError(f"an expression must close what it opens, got {' '.join(tokens)}")
            values = stack.pop()
            stack[-1].append(_apply(operators.pop(), values))
        else:
            stack[-1].append(int(token))
    if operators or len(stack[0]) != 1:
        raise ValueError(f"an expression must close what it opens, got {' '.join(tokens)}")
    return stack[0][0]


def _apply(operator: str, values: list[int]) -> int:
    if operator == "[MAX":
        return max(values)
    if operator == "[MIN":
        return min(values)
    if operator == "[SM":
        return sum(values) % 10
    return int(np.median(values))


def _read(path: Path, max_length: int) -> list[tuple[tuple[str, ...], int]]:
    lines = read_lines(path)
    if not lines or lines[0].split("\t") != ["Source", "Target"]:
        raise ValueError(f"{path}, line 1: expected 'Source' and 'Target', found {lines[0] if lines else 'nothing'!r}")
    pairs = []
    for i, line in enumerate(lines[1:], start=2):
        source, _, target = line.partition("\t")
        tokens = tuple(t for t in source.split() if t not in ("(", ")"))  # the files bracket every pair
        unknown = [t for t in tokens if t not in TOKENS]
        if unknown or target.strip() not in TOKENS or not tokens:
            raise ValueError(f"{path}, line {i}: expected an expression, a tab and a digit, found {line[:60]!r}")
        if len(tokens) > max_length:
            raise ValueError(f"{path}, line {i}: expected at most {max_length} tokens, found {len(tokens)}")
        pairs.append((tokens, int(target)))
    return pairs


def _split(pairs: Sequence[tuple[tuple[str, ...], int]], length: int) -> Split:
    inputs = np.zeros((len(pairs), length), dtype=np.uint8)
    for i, (tokens, _) in enumerate(pairs):
        inputs[i, : len(tokens)] = [TOKENS[t] for t in tokens]
    ids = torch.from_numpy(inputs)
    target = torch.tensor([value for _, value in pairs], dtype=torch.long)
    return Split(ids, target, mask=ids > 0, prepare=AsTokens())
