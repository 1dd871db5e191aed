"""Chapter 5: a kernel that learns how long it has to be.

    python examples/ch05_flexconv.py        # writes runs/ch05_flexconv.png

The target is the mean of the last 48 inputs. The kernel starts with a reach of 11 steps. Gradient descent widens its
mask until it reaches far enough. About a minute on a CPU.
"""

from functools import partial
from pathlib import Path

import torch
from matplotlib.figure import Figure

import kernelfield as kf

MEMORY, LENGTH, STEPS = 48, 128, 1200


def main() -> None:
    torch.manual_seed(0)
    # Start smooth and small. A large random kernel adds noise, so its mask would shrink before it learns anything.
    field = partial(kf.fields.MAGNet, omega_0=0.02)
    layer = kf.FlexConv(1, 1, size=LENGTH, causal=True, sigma=0.04, learn_mean=False, field=field, gain=0.1)
    optimizer = torch.optim.Adam(layer.parameters(), lr=2e-3)
    reach, kernels = [], {}
    for step in range(STEPS):
        x = torch.randn(32, 1, LENGTH)
        mean = torch.nn.functional.avg_pool1d(x, MEMORY, stride=1) * MEMORY**0.5
        loss = (layer(x)[..., MEMORY - 1 :] - mean).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        reach.append(layer.mask.support()[1].item() * LENGTH)
        if step in (0, STEPS // 8, STEPS - 1):
            kernels[step] = layer.kernel(0.25, measured=False).detach()[0, 0]
            print(f"step {step:4d}   loss {loss.item():.4f}   the kernel reaches {reach[-1]:.0f} steps back")
    figure = Figure(figsize=(9, 3), layout="constrained")
    growth, shape = figure.subplots(1, 2)
    growth.plot(reach)
    growth.axhline(MEMORY, color="0.7", linestyle="--")
    growth.set(xlabel="training step", ylabel="reach of the kernel", title="its size, learned")
    for step, kernel in kernels.items():
        shape.plot(torch.arange(len(kernel)) / 4, kernel, label=f"step {step}", linewidth=1)
    shape.set(xlabel="steps into the past", title="the kernel", yticks=[])
    shape.legend(frameon=False)
    Path("runs").mkdir(exist_ok=True)
    figure.savefig("runs/ch05_flexconv.png", dpi=110)


if __name__ == "__main__":
    main()
