"""The inputs of `paceline cost` that a configuration has: the model's parameters, the hardware's devices and price."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..conf.errors import ConfigError
from ..cost.layout import DTYPES
from ..cost.quantity import Quantity
from ..cost.training_time import machines_of
from .choices import group_of

if TYPE_CHECKING:
    from ..engine.config.experiment import Experiment, Machine

MODEL, HARDWARE = ("model", "data", "experiment"), ("hardware",)
ASKED = (*MODEL, *HARDWARE, "strategy", "precision", "task")  # groups that an answer depends on, or that these need
HAVE = {**dict.fromkeys(("devices", "machines", "flops", "price_per_hour"), "hardware"), "parameters": "model"}


@dataclass(frozen=True)
class ComposedExperiment:
    """A composed configuration, and how it was typed."""

    experiment: "Experiment"
    overrides: list[str]
    config_dir: Path | None
    allowed: tuple[str, ...]

    @property
    def names_a_model(self) -> bool:
        return any(_group(text) in MODEL for text in self.overrides)

    def has(self, key: str) -> bool:
        """Returns whether this input follows from the configuration."""
        return self.names_a_model if key == "parameters" else key in HAVE and self.machine is not None

    def quantity(self, key: str) -> Quantity | None:
        """Returns an input that it `has`. None: no price is known. Raises `ConfigError`."""
        match key:
            case "parameters":
                return self.parameters()
            case "flops":
                return self.rate()
            case "price_per_hour":
                return self.price()
            case _:
                return self.devices()[key == "machines"]

    @property
    def machine(self) -> "Machine | None":
        return self.experiment.hardware.machine

    def parameters(self) -> Quantity:
        from ..engine.config.parameters import count

        model = self.experiment.model
        source = f"counted: model={model.name}"
        if model.knobs.get("experts") is not None:
            source += f", of which model.active={model.knobs['active']} of {model.knobs['experts']} experts"
        return Quantity("P", "parameters", count(self.experiment, self.allowed), "parameters", source)

    def recomputes(self) -> tuple[bool, str] | None:
        """Returns whether backward recomputes the forward pass, and the override that says so; None: the model has no
        such knob.
        """
        for group in ("strategy", "model"):
            if self.experiment.choice(group).knobs.get("recompute"):
                return True, f"{group}.recompute=true"
        return (False, "model.recompute=false") if "recompute" in self.experiment.model.knobs else None

    def devices(self) -> tuple[Quantity, Quantity]:
        """Returns the devices that compute, and the machines that hold them. Raises `ConfigError`."""
        machine, workers = self.machine, self.experiment.hardware.workers
        assert machine is not None
        if machine.devices == 0:
            return (
                Quantity("n", "devices", 1, "CPU", "hardware.machine.devices=0: workers share the CPU of one machine"),
                Quantity("m", "machines", 1, "machines", "the same"),
            )
        if workers is None:
            raise ConfigError("hardware.workers=null: how many devices train is missing; give hardware.workers=N")
        return (
            Quantity("n", "devices", workers, "devices", self._source("workers", workers)),
            Quantity(
                "m",
                "machines",
                machines_of(workers, machine.devices),
                "machines",
                f"n devices in machines of {machine.devices}",
            ),
        )

    def rate(self) -> Quantity:
        """Returns the rate of a device in the configuration's precision. Raises `ConfigError`."""
        machine = self.machine
        assert machine is not None
        chosen = self.experiment.choice("precision").name
        dtype = DTYPES.get(chosen, chosen)
        flops: dict[str, float] = {**machine.flops}
        if dtype not in flops:
            known = [f"precision={name}" for name, trained in DTYPES.items() if trained in flops]
            hint = f"Choose {' or '.join(known)}" if known else "Give a rate by this key"
            raise ConfigError(f"hardware.machine.flops.{dtype}: the hardware has no rate in {dtype}. {hint}")
        source = f"{dtype}, as precision={chosen} trains; " + self._source(f"machine.flops.{dtype}", flops[dtype])
        return Quantity("X", "flops", flops[dtype], "flops a second, a device", source)

    def price(self) -> Quantity | None:
        machine = self.machine
        assert machine is not None
        if machine.price_per_hour is None:
            return None
        value = machine.price_per_hour
        return Quantity(
            "p", "price_per_hour", value, "US$ an hour, a machine", self._source("machine.price_per_hour", value)
        )

    def _source(self, key: str, value: float) -> str:
        """The choice's file and what is written there beside the number, unless another was given."""
        names = [text.partition("=")[2] for text in self.overrides if text.startswith("hardware=")]
        for choice in group_of("hardware", self.config_dir) if names else []:
            if choice.name == names[-1] and _at(choice.knobs(), key.split(".")) == value:
                beside = _comment(choice.path, key.rpartition(".")[2])
                return f"hardware={choice.name}{f': {beside}' if beside else ''}"
        return f"given: hardware.{key}"


def choose(
    overrides: list[str], typed: list[str], config_dir: Path | None, allowed: list[str] | None
) -> ComposedExperiment | None:
    """Returns None if nothing is overridden. Raises `ConfigError`.

    Args:
        typed: the overrides that are no file's. A file may set keys that no answer depends on.
    """
    if not overrides:
        return None
    from ..engine.config.compose import compose

    experiment = compose(overrides, config_dir)
    machine = experiment.hardware.machine
    for text in typed:
        group = _group(text)
        if group not in ASKED:
            raise ConfigError(f"{text}: no answer depends on it. Answers depend on model, data, hardware and precision")
        if group in HARDWARE and machine is None:
            raise ConfigError(
                f"{text}: hardware.machine=null says neither how fast a device is nor what it costs. Choose another, "
                "such as hardware=a100_8, or give devices=N and flops=X."
            )
        if group == "precision" and machine is None:
            raise ConfigError(f"{text}: goes with a choice of hardware. Without one, flops=X is the rate of a device")
    return ComposedExperiment(experiment, overrides, config_dir, tuple(allowed or ()))


def _group(override: str) -> str:
    return re.split(r"[=.@/]", override.lstrip("+~"))[0]


def _at(content: object, path: list[str]) -> float | None:
    for key in path:
        content = content.get(key) if isinstance(content, dict) else None
    return content if isinstance(content, int | float) else None


def _comment(file: Path, key: str) -> str:
    """Returns the comment behind the number of this key."""
    for line in file.read_text(encoding="utf-8").splitlines():
        if line.strip().startswith(f"{key}:"):
            from ..tracking.text import shown

            return shown(line.partition("  # ")[2].strip())
    return ""
