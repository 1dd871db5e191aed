"""Helpers of the commands, which find recipes, print results, and turn errors into one line and an exit code."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lightning.fabric import Fabric

    from ..data.base import Data
    from ..experiments.run import Run

__all__ = [
    "DIVERGED",
    "FAILED",
    "INTERRUPTED",
    "NO_DATA",
    "WRONG",
    "absolute_path",
    "all_settings",
    "check_data_folder",
    "check_folder_is_read",
    "context_processes",
    "errors",
    "floats",
    "import_own",
    "ints",
    "is_data",
    "is_run",
    "print_json",
    "print_result",
    "print_sizes",
    "recipe_and_data",
    "recipe_of",
    "start_of",
    "stop",
    "stop_after_step",
]  # fmt: skip

FAILED, WRONG, NO_DATA, DIVERGED, INTERRUPTED = 1, 2, 3, 4, 130
#: environment variable that makes unexpected errors show their traceback
DEBUG = "KERNELFIELD_DEBUG"
_LESS_MEMORY = "in a training, a smaller --set training.batch=… or --set training.precision=bf16 needs less"


def is_data(name: str) -> bool:
    """Return whether the name is a path of data and not a recipe."""
    path = Path(name)
    return path.suffix not in (".yaml", ".yml") and (path.is_file() or (path.is_dir() and not is_run(name)))


def check_data_folder(name: str, folder: Path | None) -> None:
    """Check that a path of data is no folder of runs, and that --data is not given together with it."""
    from ..experiments.run import several_runs  # noqa: PLC0415

    if hint := several_runs(Path(name)):
        raise ValueError(f"recipe must be a recipe, data, or the folder of a single run, got {name}{hint}")
    if folder is not None and is_data(name):
        raise ValueError(f"--data must be given only with a recipe, got it with the data {name}")


def check_folder_is_read(recipe: Any, folder: Path | None) -> None:
    """Check that the option --data is given only for data that are read from files: others would ignore it."""
    from ..experiments.datasets import reads_files  # noqa: PLC0415

    if folder is not None and not reads_files(recipe.data):
        name = recipe.data["name"]
        raise ValueError(f"--data must be given only for data in files, got {folder} for {name!r}, which reads none")


def is_run(name: str) -> bool:
    """Return whether the name is the folder of a run."""
    return (Path(name) / "recipe.yaml").is_file()


def recipe_of(name: str, model: str, settings: list[str], folder: Path | None = None, *, download: bool = False) -> Any:
    """Return the recipe of a name, or one for the data of a path or name, with ``settings`` replaced."""
    return recipe_and_data(name, model, settings, None, folder, download=download)[0]


def recipe_and_data(
    name: str,
    model: str,
    settings: list[str],
    start_from: str | None = None,
    folder: Path | None = None,
    *,
    download: bool = False,
) -> tuple[Any, Data | None]:
    """Return a recipe like :func:`recipe_of`, and its data if the recipe was made from them.

    The files of a named data set are in ``folder``, into which ``download`` fetches missing ones. A network that cannot
    train on these data raises a ValueError. A network that the recipe names as ``package.module:Class`` is imported,
    since the user chose this recipe.
    """
    from ..data.registry import describe, list_data  # noqa: PLC0415
    from ..experiments.custom_data import check_network, data_settings, load_path, recipe_for  # noqa: PLC0415
    from ..experiments.datasets import load_source  # noqa: PLC0415
    from ..experiments.recipe import find_recipe, with_settings  # noqa: PLC0415
    from ..experiments.recipe_files import find_mapping  # noqa: PLC0415
    from ..experiments.start_from import source_of  # noqa: PLC0415

    if ":" in model:
        import_own(model)
    data = None
    # Options of the loader apply first, because the shape of the data depends on them.
    if is_data(name):
        recipe, data = load_path(name, data_settings(settings), model=model, start_from=start_from)
        chosen = with_settings(recipe, settings)
    elif name in list_data() and find_mapping(name) is None:
        kept = {} if start_from is None else source_of(start_from, name)
        source = {"name": name, **kept, **data_settings(settings)}
        data = load_source(source, f"data {name!r}", folder=absolute_path(folder), download=download)
        chosen = with_settings(recipe_for(data, name, source, model=model, start_from=start_from), settings)
    else:
        named = [f"model.name={model}"] if model else []
        named += [f"training.start_from={start_from}"] if start_from is not None else []
        chosen = with_settings(find_recipe(name), [*named, *settings])
    check_folder_is_read(chosen, folder)
    if download and not describe(chosen.data["name"]).download:
        raise ValueError(f"--download must be given only for data that can be downloaded, got {chosen.data['name']!r}")
    if ":" in chosen.model["name"]:
        import_own(chosen.model["name"])
    if data is not None:
        chosen = check_network(chosen, data)
    return chosen, data


def import_own(name: str) -> None:
    """Import a module ``package.module`` of the user, or a network in it, ``package.module:Class``.

    Like ``python -m``, it also finds modules in the working folder.
    """
    if not name:
        raise ValueError("--import must be MODULE or MODULE:CLASS, got ''")
    here = str(Path.cwd())
    added = here not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        if ":" in name:
            from ..models.registry import import_network  # noqa: PLC0415

            import_network(name)
        else:
            importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ValueError(f"--import must be a module that Python can find, got {name!r}: {error}") from error
    finally:
        if added:
            sys.path.remove(here)


def start_of(name: str | None) -> str | None:
    """Return the absolute path of a run, or the name of a pretrained weight, that a training starts from."""
    if name is None:
        return None
    folder = Path(name).expanduser()
    if folder.is_dir():
        return absolute_path(folder)
    from ..experiments.start_from import find_start  # noqa: PLC0415

    return find_start(name).name


def absolute_path(folder: Path | None) -> str | None:
    """Return the absolute path, which a run stores so that it can be read from another folder."""
    return None if folder is None else str(folder.expanduser().resolve())


def all_settings(settings: list[str] | None, short: dict[str, Any]) -> list[str]:
    """Return the settings of --set and of short options, which must not contradict them.

    Args:
        settings: those of --set.
        short: value of each setting that has a short option of the last part of its name; None if it was not given.

    >>> all_settings(["optimizer.lr=0.1"], {"training.epochs": 3, "training.seed": None})
    ['optimizer.lr=0.1', 'training.epochs=3']
    """
    from ..experiments.recipe_files import parse_value  # noqa: PLC0415
    from ..experiments.settings import with_section  # noqa: PLC0415

    given = {key: value for key, value in short.items() if value is not None}
    for setting in settings or []:
        key, _, value = setting.partition("=")
        wanted = given.get(with_section(key.strip()))
        if wanted is not None and parse_value(value) != wanted:
            option = with_section(key.strip()).rpartition(".")[2]
            raise ValueError(f"--{option} must not contradict --set {setting}, got {wanted}")
    return [*(settings or []), *(f"{key}={str(value).lower()}" for key, value in given.items())]


def ints(name: str, text: str) -> list[int]:
    """Return the ints of a list such as "0,1,2"."""
    try:
        found = [int(part) for part in text.split(",") if part]
    except ValueError:
        raise ValueError(f"{name} must be ints such as 0,1,2, got {text!r}") from None
    if len(set(found)) < len(found):
        raise ValueError(f"{name} must be different ints, got {text!r}")
    return found


def floats(name: str, text: str) -> list[float]:
    """Return the numbers of a list such as "0.1,0.5"."""
    try:
        return [float(part) for part in text.split(",") if part]
    except ValueError:
        raise ValueError(f"{name} must be numbers such as 0.1,0.5, got {text!r}") from None


def print_result(run: Run, as_json: bool) -> None:
    """Print the result of a finished run."""
    from ..experiments.progress import summary  # noqa: PLC0415

    result = run.result()
    if as_json:
        print_json({**result, "folder": str(run.folder)})
        return
    for line in summary(result):
        typer.echo(line)
    if (run.folder / "kernels.png").exists():
        typer.echo(f"kernels: {run.folder / 'kernels.png'}")
    typer.echo(f"report:  {run.folder / 'report.html'}")


def print_sizes(*, quiet: bool) -> Callable[[Data], None]:
    """Return a callback for ``on_data`` of ``fit`` that prints the sizes of the splits and the task once."""
    printed = [quiet]

    def callback(data: Data) -> None:
        from ..experiments.data_summary import data_kind, split_sizes  # noqa: PLC0415

        if not printed[0]:
            typer.echo(f"{data.name}: {split_sizes(data)}", err=True)
            typer.echo(f"{data.name}: {data_kind(data)}", err=True)
        printed[0] = True

    return callback


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    from ..experiments.run_files import to_json  # noqa: PLC0415

    typer.echo(to_json(value))


def stop(message: str, code: int) -> None:
    """Print a message and exit with ``code``."""
    typer.echo(f"kernelfield: {message}", err=True)
    raise typer.Exit(code)


def context_processes(context: int) -> tuple[Any, bool]:
    """Return the mesh of processes that share every sample, and whether this is the first process, which prints.

    Unless torchrun has started the processes, the command starts CPU processes on this machine.
    """
    from ..experiments.processes import context_mesh, is_launched, launch  # noqa: PLC0415

    if context == 1:
        return None, True
    if not is_launched():
        raise typer.Exit(launch(sys.argv[1:], context))
    from ..experiments.fitting import make_fabric  # noqa: PLC0415

    fabric = make_fabric("cpu", devices=context)
    return context_mesh(fabric, context), fabric.global_rank == 0


@contextmanager
def stop_after_step(fabric: Fabric) -> Iterator[Callable[[], bool] | None]:
    """Yield a callback for ``should_stop``: true after Ctrl-C, so that a training stops with a checkpoint.

    A second Ctrl-C raises a KeyboardInterrupt at once. Yield None for several processes, which must stop together, and
    where the process ignores Ctrl-C, as in the background of a script.
    """
    asked: list[int] = []

    def ask(number: int, _: Any) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)
        typer.echo("kernelfield: stopping after this step; Ctrl-C again stops at once", err=True)

    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if ignored or fabric.world_size > 1 or threading.current_thread() is not threading.main_thread():
        yield None
        return
    before = signal.signal(signal.SIGINT, ask)
    try:
        yield lambda: bool(asked)
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Print warnings without the line of code that raised them, which says nothing to the user of a command."""
    former = warnings.formatwarning

    def in_one_line(message: Warning | str, category: type[Warning], *place: Any, **named: Any) -> str:
        if os.environ.get(DEBUG) or not issubclass(category, UserWarning):
            return former(message, category, *place, **named)
        return f"warning: {message}\n"

    warnings.formatwarning = in_one_line
    try:
        yield
    finally:
        warnings.formatwarning = former


