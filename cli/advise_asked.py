"""`--model llama_8b --gpus 64xH100` as overrides: model=llama_8b data=tokens hardware=h100_8 hardware.hosts=8."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..conf.errors import ConfigError
from ..tracking.text import did_you_mean, shown
from .choices import group_of
from .cost_numbers import TOKENS, Number
from .output import note_all

if TYPE_CHECKING:
    from ..advise.failures import ExpectedFailures
    from ..advise.question import Question

BUDGET = Number("--budget", "D", "price", "US$", "what the whole training may cost, such as 5000USD")
DEADLINE = Number("--deadline", "t", "hours", "hours", "how long the whole training may take, such as 7d")
MTBF = Number("--mtbf", "M", "between", "hours", "the mean time between failures of one worker, such as 50000h")
RESTART = Number("--restart", "R", "restart", "hours", "how long a failed worker takes to be back, such as 10min")
STORAGE = Number("--storage", "B", "storage", "bytes/s", "how fast a worker writes a checkpoint, such as 1G")
GPT = "paceline.tasks.models.gpt.GPT"
GIB = 2**30
LEFT = 0.9  # of a card's nominal memory, at least: what the driver keeps is less


@dataclass
class Cards:
    """An accelerator.

    Args:
        name: h100 of the choices h100 and h100_8.
        aliases: its names, in letters and digits alone.
        memory: bytes of a card.
        choices: the choice of hardware for each number of cards of a host.
        linked: the numbers of cards of hosts whose network to other hosts is described.
    """

    name: str
    aliases: set[str]
    memory: float
    choices: dict[int, str] = field(default_factory=dict[int, str])
    linked: set[int] = field(default_factory=set[int])

    def called(self, name: str) -> bool:
        """Returns whether the name is an alias, or an alias with the card's memory, such as a10080gb."""
        rests = [re.fullmatch(r"(\d{1,4})gb?", name.removeprefix(alias)) for alias in self.aliases]
        return name in self.aliases or any(
            rest is not None and LEFT < self.memory / GIB / max(int(rest[1]), 1) < 1.01 for rest in rests
        )

    def numbers(self) -> str:
        """Returns the numbers of cards that there are: `1, 8 or a multiple of 8`."""
        each = [*map(str, sorted(self.choices)), *(f"a multiple of {n}" for n in sorted(self.linked))]
        return " or ".join(text for text in (", ".join(each[:-1]), each[-1]) if text)

    def overrides(self, count: int) -> list[str]:
        """Returns [] if there is no such number of cards."""
        if count in self.choices:
            return [f"hardware={self.choices[count]}"]
        for n in sorted(self.linked, reverse=True):
            if count and count % n == 0:
                return [f"hardware={self.choices[n]}", f"hardware.hosts={count // n}"]
        return []


def asked(
    overrides: Sequence[str],
    model: str | None,
    hf: Path | None,
    gpus: str | None,
    tokens: str | None,
    budget: str | None,
    deadline: str | None,
    batch: int | None,
    config_dir: Path | None,
    allowed: Sequence[str],
    failures: "ExpectedFailures | None" = None,
) -> "Question":
    """Reads the options that a question is made of. Raises `ConfigError`."""
    from ..advise.question import ask

    wanted, money, time = TOKENS.read(tokens), BUDGET.read(budget), DEADLINE.read(deadline)
    return ask(
        with_shorthands(overrides, model, hf, gpus, config_dir),
        batch,
        None if wanted is None else wanted.value,
        None if money is None else money.value,
        None if time is None else time.value * 3600,
        config_dir,
        allowed,
        failures,
    )


def failures_of(mtbf: str | None, restart: str | None, storage: str | None) -> "ExpectedFailures | None":
    """Raises `ConfigError`."""
    from ..advise.failures import ExpectedFailures

    between, away, speed = MTBF.read(mtbf), RESTART.read(restart), STORAGE.read(storage)
    if between is None:
        for number in (away, speed):
            if number is not None:
                raise ConfigError(f"--{number.name}: is of a worker that fails. Give --mtbf, too.")
        return None
    return ExpectedFailures.of(
        between.value, None if away is None else away.value, None if speed is None else speed.value
    )


