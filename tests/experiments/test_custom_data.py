"""Data of one's own, from the files to predictions: read as asked for, and predicted on as they were tested."""

from __future__ import annotations

import json
import shutil
import warnings
import wave
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from kernelfield import load_run
from kernelfield.cli import NO_DATA, WRONG
from kernelfield.cli.common import recipe_and_data
from kernelfield.data.base import Batch
from kernelfield.data.labelled import labelled_split
from kernelfield.data.registry import load
from kernelfield.data.sets.audio.sound_folder import read_sound
from kernelfield.data.sets.images.digits import digits
from kernelfield.experiments.comparison import compare_runs
from kernelfield.experiments.custom_data import recipe_for, recipe_for_path
from kernelfield.experiments.datasets import recipe_data, synthetic_data
from kernelfield.experiments.evaluation import evaluate
from kernelfield.experiments.fitting import fit
from kernelfield.experiments.recipe import find_recipe, with_settings
from kernelfield.experiments.run import make_network, make_task
from kernelfield.experiments.sample_files import check_samples, prepare_samples, read_file
from kernelfield.experiments.stream_input import stream_input
from kernelfield.export import export_network, read_metadata
from kernelfield.streaming import ExportedStream
from tests.commands import call

if TYPE_CHECKING:
    from pathlib import Path

    from kernelfield.data.base import Data
    from kernelfield.experiments.recipe import Recipe

TINY = (
    *("--accelerator", "cpu", "--set", "model.channels=4", "--set", "model.blocks=1", "--set", "model.hidden=8"),
    *("--set", "test={}"),
)


def write_wide(path: Path, *, gaps: bool = False, label: str = "label", values: Any = None) -> Path:
    """Write 40 series of 12 steps, above or below 1000."""
    source = np.random.default_rng(0)
    lines = [",".join([label, *map(str, range(12))])]
    for i in range(40):
        series = 1000 + 10 * source.normal(size=12) + (1 - 2 * (i % 2)) * 200
        cells = [f"{v:.3f}" if not gaps or (i + j) % 5 else "" for j, v in enumerate(series)]
        lines.append(",".join([("up", "down")[i % 2] if values is None else str(values[i]), *cells]))
    path.write_text("\n".join(lines) + "\n")
    return path


def write_long(path: Path, times: Any = None, *, label: bool = True) -> Path:
    """Write 30 series of two channels, the second of which is now and then not measured."""
    source = np.random.default_rng(0)
    lines = ["id,time,channel,value" + (",label" if label else "")]
    for i in range(30):
        for j, t in enumerate(np.cumsum(source.uniform(1, 3, size=8)) if times is None else times):
            for c in "xy" if (i + j) % 3 else "x":
                mark = f",{('fast', 'slow')[i % 2]}" if label else ""
                lines.append(f"{i},{100 * i + t:.4f},{c},{50 + np.sin(t * (1 + i % 2)):.4f}{mark}")
    path.write_text("\n".join(lines) + "\n")
    return path


def write_images(folder: Path, rows: int, columns: int, odd: bool = False) -> Path:
    image = pytest.importorskip("PIL.Image")
    source = np.random.default_rng(0)
    for name, level in (("dark", 60), ("light", 180)):
        (folder / name).mkdir(parents=True)
        for i in range(10):
            shape = (rows + 5, columns + 3, 3) if odd and i == 0 else (rows, columns, 3)
            pixels = (level + 30 * source.normal(size=shape)).clip(0, 255).astype(np.uint8)
            image.fromarray(pixels).save(folder / name / f"{i}.png")
    return folder


def of(recipe: Recipe, path: Path, data: Data | None = None) -> Batch:
    data = recipe_data(recipe) if data is None else data
    return prepare_samples(read_file(path, recipe, data), data)


def same(found: Batch, split_batch: Batch) -> None:
    """Check that a batch is what the network is tested on, bit for bit."""
    assert torch.equal(found.inputs, split_batch.inputs)
    for name in ("coords", "mask"):
        ours, theirs = getattr(found, name), getattr(split_batch, name)
        assert (ours is None) == (theirs is None)
        assert ours is None or torch.equal(ours, theirs)


@pytest.mark.parametrize("observed", [False, True])
@pytest.mark.parametrize("gaps", [False, True])
def test_arrays_are_prepared_as_the_test_samples(tmp_path: Path, gaps: bool, observed: bool) -> None:
    recipe = recipe_for_path(write_wide(tmp_path / "wide.csv", gaps=gaps), {"observed": observed})
    data = recipe_data(recipe)
    np.save(tmp_path / "x.npy", data.test.inputs.numpy())
    batch = data.test.batch(slice(None))
    assert batch.inputs.abs().max() < 5
    assert batch.inputs.shape[1] == 1 + observed
    same(of(recipe, tmp_path / "x.npy", data), batch)
    np.save(tmp_path / "one.npy", data.test.inputs[0, 0].numpy())  # without an axis for samples or channels
    same(of(recipe, tmp_path / "one.npy", data), data.test.batch(slice(0, 1)))
    np.save(tmp_path / "flat.npy", data.test.inputs[:, 0].numpy())
    same(of(recipe, tmp_path / "flat.npy", data), batch)


def test_other_loaders_prepare_what_is_predicted(tmp_path: Path) -> None:
    recipe = with_settings(find_recipe("digits"), {"data.drop": 0.3, "shape.in_channels": 2})
    data, whole = recipe_data(recipe, check=False), digits(16, sequence=True)
    np.save(tmp_path / "x.npy", whole.test.inputs[:3].numpy())
    assert float(whole.test.inputs.max()) > 10  # gray as the images have it, not normalised
    found = of(recipe, tmp_path / "x.npy", data)
    assert torch.equal(found.inputs[:, :1], whole.test.batch(slice(0, 3)).inputs)
    assert (found.inputs[:, 1] == 1).all()  # all of it was seen


def test_tables_are_read_as_they_were_for_training(tmp_path: Path) -> None:
    path = write_wide(tmp_path / "wide.csv", gaps=True)
    recipe = recipe_for_path(path, {"shares": [0.5, 0.0, 0.5]})
    data = recipe_data(recipe)
    lines = path.read_text().splitlines()
    bare = tmp_path / "bare.csv"
    bare.write_text("\n".join(line.partition(",")[2] for line in lines))
    headless = tmp_path / "headless.csv"
    headless.write_text("\n".join(line.partition(",")[2] for line in lines[1:]))
    found, tested = of(recipe, path, data), data.test.batch(slice(None))
    assert all(any(torch.equal(sample, row) for row in found.inputs) for sample in tested.inputs)
    for other in (bare, headless):
        same(of(recipe, other, data), found)
    steps = tmp_path / "steps.csv"  # one series, a step a line
    steps.write_text("value\n" + "\n".join(cell or "?" for cell in lines[1].split(",")[1:]))
    same(of(recipe, steps, data), replace(found, inputs=found.inputs[:1], mask=found.mask[:1]))


