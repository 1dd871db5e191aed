"""Networks in folders, in the layout of Hugging Face's hub: config.json and model.safetensors."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..._arguments import checked
from ..._files import write_bytes, write_text
from ..._kinds import TEXT, Int
from ..._object_kinds import Instance
from ..._version import __version__
from .load import build_described
from .weight_file import description_digest, import_safetensors, tensor_digest

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

__all__ = ["CONFIG", "TENSORS", "from_pretrained", "save_pretrained"]

CONFIG, TENSORS = "config.json", "model.safetensors"
#: entries of a weight's description that stay with a network when it is saved
_KEPT = ("task", "classes", "preprocessing", "layout", "rate", "started_from")
#: entries that stay only if the tensors are still those of the weight
_MEASURED = ("name", "title", "notes", "recipe", "score", "training")


@checked(network=Instance("torch.nn.Module"), repo_id=TEXT | None)
def save_pretrained(
    network: nn.Module, folder: str | Path, *, push_to_hub: bool = False, repo_id: str | None = None, **options: Any
) -> Path:
    """Write a network to a folder, as ``config.json`` and ``model.safetensors``, and return the folder.

    The network must come from :func:`kernelfield.create_model` or :func:`from_pretrained`, which record its name and
    arguments. Preprocessing, classes and score of a pretrained network are written too. A network whose weights have
    changed, as by fine-tuning, has no score; ``started_from`` in its configuration names the weight.

    Args:
        network: the network.
        folder: folder to write; it is created if needed.
        push_to_hub: whether to upload the folder to the hub, which needs the extra ``hub`` and a network connection.
        repo_id: repository on the hub, "owner/name"; by default the name of the folder.
        options: further arguments of ``huggingface_hub.HfApi.upload_folder``. By default it uploads only the two files.

    >>> import tempfile, torch
    >>> from kernelfield import create_model
    >>> net = create_model("p4cnn", channels=4).eval()
    >>> folder = save_pretrained(net, tempfile.mkdtemp())
    >>> sorted(path.name for path in folder.iterdir())
    ['config.json', 'model.safetensors']
    >>> x = torch.randn(1, 1, 28, 28)
    >>> torch.equal(from_pretrained(folder).eval()(x), net(x))
    True
    """
    given = [*options, *(["repo_id"] if repo_id is not None else [])]
    if given and not push_to_hub:
        raise TypeError(f"push_to_hub must be True with {given[0]}, which is an option of an upload, got False")
    if push_to_hub:
        hub = _import_hub("push_to_hub=True")
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"folder must be a folder or not exist yet, got the file {folder}")
    tensors = {name: t.detach().cpu().contiguous().clone() for name, t in network.state_dict().items()}
    config = {**_config_of(network, tensors), "sha256": tensor_digest(tensors)}
    folder.mkdir(parents=True, exist_ok=True)
    write_bytes(folder / TENSORS, import_safetensors().torch.save(tensors, {"format": "pt"}))
    write_text(folder / CONFIG, json.dumps(config, indent=2, sort_keys=True, allow_nan=False) + "\n")
    if push_to_hub:
        api = hub.HfApi()
        made = _reach(lambda: api.create_repo(repo_id or folder.name, exist_ok=True), repo_id or folder.name)
        files = {"allow_patterns": [CONFIG, TENSORS], **options}  # the folder may hold other files
        _reach(lambda: api.upload_folder(folder_path=str(folder), repo_id=made.repo_id, **files), made.repo_id)
    return folder


@checked(path=TEXT | Instance("pathlib.Path"), num_classes=Int(1) | None, revision=TEXT | None)
def from_pretrained(
    path: str | Path, *, num_classes: int | None = None, revision: str | None = None, **overrides: Any
) -> nn.Module:
    """Return the network in a folder that :func:`save_pretrained` wrote, or in a repository of the hub.

    Code in the folder is never executed. The network is in training mode.

    Args:
        path: folder with ``config.json`` and ``model.safetensors``, or a repository of the hub, "owner/name". A
            repository needs the extra ``hub``, and a network connection unless it was downloaded before.
        num_classes: another number of classes; all tensors except the classifier's are then loaded.
        revision: branch, tag or commit of the repository.
        overrides: arguments of the network that replace the stored ones.

    >>> import tempfile
    >>> from kernelfield import create_model
    >>> folder = save_pretrained(create_model("p4cnn", channels=4), tempfile.mkdtemp())
    >>> from_pretrained(folder, num_classes=3).num_classes
    3
    """
    folder = Path(path).expanduser()
    if not folder.is_dir():
        folder = _download(str(path), revision)
    config, tensors = _read(folder)
    return build_described(config, tensors, folder / TENSORS, num_classes=num_classes, overrides=overrides)


def _config_of(network: nn.Module, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Return the configuration that rebuilds the network, with the metadata of its weights."""
    made = getattr(network, "model_config", None)
    if made is None:
        raise ValueError(
            f"network must come from create_model or from_pretrained, got a {type(network).__name__} built by its "
            "class; kernelfield.models.register gives it a name"
        )
    if made["omitted"]:
        *_, last = made["omitted"]
        raise ValueError(
            f"network must be created with arguments that JSON can hold, got {last}; fields, masks and groups can be "
            "given by name, such as 'SIREN(omega_0=30)'"
        )
    from ..registry import options_of  # noqa: PLC0415

    arguments = dict(made["arguments"])
    known = getattr(network, "pretrained_config", {})
    classes = list(known.get("classes", []))
    try:
        count = network.num_classes
    except (AttributeError, TypeError):  # another network, or one without a classifier
        count = None
    if count == 0:
        raise ValueError("network must have a classifier to be saved, got one after reset_classifier(0)")
    takes = options_of(made["model"])
    if count is not None and count != {**takes, **arguments}.get("out_channels", count):
        arguments["out_channels"] = count
    if classes and len(classes) != count:
        classes = []
    kept = {key: known[key] for key in _KEPT if key in known}
    if known.get("sha256") in (tensor_digest(tensors), description_digest(known, tensors)):
        kept |= {key: known[key] for key in _MEASURED if key in known}
    elif "name" in known:
        kept["started_from"] = known["name"]
    return {**kept, "classes": classes, "model": made["model"], "arguments": arguments, "version": __version__}


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    for name in (CONFIG, TENSORS):
        if not (folder / name).is_file():
            raise FileNotFoundError(f"path must hold {CONFIG} and {TENSORS}, got {folder} without {name}")
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{folder / CONFIG} is damaged: {error}") from error
    entries = config if isinstance(config, dict) else {}
    if not isinstance(entries.get("model"), str) or not isinstance(entries.get("arguments"), dict):
        raise ValueError(f"{folder / CONFIG} must name a model of kernelfield, as 'model', and its 'arguments'")  # noqa: TRY004
    module = import_safetensors()
    try:
        tensors = module.torch.load_file(folder / TENSORS)
    except module.SafetensorError as error:
        raise ValueError(f"{folder / TENSORS} is damaged: {error}") from error
    if config.get("sha256") not in (None, tensor_digest(tensors)):
        raise ValueError(f"{folder / TENSORS} is damaged: it does not match the checksum in {CONFIG}")
    return config, tensors


def _download(name: str, revision: str | None) -> Path:
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name) or name.startswith("."):
        raise FileNotFoundError(
            f"path must be a folder, or a repository of the hub such as 'owner/name', got {name!r}, which is neither"
        )
    hub = _import_hub(f"path={name!r}, which is not a local folder,")
    found = _reach(
        lambda: hub.snapshot_download(repo_id=name, revision=revision, allow_patterns=[CONFIG, TENSORS]), name
    )
    return Path(found)


def _import_hub(what: str) -> Any:
    try:
        return importlib.import_module("huggingface_hub")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{what} needs huggingface_hub, which is not installed: pip install 'kernelfield[hub]'",
            name="huggingface_hub",
        ) from error


def _reach(call: Callable[[], Any], name: str) -> Any:
    """Call a function of the hub; if it fails, raise an error that names the repository."""
    try:
        return call()
    except Exception as error:  # the hub's errors have no common base class
        raise OSError(f"the repository {name!r} of the hub cannot be reached: {error}") from error