def with_shorthands(
    overrides: Sequence[str],
    model: str | None = None,
    hf: Path | None = None,
    gpus: str | None = None,
    config_dir: Path | None = None,
) -> list[str]:
    """Returns the overrides, the ones of the shorthands first. Raises `ConfigError`."""
    given = {text.lstrip("+~").partition("=")[0].strip() for text in overrides}
    words: list[str] = []
    if model is not None:
        _refuse_twice(f"--model {shown(model)}", given, "model")
        words += _model(model, "data" in given, config_dir)
    if hf is not None:
        from ..advise.hugging_face import read_model

        _refuse_twice(
            f"--hf {shown(str(hf))}", given | ({"--model"} if model is not None else set()), "model", "--model"
        )
        found = read_model(hf)
        note_all(found.notes)
        words += found.overrides(given)
    if gpus is not None:
        _refuse_twice(f"--gpus {shown(gpus)}", given, "hardware", "hardware.hosts", "hardware.workers")
        words += _hardware(gpus, config_dir)
    return [*words, *overrides]


def _refuse_twice(option: str, given: set[str], *keys: str) -> None:
    for key in keys:
        if key in given:
            raise ConfigError(f"{option}: {key} is typed, too. Choose one of them.")


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def _model(name: str, has_data: bool, config_dir: Path | None) -> list[str]:
    known = {_plain(choice.name): choice for choice in group_of("model", config_dir)}
    choice = known.get(_plain(name))
    if choice is None:
        names = [each.name for each in known.values()]
        hint = did_you_mean(name.lower(), names) or f"there are {', '.join(names)}"
        raise ConfigError(f"--model {shown(name)}: there is no such choice; {hint}")
    tokens = ["data=tokens"] if choice.target() == GPT and not has_data else []
    return [f"model={choice.name}", *tokens]


def _hardware(text: str, config_dir: Path | None) -> list[str]:
    told = f"--gpus {shown(text)}"
    counted = re.fullmatch(r"\s*(\d{1,9})\s*[x×*]\s*(.+)", text, re.IGNORECASE | re.DOTALL)
    count, name = (int(counted[1]), counted[2]) if counted else (1, text)
    name = re.sub("^(nvidia|amd)?(geforce|tesla|instinct)?", "", _plain(name))
    known = _cards(config_dir)
    for cards in known:
        if counted is None and name in (whole := {_plain(each): each for each in cards.choices.values()}):
            return [f"hardware={whole[name]}"]
        if cards.called(name):
            if words := cards.overrides(count):
                return words
            raise ConfigError(f"{told}: there is no such number of cards. Choose {cards.numbers()}.")
    aliases = {alias: each for each in known for alias in each.aliases}
    near = {aliases[alias].name: aliases[alias] for alias in get_close_matches(name, aliases, n=2, cutoff=0.5)}
    if not near:
        raise ConfigError(f"{told}: there is no such accelerator; there are {', '.join(each.name for each in known)}")
    each = " or ".join(f"{cards.name} ({cards.numbers()} of them)" for cards in near.values())
    raise ConfigError(f"{told}: there is no such accelerator; did you mean {each}?")


def _cards(config_dir: Path | None) -> list[Cards]:
    found: dict[str, Cards] = {}
    for choice in group_of("hardware", config_dir):
        told = choice.knobs().get("machine")
        machine: dict[str, Any] = told if isinstance(told, dict) else {}
        count = machine.get("devices")
        if not isinstance(count, int) or count < 1:
            continue
        name, memory = choice.name.removesuffix(f"_{count}"), machine.get("device_memory")
        cards = found.setdefault(name, Cards(name, {_plain(name)}, memory if isinstance(memory, int) else 0))
        cards.aliases.add(_plain(name) if machine.get("accelerator") is None else _plain(str(machine["accelerator"])))
        cards.choices[count] = choice.name
        cards.linked |= {count} if machine.get("network") is not None else set()
    return list(found.values())
