"""The ways to lay a model out: each strategy and its knobs, each sync mode, each choice of what these are given."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from ..conf.errors import ConfigError
from ..conf.grammar import as_override
from ..conf.groups import ConfigGroup
from ..engine.config.experiment import CONF, Choice, shipped
from ..engine.config.targets import build, load_class
from ..engine.features import injected, pairs
from ..strategies import Strategy, Sync
from .knobs import variants

SERIAL_SYNC, PLAIN = "bsp", "data_parallel"  # with which all strategies, and all sync modes, are tried
# groups whose choices are wrong on purpose, or noisy, or of federated rounds alone, or of serial training, too
NO_WAYS = ("attack", "client", "clip", "privacy", "secure", "server")


@dataclass(frozen=True)
class VerifiedLayout:
    """`overrides`: as they are typed. `replicas`: of how many, at once."""

    overrides: tuple[str, ...]
    replicas: int


def ways(
    strategies: Sequence[Choice],
    modes: Sequence[Choice],
    allowed: tuple[str, ...],
    most: int,
    only: list[str],
    every: bool,
) -> Iterator[VerifiedLayout]:
    """`most`: workers. `only`: names of strategies, sync modes or groups, or overrides; [] for all.

    `every`: all combinations of a strategy's knobs, and all sync modes with all strategies.
    """
    counts = [count for count in (1, 2, 4, 8, 16) if count <= most]
    chosen = [way for way in _all(strategies, modes, allowed, every) if _is_asked_for(way, only, every)]
    for way in chosen:
        # knobs are tried where there is somebody to agree with, too; what is refused there, alone
        for replicas in counts if every or len(way) == 2 else counts[:2]:
            yield VerifiedLayout(way, replicas)


def _is_asked_for(way: tuple[str, ...], only: list[str], every: bool = False) -> bool:
    return not only or any(_has(way, word, every) for word in only)


def _has(way: tuple[str, ...], word: str, every: bool) -> bool:
    """Returns whether the word selects this layout. Without `every`, the default sync mode and strategy select only
    layouts that change nothing else.
    """
    typed = [override.replace("'", "") for override in way]  # a text such as '1f1b' is typed without quotes
    words = {each for override in typed for each in (override, *override.split("="), override.partition(".")[0])}
    if word.replace("'", "") not in words:
        return False
    usual = {"sync": SERIAL_SYNC, "strategy": PLAIN}
    for group, other in (("sync", "strategy"), ("strategy", "sync")):
        if not every and word in (usual[group], f"{group}={usual[group]}"):
            return f"{other}={usual[other]}" in way and all(
                text.partition("=")[0].startswith(group) for text in way[2:]
            )
    return True


def check_only(only: Sequence[str], strategies: Sequence[Choice], modes: Sequence[Choice]) -> None:
    """Raises `ConfigError`."""
    groups = [*(group.name for group in injected.injected_groups()), "precision"]
    names = [*(choice.name for choice in (*strategies, *modes)), *groups]
    names += [name for group in groups for name in _choices(group)]
    for word in only:
        key, _, value = word.partition("=")
        if value and key.partition(".")[0] not in ("strategy", "sync", *groups):
            raise ConfigError(
                f"--only {word}: must be of strategy, sync, {', '.join(groups)}, such as sync=ssp. Any other choice is "
                f"an override: paceline verify {word} --only sync={SERIAL_SYNC}"
            )
        if not value and word not in names:
            from ..tracking.text import did_you_mean

            hint = did_you_mean(word, names) or "see: paceline list strategy, paceline list sync"
            raise ConfigError(f"--only {word}: is no strategy, sync mode or group; {hint}")


def check_found(only: Sequence[str], found: Sequence[VerifiedLayout]) -> None:
    """Raises `ConfigError` for a word of `only` that none of the ways has: its report would be empty."""
    for word in only:
        if not any(_is_asked_for(way.overrides, [word]) for way in found):
            raise ConfigError(
                f"--only {word}: none of the ways has it; choices of other groups are tried where sync={SERIAL_SYNC} "
                "has a use for them, and knobs at values of their own; leave it out"
            )


def _all(
    strategies: Sequence[Choice], modes: Sequence[Choice], allowed: tuple[str, ...], every: bool
) -> Iterator[tuple[str, ...]]:
    for strategy in strategies:
        for mode in modes if every else [mode for mode in modes if mode.name == SERIAL_SYNC]:
            both = f"strategy={strategy.name}", f"sync={mode.name}"
            yield from (both + _typed("strategy", change) for change in _changes("strategy", strategy, allowed, every))
    for mode in modes:
        both = f"strategy={PLAIN}", f"sync={mode.name}"
        for change in _changes("sync", mode, allowed, every) if every or _is_serial(mode, allowed) else [{}]:
            if change or mode.name != SERIAL_SYNC:
                yield both + _typed("sync", change)
    for strategy in strategies:
        if strategy.name == PLAIN or _rounds_weights(strategy, allowed):
            yield f"strategy={strategy.name}", f"sync={SERIAL_SYNC}", "precision=bf16"
    [usual] = [mode for mode in modes if mode.name == SERIAL_SYNC]
    [plain] = pairs.pairs([shipped("strategy", PLAIN)], [usual], allowed)
    taken = plain.takes
    for group in _given():
        for name in taken.get(group.name, []):
            yield f"strategy={PLAIN}", f"sync={SERIAL_SYNC}", f"{group.name}={name}"


def _given() -> list[ConfigGroup]:
    return [group for group in injected.injected_groups() if group.name not in NO_WAYS]


OWN = {  # keys that each way sets for itself -> what to give instead
    "strategy": "--only",
    "sync": "--only",
    "hardware.workers": "--workers",
    "steps": "--steps",
}


def check_keys(overrides: Sequence[str]) -> None:
    """Raises `ConfigError` for what is not the user's to set here."""
    for text in overrides:
        key = text.lstrip("+~").partition("=")[0]
        group = key.partition(".")[0]
        if instead := OWN.get(key) or OWN.get(group):
            value = text if instead == "--only" else text.partition("=")[2]
            raise ConfigError(f"{text}: paceline verify tries every one. Choose {instead} {value}.")
        if group in NO_WAYS and group != "clip":
            raise ConfigError(
                f"{text}: verify compares with serial training, and serial training has none; leave it out"
            )
        if group in [each.name for each in injected.injected_groups() if each.name != "clip"]:
            raise ConfigError(f"{text}: paceline verify tries every one. Choose --only {text}.")


