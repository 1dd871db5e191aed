"""Run the tests and benchmarks that need a GPU, stage by stage.

    PYTHONPATH=src python3 scripts/gpu.py FOLDER                          # all stages
    PYTHONPATH=src python3 scripts/gpu.py FOLDER --stages tests sizes --limit 600
    PYTHONPATH=src python3 scripts/gpu.py FOLDER --stages recorded --limits recorded=900
    PYTHONPATH=src python3 scripts/gpu.py FOLDER --total 570 --resume     # again and again, where commands are short
    PYTHONPATH=src python3 scripts/gpu.py FOLDER --stages tests --at-once 8   # several files of tests at a time
    PYTHONPATH=src python3 scripts/gpu.py FOLDER --stages cards band --at-once 8 --data DATA
    PYTHONPATH=src python3 scripts/gpu.py FOLDER --quick --limit 60       # tiny shapes, also on a CPU

Needs torch and the packages of the stages (pytest for ``tests``), and installs nothing. Each step runs in its own
process and writes its log, and its JSON as rows are measured, into FOLDER. If a step fails or runs out of time, the
others still run. One line per step says how it ended: ok, failed or out of time, and the seconds it took.

``--total`` ends the call in time for a machine on which commands may run for some minutes only. ``--resume`` leaves out
the steps that earlier calls with the same FOLDER have finished, which ``steps.json`` lists. A step that ran out of time
starts again, and its benchmark keeps the rows that it has saved.

``--at-once`` runs several files of tests side by side: most of their time is the compilation of kernels on the CPU.
Stage ``warm`` compiles the kernels of the stage ``recorded`` in the same way, and ``warm-loops`` those of ``loops``,
which must follow on the same machine; its first eight steps are for eager and captured steps, the others for compiled
ones, which take minutes. ``warm-growth`` does so for ``growth``. Trainings run side by side too: those on
shares of the data (``cards``) and those with the published and the default frequencies (``band``). They read MNIST,
CIFAR-10 and the folder ``fsdd`` in ``--data``. Benchmarks always run alone.

``recorded`` measures rows of ``benchmarks/results`` again and fails if one takes 3 % longer than recorded.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
#: longest accepted time of a row, relative to its recorded time
SLOWER = 1.03
#: how a step ended that did not finish
OUT_OF_TIME = "out of time"
#: seconds below which no step starts
LEAST = 10.0
#: seconds of each stage
LIMITS = {
    "tests": 900.0,
    "sizes": 600.0,
    "warm-loops": 600.0,
    "loops": 600.0,
    "prediction": 300.0,
    "warm": 300.0,
    "recorded": 900.0,
    "first": 300.0,
    "seeds": 200.0,
    "cards": 600.0,
    "band": 600.0,
    "irregular": 300.0,
    "warm-growth": 200.0,
    "growth": 300.0,
}
#: files and folders of tests, the longest first, with options of pytest
TESTS = (
    "tests/cuda_graphs/test_cuda.py -k gsanet",
    "tests/cuda_graphs/test_cuda.py -k attentive",
    "tests/cuda_graphs/test_cuda.py -k 'with_cuda_graphs and not gsanet and not attentive'",
    "tests/cuda_graphs/test_cuda.py -k 'not with_cuda_graphs'",
    "tests/cuda_graphs",
    "tests/ops/conv",
    "tests/ops/attention",
    "tests/ops/attentive",
    "tests/ops/fused",
    "tests/ops/points",
    "tests/ops/test_backend.py",
    "tests/ops/test_fieldnet.py",
    "tests/ops/test_graph_cache.py",
    "tests/ops/test_kernel_operator.py",
    "tests/ops/test_precompile.py",
    "tests/streaming/test_static_step.py",
    "tests/experiments/test_cuda_graph.py",
    "tests/layers/points/test_gridify.py",
    "tests/models/test_random_kernels.py",
    "tests/test_sklearn_gpu.py",
)
#: stages whose steps may run side by side, because their times are not compared
SIDE_BY_SIDE = ("tests", "warm", "warm-loops", "warm-growth", "cards", "band")
#: folders whose files are steps of their own, because their kernels take minutes to compile
LONG_TESTS = ("tests/ops/conv", "tests/cuda_graphs")


#: networks whose shares of the data are trained in one process, one after the other
SHARED = (
    "full_gcnn_se2.rotmnist,partial_gcnn_se2.rotmnist,full_gcnn_e2.rotmnist",
    "ccnn_4_140.pmnist,ccnn_4_140.fsdd,p4cnn.rotmnist_attentive",
    "ccnn_4_140.scifar10,ckcnn_adding.adding_1000,ckcnn_copy.copy_1000",
)
#: recipe, epochs and published frequency scale of networks that are compared with the default of the networks
BAND = (("smnist", 10, 2976.49), ("cifar10", 24, 4231.57))

#: name, command, arguments of a whole run, and file to compare with, by stage
BENCHMARKS = {
    "sizes": [
        ("sizes", "benchmarks/long_conv.py --seconds {seconds} --json {json}", "--sizes", ""),
        ("errors", "benchmarks/long_conv_errors.py --json {json}", "", ""),
    ],
    "loops": [
        ("loops-bf16", "benchmarks/loops.py --bf16 --limit 100 --out {json}", "--kinds guide,layers --budget 0.3", ""),
        ("loops", "benchmarks/loops.py --limit {seconds} --out {json}", "--budget 0.1 --row 60", ""),
    ],
    "warm-loops": [
        (f"warm-{name}-{i}", f"benchmarks/loops.py --ways {ways} --warm {i}/8 --limit {{seconds}}", options, "")
        for name, ways, options in (("eager", "eager,captured", "--row 60"), ("compiled", "compiled", "--row 300"))
        for i in range(8)
    ],
    "prediction": [("prediction", "benchmarks/prediction.py --limit {seconds} --out {json}", "", "")],
    "warm": [
        *((f"long_conv-{i}", f"benchmarks/long_conv.py --warm {i}/6", "", "") for i in range(6)),
        *((f"ccnn_step-{i}", f"benchmarks/ccnn_step.py --ways fused --warm {i}/4", "", "") for i in range(4)),
        *(
            (f"attention-{name}", f"benchmarks/group_attention.py --methods auto --each 0.01 --match {name}", "", "")
            for name in ("R4", "R8", "R12", "p4-CNN", "All-CNN")
        ),
    ],
    "recorded": [
        ("long_conv", "benchmarks/long_conv.py --seconds {seconds} --json {json}", "", "long-conv-h200.json"),
        ("ccnn_step", "benchmarks/ccnn_step.py --out {json}", "--ways fused", "ccnn-step-h200.json"),
        (
            "group_attention",
            "benchmarks/group_attention.py --row 120 --budget {seconds} --json {json}",
            "--methods auto",
            "group_attention-h200.json",
        ),
    ],
    "first": [("first", "benchmarks/first_calls.py --at-once 5 --limit {seconds} --out {json}", "", "")],
    "seeds": [("seeds", "benchmarks/seeds.py --out {json}", "--counts 1 3", "")],
    "cards": [
        (
            f"shares-{i}",
            "scripts/cards.py shares --limit {seconds} --out {json}",
            f"--accelerator cuda --data {{data}} --runs {{folder}} --weights {names}",
            "",
        )
        for i, names in enumerate(SHARED)
    ],
    "band": [
        (
            f"{data}-{name}",
            (
                f"scripts/results.py ch03-{data}-ccnn-4-140 --results {{folder}}/results --runs {{folder}}/runs"
                " --data {data} --time-limit {seconds} --set schedule.warmup=2 --set training.eval_batch=1000"
            ),
            f"--epochs {epochs} --set model.omega_0={scale}",
            "",
        )
        for data, epochs, published in BAND
        for name, scale in (("published", published), ("default", "null"))
    ],
    "irregular": [("irregular", "benchmarks/irregular.py --out {json}", "", "")],
    "warm-growth": [
        (f"warm-growth-{i}", f"benchmarks/growth.py --warm {i}/8 --limit {{seconds}}", "", "") for i in range(8)
    ],
    "growth": [("growth", "benchmarks/growth.py --limit {seconds} --json {json}", "", "")],
}
#: arguments instead of those, with --quick
QUICK = {
    "sizes": "--quick",
    "loops": "--kinds networks --only p4-CNN --batch 2 --ways eager --budget 0.1",
    "prediction": "--only p4-CNN --batch 2 --ways eager,frozen --each 0.1",
    "attention-p4-CNN": "--quick",
    "long_conv": "--quick",
    "ccnn_step": "--quick",
    "group_attention": "--quick --each 0.01",
    "first": "--only FlexTCN --batch 2 --device cpu",
    "seeds": "--quick --counts 1 2 --steps 30",
    "shares-0": "--accelerator cpu --runs {folder} --weights ccnn_4_140.digits --steps 1",
    "smnist-default": "--synthetic --epochs 3 --set model.channels=4 --set model.blocks=1",
    "irregular": "--points 200 --network-points 0 --seconds 0.1",
    "warm-eager-0": "--kinds guide --only p4-CNN --batch 2 --ways eager,formula --warm 0/2",
    "warm-growth-0": "--quick --only LiftingConv --warm 0/2",
    "growth": "--quick --only LiftingConv --each 0.01",
}


@dataclass
class Step:
    """One process of a stage.

    Args:
        name: name of the step and of its files.
        command: arguments of Python. ``{json}`` stands for the step's JSON file, ``{folder}`` for a folder of its own,
            ``{data}`` for that of the data sets, and ``{seconds}`` for the time that is left, minus a few seconds in
            which a benchmark can finish.
        recorded: a file of ``benchmarks/results`` to compare the JSON with.
    """

    name: str
    command: list[str]
    recorded: str = ""
    lines: list[str] = field(default_factory=list)


def steps_of(stage: str, quick: bool) -> list[Step]:
    """Return the steps of a stage, the most important first."""
    if stage == "tests":
        some = TESTS[:1] if quick else [file for test in TESTS for file in _files_of(test)]
        return [
            Step(_name_of(test), ["-m", "pytest", "-q", "-p", "no:cacheprovider", *shlex.split(test)]) for test in some
        ]
    small = QUICK if quick else {}
    return [
        Step(name, [*command.split(), *small.get(name, full).split()], "" if quick else recorded)
        for name, command, full, recorded in BENCHMARKS[stage]
        if not quick or name in small
    ]


def _name_of(test: str) -> str:
    """Return the name of the step of a file or folder of tests.

    >>> _name_of("tests/ops/fused"), _name_of("tests/test_a.py -k 'b and not c'")
    ('fused', 'test_a-b-and-not-c')
    """
    path, *options = shlex.split(test)
    return "-".join([Path(path).stem, *" ".join(options[1:]).split()])


def _files_of(test: str) -> list[str]:
    """Return the files of a folder of long tests that are no tests of their own; the test itself for others."""
    if test not in LONG_TESTS:
        return [test]
    files = [str(file.relative_to(ROOT)) for file in sorted((ROOT / test).glob("test_*.py"))]
    return [file for file in files if not any(other.startswith(f"{file} ") for other in TESTS)]


def run(step: Step, folder: Path, limit: float, keep: bool = False, data: Path = Path(".data")) -> tuple[str, float]:
    """Run one step; return how it ended and the seconds it took.

    Args:
        step: the step.
        folder: of its log and its JSON.
        limit: seconds after which it ends.
        keep: whether to keep the rows of an earlier run, which ran out of time.
        data: folder of the data sets.
    """
    path = folder / f"{step.name}.json"
    values = {"json": path, "folder": folder / step.name, "data": data, "seconds": f"{max(1.0, limit - 5):.0f}"}
    command = step.command
    for name, value in values.items():
        command = [part.replace(f"{{{name}}}", str(value)) for part in command]
    if not keep:
        path.unlink(missing_ok=True)  # rows of an earlier run would be mistaken for those of this one
    begin = time.perf_counter()
    with (folder / f"{step.name}.log").open("w") as log:
        # A group of its own, so that the workers of a compiler end with it.
        process = subprocess.Popen(
            [sys.executable, *command], cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code = process.wait(timeout=limit)
            ended = "ok" if code == 0 else f"failed ({code})"
        except subprocess.TimeoutExpired:
            ended = OUT_OF_TIME
        finally:
            _end(process)
    report = _read(path) if step.recorded else None
    if report is not None:
        slower, compared = compare(report, json.loads((RESULTS / step.recorded).read_text()))
        step.lines += [f"{compared} times compared with {step.recorded}, {len(slower)} slower", *slower]
        if ended == "ok" and (slower or not compared):
            ended = "failed (slower)" if slower else "failed (no row to compare)"
    return ended, time.perf_counter() - begin


def run_until(end: float, step: Step, options: argparse.Namespace, *, keep: bool) -> tuple[str, float]:
    """Run one step unless too little time is left before ``end``."""
    left = end - time.perf_counter()
    if left <= (LEAST if options.total else 0):
        return OUT_OF_TIME, 0.0
    return run(step, options.folder.resolve(), left, keep=keep, data=options.data.resolve())


def _read(path: Path) -> Any:
    """Return the content of a JSON file; None if there is none, or if its process ended while it wrote."""
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return None


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and those that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def compare(found: dict[str, Any], recorded: dict[str, Any]) -> tuple[list[str], int]:
    """Return a line for each time that is more than 3 % above the recorded one, and how many were compared.

    >>> new, old = ({"rows": {"a": {"seconds": {"ours": time}}}} for time in (1.1, 1.0))
    >>> compare(new, old)
    (['  a, ours: 1.1 instead of 1, +10.0 %'], 1)
    """
    times, before = _times(found), _times(recorded)
    lines = []
    for key in sorted(times.keys() & before.keys()):
        new, old = times[key], before[key]
        if new > SLOWER * old:
            lines.append(
                f"  {key[0]}, {key[1]}: {new:.4g} instead of {old:.4g}, {new / old - 1:+.1%}".replace("%", " %")
            )
    return lines, len(times.keys() & before.keys())


def _times(report: dict[str, Any]) -> dict[tuple[str, str], float]:
    """Return the times of our own ways by row and way.

    Those of torch and of plain formulas vary with its version. An eager time beside that of a CUDA graph is one of the
    host, which varies from process to process.
    """
    rows = report["rows"]
    named = rows.items() if isinstance(rows, dict) else ((row["name"], row) for row in rows)
    found = {}
    for name, row in named:
        for kind in ("seconds", "milliseconds", "ms"):
            entries = row.get(kind)
            for way, value in entries.items() if isinstance(entries, dict) else ():
                of_host = f"{way} graphed" in entries
                if (
                    value is not None
                    and not of_host
                    and way not in ("plain", "compiled", "fft", "reference", "chunked")
                ):
                    found[name, way] = float(value)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where logs and measurements are written")
    parser.add_argument("--stages", nargs="+", choices=LIMITS, default=list(LIMITS), metavar="STAGE")
    parser.add_argument("--limit", type=float, help="seconds of every stage")
    parser.add_argument("--limits", nargs="*", default=[], metavar="STAGE=SECONDS", help="seconds of single stages")
    parser.add_argument("--total", type=float, help="seconds after which the call ends")
    parser.add_argument("--resume", action="store_true", help="leave out steps that earlier calls have finished")
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="steps that run side by side")
    parser.add_argument("--data", type=Path, default=Path(".data"), help="folder of the data sets")
    parser.add_argument("--quick", action="store_true", help="tiny shapes, to test the script; also on a CPU")
    options = parser.parse_args()
    limits = dict.fromkeys(LIMITS, options.limit) if options.limit else dict(LIMITS)
    for text in options.limits:
        stage, _, seconds = text.partition("=")
        if stage not in LIMITS or not seconds.replace(".", "", 1).isdigit():
            parser.error(f"--limits must be STAGE=SECONDS with one of {', '.join(LIMITS)}, got {text!r}")
        limits[stage] = float(seconds)
    options.folder.mkdir(parents=True, exist_ok=True)
    state = options.folder / "steps.json"
    ends: dict[str, str] = (_read(state) or {}) if options.resume else {}
    last = time.perf_counter() + (options.total or float("inf"))
    failed = 0
    for stage in options.stages:
        end = min(last, time.perf_counter() + limits[stage])
        steps = {f"{stage} {step.name}": step for step in steps_of(stage, options.quick)}
        failed += sum(ends.get(name, "") not in ("", OUT_OF_TIME, "ok") for name in steps)
        open_steps = [name for name in steps if ends.get(name, "") in ("", OUT_OF_TIME)]
        with ThreadPoolExecutor(options.at_once if stage in SIDE_BY_SIDE else 1) as pool:
            runs = {
                pool.submit(run_until, end, steps[name], options, keep=ends.get(name) == OUT_OF_TIME): name
                for name in open_steps
            }
            for done in as_completed(runs):
                name, (ended, seconds) = runs[done], done.result()
                failed += ended != "ok"
                ends[name] = ended
                state.write_text(json.dumps(ends, indent=1) + "\n")
                print(f"{name}: {ended}, {seconds:.0f} s", *steps[name].lines, sep="\n", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
