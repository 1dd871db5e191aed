"""Benchmarks keep to their budget and show each row when it is measured."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from kernelfield import list_models
from kernelfield.models.registry import configuration
from kernelfield.ops import backend, conv
from kernelfield.ops.conv.reference import conv_reference

FOLDER = Path(__file__).parent.parent / "benchmarks"
SCRIPTS = ("group_attention", "groups")


@pytest.fixture
def run(monkeypatch, capsys):
    """Return a function that runs a benchmark and returns what it printed on both streams."""
    monkeypatch.syspath_prepend(FOLDER)

    def run(script, *arguments):
        monkeypatch.setattr(sys, "argv", [script, *arguments])
        importlib.import_module(script).main()
        return capsys.readouterr()

    return run


@pytest.mark.parametrize("script", SCRIPTS)
def test_nothing_begins_after_the_budget(run, script):
    printed = run(script, "--quick", "--budget", "0")
    assert "left out" in printed.err
    assert "first step" not in printed.err


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_rows_are_printed_and_saved_one_by_one(run, script, tmp_path):
    path = tmp_path / "rows.json"
    printed = run(script, "--quick", "--each", "0.01", "--json", str(path))
    rows = json.loads(path.read_text())["rows"]
    assert len(rows) > 1
    for row in rows:
        assert f"{row['name']}: " in printed.err
        assert any(line.startswith(row["name"]) for line in printed.out.splitlines())


@pytest.mark.slow
def test_seeds_are_timed_alone_and_side_by_side(run, tmp_path):
    path = tmp_path / "seeds.json"
    run("seeds", "--quick", "--counts", "1", "2", "--steps", "30", "--compare", "2", "--out", str(path))
    (case,) = json.loads(path.read_text())["cases"].values()
    assert [row["difference"] for row in case["rows"].values()] == [0.0, 0.0]


def test_fine_tuning_continues_and_chooses_rates_by_validation(run, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(FOLDER)
    script = importlib.import_module("fine_tuning")
    trained = []

    def train(name, start, rate, seed, most):
        trained.append((start, rate, seed))
        good = (start == "weight") == (rate == 0.001)
        row = {
            "task": name,
            "start": start,
            "lr": rate,
            "seed": seed,
            "samples": 5,
            "steps": most,
            "metric": "accuracy",
        }
        return {**row, "validation": 0.9 if good else 0.2, "test": 0.8 if start == "weight" else 0.5, "seconds": 0.0}

    monkeypatch.setattr(script, "train", train)
    arguments = ("--tasks", "chirps", "--steps", "3", "--save", str(tmp_path / "rows.json"))
    printed = run("fine_tuning", *arguments, "--seeds", "2")
    assert trained == [
        *(("weight", 0.01, 0), ("weight", 0.001, 0), ("weight", 0.001, 1)),
        *(("scratch", 0.01, 0), ("scratch", 0.001, 0), ("scratch", 0.01, 1)),
    ]
    assert "**80.0 % (80.0 to 80.0; 0.001)**" in printed.out
    trained.clear()
    run("fine_tuning", *arguments, "--seeds", "3")
    assert trained == [("weight", 0.001, 2), ("scratch", 0.01, 2)]


def measured_in_turn(run, monkeypatch, failures):
    """Return the script of loops and a list to which it appends entries; some fail instead of being measured."""
    monkeypatch.syspath_prepend(FOLDER)
    script, measured = importlib.import_module("loops"), []

    def measure(case, way, *_, **__):
        measured.append((case.name, way))
        if (case.name, way) in failures:
            raise failures[case.name, way]
        return {"milliseconds": 3.25, "peak_bytes": 1 << 20}

    monkeypatch.setattr(script, "measure", measure)
    return script, measured


def test_loops_measure_what_the_file_does_not_have(run, monkeypatch, tmp_path):
    path = tmp_path / "loops.json"
    _, measured = measured_in_turn(run, monkeypatch, {("p4-CNN", "captured"): RuntimeError("no graph today")})
    arguments = ("--kinds", "guide", "--limit", "1e6", "--out", str(path))
    run("loops", *arguments, "--only", "p4-CNN", "--ways", "eager,captured")
    both = ("p4-CNN", "attentive p4-CNN")
    assert measured == [(n, w) for n in both for w in ("eager", "captured")]
    assert "no graph today" in path.read_text()
    measured.clear()
    printed = run("loops", *arguments, "--only", "p4-CNN")
    *others, failed = measured  # compiled ones after the formulas, and the failed one again
    assert others == [(n, w) for w in ("formula", "compiled") for n in both]
    assert failed == ("p4-CNN", "captured")
    assert len(json.loads(path.read_text())["rows"]) == 8
    times, costs = [line for line in printed.out.splitlines() if line.startswith("| attentive")]
    assert [cell.strip() for cell in times.split("|")[3:-1]] == [*["3.25"] * 4, "1.0", "31.0", "9.5", "9.5"]
    assert [cell.strip() for cell in costs.split("|")[3:-1]] == [*["1.00"] * 4, "2,765"]
    measured.clear()
    run("loops", "--kinds", "guide", "--limit", "1e6", "--rows", "1:4:2", "--ways", "eager")
    assert measured == [("FlexTCN-2", "eager"), ("p4-CNN", "eager")]


def test_loops_do_not_try_again_what_does_not_fit_or_takes_too_long(run, monkeypatch, tmp_path):
    path = tmp_path / "loops.json"
    out_of_time = importlib.import_module("_measure").OutOfTimeError
    failures = {("p4-CNN", "eager"): torch.OutOfMemoryError("too large"), ("FlexTCN-2", "captured"): out_of_time()}
    _, measured = measured_in_turn(run, monkeypatch, failures)
    arguments = ("--kinds", "guide", "--limit", "1e6", "--out", str(path), "--rows", "1:4:2", "--row", "50")
    run("loops", *arguments)
    assert measured == [
        *(("FlexTCN-2", way) for way in ("eager", "captured")),
        ("p4-CNN", "eager"),
        *(("FlexTCN-2", way) for way in ("formula", "compiled")),
    ]
    errors = [row["error"] for row in json.loads(path.read_text())["rows"] if "error" in row]
    assert errors == ["more than 50 s", "more memory than there is"]
    measured.clear()
    run("loops", *arguments)
    assert measured == []


def test_loops_compile_every_nth_case_and_save_nothing(run, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(FOLDER)
    script, warmed, path = importlib.import_module("loops"), [], tmp_path / "loops.json"

    class Stepping:
        def __init__(self, case, way, *_, **__):
            warmed.append((case.name, way))

        def warm_up(self):
            raise RuntimeError("no compiler")

    monkeypatch.setattr(script, "Stepping", Stepping)
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "2")
    arguments = ("--kinds", "guide", "--limit", "1e6", "--ways", "eager,compiled", "--out", str(path))
    printed = run("loops", *arguments, "--warm", "1/3")
    assert warmed == [(name, way) for name in ("FlexTCN-2", "attentive p4-CNN") for way in ("eager", "compiled")]
    assert printed.err.count("no compiler") == 4
    assert not path.exists()


@pytest.mark.parametrize(
    ("shape", "kernel", "options"),
    [
        ((2, 3, 20), (4, 3, 7), {}),
        ((2, 3, 20), (3, 1, 39), {"groups": 3}),
        ((2, 3, 20), (3, 1, 27), {"groups": 3, "causal": True}),
        ((2, 4, 20), (6, 2, 12), {"groups": 2}),
        ((1, 2, 9, 8), (3, 2, 5, 8), {"boundary": ("periodic", "zero")}),
        ((1, 2, 6, 5, 4), (2, 2, 11, 9, 7), {}),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_formula_is_the_convolution(run, shape, kernel, options, dtype):
    formula_conv = importlib.import_module("_convolutions").formula_conv
    boundary = options.get("boundary", ("zero",) * (len(shape) - 2))
    settings = {"causal": False, "groups": 1, **options, "boundary": boundary}
    x, k = torch.randn(shape).to(dtype), torch.randn(kernel).to(dtype)
    exact = conv_reference(x.double(), k.double(), **settings)
    y = formula_conv(x, k, **settings)
    assert y.dtype == dtype
    tolerance = 1e-10 if dtype == torch.float64 else 1e-2
    assert (y.double() - exact).abs().max() <= tolerance * exact.abs().max()


def test_formulas_transform_long_kernels_and_compare_all_points(run, monkeypatch):
    script = importlib.import_module("_formula")
    shapes, whole = [], script.formula_conv

    def counted(x, kernel, **options):
        shapes.append(kernel.shape[2])
        return whole(x, kernel, **options)

    monkeypatch.setattr(script, "formula_conv", counted)
    x = torch.randn(1, 2, 200)
    with script.formula():
        assert not backend.fast_paths()
        for points in (15, 16, 200):
            kernel = torch.randn(2, 1, points)
            torch.testing.assert_close(conv(x, kernel, groups=2), conv(x, kernel, groups=2, method="fft"))
        point_conv = sys.modules["kernelfield.ops.points.point_conv"]
        assert point_conv.choose_method(None, 1e-3) == ("pairs", None)
    assert shapes == [16, 200]
    conv(x, torch.randn(2, 1, 16), groups=2)
    assert shapes == [16, 200]
    assert backend.fast_paths()


def test_convolutions_on_tensor_cores_may_run_while_other_kernels_do_not(run):
    forced = importlib.import_module("_formula").forced
    on_gpu = SimpleNamespace(
        dtype=torch.float32, is_cuda=True, device=torch.device("cuda", 0), numel=lambda: 1, shape=(1, 2, 8)
    )
    with forced("triton", fused=False):
        assert not backend.use_triton(on_gpu)
        assert backend._kernels_run(on_gpu.device)
    assert backend._running.get(on_gpu.device) is None


@pytest.mark.parametrize("kind", ["guide", "published", "networks"])
def test_rows_have_the_shapes_that_the_authors_code_was_timed_with(run, kind):
    authors = importlib.import_module("_authors")
    compared = []
    for case in importlib.import_module("_training_cases").cases((kind,)):
        step = authors.published_step(case.name, case.batch)
        if step is not None:
            assert step.shape == (case.batch, *case.inputs(1)["x"].shape[1:])
            compared.append(case.name)
    assert len(compared) == {"guide": 3, "published": 17, "networks": 7}[kind]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["layers", "networks"])
def test_steps_of_all_layers_and_of_each_family_run(run, kind):
    script, found = importlib.import_module("_training_cases"), []
    for case in script.cases((kind,)):
        if (family := case.recipe and configuration(case.name).build) not in found or kind == "layers":
            found.append(family)
            step = importlib.import_module("_steps").make_step(case.build().train())
            assert step(case.inputs(2), torch.randint(2, (2,))).isfinite(), case.name
    assert len(found) > 12


def test_growth_keeps_rows_and_fits_exponents(run, tmp_path):
    path, page = tmp_path / "growth.json", tmp_path / "growth.md"
    arguments = ("--device", "cpu", "--quick", "--only", "LiftingConv", "--each", "0.01", "--json", str(path))
    run("growth", *arguments)
    report = json.loads(path.read_text())
    assert [(row["series"], row["count"]) for row in report["rows"]] == [("LiftingConv", 8), ("LiftingConv", 16)]
    for row, seconds in zip(report["rows"], (0.5, 4.0), strict=True):
        row |= {"seconds": seconds, "bytes": 1 << 20}
    path.write_text(json.dumps(report))
    printed = run("growth", *arguments, "--markdown", str(page))
    assert "'count'" not in printed.err  # nothing is measured again
    cells = [cell.strip() for cell in page.read_text().splitlines()[-3].split("|")[1:-1]]
    assert cells == ["LiftingConv", "elements", "8", "16", "4,000", "1.00", "3.00", "1.00", "0.00", "1.00"]


def test_growth_compiles_every_nth_entry_and_saves_nothing(run, tmp_path):
    path = tmp_path / "growth.json"
    arguments = ("--device", "cpu", "--quick", "--only", "LiftingConv", "--json", str(path))
    printed = run("growth", *arguments, "--warm", "1/2")
    assert printed.err.count("LiftingConv, 16: done") == printed.err.count("done") == 1
    assert not path.exists()


def test_growth_ends_a_series_that_would_take_too_long_or_has_failed(run):
    script = importlib.import_module("growth")
    series = next(series for series in script.all_series() if series.name == "GroupConv")
    rows = [{"series": "GroupConv", "size": 8, "count": 8, "seconds": 1.0}]
    assert not script.ends(series, 16, rows, most=4.5)  # four times as long in theory
    assert script.ends(series, 16, rows, most=3.5)
    assert not script.ends(series, 8, rows, most=0.1)
    assert script.ends(series, 16, [{"series": "GroupConv", "size": 8, "error": "too large"}], most=1e9)


@pytest.mark.slow
def test_growth_measures_every_layer(run, tmp_path):
    path = tmp_path / "growth.json"
    run("growth", "--device", "cpu", "--quick", "--each", "0.01", "--json", str(path))
    rows = json.loads(path.read_text())["rows"]
    names = [series.name for series in importlib.import_module("growth").all_series()]
    assert [row["series"] for row in rows] == names * 2
    assert all(row["seconds"] > 0 and row["bytes"] > 0 for row in rows)


def test_first_calls_measure_each_entry_in_a_process_of_its_own(run, tmp_path):
    path = tmp_path / "first.json"
    printed = run("first_calls", "--only", "FlexTCN", "--limit", "0", "--out", str(path))
    rows = json.loads(path.read_text())["rows"]
    assert rows == [{"network": "FlexTCN-2", "way": way} for way in ("eager", "compiled", "plain")]
    assert "| FlexTCN-2" in printed.out
    script = importlib.import_module("first_calls")
    rows = [
        {"network": "a", "way": way, "seconds": s} for way, s in (("eager", 1.0), ("compiled", 3.0), ("plain", 2.0))
    ]
    assert script.make_table(rows).splitlines()[-1].split("|")[5].strip() == "1.50"


@pytest.mark.slow
def test_first_calls_run_a_network(run, tmp_path):
    path = tmp_path / "first.json"
    run("first_calls", "--only", "FlexTCN", "--batch", "2", "--device", "cpu", "--out", str(path))
    assert all(row["seconds"] > 0 for row in json.loads(path.read_text())["rows"])


def test_loops_stop_at_their_limit_and_refuse_other_devices(run, monkeypatch, tmp_path):
    path = tmp_path / "loops.json"
    printed = run("loops", "--kinds", "guide", "--limit", "0", "--out", str(path))
    assert "eager: {" not in printed.err
    other = {"machine": {"device_name": "another"}, "bf16": False, "rows": []}
    path.write_text(json.dumps(other))
    with pytest.raises(SystemExit, match="--out"):
        run("loops", "--out", str(path))


def test_every_registered_network_has_a_case(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    cases = importlib.import_module("_training_cases").cases(("networks",))
    assert sorted(case.name for case in cases) == [name for name in list_models() if ":" not in name]
    builds = [configuration(case.name).build for case in cases]
    first = len(set(builds))
    assert len(set(builds[:first])) == first  # each family before the second network of any
    assert all(case.batch > 0 and case.recipe for case in cases)
    text = next(case for case in cases if case.name == "ckcnn_ptb").inputs(2)["x"]
    assert text.dim() == 2
    assert not text.is_floating_point()
    assert next(case for case in cases if case.name == "gridified_shapenet").inputs(2)["coords"].shape[2] == 3