def _choices(group: str) -> list[str]:
    return sorted(file.stem for file in (CONF / group).glob("*.yaml"))


def _changes(kind: str, choice: Choice, allowed: tuple[str, ...], every: bool) -> Iterator[dict[str, Any]]:
    base = Strategy if kind == "strategy" else Sync
    try:
        cls = load_class(kind, choice.target, base, allowed)
        yield from variants(cls, choice.knobs, every)
    except ConfigError:  # composing the choice says why
        yield {}


def _rounds_weights(strategy: Choice, allowed: tuple[str, ...]) -> bool:
    try:
        return load_class("strategy", strategy.target, Strategy, allowed).traits.rounds_weights
    except (ConfigError, AttributeError):  # what is no class says nothing of itself
        return False


@cache
def _usual() -> injected.Injected:
    return injected.usual()


def _is_serial(mode: Choice, allowed: tuple[str, ...]) -> bool:
    """Returns whether several replicas are to be serial training. If they are not, no other knob is worth a check."""
    try:
        sync = build("sync", mode, Sync, allowed, _usual())
    except ConfigError:
        return False
    return sync.traits.synchronous and sync.traits.weights_agree and sync.traits.exact


def _typed(group: str, change: dict[str, Any]) -> tuple[str, ...]:
    return tuple(f"{group}.{knob}={as_override(value)}" for knob, value in change.items())
