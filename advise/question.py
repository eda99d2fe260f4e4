"""The question: a configuration whose typed settings are fixed, samples of a step, and limits of money and time."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from pathlib import Path

from ..conf.errors import ConfigError
from ..engine.api.preparing import find_modules
from ..engine.config.compose import compose
from ..engine.config.experiment import Experiment
from ..tracking.visible import visible
from .failures import ExpectedFailures

HOSTS = ("hardware.hosts", "hardware.workers")
SCALED = "batch_size"  # of one replica: it follows from the samples of a step


@dataclass(frozen=True)
class Question:
    """`batch`: samples of a step, of all replicas; each answer takes as many, or they could not be compared."""

    overrides: tuple[str, ...]
    experiment: Experiment
    batch: int
    of_sample: int | None  # its tokens; None: it is no sequence of tokens
    tokens: float | None = None
    budget: float | None = None  # US dollars
    deadline: float | None = None  # seconds
    config_dir: Path | None = None
    allowed: tuple[str, ...] = ()
    failures: ExpectedFailures | None = None  # None: nothing fails

    @cached_property
    def given(self) -> dict[str, str]:
        """Returns the typed overrides by key."""
        return {key_of(text): text.partition("=")[2] for text in self.overrides}

    @property
    def narrow(self) -> bool:
        """Returns whether passes are to compute in less than float32."""
        return self.experiment.choice("precision").name != "fp32"

    def fixes(self, *groups: str) -> bool:
        return any(key in self.given for key in groups)

    def allows(self, settings: dict[str, str]) -> bool:
        """Returns whether these settings contradict nothing that was typed. A typed knob of a strategy or of a sync
        mode belongs to the composed choice.
        """
        for key, value in self.given.items():
            group = key.partition(".")[0]
            if key in settings and key not in (SCALED, *HOSTS) and settings[key].lower() != value.lower():
                return False
            if group in ("strategy", "sync") and "." in key:
                usual = self.experiment.choice(group).name
                if settings.get(group, "bsp" if group == "sync" else usual) != usual:
                    return False
        return "sync" not in self.given or settings.get("sync", "bsp") == self.given["sync"]

    def workers(self) -> list[int]:
        """Returns the possible numbers of workers: the typed one; else one worker, and whole hosts, some or all of
        them.
        """
        hardware, machine = self.experiment.hardware, self.experiment.hardware.machine
        assert machine is not None
        most = hardware.workers or machine.devices
        if "hardware.workers" in self.given or machine.devices == 0:
            return [most]
        hosts = ceil(most / machine.devices)
        some = [2**i for i in range(hosts.bit_length()) if 2**i < hosts]
        return [1, *(n * machine.devices for n in (*some, hosts) if n * machine.devices > 1)]


def key_of(override: str) -> str:
    return override.lstrip("+~").partition("=")[0].strip()


def workers_of(experiment: Experiment) -> int:
    """Returns the workers that are typed; else one for each accelerator, or two where there is none."""
    machine = experiment.hardware.machine
    return experiment.hardware.workers or (machine.devices if machine is not None else 0) or 2


def ask(
    overrides: Sequence[str],
    batch: int | None = None,
    tokens: float | None = None,
    budget: float | None = None,
    deadline: float | None = None,
    config_dir: Path | None = None,
    allowed: Sequence[str] = (),
    failures: ExpectedFailures | None = None,
) -> Question:
    """Raises `ConfigError`."""
    find_modules(allowed)
    experiment = compose(list(overrides), config_dir)
    machine = experiment.hardware.machine
    if batch is not None and not 1 <= batch <= 2**31 - 1:
        raise ConfigError(f"--batch {batch}: is a number of samples of a step, at least 1")
    of_sample = _tokens(experiment, tuple(allowed))
    for name, limit in (("--tokens", tokens), ("--budget", budget), ("--deadline", deadline)):
        if limit is not None and of_sample is None:
            raise ConfigError(
                f"{name}: is of a training on tokens, and samples of data={experiment.data.name} are no sequences of "
                "tokens; leave it out"
            )
        if limit is not None and tokens is None:
            raise ConfigError(f"{name}: is of a whole training; give its tokens, too: --tokens 20e9")
    if budget is not None and (machine is None or machine.price_per_hour is None):
        how = "give hardware.machine.price_per_hour=DOLLARS" if machine else "describe this machine with its price"
        raise ConfigError(
            f"--budget: what the hardware costs is not known; {how} (docs/calibrate.md), or choose "
            "hardware with a price (paceline list hardware)"
        )
    if "name" in {key_of(text) for text in overrides}:
        raise ConfigError("name: is of one run, and these are many; leave it out")
    return Question(
        tuple(map(visible, overrides)),
        experiment,
        batch or experiment.batch_size * workers_of(experiment),
        of_sample,
        tokens,
        budget,
        deadline,
        config_dir,
        tuple(allowed),
        failures,
    )


def _tokens(experiment: Experiment, allowed: tuple[str, ...]) -> int | None:
    from ..engine.config.targets import build
    from ..tasks.base import Data

    spec = build("data", experiment.data, Data, allowed, {}).spec
    return None if spec.input_dtype.is_floating_point else spec.input_shape[0]