@contextmanager
def errors() -> Iterator[None]:
    """Turn errors into a line and an exit code, and warnings into a line.

    With KERNELFIELD_DEBUG, unexpected errors show their traceback, and warnings their place.
    """
    try:
        with _plain_warnings():
            yield
    except KeyboardInterrupt:
        stop("interrupted; to continue, repeat the command with --out and the folder of the run", INTERRUPTED)
    except BrokenPipeError:
        # The reader has closed the pipe, which is no error. Python flushes standard output once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None
    except ModuleNotFoundError as error:
        stop(f"{error}", FAILED)
    except FileNotFoundError as error:
        stop(str(error), NO_DATA)
    except ValueError as error:
        no_data = str(error).startswith("root must")
        hint = "; name it with --data, and add --download to fetch missing files" if no_data else ""
        stop(str(error) + (hint if str(error).endswith("got None") else ""), NO_DATA if no_data else WRONG)
    except (FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError) as error:
        stop(f"cannot read or write: {error}", WRONG)
    except OSError as error:
        stop(str(error), FAILED)
    except MemoryError as error:
        stop(f"out of memory: {error}; {_LESS_MEMORY}", FAILED)
    except Exception as error:
        if type(error).__name__ in ("NonFiniteLoss", "NonFiniteOutputs"):
            stop(str(error), DIVERGED)
        if isinstance(error, (typer.Exit, typer.Abort, typer.BadParameter)) or os.environ.get(DEBUG):
            raise
        if type(error).__name__ == "OutOfMemoryError":  # torch's, for a GPU; its further sentences are for developers
            stop(f"{'. '.join(str(error).split('. ')[:2])}; {_LESS_MEMORY}", FAILED)
        stop(f"unexpected {type(error).__name__}: {error} ({DEBUG}=1 shows the traceback)", FAILED)
