"""Every registered network on every kind of one's own data: it trains, is tested and predicts, or is refused before."""

from __future__ import annotations

import wave
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import kernelfield as kf
from kernelfield.experiments.custom_data import check_network, load_path
from kernelfield.experiments.fitting import fit
from kernelfield.experiments.recipe import with_settings
from kernelfield.models.registry import configuration, options_of

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

COUNT = 6
#: arguments that make a network of each family small
NARROW: dict[str, dict[str, Any]] = {
    "CCNN": {"channels": 4, "hidden": 4, "blocks": 1},
    "learned_ccnn": {"channels": 4, "hidden": 4, "blocks": 1},
    "CKCNN": {"channels": 4, "hidden": 4},
    "FlexTCN": {"channels": 4, "hidden": 4},
    "FlexNet": {"channels": 4, "hidden": 4},
    "GCNN": {"channels": 3},
    "GroupAllCNN": {"channels": 2},
    "GroupResNet": {"channels": [2, 3, 4]},
    "GroupDenseNet": {"growth": 2},
    "PartialGCNN": {"channels": [2, 2, 3, 3], "kernel_size": 3},
    "PartialGCNN13": {"channels": 2},
    "GridifiedNet": {"channels": 4, "grid": 3, "kernel_size": 3, "neighbors": 3, "blocks": 1},
}
#: sizes of images for networks that pool or crop much
SIDES = {"GCNN": 28, "GroupDenseNet": 96, "PartialGCNN": 14, "PartialGCNN13": 12}


def narrow(name: str) -> dict[str, Any]:
    family = configuration(name).build.__name__
    chosen = dict(NARROW.get(family, {}))
    fixed = options_of(name)
    if family == "GSANet":
        chosen = {"channels": 3, "widths": [[3 for _ in stage] for stage in fixed["widths"]], "heads": 3}
    if fixed.get("dim") == 3 and family == "CCNN":
        chosen["neighbors"] = 5
    return {f"model.{key}": value for key, value in chosen.items()}


def side(name: str) -> int:
    family = configuration(name).build.__name__
    if family == "GSANet":
        return {"rotmnist": 26, "cifar10": 8, "pcam": 56}[name.split("_")[1]]
    return SIDES.get(family, 8)


def write(kind: str, folder: Path, name: str) -> Path:
    """Write six small samples of two classes, or with a target at each position."""
    source = np.random.default_rng(0)
    labels = [("up", "down")[i % 2] for i in range(COUNT)]
    if kind == "series":
        rows = [[label, *(f"{v:.3f}" for v in source.normal(size=20))] for label in labels]
        path = folder / "series.csv"
        path.write_text("\n".join(",".join(r) for r in [["label", *map(str, range(20))], *rows]))
        return path
    if kind == "dense":
        path = folder / "dense.npz"
        np.savez(path, x=source.normal(size=(COUNT, 2, 8, 8)), y=source.normal(size=(COUNT, 8, 8)))
        return path
    for i, label in enumerate(labels):
        inner = folder / kind / label
        inner.mkdir(parents=True, exist_ok=True)
        if kind == "images":
            pixels = source.integers(0, 255, size=(side(name), side(name), 3), dtype=np.uint8)
            pytest.importorskip("PIL.Image").fromarray(pixels).save(inner / f"{i}.png")
        elif kind == "sounds":
            length = 8000 if configuration(name).build.__name__ == "WaveletNet" else 800
            with wave.open(str(inner / f"{i}.wav"), "wb") as file:
                file.setparams((1, 2, 16_000, 0, "NONE", ""))
                file.writeframes((3000 * source.normal(size=length)).astype("<i2").tobytes())
        else:
            np.save(inner / f"{i}.npy", source.normal(size=(12, 3)))
    return folder / kind


KINDS = ("series", "images", "sounds", "clouds", "dense")
#: one network of each family, on which every kind is tried by default
SOME = (
    *("ccnn_4_140", "ckcnn_2_30", "flextcn_2", "flexnet_3", "p4cnn", "allcnn_p4", "resnet44_p4", "partial_gcnn_se2"),
    *("gsanet_rotmnist_r4", "gridified_modelnet40", "dnarch_4_140", "ccnn_4_32", "image_siren", "ckcnn_ptb"),
)
#: what must train, so that a check that refuses everything does not pass
TRAINS = {
    *((name, "series") for name in ("ccnn_4_140", "ckcnn_2_30", "flextcn_2", "dnarch_4_140")),
    *((name, "images") for name in ("ccnn_4_140", "flexnet_3", "p4cnn", "allcnn_p4", "gsanet_rotmnist_r4")),
    ("ccnn_4_140", "sounds"), ("ccnn_4_140", "dense"), ("gridified_modelnet40", "clouds"), ("ccnn_4_32", "clouds"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:the network normalises by the statistics of the batch")
@pytest.mark.filterwarnings("ignore:the output for a single sample does not depend on it")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in SOME else pytest.mark.slow) for name in kf.list_models()]
)
def test_networks_train_on_own_data_or_are_refused_at_the_start(name: str, kind: str, tmp_path: Path) -> None:
    path = write(kind, tmp_path, name)
    options = {"points": 6} if kind == "clouds" else {}
    options |= {"shares": [0.4, 0.3, 0.3]}
    recipe = data = refusal = None
    try:
        recipe, data = load_path(path, options, model=name)
        recipe = with_settings(recipe, {**narrow(name), "training.epochs": 1, "training.batch": 2})
        check_network(recipe, data)
    except ValueError as error:
        refusal = str(error)
    if refusal is not None:
        assert "model" in refusal
        assert (name, kind) not in TRAINS, refusal
        return
    run = fit(recipe, tmp_path / "run", data=data, report=False)
    assert run.result()["status"] == "done"
    one = path if kind == "series" else next(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else None
    if one is not None:
        assert set(kf.load_run(run.folder).predict(one)[0]["probabilities"]) == {"up", "down"}
