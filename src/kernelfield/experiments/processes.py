"""Processes of a training: their launch and rendezvous, shared samples, and synchronised batch norms."""

from __future__ import annotations

import math
import os
import signal
import socket
import sys
import time
import uuid
from typing import TYPE_CHECKING

from torch import nn

from ..layers import BatchNorm, GroupBatchNorm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning.fabric import Fabric
    from torch.distributed.device_mesh import DeviceMesh

__all__ = [
    "context_mesh",
    "is_launched",
    "launch",
    "launched_sizes",
    "remaining_context",
    "split_over",
    "synchronise_norms",
    "wait_for_rendezvous",
]

#: seconds to wait for an answer of the first process
PATIENCE = 60.0


def is_launched() -> bool:
    """Return whether torchrun, Slurm or another launcher has started this process as one of several."""
    return any(name in os.environ for name in ("TORCHELASTIC_RUN_ID", "LOCAL_RANK", "SLURM_PROCID"))


def launched_sizes() -> tuple[int, int] | None:
    """Return the number of processes per machine and of machines that torchrun has started; None without torchrun."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    local = int(os.environ["LOCAL_WORLD_SIZE"])
    return local, int(os.environ["WORLD_SIZE"]) // local


def launch(arguments: Sequence[str], processes: int, restarts: int = 0) -> int:
    """Run the ``kernelfield`` command as several processes on this machine, like torchrun.

    If a process dies, torch's launcher ends the others and restarts all of them up to ``restarts`` times. A training
    then resumes from its last checkpoint.

    Args:
        arguments: arguments of the command.
        processes: number of processes.
        restarts: largest number of restarts.

    Returns:
        The exit code of the first process that failed; 0 if none did. A line on standard error names that process.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException  # noqa: PLC0415
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError  # noqa: PLC0415
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch  # noqa: PLC0415

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=restarts,
        monitor_interval=0.5,
    )
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    try:
        elastic_launch(config, sys.executable)("-m", "kernelfield", *arguments)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        code = failure.exitcode
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        others = f"; the other {processes - 1} were ended" if processes > 1 else ""
        print(f"process {rank} of {processes} (pid {failure.pid}) {how}{others}", file=sys.stderr)  # noqa: T201
        return code if code > 0 else 128 - code
    except SignalException as error:  # a signal to this process; the launcher has ended the others
        return 128 + error.sigval
    return 0


def wait_for_rendezvous() -> None:
    """Wait until the first process answers at MASTER_ADDR and MASTER_PORT; raise a ConnectionError if it does not.

    These environment variables and RANK are those of torch.distributed. Without them, and in the first process, the
    function returns at once.
    """
    host, port, rank = (os.environ.get(name) for name in ("MASTER_ADDR", "MASTER_PORT", "RANK"))
    if host is None or port is None or rank in (None, "0"):
        return
    patience = float(os.environ.get("KERNELFIELD_RENDEZVOUS_SECONDS", PATIENCE))
    end = time.monotonic() + patience
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=5).close()
        except OSError as error:
            if time.monotonic() < end:
                time.sleep(0.5)
                continue
            raise ConnectionError(
                f"process {rank} of {os.environ.get('WORLD_SIZE', 'several')} found no first process at "
                f"MASTER_ADDR={host}, MASTER_PORT={port} in {patience:.0f} s: {error}"
            ) from error
        return


def remaining_context(context: int, processes: int) -> int:
    """Return the number of processes that share a sample after torchrun has restarted with fewer processes.

    >>> remaining_context(4, 8), remaining_context(4, 6)
    (4, 2)
    """
    return math.gcd(context, processes)


def context_mesh(fabric: Fabric, context: int) -> DeviceMesh | None:
    """Return a mesh of all processes in groups of ``context`` that share their samples; None for groups of one."""
    if fabric.world_size % context:
        raise ValueError(f"context must divide the number of processes, {fabric.world_size}, got {context}")
    if context == 1:
        return None
    from ..parallel import make_mesh  # noqa: PLC0415

    return make_mesh(context, device_type=fabric.device.type)


def split_over(network: nn.Module, mesh: DeviceMesh | None) -> nn.Module:
    """Return a network that takes complete signals and processes them on all processes of a context group.

    It does not average gradients; Lightning's DDP and FSDP do that over all processes.
    """
    if mesh is None:
        return network
    from ..parallel import shard  # noqa: PLC0415

    return shard(network, mesh, full=True, average_gradients=False)


def synchronise_norms(network: nn.Module) -> nn.Module:
    """Make all batch norms of a network use the statistics of all processes in training; return the network.

    Batch norms of torch become :class:`~kernelfield.layers.BatchNorm`, with the same parameters and statistics.

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
