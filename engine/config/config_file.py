"""`--config FILE`: what a file says of an experiment, as the overrides that one would type for it.

The file is a run's own config.yaml, or written by hand, with keys as on the command line, dotted or nested:

    sync: {name: ssp, staleness: 3}     # a group's choice and its keys
    model: cnn                          # a choice alone
    optimizer: {lr: 0.1}                # keys of the usual choice
    hardware.workers: 4
    data: {_target_: mine.houses.Houses, size: 400}     # a class of one's own, and its knobs

A run's choice that there is no file of is made from the class that the run names, if its module is allowed.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...conf.errors import ConfigError
from ...conf.grammar import as_override
from ...conf.groups import BY_NAME, CALLBACKS
from ...tracking.files import MOST_COMPOSED, UnusableFileError, parse_yaml, read_text
from ...tracking.redact import HIDDEN, hide_in_urls
from ...tracking.visible import visible
from .compose import compose, receivers_typed
from .described import as_described, class_of
from .experiment import STORED, Experiment, from_plain
from .group_overrides import GROUPS
from .overrides import overrides_of, usual_choices
from .resumed import hidden_keys
from .typed import after, choices_in, keys_in

TRACKERS = {"mlflow": "MLflow", "wandb": "W&B"}  # that send results to a server
_EXPONENT = re.compile(r"[-+]?[0-9]+(?:\.[0-9]+)?[eE][-+]?[0-9]+")


@dataclass(frozen=True)
class Merged:
    """The settings of a file, and the overrides typed beside it."""

    file: Path
    told: list[str]
    given: list[str]
    overrides: list[str]  # both: what is given wins
    composed: Experiment | None = None  # the whole
    beside: dict[str, str] = field(default_factory=dict)  # keys of the file that are not the configuration's

    def check_receivers(self, config_dir: Path | None) -> None:
        """Raises `ConfigError` where the file alone says who receives the results, or what runs: see receivers.py."""
        assert self.composed is not None
        receivers_typed(f"--config {self.file}", self.composed, self.given, config_dir)

    def tracked(self) -> str:
        """Returns a note on the settings of tracking that only the file makes."""
        own = sorted(keys_in(self.told) - keys_in(self.given))
        own = [key.removeprefix("tracking.") for key in own if key.startswith("tracking")]
        tracking = {} if self.composed is None else self.composed.tracking
        where = next((label for key, label in TRACKERS.items() if tracking.get(key)), None)
        if not own or where is None or tracking.get("mode") == "offline":
            return ""
        said = ", ".join(f"{key}={visible(hide_in_urls(str(tracking[key])))}" for key in own if tracking.get(key))
        return f"--config {self.file}: the file sends the results to {where}{f' ({said})' if said else ''}"

    @contextmanager
    def blamed(self) -> Iterator[None]:
        """A `ConfigError` about a key that the file set, and nothing beside it, names the file."""
        try:
            yield
        except ConfigError as error:
            named = re.match(r"[+~]*([\w./@-]+)", str(error))
            key = named[1].removesuffix("._target_") if named else None
            if key in keys_in(self.told) and key not in keys_in(self.given):
                raise ConfigError(f"--config {self.file}: {error}") from None
            raise


def with_file(file: Path, overrides: list[str], config_dir: Path | None = None, beside: Collection[str] = ()) -> Merged:
    """The file and then `overrides`: where they make another choice, what the file says of its keys goes.

    Raises `ConfigError`.

    Args:
        beside: the caller's own keys. The file may set them to plain values.
    """
    if preset := choices_in(overrides).get("experiment"):
        raise ConfigError(
            f"experiment={preset}: is a preset, and so is --config {file}; give what shall differ by itself"
        )
    try:
        plain = _read(file)
        own = {key: plain.pop(key) for key in beside if key in plain and not isinstance(plain[key], dict)}
        told = _told(plain, config_dir) if plain else []
        merged = Merged(file, told, overrides, after(told, overrides, usual_choices()))
    except UnusableFileError as error:
        raise ConfigError(f"--config {file}: {error}") from None
    with merged.blamed():
        composed = compose(merged.overrides, config_dir)
    for key in hidden_keys(composed.model_dump()):
        raise ConfigError(
            f"--config {file}: {key}={HIDDEN} stands for a secret, which is not stored; give it: {key}=..."
        )
    return replace(merged, composed=composed, beside={key: str(value) for key, value in own.items()})


def _read(file: Path) -> dict[Any, Any]:
    """Raises `UnusableFileError` without the file's name."""
    try:
        plain = parse_yaml(read_text(file), MOST_COMPOSED)
    except OSError as error:
        raise UnusableFileError(f"cannot be read ({error.strerror})") from None
    if not isinstance(plain, dict) or not plain:
        raise UnusableFileError("must be a YAML mapping of keys to values, such as `sync: ssp`")
    return plain


