"""Processes that run functions together, started once for many tests."""

from __future__ import annotations

import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from kernelfield.parallel import make_mesh

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

#: seconds after which a function counts as hanging
PATIENCE = 120


def _serve(rank: int, processes: int, context: int, store: str, pipe: Connection) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=processes)
    mesh = make_mesh(context)
    while (task := pipe.recv()) is not None:
        function, arguments = task
        try:
            pipe.send((True, function(mesh, *arguments)))
        except Exception as error:
            pipe.send((False, (type(error).__name__, str(error), traceback.format_exc())))
    dist.destroy_process_group()


class Workers:
    """Processes with a mesh that run the same function, each with its part of a signal.

    Args:
        processes: number of processes.
        context: number of processes that share a sample; all if not given.
    """

    def __init__(self, processes: int, context: int | None = None) -> None:
        # A process that has imported what they need is forked for each of them.
        server = mp.get_context("forkserver")
        server.set_forkserver_preload(["tests.parallel.cases", "kernelfield.parallel"])
        self.folder = tempfile.TemporaryDirectory()
        store = str(Path(self.folder.name) / "store")
        self.pipes, self.processes = [], []
        for rank in range(processes):
            ours, theirs = server.Pipe()
            arguments = (rank, processes, context or processes, store, theirs)
            process = server.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            self.pipes.append(ours)
            self.processes.append(process)

    def outcomes(self, function: Callable[..., Any], *arguments: Any) -> list[tuple[bool, Any]]:
        """Return whether each process returned from ``function(mesh, *arguments)``, and its result or error."""
        for pipe in self.pipes:
            pipe.send((function, arguments))
        for rank, pipe in enumerate(self.pipes):
            assert pipe.poll(PATIENCE), f"process {rank} hangs in {function.__name__}{arguments}"
        return [pipe.recv() for pipe in self.pipes]

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Return the result of ``function(mesh, *arguments)`` on each process; fail if one raises."""
        outcomes = self.outcomes(function, *arguments)
        for rank, (fine, result) in enumerate(outcomes):
            assert fine, f"process {rank}: {result[2]}"
        return [result for _, result in outcomes]

    def errors(self, function: Callable[..., Any], *arguments: Any) -> list[str]:
        """Return the message of the error that ``function(mesh, *arguments)`` raises on each process."""
        outcomes = self.outcomes(function, *arguments)
        assert not any(fine for fine, _ in outcomes), (
            f"no error on processes {[i for i, o in enumerate(outcomes) if o[0]]}"
        )
        return [f"{result[0]}: {result[1]}" for _, result in outcomes]

    def close(self) -> None:
        """End the processes."""
        for pipe in self.pipes:
            pipe.send(None)
        for process in self.processes:
            process.join(10)
            if process.is_alive():
                process.kill()
        self.folder.cleanup()
