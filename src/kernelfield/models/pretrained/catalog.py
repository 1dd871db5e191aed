"""The folders of weight files, and the weights in them."""

from __future__ import annotations

import difflib
import os
from fnmatch import fnmatch
from pathlib import Path

from .weight_file import SUFFIX, read_description

__all__ = ["FOLDERS", "find_weight", "list_weights", "near_weights", "weight_folders"]

#: environment variable with further folders of weight files, separated as in PATH
FOLDERS = "KERNELFIELD_WEIGHTS"
#: similarity of two names, from 0 to 1, above which one is suggested for the other
NEAR = 0.6
_PACKAGE = Path(__file__).parents[2]


def weight_folders() -> list[Path]:
    """Return the folders to search for weight files, in order.

    These are the folders in the environment variable ``KERNELFIELD_WEIGHTS``, ``weights/`` inside the installed
    package, where a wheel puts it, and ``weights/`` of the repository if the package runs from a checkout.
    """
    own = [Path(part).expanduser() for part in os.environ.get(FOLDERS, "").split(os.pathsep) if part]
    checkout = [_PACKAGE.parents[1] / "weights"] if _PACKAGE.parent.name == "src" else []
    return [folder for folder in (*own, _PACKAGE / "weights", *checkout) if folder.is_dir()]


def list_weights(pattern: str = "*") -> list[str]:
    """Return the sorted names of weights.

    Args:
        pattern: pattern that the names MODEL.TAG match, with * and ? as in file names.

    >>> "flextcn_2.smnist" in list_weights("flextcn*")
    True
    """
    return sorted(name for name in _files() if fnmatch(name, pattern))


def find_weight(name: str) -> Path:
    """Return the file of a weight MODEL.TAG, or of a model's default weight.

    The default is the weight that is marked as such, or the first by name.

    >>> find_weight("flextcn_2.mnist")
    Traceback (most recent call last):
    ValueError: name must be one of list_models(pretrained=True), got 'flextcn_2.mnist'; the closest is 'flextcn_2...'
    """
    files = _files()
    if name in files:
        return files[name]
    of_model = sorted(known for known in files if known.partition(".")[0] == name)
    if of_model:
        marked = [known for known in of_model if read_description(files[known]).get("default") is True]
        return files[(marked or of_model)[0]]
    raise ValueError(f"name must be one of list_models(pretrained=True), got {name!r}{near_weights(name)}")


def near_weights(name: str) -> str:
    """Return a hint for an error message: weights of the same model, or those whose name, model or tag is similar.

    >>> near_weights("scifar")
    "; the closest is 'ccnn_4_140.scifar10'"
    """
    known = list(_files())
    same = [other for other in known if other.partition(".")[0] == name.partition(".")[0]]
    similar = {other: max(_similarity(name, part) for part in (other, *other.split(".", 1))) for other in same or known}
    best = sorted((other for other in similar if similar[other] >= NEAR), key=lambda other: (-similar[other], other))
    close = best[:3] or sorted(same)
    if close:
        return f"; the closest {'is' if len(close) == 1 else 'are'} {', '.join(map(repr, close))}"
    if not known:
        return f": there are no weight files; the environment variable {FOLDERS} can name folders that have some"
    return "; kernelfield list weights shows all"


def _similarity(name: str, other: str) -> float:
    return difflib.SequenceMatcher(None, name, other).ratio()


def _files() -> dict[str, Path]:
    """Return the weight files by name; earlier folders take precedence."""
    found: dict[str, Path] = {}
    for folder in weight_folders():
        for path in sorted(folder.glob(f"*.*{SUFFIX}")):
            if not path.name.startswith("."):
                found.setdefault(path.name.removesuffix(SUFFIX), path)
    return found
