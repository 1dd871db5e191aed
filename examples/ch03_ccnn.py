"""Chapter 3: the same network in one, two and three dimensions, and on scattered points.

    python examples/ch03_ccnn.py

The task is the same in every dimension: is the blob in the first or in the second half along the first axis? The
networks differ only in ``dim`` and ``size``. Each is then tested on a random three quarters of the grid's points,
given as a point cloud. About a minute on a CPU.
"""

import torch
from torch.nn import functional as F

import kernelfield as kf


def blobs(count: int, dim: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return Gaussian bumps at random positions in noise, and in which half they lie."""
    place = torch.rand(count, dim) * 0.8 + 0.1
    grid = kf.grids.positions((length,) * dim) / length
    distance = (grid.unsqueeze(0) - place.view(count, *(1,) * dim, dim)).square().sum(-1)
    x = torch.exp(-distance / 0.02) + 0.2 * torch.randn(count, *(length,) * dim)
    return x.unsqueeze(1), (place[:, 0] > 0.5).long()


def main() -> None:
    torch.manual_seed(0)
    for dim, length in ((1, 128), (2, 16), (3, 8)):
        net = kf.CCNN(1, 2, dim=dim, size=length, channels=16, blocks=1, hidden=16, sigma=0.2, causal=False)
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)  # weight decay would shrink the masks
        for _ in range(200):
            x, y = blobs(32, dim, length)
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()
        net.eval()
        x, y = blobs(256, dim, length)
        with torch.no_grad():
            on_grid = (net(x).argmax(1) == y).float().mean()
            kept = torch.randperm(length**dim)[: 3 * length**dim // 4]
            coords = kf.grids.positions((length,) * dim).flatten(0, -2)[kept]
            density = torch.full((256, len(kept)), 0.75)
            on_points = (net(x.flatten(2)[..., kept], coords=coords, density=density).argmax(1) == y).float().mean()
        parameters = kf.testing.count_parameters(net)
        print(f"{dim}D, {parameters:,} parameters: {on_grid:.1%}; three quarters of the points: {on_points:.1%}")


if __name__ == "__main__":
    main()