def test_irregular_times(tmp_path: Path) -> None:
    path = write_long(tmp_path / "long.csv")
    recipe = recipe_for_path(path, {"shares": [0.4, 0.2, 0.4], "unit": 0.5})
    assert recipe.shape.irregular
    data = recipe_data(recipe)
    found = of(recipe, write_long(tmp_path / "new.csv", label=False), data)
    assert found.coords.shape == (30, 8, 1)
    test = data.test.batch(slice(None))
    for i in range(len(test)):
        assert any(
            torch.equal(found.inputs[j], test.inputs[i]) and torch.equal(found.coords[j], test.coords[i])
            for j in range(30)
        )
    # Times that happen to lie on a grid are coords all the same, in the unit of the run.
    even = of(recipe, write_long(tmp_path / "even.csv", np.arange(8)), data)
    torch.testing.assert_close(even.coords[0, :, 0], torch.arange(0, 16, 2.0))
    arrays = {name: getattr(data.test, name).numpy() for name in ("inputs", "coords")}
    np.savez(tmp_path / "x.npz", **arrays)
    same(of(recipe, tmp_path / "x.npz", data), test)
    np.save(tmp_path / "x.npy", arrays["inputs"])
    with pytest.raises(
        ValueError,
        match=r"file must hold the coordinates of its samples.*id, time, channel and value.*\.npz with inputs.*x\.npy",
    ):
        of(recipe, tmp_path / "x.npy", data)
    np.savez(tmp_path / "bad.npz", inputs=arrays["inputs"], coords=arrays["coords"][:, :3])
    (tmp_path / "broken.npz").write_bytes((tmp_path / "x.npz").read_bytes()[:100])
    with pytest.raises(ValueError, match=r"broken.npz must be a complete .npz file"):
        of(recipe, tmp_path / "broken.npz", data)
    with pytest.raises(ValueError, match=r"coords of .* must have shape \(12, 8, dim\), got \(12, 3, 1\)"):
        of(recipe, tmp_path / "bad.npz", data)
    (tmp_path / "other.csv").write_text("id,time,channel,value\n1,0,z,3\n")
    with pytest.raises(ValueError, match=r"other\.csv must hold only channels of long, x, y, found 'z'"):
        of(recipe, tmp_path / "other.csv", data)


def test_long_tables_on_a_grid(tmp_path: Path) -> None:
    path = write_long(tmp_path / "long.csv", 2.0 * np.arange(8))
    recipe = recipe_for_path(path)
    assert not recipe.shape.irregular
    data = recipe_data(recipe)
    found = of(recipe, write_long(tmp_path / "new.csv", [0, 2, 8, 10]), data)
    assert found.mask[0].tolist() == [True, True, False, False, True, True]
    with pytest.raises(ValueError, match="times of a series must be"):
        of(recipe, write_long(tmp_path / "off.csv", [0, 2.5, 4]), data)


@pytest.fixture(scope="module")
def irregular_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("irregular")
    path = write_long(folder / "long.csv")
    call("train", path, "--epochs", 1, *TINY, "--out", folder / "run")
    return folder


def test_runs_at_irregular_times_predict_at_given_times(irregular_run: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((2, 20)))
    message = call("predict", irregular_run / "run", tmp_path / "x.npy", code=WRONG)
    assert "must hold the coordinates of its samples" in message
    rows = json.loads(call("predict", irregular_run / "run", irregular_run / "long.csv", "--json"))
    assert len(rows) == 30


@pytest.mark.slow
def test_runs_at_irregular_times_are_exported_with_times_and_mask(irregular_run: Path, tmp_path: Path) -> None:
    path = irregular_run / "long.csv"
    shutil.copytree(irregular_run / "run", tmp_path / "run")
    rows = json.loads(call("predict", tmp_path / "run", path, "--json"))
    call("export", tmp_path / "run")
    trained = load_run(tmp_path / "run")
    about = read_metadata(tmp_path / "run" / "network.pt2")
    assert list(about["inputs"]) == ["input", "coords", "mask"]
    assert about["classes"] == list(trained.classes)
    program = torch.export.load(tmp_path / "run" / "network.pt2").module()
    batch = prepare_samples(read_file(path, trained.recipe, trained.data), trained.data)
    with torch.no_grad():
        outputs = program(batch.inputs, batch.coords, batch.inputs[:, 0].isfinite()).softmax(dim=1)
    wanted = [[row["probabilities"][name] for name in trained.classes] for row in rows]
    torch.testing.assert_close(outputs, torch.tensor(wanted), rtol=1e-3, atol=1e-4)


def test_images_that_are_not_square(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "photos", 6, 10)
    recipe = recipe_for_path(folder)
    data = recipe_data(recipe)
    every = torch.cat([s.batch(slice(None)).inputs for s in (data.train, data.validation, data.test)])
    found = of(recipe, folder / "light" / "3.png", data)
    assert found.inputs.shape == (1, 3, 6, 10)
    assert any(torch.equal(found.inputs[0], image) for image in every)


def test_samples_of_images_on_any_scale(tmp_path: Path) -> None:
    """Bytes, whole floats and floats in [0, 1] are the same image; anything else is refused."""
    recipe = recipe_for_path(write_images(tmp_path / "photos", 6, 10))
    data = recipe_data(recipe)
    stored = data.test.inputs
    wanted = data.test.batch(slice(None)).inputs
    for x in (stored, stored.long(), stored.double(), stored / 255):
        batch = check_samples(Batch(x), recipe, data, "inputs")
        torch.testing.assert_close(prepare_samples(batch, data).inputs, wanted)
        np.save(tmp_path / "x.npy", x.numpy())
        torch.testing.assert_close(of(recipe, tmp_path / "x.npy", data).inputs, wanted)
    for x in (stored / 127.5 - 1, stored > 99, 256 * stored.int(), stored + 0.5, torch.from_numpy(np.uint16([[300]]))):
        with pytest.raises(ValueError, match=r"inputs must be uint8 or floats in \[0, 1\], like the data of the run"):
            check_samples(Batch(x.expand_as(stored)), recipe, data, "inputs")


