"""Recipes: data, network and training settings of an experiment; each published experiment has one."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from .._arguments import checked, checked_fields
from .._checks import closest
from .._kinds import FINITE, POSITIVE, RATE, STRING, TEXT, Choice, Int, Kind, ListOf, shown
from .._object_kinds import DICT, Instance, MappingOf
from ..data.shape import DataShape  # noqa: TC001 (its fields' types are read at run time)
from .recipe_files import bundled_names, family_rows, find_mapping, parse_value, read_mapping, write_yaml
from .settings import MEASURED, Optimizer, Schedule, Training, with_section

__all__ = [
    "Optimizer",
    "Recipe",
    "Schedule",
    "Training",
    "find_recipe",
    "list_recipes",
    "read_recipe",
    "recipe_from",
    "recipe_titles",
    "with_settings",
]

#: further tests of a trained network that take one number or several, and the kind of number
NUMBERS: dict[str, Kind] = {"step": POSITIVE, "drop": RATE, "turn": FINITE, "speed": POSITIVE}
#: all further tests: one number or several, or options of the loader by name
TESTS: dict[str, Kind] = {name: kind | ListOf(kind, least=0) for name, kind in NUMBERS.items()}
TESTS["data"] = MappingOf(DICT)


@checked_fields(
    name=STRING,
    title=STRING,
    chapter=Int(0),
    optimizer=Instance("kernelfield.experiments.recipe.Optimizer"),
    schedule=Instance("kernelfield.experiments.recipe.Schedule"),
    training=Instance("kernelfield.experiments.recipe.Training"),
    metric=Choice("", *MEASURED),
    notes=STRING,
    given=Instance("builtins.frozenset"),
)
@dataclass(frozen=True)
class Recipe:
    """An experiment: its data, network and training settings.

    Args:
        name: name of the recipe; by default that of its file without the suffix.
        title: one line, which identifies the row of the published table.
        chapter: chapter of the thesis; 0 for none.
        data: name of the data set and options of its loader.
        shape: channels, size and task of the data; by default those that the data set declares.
        model: name of the network, and arguments that replace its defaults.
        optimizer: optimiser and its settings.
        schedule: learning-rate schedule.
        training: length, batch size, precision and similar settings.
        regularizers: weights by name, "kernel_l2", "kernel_norm", "aliasing", "augerino", "monotonicity", "complexity",
            "wavelet"; or ``{weight: …}`` with further arguments.
        metric: metric that selects the best epoch and is reported; by default the main metric of the task.
        published: published numbers by metric, in percent where the metric is a share.
        test: further tests of the trained network: lists of ``step``, ``drop``, ``turn`` and ``speed``; and ``data``,
            other options of the loader by name of the test, for example for another resolution.
        notes: differences from the publication.
        given: settings that the user gave, such as "optimizer.lr"; they must have an effect. A recipe file does not
            hold this list.
    """

    name: str
    data: dict[str, Any]
    shape: DataShape
    model: dict[str, Any]
    title: str = ""
    chapter: int = 0
    optimizer: Optimizer = field(default_factory=Optimizer)
    schedule: Schedule = field(default_factory=Schedule)
    training: Training = field(default_factory=Training)
    regularizers: dict[str, Any] = field(default_factory=dict)
    metric: str = ""
    published: dict[str, Any] = field(default_factory=dict)
    test: dict[str, Any] = field(default_factory=dict)
    notes: str = ""
    given: frozenset[str] = field(default=frozenset(), compare=False, repr=False, metadata={"stored": False})

    def __post_init__(self) -> None:
        # The name is also the name of a folder under runs/ and of a file under results/.
        plain = self.name not in ("", ".", "..") and len(self.name.encode("utf-8", "replace")) <= 200
        if not plain or any(c in "/\\" or not c.isprintable() for c in self.name):
            raise ValueError(f"name must be the name of a file, without folders, got {self.name[:80]!r}")

    def to_dict(self) -> dict[str, Any]:
        """Return nested mappings of plain values, with all defaults."""
        return {key: value for key, value in dataclasses.asdict(self).items() if key != "given"}

    def to_yaml(self) -> str:
        """Return the recipe as YAML."""
        return write_yaml(self.to_dict())


@checked(where=TEXT)
def recipe_from(mapping: dict[str, Any], where: str = "recipe") -> Recipe:
    """Return the recipe that nested mappings describe.

    Args:
        mapping: sections and their values.
        where: name of the recipe in error messages.

    >>> recipe_from({"name": "a", "data": {"name": "digits"}, "model": {"name": "ccnn_4_140"}, "trainign": {}})
    Traceback (most recent call last):
    ValueError: recipe: 'trainign' is not a key of a recipe; the closest is 'training'
    """
    if "shape" not in mapping:
        shape = _declared_shape(mapping.get("data"), where)
        if shape is None:
            name = mapping["data"]["name"]
            raise ValueError(f"{where}: shape must be given, because it depends on the files of data set {name!r}")
        mapping = {**mapping, "shape": shape}
    recipe = _build(Recipe, mapping, where, "")
    for section in ("data", "model"):
        if not isinstance(getattr(recipe, section).get("name"), str):
            raise ValueError(f"{where}: {section}.name must be given")  # noqa: TRY004
    for kind, values in recipe.test.items():
        if kind not in TESTS:
            raise ValueError(f"{where}: {kind!r} is not a key of test{closest(str(kind), TESTS)}")
        if not TESTS[kind].accepts(values, {}):
            raise ValueError(f"{where}: test.{kind} must be {TESTS[kind].text()}, got {shown(values)}")
    return recipe


@checked()
def read_recipe(path: str | Path) -> Recipe:
    """Return the recipe in a file; without a name it gets that of the file. All settings in it count as given."""
    path = Path(path)
    mapping = read_mapping(path)
    return dataclasses.replace(recipe_from({"name": path.stem, **mapping}, path.name), given=_leaves(mapping))


@checked()
def find_recipe(name: str | Path) -> Recipe:
    """Return a recipe by its path, or a bundled recipe by its name.

    >>> find_recipe("digits").data["name"]
    'digits'
    >>> find_recipe("digit")
    Traceback (most recent call last):
    ValueError: recipe must be an existing path or one of list_recipes() (kernelfield list recipes), got 'digit';
    the closest is 'digits'
    """
    path = Path(name)
    is_file = path.suffix in (".yaml", ".yml")
    if is_file and path.is_file():
        return read_recipe(path)
    mapping = find_mapping(path.stem if is_file else str(name)) if path.parent == Path() else None
    if mapping is not None:
        known = path.stem if is_file else str(name)
        return recipe_from({"name": known, **mapping}, known)
    wanted = "recipe must be an existing path or one of list_recipes() (kernelfield list recipes)"
    if (path.suffix or path.name != str(name)) and not path.exists():
        raise FileNotFoundError(f"{wanted}, got {name}, which does not exist")
    raise ValueError(f"{wanted}, got {str(name)!r}{closest(str(name), list_recipes())}")


@checked(pattern=TEXT)
def list_recipes(pattern: str = "*") -> list[str]:
    """Return the names of the bundled recipes, sorted.

    >>> "digits" in list_recipes()
    True
    """
    return sorted(name for name in bundled_names() if fnmatch(name, pattern))


@checked(pattern=TEXT)
def recipe_titles(pattern: str = "*") -> dict[str, str]:
    """Return the titles of the bundled recipes by name, sorted; each file is parsed once.

    >>> recipe_titles("digits")
    {'digits': 'Bundled digits read as a sequence, a small CCNN'}
    """
    files = {path: None for name, path in bundled_names().items() if fnmatch(name, pattern)}
    titles = {name: row.get("title", "") for path in files for name, row in family_rows(path).items()}
    return {name: titles[name] for name in sorted(titles) if fnmatch(name, pattern)}


@checked(settings=ListOf(TEXT, least=0) | DICT)
def with_settings(recipe: Recipe, settings: list[str] | dict[str, Any]) -> Recipe:
    """Return ``recipe`` with values replaced by settings ``a.b=c``, where c is parsed as in a recipe file.

    Settings of optimizer, schedule and training may omit the section, as in ``lr=0.01``, if it is the only one.

    Another optimiser or schedule does not inherit settings that it does not have, such as the milestones of "steps".
    With fewer epochs, a warm-up or milestones that would not end within the training are shortened in proportion.

    >>> with_settings(find_recipe("digits"), ["training.epochs=3"]).training.epochs
    3
    >>> with_settings(find_recipe("ch03-smnist-ccnn-4-140"), ["training.epochs=21"]).schedule.warmup
    10.0
    >>> with_settings(find_recipe("ch03-smnist-ccnn-4-140"), ["training.epochs=7"]).schedule.warmup  # 10 of 210
    0.3333
    >>> with_settings(find_recipe("digits"), ["training.epoch=3"])
    Traceback (most recent call last):
    ValueError: --set training.epoch=3: 'epoch' is not a key of training; the closest is 'epochs'
    """
    if isinstance(settings, dict):
        pairs = [(with_section(key), value, f"{key}={value}") for key, value in settings.items()]
    else:
        pairs = []
        for setting in settings:
            key, equals, value = setting.partition("=")
            if not equals:
                raise ValueError(f"--set must have the form a.b=c, such as training.epochs=50, got {setting!r}")
            pairs.append((with_section(key.strip()), parse_value(value), setting))
    if not pairs:
        return recipe
    where = f"--set {' '.join(setting for *_, setting in pairs)}"
    mapping = recipe.to_dict()
    of_data = [pair for pair in pairs if pair[0].startswith("data.")]
    declared = bool(of_data) and mapping["shape"] == _declared_shape(recipe.data, where)
    for key, value, setting in of_data:
        _assign(mapping, key, value, setting)
    if declared:
        # With other options, the data set may declare another shape.
        mapping["shape"] = _declared_shape(mapping["data"], where) or mapping["shape"]
    for section, kind in (("optimizer", Optimizer), ("schedule", Schedule)):
        name = next((value for key, value, _ in reversed(pairs) if key == f"{section}.name"), None)
        if name is not None and name != mapping[section]["name"]:
            for setting, owners in kind.owners.items():
                if name not in owners:
                    mapping[section].pop(setting, None)
    for key, value, setting in pairs:
        if not key.startswith("data."):
            _assign(mapping, key, value, setting)
    _shorten_schedule(mapping, recipe, {key for key, *_ in pairs})
    # Checked after all are set: some settings are valid only together, such as a schedule and its milestones.
    changed = recipe_from(mapping, where)
    # Settings of a recipe for another network are inherited, and need not fit this one.
    kept = recipe.given if changed.model["name"] == recipe.model["name"] else frozenset()
    return dataclasses.replace(changed, given=kept | {key for key, *_ in pairs})


def _leaves(mapping: dict[str, Any]) -> frozenset[str]:
    """Return the names of all settings in the sections of a recipe, as "section.setting"."""
    sections = {key: value for key, value in mapping.items() if isinstance(value, dict)}
    return frozenset(f"{section}.{key}" for section, values in sections.items() for key in values)


def _shorten_schedule(mapping: dict[str, Any], recipe: Recipe, given: set[str]) -> None:
    """Scale the warm-up and milestones of a recipe that do not end within its new, smaller number of epochs.

    A warm-up must also end before the first milestone.

    Otherwise the learning rate would not reach its value, or would never be lowered, and nothing would say so.
    """
    if not all(isinstance(mapping[section], dict) for section in ("training", "schedule")):
        return  # recipe_from refuses them
    epochs, before = mapping["training"].get("epochs"), recipe.training.epochs
    if not isinstance(epochs, int) or not 0 < epochs < before:
        return
    scaled = recipe.schedule.scaled(epochs / before)
    schedule, ends = mapping["schedule"], [epochs]
    kept = schedule.get("milestones") == recipe.schedule.milestones
    if kept and any(epoch >= epochs for epoch in recipe.schedule.milestones):
        schedule["milestones"] = [round(epoch, 4) for epoch in scaled.milestones]
        ends += schedule["milestones"]
    if "schedule.warmup" not in given and recipe.schedule.warmup >= min(ends):
        schedule["warmup"] = round(scaled.warmup, 4)


def _assign(mapping: dict[str, Any], key: str, value: Any, setting: str) -> None:
    """Set ``a.b=c`` in nested mappings; only sections below the first level may be new."""
    inner: Any = mapping
    *path, last = key.split(".")
    for part in path:
        if not isinstance(inner.get(part), dict):
            if part in inner or inner is mapping:
                sections = [k for k, v in inner.items() if isinstance(v, dict)]
                hint = closest(part, sections) or f"; sections are {', '.join(sections)}"
                raise ValueError(f"--set {setting}: {part!r} is not a section of a recipe{hint}")
            inner[part] = {}
        inner = inner[part]
    inner[last] = value


#: keys of section ``data`` that :func:`kernelfield.experiments.datasets.recipe_data` handles for every loader
GENERAL = {
    "name": "name of the data set.",
    "drop": "share of positions, chosen at random, that are missing in training and test; another channel marks the "
    "observed ones (chapter 2, section 5).",
    "augment": "whether to augment series and sounds in training: true, or a mapping of shift, speed, gain, noise and "
    "hide; images and sounds as mel bands have an option of this name of their own.",
    "step": "sampling step of all splits in steps of the network, for a network that was trained at another "
    "resolution: fine-tuning at twice the resolution has 0.5 and the old model.size.",
    "subsample": "keep every n-th position of sequences in all splits; the training step is then n times longer.",
    "share": "share of the training samples to keep, the same share of every class.",
}


def _declared_shape(data: Any, where: str) -> dict[str, Any] | None:
    """Return the shape that the data set of section ``data`` declares, or None."""
    from ..data.registry import data_shape  # noqa: PLC0415

    if not isinstance(data, dict) or not isinstance(data.get("name"), str):
        raise ValueError(f"{where}: data.name must be given")  # noqa: TRY004
    options = {key: value for key, value in data.items() if key not in GENERAL}
    try:
        shape = data_shape(data["name"], **options)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: data: {error}") from None
    if shape is None:
        return None
    # If positions are dropped, one more channel marks the observed ones.
    drop, every = data.get("drop") is not None, data.get("subsample") or 1
    size = [-(-n // every) for n in shape.size] if Int(1).accepts(every, {}) else shape.size
    return dataclasses.asdict(dataclasses.replace(shape, in_channels=shape.in_channels + drop, size=size))


@functools.cache
def _type_hints(kind: type[Any]) -> dict[str, Any]:
    return get_type_hints(kind)


def _build(kind: type[Any], mapping: Any, where: str, path: str) -> Any:
    if not isinstance(mapping, dict):
        raise ValueError(f"{where}: {path or 'a recipe'} must be a mapping, got {mapping!r}")  # noqa: TRY004
    hints = _type_hints(kind)  # type: ignore[arg-type]
    known = {f.name: f for f in dataclasses.fields(kind) if f.metadata.get("stored", True)}
    for key in mapping:
        if key not in known:
            raise ValueError(f"{where}: {key!r} is not a key of {path or 'a recipe'}{closest(str(key), known)}")
    values = {}
    for name, entry in known.items():
        full = f"{path}.{name}" if path else name
        if name in mapping:
            value = mapping[name]
            values[name] = value if type(value) is hints[name] else _value(hints[name], value, where, full)
        elif entry.default is dataclasses.MISSING and entry.default_factory is dataclasses.MISSING:
            raise ValueError(f"{where}: {full} must be given")
    choices: dict[str, tuple[str, ...]] = getattr(kind, "choices", {})
    for name, allowed in choices.items():
        if name in values and values[name] not in allowed:
            hint = closest(str(values[name]), allowed)
            listed = ", ".join(allowed)
            raise ValueError(f"{where}: {path}.{name} must be one of {listed}, got {values[name]!r}{hint}")
    try:
        return kind(**values)
    except (TypeError, ValueError) as error:
        text = str(error) if not path or str(error).startswith(f"{path}.") else f"{path}.{error}"
        raise ValueError(f"{where}: {text}") from None


def _value(hint: Any, value: Any, where: str, path: str) -> Any:
    if dataclasses.is_dataclass(hint):
        return _build(hint, value, where, path)  # type: ignore[arg-type]
    options = (get_args(hint) if get_origin(hint) not in (list, dict) else ()) or (hint,)
    if type(value) in options:
        return value
    for option in options:
        converted, fits = _convert(option, value)
        if fits:
            return converted
    noun = " or ".join(_NOUNS.get(get_origin(o) or o, str(o)) for o in options)
    raise ValueError(f"{where}: {path} must be {noun}, got {value!r}")


_NOUNS = {
    int: "an int",
    float: "a number",
    str: "a string",
    bool: "true or false",
    type(None): "null",
    list: "a list",
    dict: "a mapping",
}


def _convert(kind: Any, value: Any) -> tuple[Any, bool]:
    origin = get_origin(kind) or kind
    if origin is float:
        fits = isinstance(value, (int, float)) and not isinstance(value, bool)
        return (float(value), True) if fits else (None, False)
    if origin is int:
        return value, isinstance(value, int) and not isinstance(value, bool)
    if origin is str:
        # 32 and "32" are the same precision.
        fits = isinstance(value, (str, int)) and not isinstance(value, bool)
        return str(value), fits
    if origin is list:
        item = get_args(kind)[0]
        items = [_convert(item, v) for v in value] if isinstance(value, (list, tuple)) else [(None, False)]
        return [v for v, _ in items], all(fits for _, fits in items)
    return value, isinstance(value, origin)
