"""Chapter 2's ablation of the kernel network's nonlinearity, on digits read pixel by pixel.

    python benchmarks/nonlinearity.py                    # ten minutes on one core
    python benchmarks/nonlinearity.py --quick            # one epoch, to see that it runs
    python benchmarks/nonlinearity.py --json benchmarks/results/nonlinearity-cpu.json \
        --markdown docs/chapters/ch02-ckconv.md

CKCNNs of two blocks whose kernels are networks of sines, ReLUs, leaky ReLUs and Swishes, otherwise alike. The digits
are those of scikit-learn, 8×8: sequences of 64 steps.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch
from _measure import machine
from _tables import describe, replace_section, save, table

from kernelfield.experiments import fit
from kernelfield.experiments.recipe import recipe_from

NETWORKS = {
    "sine": {"name": "ckcnn_2_30", "start": "ckconv", "omega_0": 60.0, "hidden_omega_0": 30.0},
    "ReLU": {"name": "ckcnn_2_30_relu"},
    "leaky ReLU": {"name": "ckcnn_2_30_leaky_relu"},
    "Swish": {"name": "ckcnn_2_30_swish"},
}
#: accuracies of the thesis on sMNIST and pMNIST
PUBLISHED = {"sine": (99.31, 98.00), "ReLU": (81.21, 59.15), "leaky ReLU": (80.57, 55.85), "Swish": (85.20, 61.77)}


def accuracy(kind: str, epochs: int, seed: int) -> float:
    """Return the test accuracy, in percent, of one training."""
    recipe = recipe_from(
        {
            "name": "nonlinearity",
            "data": {"name": "digits", "sequence": True},
            "model": {**NETWORKS[kind], "norm": "layer", "channels": 16},
            "optimizer": {"lr": 0.001},
            "schedule": {"name": "constant"},
            "training": {"epochs": epochs, "batch": 32, "seed": seed, "evaluate_every": epochs},
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        run = fit(recipe, Path(folder) / "run", report=False)
        return 100 * run.result()["metrics"]["test"]["accuracy"]


def measured(options: argparse.Namespace) -> dict[str, Any]:
    epochs, seeds = (1, [0]) if options.quick else (options.epochs, list(range(options.seeds)))
    report: dict[str, Any] = {"machine": machine(torch.device("cpu"), 0), "epochs": epochs, "seeds": seeds, "found": {}}
    for kind in NETWORKS:
        report["found"][kind] = [accuracy(kind, epochs, seed) for seed in seeds]
        print(f"{kind:11} {report['found'][kind]}", flush=True)
        save(report, options.json)
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--json", type=Path, help="where to write the accuracies")
    parser.add_argument("--from-json", type=Path, help="show saved accuracies instead of training")
    parser.add_argument("--markdown", type=Path, help="put the table into this file")
    options = parser.parse_args()
    report = json.loads(options.from_json.read_text()) if options.from_json else measured(options)
    rows = [
        [kind, f"{statistics.mean(report['found'][kind]):.1f}", *(f"{value:.2f}" for value in PUBLISHED[kind])]
        for kind in NETWORKS
    ]
    head = ["kernel network", "digits", "sMNIST, published", "pMNIST, published"]
    text = (
        f"{describe(report['machine'])}. Test accuracy in percent after {report['epochs']} epochs, mean of "
        f"{len(report['seeds'])} seeds, 16 channels.\n\n{table(head, rows)}"
    )
    if options.markdown is not None:
        replace_section(options.markdown, "nonlinearity", text)
    print("\n" + text)


if __name__ == "__main__":
    main()