def _told(plain: dict[Any, Any], config_dir: Path | None) -> list[str]:
    """Raises `ConfigError`, or `UnusableFileError` without the file's name."""
    try:
        if not any(isinstance(value, dict) and value.keys() == STORED for value in plain.values()):
            told = list(_typed(plain))
            keys = Counter(text.partition("=")[0] for text in told)
            if twice := [key for key, count in keys.items() if count > 1]:
                raise UnusableFileError(f"sets {twice[0]} {keys[twice[0]]} times. Keep one of them")
            choices_in(told)  # says what is wrong with their grammar
            return told
        told = overrides_of(plain, config_dir)
        _check_alike(from_plain(plain), compose(told, config_dir))
    except ConfigError as error:
        raise UnusableFileError(str(error)) from None
    except (KeyError, TypeError, AttributeError) as error:
        raise UnusableFileError(f"is not the configuration of a run: {error} is missing, or no mapping") from None
    return told


def _check_alike(stored: Experiment, composed: Experiment) -> None:
    """Checks that the composed experiment equals the run's: its choices may have had other classes, or keys, where it
    was made.
    """
    was, now = (dict(_leaves(each.model_dump())) for each in (stored, composed))
    for key in [key for key in {**was, **now} if key != "name" and was.get(key, "-") != now.get(key, "-")]:
        raise ConfigError(f"{key}={was.get(key, '-')}: the choices that there are here make it {now.get(key, '-')}")


def _typed(plain: dict[Any, Any], prefix: str = "") -> Iterator[str]:
    """Yields overrides of a handwritten file, in its order, with a group's choice before its keys."""
    for name, value in plain.items():
        key = f"{prefix}{name}"
        if not isinstance(name, str) or not name or set(name) & set("= \t\n"):
            raise ConfigError(f"{key!r}: is no key; keys are those of the command line, such as optimizer.lr")
        if key == "experiment" and value is None:
            continue
        if key in GROUPS and not isinstance(value, str | dict):
            raise UnusableFileError(
                f"{key}={value}: must be the name of a choice, or a mapping of its keys with its `name`"
            )
        if not isinstance(value, dict):
            number = isinstance(value, str) and _EXPONENT.fullmatch(value)  # which YAML 1.1 takes for text
            yield f"{key}={value if number else as_override(value)}"
            continue
        if "_target_" in value and (key in BY_NAME or prefix == f"{CALLBACKS.name}."):
            knobs = {str(knob): each for knob, each in value.items() if knob not in ("_target_", "name")}
            target = str(value["_target_"])
            yield from as_described(key, str(value.get("name", class_of(target))), target, knobs)
            continue
        if key in GROUPS and "name" in value:
            yield f"{key}={as_override(value['name'])}"
        yield from _typed({k: v for k, v in value.items() if key not in GROUPS or k != "name"}, f"{key}.")


def _leaves(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if not isinstance(node, dict) or not node:
        yield path, node
        return
    for key, value in node.items():
        yield from _leaves(value, f"{path}.{key}".removeprefix("."))
