"""Chapter 2: recall ten symbols after a long silence.

    python examples/ch02_ckconv.py

A recurrent network forgets during the silence. A CKCNN of two blocks and 16k parameters does not: its kernels are as
long as the sequence, so every output sees the whole past at once. About a minute on a CPU.
"""

import torch
from torch.nn import functional as F

import kernelfield as kf

SILENCE = 100


def copy_memory(batch: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ten digits from 1 to 8, silence and eleven 9s; the target repeats the digits at the end."""
    x = torch.zeros(batch, SILENCE + 20, dtype=torch.long)
    digits = torch.randint(1, 9, (batch, 10), generator=generator)
    x[:, :10], x[:, -11:] = digits, 9
    target = torch.zeros_like(x)
    target[:, -10:] = digits
    return x.unsqueeze(1).float() / 9, target


def main() -> None:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    net = kf.create_model("ckcnn_copy", in_channels=1, out_channels=10, size=SILENCE + 20, omega_0=80.0)
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=5e-3, total_steps=1500)
    for step in range(1500):
        x, target = copy_memory(32, generator)
        loss = F.cross_entropy(net(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if (step + 1) % 250 == 0:
            print(f"step {step + 1:4d}   loss {loss.item():.5f}")
    x, target = copy_memory(200, generator)
    recalled = (net(x).argmax(dim=1)[:, -10:] == target[:, -10:]).float().mean()
    print(f"digits recalled after {SILENCE} steps: {recalled:.1%} (guessing: 12.5%)")


if __name__ == "__main__":
    main()
