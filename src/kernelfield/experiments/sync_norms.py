"""Batch norms that share their statistics between processes, on GPUs and on CPUs."""

from __future__ import annotations

from torch import nn

from ..layers import BatchNorm, GroupBatchNorm

__all__ = ["synchronise_norms"]


def synchronise_norms(network: nn.Module) -> nn.Module:
    """Let all batch norms of a network use the statistics of all processes in training; return the network.

    Norms of torch become :class:`~kernelfield.layers.BatchNorm`, with the same parameters and statistics.

    >>> network = synchronise_norms(nn.Sequential(nn.Conv1d(2, 3, 1), nn.BatchNorm1d(3)))
    >>> type(network[1]).__name__, network[1].synchronised
    ('BatchNorm', True)
    """
    if isinstance(network, (BatchNorm, GroupBatchNorm)):
        network.synchronised = True
        return network
    if isinstance(network, nn.modules.batchnorm._BatchNorm):  # noqa: SLF001
        norm = BatchNorm(
            network.num_features, network.eps, network.momentum, network.affine, network.track_running_stats
        )
        norm.weight, norm.bias = network.weight, network.bias
        norm.running_mean, norm.running_var = network.running_mean, network.running_var
        norm.num_batches_tracked = network.num_batches_tracked
        norm.synchronised = True
        return norm.train(network.training)
    for name, child in network.named_children():
        setattr(network, name, synchronise_norms(child))
    return network
