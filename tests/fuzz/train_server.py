"""Runs ``kernelfield`` commands in forked processes that end themselves with kill -9 at a given moment.

All modules are imported once; a command then starts in milliseconds. Each line of the input is a JSON object of the
``arguments``, the ``folder`` of the run, whether its report is an ``empty`` one, which takes no time, and the moment of
the kill, a number of ``events`` or ``seconds``. Each line of the output is one of the exit ``code``, negative if
killed, and the number of ``events`` there were.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

from kernelfield._files import write_text

if TYPE_CHECKING:
    from pathlib import Path

#: what a process does to files, as Python audits it
EVENTS = ("open", "os.rename", "os.mkdir", "os.rmdir", "os.remove", "shutil.rmtree")


def serve() -> None:
    """Answer requests until the input ends."""
    from typer.testing import CliRunner  # noqa: PLC0415

    import kernelfield.experiments.fitting  # noqa: PLC0415
    import kernelfield.viz.report  # noqa: PLC0415
    from kernelfield.cli import app  # noqa: PLC0415

    recipe = kernelfield.experiments.recipe.find_recipe("digits")
    data = kernelfield.experiments.datasets.recipe_data(recipe)
    kernelfield.experiments.fitting.make_fabric("cpu")
    import safetensors.torch  # noqa: F401, PLC0415

    kernelfield.experiments.run.make_task(recipe, kernelfield.experiments.run.make_network(recipe, data), data)
    for line in sys.stdin:
        request = json.loads(line)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            if request["empty"]:
                kernelfield.viz.report.write_report = _write_empty_report
            count = _kill_at(request.get("events"), request["folder"])
            if request.get("seconds") is not None:
                threading.Timer(request["seconds"], os.kill, (os.getpid(), signal.SIGKILL)).start()
            result = CliRunner().invoke(app, request["arguments"])
            if result.exit_code:
                sys.stderr.write(result.output + repr(result.exception))
            os.write(write, str(count[0]).encode())
            os._exit(result.exit_code)
        os.close(write)
        _, status = os.waitpid(child, 0)
        with os.fdopen(read) as pipe:
            events = pipe.read()
        answer = {"code": os.waitstatus_to_exitcode(status), "events": int(events or 0)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _write_empty_report(folder: Path, *_: Any) -> Path:
    write_text(folder / "kernels.png", "")
    return write_text(folder / "report.html", "")


def _kill_at(event: int | None, folder: str) -> list[int]:
    """Kill this process before it changes a file of ``folder`` for the given time; return a count of changes."""
    count = [0]

    def hook(name: str, arguments: tuple[Any, ...]) -> None:
        if name not in EVENTS or not str(arguments[0]).startswith(folder):
            return
        if name == "open" and not (isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
            return
        count[0] += 1
        if count[0] == event:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    return count


if __name__ == "__main__":
    serve()
