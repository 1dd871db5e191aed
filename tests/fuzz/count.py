"""Count wrong calls and how they end: ``python -m tests.fuzz.count [room ...] [--show KIND]``."""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
import warnings
from collections import Counter

import torch

from .attempt import Outcome, attempt, cases
from .calls import ROOMS

KINDS = ("refused", "works", "raw", "later", "silent")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rooms", nargs="*", help=f"of {', '.join(ROOMS)}; all by default")
    parser.add_argument("--show", nargs="*", default=["raw", "later", "silent"], help=f"outcomes to list, of {KINDS}")
    parser.add_argument("--only", default="", help="text that a call's name contains")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    # A call that tries to allocate more than this fails instead of exhausting the machine.
    resource.setrlimit(resource.RLIMIT_AS, (4 * 2**30, resource.RLIM_INFINITY))
    os.chdir(tempfile.mkdtemp())  # an argument may be taken for a path to write to
    total: Counter[str] = Counter()
    for room in arguments.rooms or ROOMS:
        begin, counts = time.perf_counter(), Counter[str]()
        for call in ROOMS[room]:
            if arguments.only not in call.name:
                continue
            for argument, label in cases(call):
                outcome = attempt(call, argument, label)
                counts[outcome.kind] += 1
                if outcome.kind in arguments.show:
                    print(_line(outcome), flush=True)
        total += counts
        print(_row(room, counts), f"{time.perf_counter() - begin:.0f} s", flush=True)
    print(_row("all", total))


def _line(outcome: Outcome) -> str:
    return f"{outcome.kind:8}{outcome.case}: {' '.join(outcome.detail.split())[:160]}"


def _row(room: str, counts: Counter[str]) -> str:
    return f"{room:10} {sum(counts.values()):6} calls: " + ", ".join(f"{counts[kind]} {kind}" for kind in KINDS)


if __name__ == "__main__":
    main()
