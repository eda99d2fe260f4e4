"""A candidate as a line to copy: what was typed, and what is to be typed beside it."""

import shlex
from functools import lru_cache

from ..engine.config.experiment import shipped
from ..engine.config.typed import tells_secret
from ..tracking.redact import HIDDEN
from .candidate import Candidate, Settings
from .question import HOSTS, Question, key_of

USUAL = {
    "strategy": "data_parallel",
    "sync": "bsp",
    "compress": "none",
    "precision": "fp32",
    "model.recompute": "false",
    "adapt.base": "fp32",
}


def overrides_of(question: Question, candidate: Candidate) -> list[str]:
    """Returns the overrides without those that equal the default, unless a preset may set another value."""
    settings = dict(candidate.settings)
    before = [text for text in question.overrides if key_of(text) not in settings]
    if _counted_otherwise(question, candidate):
        before = [text for text in before if key_of(text) not in HOSTS]
        before.append(_workers(question, candidate))
    chosen = candidate.settings if question.fixes("experiment") else unusual(candidate)
    return [*before, *(f"{key}={value}" for key, value in chosen)]


def unusual(candidate: Candidate) -> Settings:
    """Returns the settings that differ from the default."""
    return _unusual(candidate.settings)


@lru_cache(maxsize=8192)  # rows are sorted by them again and again
def _unusual(settings: Settings) -> Settings:
    chosen = dict(settings)
    strategy, sync = chosen.get("strategy", ""), chosen.get("sync", "bsp")
    return tuple((key, value) for key, value in settings if _default(key, strategy, sync) != value)


def command(question: Question, candidate: Candidate) -> str:
    """Returns the line, with `***` in place of secrets: a page of the answer may be sent to others."""
    extra = [f"--config-dir {shlex.quote(str(question.config_dir))}"] if question.config_dir else []
    extra += [f"--allow-module {shlex.quote(name)}" for name in question.allowed]
    words = [f"{key_of(text)}={HIDDEN}" if tells_secret(text) else text for text in overrides_of(question, candidate)]
    return " ".join(["paceline train", *map(shlex.quote, words), *extra])


def _counted_otherwise(question: Question, candidate: Candidate) -> bool:
    return candidate.workers != question.experiment.hardware.workers


def _workers(question: Question, candidate: Candidate) -> str:
    machine = question.experiment.hardware.machine
    if machine is not None and machine.devices and candidate.workers == candidate.hosts * machine.devices:
        return f"hardware.hosts={candidate.hosts}"
    return f"hardware.workers={candidate.workers}"


@lru_cache(maxsize=512)
def _default(key: str, strategy: str, sync: str) -> str | None:
    """Returns the default as it would be typed; None where a value must always be given."""
    group, _, knob = key.partition(".")
    name = {"strategy": strategy, "sync": sync}.get(group)
    if name is None or not knob:
        return USUAL.get(key)
    from .layouts import typed

    try:
        return typed(shipped(group, name).knobs.get(knob))
    except OSError:  # a choice of the user's own
        return None
