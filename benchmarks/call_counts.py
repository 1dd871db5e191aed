"""How much Python code of the library runs in one call: files entered, and function calls in them.

    python benchmarks/call_counts.py            # a table
    python benchmarks/call_counts.py --where    # and the calls of each file

Comprehensions and lambdas do not count as calls. Each case runs once before it is counted, so imports and the results
that the first call caches do not count either.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import kernelfield
from kernelfield import CCNN, groups

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = str(Path(kernelfield.__file__).parent)


def count_calls(run: Callable[[], Any]) -> Counter[str]:
    """Return the calls of Python functions in each file of the library while ``run`` runs."""
    calls: Counter[str] = Counter()

    def profile(frame: Any, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(ROOT) and not frame.f_code.co_name.startswith("<"):
            calls[name[len(ROOT) + 1 :]] += 1

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(before)
    return calls


def ccnn() -> Callable[[], Any]:
    """Return a forward pass of CCNN_4,140 on a sequence."""
    net = kernelfield.create_model("ccnn_4_140", dim=1, size=784, in_channels=1, out_channels=10)
    assert isinstance(net, CCNN)
    x = torch.randn(1, 1, 784)
    return lambda: net(x)


def group_conv() -> Callable[[], Any]:
    """Return a forward pass of one group convolution."""
    layer = kernelfield.GroupConv(2, 2, group=groups.Cyclic(4), kernel_size=3)
    x = torch.randn(1, 2, 4, 8, 8)
    return lambda: layer(x)


def train(*options: str) -> Callable[[], Any]:
    """Return ``kernelfield train`` for one epoch: of 20 steps on the bundled digits, of 1 step with ``--synthetic``."""
    from kernelfield.cli import app  # noqa: PLC0415

    def run() -> None:
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            app(["train", "digits", "--epochs", "1", "--out", folder, "--json", *options], standalone_mode=False)

    return run


CASES = {
    "CCNN forward": ccnn,
    "GroupConv forward": group_conv,
    "kernelfield train": train,
    "kernelfield train --synthetic": lambda: train("--synthetic"),
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--where", action="store_true", help="list the calls of each file")
    parser.add_argument("--case", choices=CASES, action="append", help="count only these cases")
    options = parser.parse_args()
    torch.manual_seed(0)
    print("| case | files | calls |\n|---|---:|---:|")
    for name in options.case or CASES:
        run = CASES[name]()
        run()
        calls = count_calls(run)
        print(f"| {name} | {len(calls)} | {sum(calls.values())} |")
        if options.where:
            for path, n in calls.most_common():
                print(f"    {n:6d}  {path}")


if __name__ == "__main__":
    main()