def test_samples_of_arrays_on_the_scale_of_the_training(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (20, 1, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "bytes.npz", x=x, y=np.arange(20) % 2)
    recipe = recipe_for_path(tmp_path / "bytes.npz")
    data = recipe_data(recipe)
    found = prepare_samples(check_samples(Batch(torch.from_numpy(x)), recipe, data, "inputs"), data)
    assert abs(float(found.inputs.mean())) < 0.1
    with pytest.raises(ValueError, match="inputs must be uint8, like the data of the run, got float64 from 0 to 1"):
        check_samples(Batch(torch.from_numpy(x / 255)), recipe, data, "inputs")
    np.savez(tmp_path / "shares.npz", x=x / 255, y=np.arange(20) % 2)
    with pytest.raises(ValueError, match=r"shares.npz, array inputs, must be uint8"):
        labelled_split(data, tmp_path / "shares.npz", recipe.data)
    (tmp_path / "bytes.npz").rename(tmp_path / "train.npz")
    (tmp_path / "shares.npz").rename(tmp_path / "test.npz")
    with pytest.raises(ValueError, match=r"test.npz must hold inputs of type uint8"):
        recipe_for_path(tmp_path / "train.npz")


@pytest.mark.parametrize("labels", [(3, 1), ("water", "land")])
def test_classes_at_each_position_are_those_of_the_training(labels: tuple[Any, Any], tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(40, 1, 12))
    y = np.where(x[:, 0] > 0, *labels)
    np.savez(tmp_path / "masks.npz", x=x, y=y)
    call("train", tmp_path / "masks.npz", "--epochs", 30, *TINY, "--out", tmp_path / "run")
    run = load_run(tmp_path / "run")
    found = np.array([row["classes"] for row in run.predict(x)])
    assert found.dtype.kind == y.dtype.kind
    assert (found == y).mean() > 0.9
    ready = run.predict(run.prepare(x).inputs, raw=True)
    assert [row["classes"] for row in ready] == found.tolist()
    queried = run.predict(x[:1], at=[[2.0], [7.0]])
    assert [row["classes"] for row in queried] == found[0, [2, 7]].tolist()


def test_predictions_do_not_depend_on_the_folder_one_is_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_wide(tmp_path / "wide.csv")
    call("train", "wide.csv", "--epochs", 10, *TINY, "--out", "run")
    np.save(tmp_path / "x.npy", np.stack([np.full(12, 1000.0 + 200 * s) for s in (1, -1, 1)]))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    found = json.loads(call("predict", "../run", "../x.npy", "--json"))
    assert [row["class"] for row in found] == ["up", "down", "up"]
    np.save("ready.npy", load_run("../run").prepare(np.load("../x.npy")[:, None]).inputs.numpy())
    ready = json.loads(call("predict", "../run", "ready.npy", "--raw", "--json"))
    assert [row["probabilities"] for row in ready] == [row["probabilities"] for row in found]
    # A run is self-contained: the training data may move, and so may the run.
    (tmp_path / "wide.csv").rename(tmp_path / "moved.csv")
    (tmp_path / "run").rename(tmp_path / "elsewhere" / "moved")
    assert json.loads(call("predict", "moved", "../x.npy", "--json")) == found
    assert "root must be" in call("test", "moved", code=NO_DATA)


def test_options_of_the_loader(tmp_path: Path) -> None:
    write_images(tmp_path / "mixed", 8, 8, odd=True)
    assert "data.resolution=" in call("new-recipe", tmp_path / "a.yaml", "--from", tmp_path / "mixed", code=WRONG)
    call("new-recipe", tmp_path / "a.yaml", "--from", tmp_path / "mixed", "--set", "data.resolution=6")
    assert find_recipe(tmp_path / "a.yaml").shape.size == [6, 6]
    path = write_wide(tmp_path / "wide.csv", label="target", values=[20 + i for i in range(40)])
    message = call("new-recipe", tmp_path / "b.yaml", "--from", path, code=WRONG)
    assert "include 'label'" in message
    assert "data.label=target" in message
    asked = ("--set", "data.label=target", "--set", "data.task=regression")
    call("new-recipe", tmp_path / "b.yaml", "--from", path, *asked, "--set", "training.epochs=3")
    recipe = find_recipe(tmp_path / "b.yaml")
    assert (recipe.shape.task, recipe.shape.out_channels, recipe.training.epochs) == ("regression", 1, 3)
    assert recipe.data["root"] == str(path)
    call("train", path, *asked, "--epochs", 1, *TINY, "--out", tmp_path / "run")
    message = call("train", path, "--set", "data.lable=target", code=WRONG)
    assert "'csv_series' takes no option 'lable'; the closest is 'label'" in message
    assert "--data must be given only" in call("train", path, "--data", tmp_path, code=WRONG)


def test_folders_of_sounds(tmp_path: Path) -> None:
    source = np.random.default_rng(0)
    for name, pitch in (("low", 200), ("high", 2000)):
        (tmp_path / "sounds" / name).mkdir(parents=True)
        for i in range(8):
            tone = 3000 * np.sin(2 * np.pi * pitch * np.arange(400 + i) / 16_000) + 100 * source.normal(size=400 + i)
            with wave.open(str(tmp_path / "sounds" / name / f"{i}.wav"), "wb") as file:
                file.setparams((1, 2, 16_000, 0, "NONE", ""))
                file.writeframes(tone.astype("<i2").tobytes())
    recipe = recipe_for_path(tmp_path / "sounds")
    data = recipe_data(recipe)
    assert (recipe.data["name"], data.classes) == ("wav_folder", ("high", "low"))
    every = torch.cat([s.batch(slice(None)).inputs for s in (data.train, data.validation, data.test)])
    found = of(recipe, tmp_path / "sounds" / "low" / "3.wav", data)
    assert any(torch.equal(found.inputs[0], clip) for clip in every)
    shares = check_samples(Batch(data.test.inputs / 32767), recipe, data, "inputs")  # as other libraries read sounds
    wanted = data.test.batch(slice(None)).inputs
    torch.testing.assert_close(prepare_samples(shares, data).inputs, wanted, rtol=1e-4, atol=1e-4)


def write_tone(path: Path, seconds: float, *gains: float, rate: int = 8_000) -> Path:
    """Write a tone with one 16-bit channel for each gain."""
    tone = np.sin(np.arange(round(seconds * rate)) / 9)
    with wave.open(str(path), "wb") as file:
        file.setparams((len(gains), 2, rate, 0, "NONE", ""))
        file.writeframes((20_000 * np.outer(tone, gains)).astype("<i2").tobytes())
    return path


@pytest.fixture(scope="module")
def sound_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on raw sounds of a tenth of a second; its recipe does not name the rate, 16 kHz by default."""
    folder = tmp_path_factory.mktemp("tones")
    for name, gain in (("loud", 1.0), ("soft", 0.1)):
        (folder / "tones" / name).mkdir(parents=True)
        for i in range(8):
            write_tone(folder / "tones" / name / f"{i}.wav", 0.1 + i / 1000, gain)
    recipe = recipe_for(
        load("wav_folder", folder / "tones"), "tones", {"name": "wav_folder", "root": str(folder / "tones")}
    )
    small = with_settings(recipe, ["training.epochs=1", "model.channels=4", "model.blocks=1", "model.hidden=4"])
    return fit(small, folder / "run", report=False).folder


def test_sounds_that_are_cut_off_or_cancel_are_announced(sound_run: Path, tmp_path: Path) -> None:
    run = load_run(sound_run)
    with pytest.warns(
        UserWarning, match=r"1 of 1 sounds are cut off: .*long.wav lasts 3 s, of which the first 0.107 s"
    ):
        run.predict(write_tone(tmp_path / "long.wav", 3, 1.0))
    (tmp_path / "new" / "loud").mkdir(parents=True)
    write_tone(tmp_path / "new" / "loud" / "a.wav", 1, 1.0)
    with pytest.warns(UserWarning, match=r"1 of 1 sounds are cut off"):
        labelled_split(run.data, tmp_path / "new", run.recipe.data)
    with pytest.warns(UserWarning, match=r"opposite.wav: its 2 channels cancel each other"):
        run.predict(write_tone(tmp_path / "opposite.wav", 0.1, 1.0, -1.0))
    with pytest.warns(
        UserWarning, match=r"inputs has 800 samples per sound, and those of the run 1712, so .* 16000 Hz"
    ):
        run.predict(torch.ones(1, 1, 800))
    folder = tmp_path / "lengths"
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
        for i in range(30):
            write_tone(folder / name / f"{i}.wav", 0.5 if (name, i) == ("a", 3) else 0.05, 1.0)
    with pytest.warns(UserWarning, match=r"1 of 60 sounds are cut off after 0.0625 s; the longest lasts 0.5 s"):
        recipe_for_path(folder)


@pytest.mark.parametrize("seconds", [0.05, 0.3])
def test_arrays_of_sounds_are_padded_and_cut_as_files_are(sound_run: Path, tmp_path: Path, seconds: float) -> None:
    run, path = load_run(sound_run), write_tone(tmp_path / "tone.wav", seconds, 0.7, rate=16_000)
    samples = (read_sound(path) * 32767).round().to(torch.int16).view(1, 1, -1)
    np.save(tmp_path / "tone.npy", samples.numpy())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the file is cut off
        wanted, stored = (of(run.recipe, file, run.data).inputs for file in (path, tmp_path / "tone.npy"))
    assert wanted.shape[-1] == 1712
    torch.testing.assert_close(stored, wanted)
    with pytest.warns(UserWarning, match="padded with silence" if seconds < 0.1 else "the rest is cut off"):
        ready = run.prepare(samples)
    torch.testing.assert_close(ready.inputs, wanted)
    with pytest.warns(UserWarning, match="samples per sound"):  # at another step, lengths differ for good reason
        assert run.prepare(samples, step=2.0).inputs.shape == samples.shape


def test_streams_and_exports_have_the_rate_of_the_training(sound_run: Path, tmp_path: Path) -> None:
    path = write_tone(tmp_path / "tone.wav", 0.1, 1.0)
    (*_, last) = stream_input(sound_run, path, every=500)
    assert last["samples"] == 1600  # 0.1 s at 16 kHz; the file has 8 kHz
    call("export", sound_run, "--out", tmp_path / "net.pt2")
    assert read_metadata(tmp_path / "net.pt2")["rate"] == 16_000


@pytest.mark.parametrize("lines", [[], ["air,warm"], ["", " "]])
def test_streams_without_samples_are_refused(two_sensors: Path, lines: list[str]) -> None:
    with pytest.raises(ValueError, match="standard input must hold at least one sample"):
        list(stream_input(two_sensors, "-", lines=lines))


def test_empty_files_are_named_as_such(two_sensors: Path, tmp_path: Path) -> None:
    (tmp_path / "new.csv").touch()
    with pytest.raises(ValueError, match=r"new.csv must hold a line for each step, found an empty file"):
        load_run(two_sensors).predict(tmp_path / "new.csv")


def test_a_folder_of_tables_is_no_folder_of_images(tmp_path: Path) -> None:
    (tmp_path / "machines").mkdir()
    for i in range(3):
        (tmp_path / "machines" / f"m{i}.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"data must be one table, .* with 3 tables such as m0.csv; join them to one"):
        recipe_for_path(tmp_path / "machines")


def test_streams_of_other_data_refuse_sounds(two_sensors: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="file must not be a sound"):
        list(stream_input(two_sensors, write_tone(tmp_path / "tone.wav", 0.1, 1.0)))


def test_values_in_another_unit_are_announced(two_sensors: Path, tmp_path: Path) -> None:
    run, source = load_run(two_sensors), np.random.default_rng(1)
    x = source.normal(size=(1, 2, 8)) + np.array([[0], [1000]])
    run.predict(x)
    for gain, offset in ((1000, 0), (1e-3, 0), (1, 273)):
        with pytest.warns(
            UserWarning, match=r"channel '(air|warm)' of inputs has a mean of .* must have the same unit"
        ):
            run.predict(gain * x + offset)
    table = "\n".join(["id,time,channel,value,label", *(f"a,{t},{c},3,500" for t in range(8) for c in ("air", "warm"))])
    (tmp_path / "new.csv").write_text(table + "\n")
    for use in (run.predict, lambda path: labelled_split(run.data, path, run.recipe.data)):
        with pytest.warns(UserWarning, match=r"channel 'warm' of .*new.csv has a mean of 3 "):
            use(tmp_path / "new.csv")


def test_tokens_are_whole_numbers_of_the_vocabulary(tmp_path: Path) -> None:
    (tmp_path / "fox.txt").write_text("the quick brown fox jumps over the lazy dog. " * 60)
    recipe = recipe_for_path(tmp_path / "fox.txt", {"length": 32})
    ids = torch.arange(32).remainder(recipe.shape.vocabulary).view(1, -1)
    for x in (ids, ids.double(), ids.to(torch.uint8)):
        assert torch.equal(check_samples(Batch(x), recipe, None, "inputs").inputs, ids)
    for x in (ids + 0.5, ids - 1, ids + 5, ids > 3):
        with pytest.raises(ValueError, match=r"inputs must hold token ids from 0 to \d+, got"):
            check_samples(Batch(x), recipe, None, "inputs")


def test_samples_without_a_value_have_no_prediction(two_sensors: Path, tmp_path: Path) -> None:
    run = load_run(two_sensors)
    x = np.random.default_rng(1).normal(size=(3, 2, 8)) + np.array([[0], [1000]])
    np.savez(tmp_path / "x.npz", inputs=x, mask=np.full((3, 8), 255))
    with pytest.raises(ValueError, match=r"x.npz must hold a mask of zeros and ones, found 255"):
        run.predict(tmp_path / "x.npz")
    hidden = np.ma.masked_array(x, mask=np.zeros_like(x, dtype=bool))
    hidden[:, :, 5:] = np.ma.masked
    seen = np.where(hidden.mask, np.nan, x)
    assert run.predict(hidden) == run.predict(seen) != run.predict(x)
    assert torch.equal(run.prepare(hidden).inputs, run.prepare(seen).inputs)
    x[1] = np.nan
    with pytest.raises(ValueError, match=r"inputs must hold at least one value in each sample, got none in sample 1"):
        run.predict(x)


def test_clouds_in_any_unit_and_order(tmp_path: Path) -> None:
    source = np.random.default_rng(0)
    for name, flat in (("ball", 1.0), ("disc", 0.05)):
        (tmp_path / "clouds" / name).mkdir(parents=True)
        for i in range(8):
            np.save(tmp_path / "clouds" / name / f"{i}.npy", source.normal(size=(200, 3)) * [1, 1, flat])
    recipe = recipe_for_path(tmp_path / "clouds", {"points": 32})
    data = recipe_data(recipe)
    points = np.load(tmp_path / "clouds" / "disc" / "3.npy")
    wanted = of(recipe, tmp_path / "clouds" / "disc" / "3.npy", data)
    for cloud, seen in (
        (1000 * points + 5, np.ones(200)),
        (np.concatenate([points, points + 9]), np.arange(400) < 200),
    ):
        np.savez(tmp_path / "clouds.npz", coords=np.stack([cloud, cloud]), mask=np.stack([seen, seen]).astype(bool))
        found = of(recipe, tmp_path / "clouds.npz", data)
        for i in range(2):
            torch.testing.assert_close(found.coords[i], wanted.coords[0], atol=1e-4, rtol=0)
            torch.testing.assert_close(found.inputs[i], wanted.inputs[0], atol=1e-4, rtol=0)
    # The preparation alone, which exported networks and Python need too, does not depend on the unit.
    stored = data.test.coords
    batches = [prepare_samples(Batch(stored.new_zeros(len(c), 0, 64), coords=c), data) for c in (stored, 1000 * stored)]
    torch.testing.assert_close(batches[0].coords, batches[1].coords)


def test_a_folder_that_has_changed_is_not_divided_anew(tmp_path: Path) -> None:
    """With a few more files, training samples would become test samples, and a new class would rename the others."""
    folder = write_images(tmp_path / "photos", 6, 10)
    call("train", folder, "--epochs", 1, *TINY, "--out", tmp_path / "run")
    call("test", tmp_path / "run")
    shutil.copy(folder / "dark" / "1.png", folder / "dark" / "more.png")
    message = call("test", tmp_path / "run", code=WRONG)
    assert "14 for train, 3 for validation, 3 for test then, 15 for train, 3 for validation, 3 for test now" in message
    assert "start_from" in call("train", tmp_path / "run", "--epochs", 2, code=WRONG)
    call("test", tmp_path / "run", "--data", folder)
    (folder / "dark" / "more.png").unlink()
    (folder / "dark").rename(folder / "very dark")  # sorts after "light"
    assert "other labels or another order" in call("test", tmp_path / "run", code=WRONG)
    assert "other labels or another order" in call("train", tmp_path / "run", "--epochs", 2, code=WRONG)
    (folder / "very dark").rename(folder / "dark")
    call("train", tmp_path / "run", "--epochs", 2)


def test_samples_that_changed_places_are_not_divided_anew(tmp_path: Path) -> None:
    """Normalised series of one class have the same statistics and labels in any order, but another split."""
    x, y = np.random.default_rng(0).normal(size=(24, 1, 8)), np.arange(24) % 2
    x = (x - x.mean(axis=2, keepdims=True)) / x.std(axis=2, keepdims=True)
    np.savez(tmp_path / "a.npz", inputs=x, target=y)
    call("train", tmp_path / "a.npz", *TINY, "--epochs", 1, "--out", tmp_path / "run")
    np.savez(tmp_path / "a.npz", inputs=np.roll(x, 2, axis=0), target=y)
    for command in (("test", tmp_path / "run"), ("train", tmp_path / "run", "--epochs", 2)):
        assert "another order" in call(*command, code=WRONG)


def test_the_command_tells_how_it_read_the_data(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "photos", 6, 10)
    output = call("train", folder, "--epochs", 1, *TINY, "--out", tmp_path / "run")
    assert "photos: classification, 2 classes (dark, light); 3 channels of size 6×10" in output
    assert "test samples are" not in output
    for i in range(10):
        shutil.copy(folder / "dark" / f"{i}.png", folder / "dark" / f"copy of {i}.png")
    output = call("train", folder, "--epochs", 1, *TINY, "--out", tmp_path / "other")
    data = recipe_data(find_recipe(tmp_path / "other" / "recipe.yaml"))
    known = torch.cat([data.train.inputs, data.validation.inputs])
    twice = sum(any(torch.equal(x, y) for y in known) for x in data.test.inputs)
    assert twice > 0
    assert f"{twice} of {len(data.test)} test samples are training or validation samples too" in output


def test_runs_on_other_samples_of_the_same_data_do_not_compare(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "photos", 6, 10)
    call("train", folder, "--epochs", 1, *TINY, "--out", tmp_path / "one")
    shutil.copy(folder / "dark" / "0.png", folder / "dark" / "more.png")
    call("train", folder, "--epochs", 1, *TINY, "--out", tmp_path / "two")
    with pytest.warns(UserWarning, match="one and two have different samples of the same data"):
        compare_runs([tmp_path / "one", tmp_path / "two"])
    with pytest.raises(ValueError, match="raw must be False for images"):
        load_run(tmp_path / "one").predict(folder / "dark" / "0.png", raw=True)


def test_predictions_that_depend_on_their_batch_are_announced(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(20, 1, 12))
    np.savez(tmp_path / "x.npz", x=x, y=np.arange(20) % 2)
    call("train", tmp_path / "x.npz", "--model", "ccnn_4_140_global", "--epochs", 1, *TINY, "--out", tmp_path / "run")
    run = load_run(tmp_path / "run")
    with pytest.warns(UserWarning, match="depends on the other samples of its batch"):
        run.predict(x)
    with (
        pytest.warns(UserWarning, match="the output for a single sample does not depend on it"),
        pytest.warns(UserWarning, match="depends on the other samples of its batch"),
    ):
        one, other = (run.predict(sample[None])[0]["probabilities"] for sample in x[:2])
    assert one == pytest.approx(other, abs=1e-5)
    with pytest.warns(UserWarning, match="depends on the other samples of its batch"):
        export_network(run.network, tmp_path / "net.pt2", torch.randn(2, 1, 12))


def test_predictions_that_depend_on_their_padding_are_announced(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(20, 1, 12))
    np.savez(tmp_path / "x.npz", x=x, y=np.arange(20) % 2)
    layer = ("--model", "ckcnn_2_30", "--set", "model.norm=layer")
    call("train", tmp_path / "x.npz", *layer, "--epochs", 1, *TINY, "--out", tmp_path / "run")
    run = load_run(tmp_path / "run")
    run.predict(x)
    with pytest.warns(UserWarning, match="depends on how far its series is padded"):
        run.predict(np.where(np.arange(12) > 7, np.nan, x))


def test_arrays_of_another_size_are_announced(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(20, 1, 8, 8))
    np.savez(tmp_path / "x.npz", x=x, y=np.arange(20) % 2)
    call("train", tmp_path / "x.npz", "--epochs", 1, *TINY, "--out", tmp_path / "run")
    run, large = load_run(tmp_path / "run"), x[:2].repeat(2, axis=2).repeat(2, axis=3)
    with pytest.warns(UserWarning, match=r"samples have size 16×16, and those of the run 8×8"):
        run.predict(large)
    run.predict(large, step=0.5)


def test_series_of_another_length_are_announced(tmp_path: Path) -> None:
    """They may be sampled at another rate, unless training series had several lengths or real times."""
    rows = np.random.default_rng(0).normal(size=(20, 12))

    def table(name: str, lengths: list[int], times: float | None = None) -> Path:
        lines = ["id,time,label,channel,value"] if times else [",".join(["label", *map(str, range(max(lengths)))])]
        for i, length in enumerate(lengths):
            if times:
                lines += [f"{i},{times * t},{i % 2},x,{rows[i, t]}" for t in range(length)]
            else:
                cells = [*map(str, rows[i, :length]), *[""] * (max(lengths) - length)]
                lines.append(",".join([f"{i % 2}", *cells]))
        (tmp_path / name).write_text("\n".join(lines))
        return tmp_path / name

    equal, unequal = [8] * 20, [8, 6] * 10
    call("train", table("equal.csv", equal), "--epochs", 1, *TINY, "--out", tmp_path / "run")
    new = table("new.csv", [8, 8, 12, 5])
    said = r"length 5 to 12, and those of the run 8\. .* \(step=, --step or data.step\)"
    for command in (("predict", tmp_path / "run", new), ("test", tmp_path / "run", "--data", new)):
        with pytest.warns(UserWarning, match=said) as found:
            call(*command)
        assert len(found) == 1
    call("predict", tmp_path / "run", new, "--step", 1)
    call("predict", tmp_path / "run", tmp_path / "equal.csv")
    run = load_run(tmp_path / "run")
    with pytest.warns(UserWarning, match="samples have length 12, and those of the run 8"):
        run.predict(rows[:3, None])
    run.predict(rows[:3, None], step=0.5)
    run.predict(rows[:3, None, :8])
    for name, table_of_run in (
        ("unequal", table("unequal.csv", unequal)),
        ("timed", table("timed.csv", equal, times=0.5)),
    ):
        call("train", table_of_run, "--epochs", 1, *TINY, "--out", tmp_path / name)
        longer = table("longer.csv", [12] * 4, times=0.5 if name == "timed" else None)
        for command in (("predict", tmp_path / name, longer), ("test", tmp_path / name, "--data", longer)):
            call(*command)


def test_images_of_12_bits_are_predicted_as_they_were_trained(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for name, level in (("dark", 900), ("light", 3000)):
        (tmp_path / "scans" / name).mkdir(parents=True)
        for i in range(10):
            image.fromarray(np.full((6, 6), level + i, dtype=np.uint16)).save(tmp_path / "scans" / name / f"{i}.png")
    output = call("train", tmp_path / "scans", "--epochs", 1, *TINY, "--out", tmp_path / "run")
    assert "pixels of more than 8 bits from 900 to 3,009, divided by 4,095" in output
    run = load_run(tmp_path / "run")
    data = recipe_data(run.recipe)
    stored = torch.cat([data.train.inputs, data.validation.inputs, data.test.inputs])
    path = tmp_path / "scans" / "light" / "3.png"
    found = of(run.recipe, path, run.data)
    assert torch.equal(
        found.inputs, data.test.prepare(Batch(stored[stored[:, 0, 0, 0] == stored.max()][:1]), False).inputs
    )
    pixels = np.array(image.open(path))[None, None]
    for array in (pixels, pixels.astype(np.int64)):
        assert torch.equal(run.prepare(array).inputs, found.inputs)
    with pytest.raises(ValueError, match=r"inputs must be uint8, integers from 0 to 4095 or floats in \[0, 1\]"):
        run.prepare(pixels + 2000)
    with pytest.warns(UserWarning, match="almost black: its pixels reach 180, and 4095 is white"):
        run.prepare(np.full((1, 1, 6, 6), 180))  # bytes as integers of another type


def test_files_that_do_not_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    message = call("train", "nosuch.yaml", code=NO_DATA)
    assert "got nosuch.yaml, which does not exist" in message
    assert "recipes/" not in message
    assert find_recipe("digits.yaml").name == "digits"
    assert "--from must be an existing file or folder of data" in call(
        "new-recipe", "a.yaml", "--from", "nosuch.csv", code=NO_DATA
    )


def test_values_far_from_one_are_learned(tmp_path: Path) -> None:
    path = write_wide(tmp_path / "wide.csv", values=[30_000.5 + 5_000 * (1 - 2 * (i % 2)) for i in range(40)])
    call("train", path, "--epochs", 10, *TINY, "--out", tmp_path / "run")
    metrics = json.loads(call("test", tmp_path / "run", "--json"))["test"]
    assert metrics["mse"] < 2_500**2  # in the unit of the labels, which are 5,000 from their mean
    assert metrics["mae"] > 10 * metrics["loss"]
    data = recipe_data(find_recipe(tmp_path / "run" / "recipe.yaml"))
    assert data.test.target.min() > 20_000  # as they are, but for the network
    assert data.test.batch(slice(None)).target.abs().max() < 1.5
    np.save(tmp_path / "x.npy", data.test.inputs.numpy())
    np.save(tmp_path / "ready.npy", data.test.batch(slice(None)).inputs.numpy())
    found = json.loads(call("predict", tmp_path / "run", tmp_path / "x.npy", "--json"))
    values = torch.tensor([row["values"] for row in found])
    assert float((values - data.test.target).square().mean()) == pytest.approx(metrics["mse"], rel=1e-3)
    ready = json.loads(call("predict", tmp_path / "run", tmp_path / "ready.npy", "--raw", "--json"))
    assert [row["values"] for row in ready] == [row["values"] for row in found]
    for name, raw in (("x", False), ("ready", True)):
        np.save(tmp_path / "one.npy", np.load(tmp_path / f"{name}.npy")[0])
        heard = list(stream_input(tmp_path / "run", tmp_path / "one.npy", every=5, raw=raw))
        assert heard[-1]["values"] == pytest.approx(found[0]["values"], rel=1e-4)


def test_exported_regressions_tell_the_scale_of_their_outputs(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(40, 1, 12)).astype(np.float32)
    y = np.stack([x.mean((1, 2)) * 5000 + 30_000, x.std((1, 2)) * 1e-3], axis=1)
    np.savez(tmp_path / "values.npz", x=x, y=y)
    call("train", tmp_path / "values.npz", "--epochs", 1, *TINY, "--out", tmp_path / "run")
    run = load_run(tmp_path / "run")
    wanted = torch.tensor([row["values"] for row in run.predict(x[:2])])
    assert "target = std · output + mean" in call("export", tmp_path / "run")
    call("export", tmp_path / "run", "--stream")
    network, stream = tmp_path / "run" / "network.pt2", ExportedStream(tmp_path / "run" / "stream.pt2")
    scale = read_metadata(network)["target_scale"]
    assert read_metadata(tmp_path / "run" / "stream.pt2")["target_scale"] == scale
    inputs = run.prepare(x[:2]).inputs
    outputs = torch.export.load(network).module()(inputs)
    heard = [stream.push(sample) for sample in inputs[:1].split(1, dim=-1)][-1]
    for found in (outputs, heard):
        values = found.detach().double() * torch.tensor(scale["std"]) + torch.tensor(scale["mean"])
        torch.testing.assert_close(values, wanted[: len(values)].double(), rtol=1e-3, atol=1e-6)


def test_targets_are_standardised_by_an_option(tmp_path: Path) -> None:
    path = write_wide(tmp_path / "wide.csv", values=[30_000.5 + i for i in range(40)])
    recipe = recipe_for_path(path, {"standardize": False})
    batch = recipe_data(recipe).test.batch(slice(None))
    assert batch.scale is None
    assert batch.target.min() > 30_000
    assert recipe_for_path(path).data["standardize"] is True
    assert "standardize" not in recipe_for_path(write_wide(tmp_path / "classes.csv")).data


def test_a_name_is_looked_up_in_its_own_family_of_recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise AssertionError("all recipes were read")

    monkeypatch.setattr("kernelfield.experiments.recipe.bundled_names", fail)
    # A data set and a recipe have this name; the recipe comes first.
    assert recipe_and_data("digits", "", [])[0].name == "digits"


@pytest.fixture(scope="module")
def two_sensors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a regression in hundreds, from two channels of very different size."""
    folder = tmp_path_factory.mktemp("sensors")
    source = np.random.default_rng(0)
    lines = ["id,time,channel,value,label"]
    for i in range(20):
        warm, wet = 1000 + source.normal(size=8), source.normal(size=8)
        goal = 500 + 100 * wet.mean()
        lines += [f"{i},{t},warm,{warm[t]:.3f},{goal:.3f}" for t in range(8)]
        lines += [f"{i},{t},air,{wet[t]:.3f},{goal:.3f}" for t in range(8)]
    (folder / "long.csv").write_text("\n".join(lines) + "\n")
    call("train", folder / "long.csv", *TINY, "--epochs", 1, "--out", folder / "run")
    return folder / "run"


def test_columns_of_steps_are_found_by_their_names(two_sensors: Path, tmp_path: Path) -> None:
    run, steps = load_run(two_sensors), np.random.default_rng(1).normal(size=(2, 8)) + np.array([[0], [1000]])
    assert run.data.channels == ("air", "warm")
    wanted = run.predict(steps[None])[0]["values"]
    assert 200 < wanted[0] < 800
    tables = {
        "sorted": ["air,warm", *(f"{a},{b}" for a, b in steps.T)],
        "other": ["warm,air", *(f"{b},{a}" for a, b in steps.T)],
    }
    tables["none"] = tables["sorted"][1:]
    for name, lines in tables.items():
        (tmp_path / f"{name}.csv").write_text("\ufeff" + "\r\n".join(lines))
        announced = pytest.warns(UserWarning, match="no names of columns, which count as air, warm")
        with announced if name == "none" else nullcontext():
            assert run.predict(tmp_path / f"{name}.csv")[0]["values"] == pytest.approx(wanted, rel=1e-5)
        with announced if name == "none" else nullcontext():
            *_, last = stream_input(two_sensors, tmp_path / f"{name}.csv")
        assert last["samples"] == 8
        assert last["values"] == pytest.approx(wanted, rel=1e-5)
    (tmp_path / "extra.csv").write_text("\n".join(["hour,warm", *tables["none"]]))
    for read in (run.predict, lambda path: list(stream_input(two_sensors, path))):
        with pytest.raises(ValueError, match=r"extra.csv must have the columns air, warm"):
            read(tmp_path / "extra.csv")


def test_streams_have_one_mark_between_values(two_sensors: Path) -> None:
    steps = np.random.default_rng(1).normal(size=(8, 2)) + np.array([0, 1000])
    wanted = load_run(two_sensors).predict(steps.T[None])[0]["values"]
    for mark in (",", ";", "\t", " ", ", "):
        lines = [f'"warm"{mark}"air"', *(f'"{b}"{mark}{a}' for a, b in steps)]
        *_, last = stream_input(two_sensors, "-", every=8, lines=lines)
        assert last["values"] == pytest.approx(wanted, rel=1e-5)
    for line in ("0,5;1000,7", "0,5 1000,7"):  # decimal commas
        with pytest.raises(ValueError, match=r"line 2, column [12]: expected a number"):
            list(stream_input(two_sensors, "-", lines=["air;warm", line]))


def test_streams_in_another_unit_are_announced(two_sensors: Path, tmp_path: Path) -> None:
    steps = np.random.default_rng(1).normal(size=(2, 300)) + np.array([[0], [1000]])
    np.save(tmp_path / "x.npy", steps)
    assert len(list(stream_input(two_sensors, tmp_path / "x.npy", every=100))) == 3  # without a warning
    for count in (20, 300):  # in thousandths
        np.save(tmp_path / "x.npy", steps[:, :count] * np.array([[1], [1000]]))
        with pytest.warns(UserWarning, match=r"channel 'warm' of file x\.npy .* same unit"):
            list(stream_input(two_sensors, tmp_path / "x.npy", every=7))


def test_columns_of_times_are_no_channels(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(24, 2, 8))
    np.savez(tmp_path / "a.npz", inputs=x, target=np.arange(24) % 2)
    call("train", tmp_path / "a.npz", *TINY, "--epochs", 1, "--out", tmp_path / "run")
    for name in ("timestamp", "Time", "patient_id"):
        (tmp_path / "x.csv").write_text("\n".join([f"{name},pulse", *(f"{a},{b}" for a, b in x[0].T)]))
        for read in (load_run(tmp_path / "run").predict, lambda path: list(stream_input(tmp_path / "run", path))):
            with pytest.raises(ValueError, match=r"x\.csv"):
                read(tmp_path / "x.csv")


def test_streams_keep_the_unit_of_targets_without_preparation(two_sensors: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.random.default_rng(1).normal(size=(2, 8)).astype(np.float32))
    *_, last = stream_input(two_sensors, tmp_path / "x.npy", raw=True)
    assert last["values"] == pytest.approx(load_run(two_sensors).predict(tmp_path / "x.npy", raw=True)[0]["values"])


@pytest.mark.parametrize("line", [",", "1,", "NA,1", "1,?"])
def test_streams_do_not_skip_missing_values(two_sensors: Path, line: str) -> None:
    for lines in ([line, "1,2"], ["1,2", line]):
        with pytest.raises(ValueError, match=r"^- must .*got NaN or infinity in sample"):
            list(stream_input(two_sensors, "-", lines=["air,warm", *lines]))


@pytest.mark.parametrize("to", ["pt2", "onnx"])
def test_exported_streams_say_how_to_prepare_samples(two_sensors: Path, tmp_path: Path, to: str) -> None:
    if to == "onnx":
        pytest.importorskip("onnxruntime")
    call("export", two_sensors, "--stream", "--to", to, "--out", tmp_path / f"stream.{to}")
    stored = read_metadata(tmp_path / f"stream.{to}")
    assert stored["channels"] == ["air", "warm"]
    assert stored["inputs"] == {"sample": {"shape": [2, 1], "dtype": "float32"}}
    values, targets = stored["normalisation"]["prepare"]["steps"]
    mean, std = (torch.tensor(values[name]["tensor"]) for name in ("mean", "std"))
    x = torch.randn(1, 2, 8) + torch.tensor([[0.0], [1000.0]])
    exported = ExportedStream(tmp_path / f"stream.{to}")
    for sample in ((x - mean) / std).split(1, dim=2):
        found = exported.push(sample)
    value = float(found) * targets["scale"]["std"][0] + targets["scale"]["mean"][0]
    assert value == pytest.approx(load_run(two_sensors).predict(x)[0]["values"][0], rel=1e-3)


def test_predictions_name_the_series_of_a_table(two_sensors: Path, tmp_path: Path) -> None:
    sensors = {"air": 0, "warm": 1000}
    lines = [f"{i},{t},{c},{t / 8 + sensors[c]}" for t in range(8) for i in ("b", "a") for c in sensors]
    (tmp_path / "new.csv").write_text("\n".join(["id,time,channel,value", *lines]))  # rows of an id are scattered
    rows = load_run(two_sensors).predict(tmp_path / "new.csv")
    assert [(row["sample"], row["series"]) for row in rows] == [(0, "b"), (1, "a")]


def test_a_table_of_times_without_ids_is_refused(tmp_path: Path) -> None:
    recipe = recipe_for_path(write_wide(tmp_path / "wide.csv"))
    data = recipe_data(recipe)
    (tmp_path / "steps.csv").write_text("time,value\n0,1\n1,2\n")
    with pytest.raises(ValueError, match=r"steps.csv, line 1: expected columns id, time and value"):
        of(recipe, tmp_path / "steps.csv", data)
    (tmp_path / "id.csv").write_text("id," + ",".join(data.columns) + "\n" + ",".join("7" * (1 + len(data.columns))))
    with pytest.raises(ValueError, match=r"id.csv, line 1: .*found 'id'"):
        of(recipe, tmp_path / "id.csv", data)


def test_missing_values_are_masked_beside_a_mask(tmp_path: Path) -> None:
    source = np.random.default_rng(0)
    x, mask = source.normal(size=(20, 1, 8)).astype(np.float32), np.ones((20, 8), dtype=bool)
    x[:, :, 2], mask[:, 5] = np.nan, False
    np.savez(tmp_path / "own.npz", inputs=x, target=np.arange(20) % 2, mask=mask)
    recipe = recipe_for_path(tmp_path / "own.npz", {"shares": [0.5, 0.0, 0.5]})
    data = recipe_data(recipe)
    np.savez(tmp_path / "new.npz", inputs=x, mask=mask)
    found = of(recipe, tmp_path / "new.npz", data)
    assert found.mask[0].tolist() == data.test.mask[0].tolist()


def test_numbered_steps_have_the_gaps_of_the_training(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(20, 12))

    def table(name: str, steps: list[int], label: bool = True) -> Path:
        names = [*(["label"] if label else []), *(f"t{i}" for i in steps)]
        rows = [[*(["ab"[i % 2]] if label else []), *(f"{v:.4f}" for v in row[steps])] for i, row in enumerate(x)]
        (tmp_path / name).write_text("\n".join(",".join(row) for row in [names, *rows]))
        return tmp_path / name

    recipe = recipe_for_path(table("wide.csv", list(range(12))))
    data = recipe_data(recipe)
    assert of(recipe, table("late.csv", list(range(4, 12)), label=False), data).inputs.shape == (20, 1, 8)
    with pytest.raises(ValueError, match=r"gone.csv, line 1: expected steps with equal gaps.*found t6 before t8"):
        of(recipe, table("gone.csv", [i for i in range(12) if i != 7], label=False), data)
    with pytest.warns(UserWarning, match=r"half.csv: steps are numbered with gaps of 2, and in training of 1"):
        of(recipe, table("half.csv", list(range(0, 12, 2)), label=False), data)
    with pytest.warns(UserWarning, match=r"uneven.csv: steps are numbered with gaps of 1 to 4"):
        recipe_for_path(table("uneven.csv", [0, 1, 3, 7, 11]))


def test_the_counted_name_of_a_single_column_is_no_value(tmp_path: Path) -> None:
    recipe = recipe_for_path(write_wide(tmp_path / "wide.csv"))
    data = recipe_data(recipe)
    values = [f"{1000 + i / 8}" for i in range(12)]
    (tmp_path / "named.csv").write_text("\n".join(["0", *values]))
    (tmp_path / "plain.csv").write_text("\n".join(values))
    same(of(recipe, tmp_path / "named.csv", data), of(recipe, tmp_path / "plain.csv", data))


def test_counted_columns_are_names(two_sensors: Path, tmp_path: Path) -> None:
    run, rows = load_run(two_sensors), ["0.5,1000.25", "0.25,1001.0"]
    (tmp_path / "named.csv").write_text("\n".join(["0,1", *rows]))
    (tmp_path / "plain.csv").write_text("\n".join(rows))
    with pytest.warns(UserWarning, match="no names of columns"):
        named, plain = (run.predict(tmp_path / f"{name}.csv")[0]["values"] for name in ("named", "plain"))
    assert named == plain


def test_a_run_is_not_tested_or_continued_on_values_in_another_unit(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(24, 2, 8)), np.arange(24) % 2
    np.savez(tmp_path / "a.npz", inputs=x, target=y)
    call("train", tmp_path / "a.npz", *TINY, "--epochs", 1, "--out", tmp_path / "run")
    np.savez(tmp_path / "a.npz", inputs=x * (1 + 1e-5), target=y)  # to rounding
    call("test", tmp_path / "run")
    np.savez(tmp_path / "a.npz", inputs=x * np.array([[1.0], [1.8]]) + np.array([[0.0], [32.0]]), target=y)
    for command in (("test", tmp_path / "run"), ("train", tmp_path / "run", "--epochs", 2)):
        assert "the statistics of their values" in call(*command, code=2)


def test_networks_that_take_the_step_are_tested_at_half_the_resolution(tmp_path: Path) -> None:
    path = write_images(tmp_path / "photos", 6, 10)
    tests = {name: recipe_for_path(path, model=name).test for name in ("ccnn_4_140", "cifar_resnet_32", "resnet44_p4")}
    assert tests == {"ccnn_4_140": {"step": [2.0]}, "cifar_resnet_32": {"step": [2.0]}, "resnet44_p4": {}}


def test_targets_at_each_position_are_not_tested_at_another_resolution(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(20, 1, 8)).astype(np.float32)
    np.savez(tmp_path / "dense.npz", inputs=x, target=np.tanh(x[:, 0]))
    recipe = recipe_for_path(tmp_path / "dense.npz")
    assert (recipe.shape.task, recipe.test) == ("dense-regression", {})


def test_no_batch_of_an_evaluation_has_a_single_sample_if_its_statistics_are_used() -> None:
    torch.manual_seed(0)
    recipe = with_settings(find_recipe("digits"), {"model.norm": "batch-statistics", "model.channels": 4})
    task, sizes = make_task(recipe, make_network(recipe)), []
    task.network.register_forward_hook(lambda _, inputs, __: sizes.append(len(inputs[0])))
    split = synthetic_data(recipe.shape, samples=9).train
    evaluate(task, split, batch=4)
    evaluate(task, split, batch=5)
    recipe = with_settings(recipe, {"model.norm": "batch"})
    plain = make_task(recipe, make_network(recipe))
    plain.network.register_forward_hook(lambda _, inputs, __: sizes.append(len(inputs[0])))
    evaluate(plain, split, batch=4)
    assert sizes == [4, 5, 5, 4, 4, 4, 1]
