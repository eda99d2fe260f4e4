"""One validated, frozen description of an experiment: everything a run depends on. No torch here: it must be quick."""

import json
import shlex
from collections.abc import Iterable
from functools import cache
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge, Gt, Le
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, field_validator, model_validator

from ...conf.errors import ConfigError
from ...conf.groups import BY_NAME, CONF, GROUPS
from ...cost.calibration import read
from ...cost.devices import DEVICES
from ...tracking.files import read_yaml
from ...tracking.redact import shown
from .moved import renewed

Positive = Annotated[int, Ge(1)]
Natural = Annotated[int, Ge(0)]
STORED = {"name", "target", "knobs"}  # the keys of a choice in a run's config.yaml
RENAMED = {"warmup": "measure.after", "strategy.cuts": "strategy.cut", "data.drop_last": "drop_last"}


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Choice(_Frozen):
    """A group's choice: the class that it names and what that class is to be built with."""

    name: str
    target: str
    knobs: dict[str, Any]


def shipped(group: str, name: str) -> Choice:
    """A choice of ours as its file has it."""
    return _of_file(CONF / group / f"{name}.yaml", name).model_copy(deep=True)


@cache
def _of_file(file: Path, name: str) -> Choice:
    content = read_yaml(file)
    target = content.pop("_target_")
    return Choice(name=name, target=target, knobs=content)


Workers = Annotated[int, Ge(1), Le(2**20)]
Hosts = Annotated[int, Ge(1), Le(2**20)]


class LinkModel(_Frozen):
    latency: Annotated[float, Ge(0), Le(1e9)]
    bandwidth: Annotated[float, Gt(0)]


class NetworkModel(LinkModel):
    """A link of the virtual cluster. `bandwidth` is that of receiving, `upload` that of sending; None: the same."""

    upload: Annotated[float, Gt(0)] | None = None  # as runs had it before they recorded it


class UplinkModel(_Frozen):
    """The link of a rack to the others. `bandwidth` None: that of its hosts over `oversubscription`."""

    latency: Annotated[float, Ge(0), Le(1e9)]
    bandwidth: Annotated[float, Gt(0)] | None
    upload: Annotated[float, Gt(0)] | None = None


class Machine(_Frozen):
    """One host: how much it holds, how fast it is, what it costs.

    Bytes, flops a second that training sustains, bytes a second one way, US dollars.
    """

    devices: Natural  # accelerators, for one worker each; 0: workers compute on the CPU, in the host's memory
    device_memory: Natural  # of each
    host_memory: Positive
    flops: dict[Literal["float32", "bfloat16", "float16"], Annotated[float, Gt(0)]]  # of a device, or of the CPU
    host_link: Annotated[float, Gt(0)] | None  # bandwidth between a device and its host
    link: LinkModel | None  # between devices
    price_per_hour: Annotated[float, Gt(0)] | None  # None: it is not rented
    accelerator: str | None = None  # by its name in paceline.cost.devices; None: none, or one that is not there
    network: LinkModel | None = None  # of a host's cards together, to other hosts

    @model_validator(mode="after")
    def _is_whole(self) -> "Machine":
        if self.accelerator is not None and self.accelerator not in DEVICES:
            raise ValueError(
                f"accelerator={self.accelerator}: not a device. Choose one of {', '.join(DEVICES)}, or null."
            )
        if bool(self.devices) != bool(self.device_memory):
            raise ValueError(
                f"devices={self.devices} with device_memory={self.device_memory}: a machine has devices with memory, "
                "or 0 of both"
            )
        return self


def _with_workers(hardware: dict[str, Any], per_host: Any, key: str) -> dict[str, Any]:
    """`hosts`, where it is given, says how many workers there are if `workers` does not; both must agree.

    `per_host`: what `key` holds, the workers of one host. What is no number is refused by its own rule.
    """
    hosts, workers = hardware.get("hosts"), hardware.get("workers")
    if not isinstance(hosts, int) or not isinstance(workers, int | None) or not isinstance(per_host, int) or hosts < 1:
        return hardware
    if per_host < 1:
        raise ValueError(
            f"hosts={hosts}: how many workers that is follows from {key}, which is {per_host}; give workers instead"
        )
    if workers is None:
        return hardware | {"workers": hosts * per_host}
    if ceil(workers / per_host) != hosts:
        raise ValueError(
            f"workers={workers} with hosts={hosts}: with {key}={per_host} that many hosts have "
            f"{(hosts - 1) * per_host + 1} to {hosts * per_host} workers; give one of the two"
        )
    return hardware


class LocalHardware(_Frozen):
    """Real processes."""

    fabric: Literal["process"]
    workers: Workers | None
    hosts: Hosts | None = None  # machines; None: as many as the workers take
    device: Literal["auto", "cpu", "cuda"]
    threads: Annotated[int, Ge(1), Le(1024)] | None
    timeout: Annotated[float, Gt(0), Le(604_800)]  # a week
    port: Annotated[int, Ge(0), Le(65535)]
    machine: Machine | None = None  # None: this one
    calibration: dict[str, Any] | None = None  # what paceline calibrate measured of it: cost/calibration.py

    @field_validator("calibration")
    @classmethod
    def _is_whole(cls, calibration: dict[str, Any] | None) -> dict[str, Any] | None:
        if calibration is not None:
            read(calibration)
        return calibration

    @model_validator(mode="before")
    @classmethod
    def _workers_of_hosts(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        machine = given.get("machine")
        if isinstance(machine, dict):
            return _with_workers(given, machine.get("devices"), "machine.devices")
        if given.get("hosts") is not None:
            raise ValueError(
                f"hosts={given['hosts']}: machine=null does not say how many devices a host has. Choose hardware that "
                "does, such as hardware=a100_8, or give workers."
            )
        return given


class VirtualHardware(_Frozen):
    """The virtual cluster: one process on this host's CPU."""

    fabric: Literal["virtual"]
    workers: Workers | None
    hosts: Hosts | None = None
    network: NetworkModel
    inside: NetworkModel
    uplink: UplinkModel | None = None  # None: the hosts' own latency, and their bandwidth over `oversubscription`
    server: NetworkModel | None = None  # None: servers have the workers' link
    workers_per_host: Positive
    hosts_per_rack: Positive | None
    racks: Positive | None = None  # instead of hosts_per_rack
    oversubscription: Annotated[float, Ge(1)]
    compute: Literal["modelled", "measured"]
    flops: Annotated[float, Gt(0)]
    overhead: Annotated[float, Ge(0), Le(1e9)]
    memory_bandwidth: Annotated[float, Gt(0)] = 1e10  # as runs had it before they recorded it
    machine: Machine | None = None  # None: each worker has what it needs

    @model_validator(mode="before")
    @classmethod
    def _workers_of_hosts(cls, given: Any) -> Any:
        return (
            _with_workers(given, given.get("workers_per_host"), "workers_per_host")
            if isinstance(given, dict)
            else given
        )

    @model_validator(mode="after")
    def _is_a_network(self) -> "VirtualHardware":
        if why := self._network_refusal():
            raise ValueError(why)
        return self

    def _network_refusal(self) -> str:
        """Returns what contradicts itself in the topology; "" if nothing does."""
        if self.racks is not None:
            if self.hosts_per_rack is not None:
                return (
                    f"racks={self.racks} with hosts_per_rack={self.hosts_per_rack}: one follows from the other. "
                    "Choose racks=null or hosts_per_rack=null."
                )
            if self.workers is None:
                return f"racks={self.racks}: workers=null does not say how many hosts there are. Give workers."
            hosts = ceil(self.workers / self.workers_per_host)
            if hosts % self.racks:
                return (
                    f"racks={self.racks}: must divide the {hosts} hosts of workers={self.workers} with "
                    f"workers_per_host={self.workers_per_host}. Choose another number of workers or racks."
                )
        if self.uplink is not None:
            if self.racks is None and self.hosts_per_rack is None:
                return "uplink: there is only one rack. Give racks or hosts_per_rack, or choose uplink=null."
            if self.uplink.bandwidth is not None and self.oversubscription != 1:
                return (
                    f"oversubscription={self.oversubscription} with uplink.bandwidth={self.uplink.bandwidth}: both say "
                    "how fast an uplink is. Choose oversubscription=1.0 or uplink.bandwidth=null."
                )
            if self.uplink.bandwidth is None and self.uplink.upload is not None:
                return f"uplink.upload={self.uplink.upload}: uplink.bandwidth=null. Give both or neither."
        if self.server is not None and self.workers_per_host > 1:
            return (
                f"server with workers_per_host={self.workers_per_host}: servers need hosts of their own. Choose "
                "workers_per_host=1 or server=null."
            )
        return ""

    @property
    def device(self) -> Literal["cpu"]:
        return "cpu"

    @property
    def calibration(self) -> None:
        """Returns None: the clock is modelled, and there is nothing to measure."""

    @property
    def threads(self) -> int:
        return 1  # one worker runs at a time, and its matrices are small

    @property
    def timeout(self) -> float:
        return 120.0  # of the process that it is in

    @property
    def port(self) -> int:
        return 0


Hardware = Annotated[LocalHardware | VirtualHardware, Field(discriminator="fabric")]


class Measure(_Frozen):
    after: Natural


class Evaluate(_Frozen):
    """All but `every` is of an attack on the test samples: see robustness.py, which says what None is taken for."""

    every: Positive
    attack: Literal["none", "fgsm", "pgd"] = "none"
    norm: Literal["linf", "l2"] | None = None
    eps: Annotated[float, Ge(0)] | None = None
    steps: Positive | None = None
    step_size: Annotated[float, Gt(0)] | None = None
    restarts: Positive | None = None
    random_start: bool | None = None
    target: Literal["next", "least_likely"] | Natural | None = None
    samples: Positive | None = None
    curve: list[Annotated[float, Ge(0)]] | None = None

    @field_validator("target", mode="before")
    @classmethod
    def _is_target(cls, target: Any) -> Any:
        is_class = isinstance(target, int) and not isinstance(target, bool) and target >= 0
        if target is None or is_class or target in ("next", "least_likely"):
            return target
        raise ValueError("must be next, least_likely, or a class by its number (0, 1, ...)")


class Checkpoint(_Frozen):
    every: Natural
    every_steps: Positive | None
    keep: Positive


if TYPE_CHECKING:

    class _Choices(_Frozen):
        """The choices that the code names. It reads all others by `choice`."""

        strategy: Choice
        sync: Choice
        model: Choice
        data: Choice
        task: Choice
        partition: Choice
        optimizer: Choice
        schedule: Choice
        stragglers: Choice
else:
    _Choices = create_model("_Choices", __base__=_Frozen, **dict.fromkeys(BY_NAME, Choice))


class Experiment(_Choices):
    hardware: Hardware
    tracking: dict[str, Any]
    name: str | None
    weights: str | None = None  # see weights.py
    seed: Annotated[int, Ge(0), Le(2**63 - 1)]  # torch's generators take no more
    epochs: Positive
    steps: Positive | None
    batch_size: Annotated[int, Ge(1), Le(2**31 - 1)]
    drop_last: bool = False
    accumulate: Annotated[int, Ge(1), Le(2**20)] = 1  # each is an entry of lists
    compile: bool = False
    target_accuracy: Annotated[float, Ge(0), Le(1)]
    stop_at_target: bool = False
    measure: Measure
    evaluate: Evaluate
    checkpoint: Checkpoint
    callbacks: dict[str, Choice] = Field(
        default_factory=dict[str, Choice]
    )  # by name, in the order in which they are called

    def choice(self, group: str) -> Choice:
        return getattr(self, group)

    def steps_in_all(self, steps_per_epoch: int | None) -> int | None:
        """`steps` where it is set, else those of `epochs`; None: the data must say how many an epoch has."""
        if self.steps is not None or steps_per_epoch is None:
            return self.steps
        return self.epochs * steps_per_epoch


def from_config(config: dict[str, Any], choices: dict[str, str]) -> Experiment:
    """Check a composed configuration. `choices`: the name chosen in each group. Raises `ConfigError`."""
    described = dict(config)
    for group in BY_NAME:
        section = config.get(group)
        if section is None and group not in choices and not _has_default(group):
            usual = BY_NAME[group].usual or "CHOICE"
            raise ConfigError(f"{group}: has no default choice. Add `- {group}: {usual}` to conf/config.yaml.")
        target = section.get("_target_") if isinstance(section, dict) else None
        if target is not None and not isinstance(target, str):
            raise ConfigError(f"{group}._target_={target}: must be module.Class; see: paceline list {group}")
        if not isinstance(section, dict) or target is None:
            raise ConfigError(f"{group}={section}: must be one of its choices; see: paceline list {group}")
        if group not in choices:
            several = f", or several as {group}=A+B" if BY_NAME[group].composed else ""
            raise ConfigError(f"{group}: takes one choice, by its name{several}; see: paceline list {group}")
        knobs = {key: value for key, value in section.items() if key != "_target_"}
        described[group] = {"name": choices[group], "target": target, "knobs": knobs}
    described["callbacks"] = _callbacks(config.get("callbacks"))
    try:
        return Experiment.model_validate(described)
    except ValidationError as error:
        raise ConfigError(explain(error)) from None


def _has_default(group: str) -> bool:
    return any(isinstance(each, dict) and group in each for each in read_yaml(CONF / "config.yaml")["defaults"])


def _callbacks(section: Any) -> dict[str, Any]:
    """Converts composed callbacks, {"early_stop": {"_target_": ..., "patience": 3}}, to choices. Raises
    `ConfigError`.
    """
    if not isinstance(section, dict):
        raise ConfigError(
            f"callbacks={section}: must be a list of choices, such as [early_stop]; see: paceline list callbacks"
        )
    found: dict[str, Any] = {}
    for name, each in section.items():
        if not isinstance(each, dict) or not isinstance(each.get("_target_"), str):
            raise ConfigError(
                f"callbacks.{name}: must be a callback with its _target_; a choice's file begins with "
                "`# @package callbacks.NAME`; see: paceline list callbacks"
            )
        knobs = {key: value for key, value in each.items() if key != "_target_"}
        found[str(name)] = {"name": str(name), "target": each["_target_"], "knobs": knobs}
    return found


def from_plain(plain: Any) -> Experiment:
    """Reads the contents of a stored config.yaml. Raises `ConfigError`."""
    try:
        return Experiment.model_validate(completed(plain) if isinstance(plain, dict) else plain)
    except ValidationError as error:
        raise ConfigError(f"the run's config.yaml is not one of ours: {explain(error)}") from None


def completed(plain: dict[str, Any]) -> dict[str, Any]:
    """Returns the contents of a stored config.yaml as they would be written now.

    Groups that did not exist then have their default choice, and classes have their present names.
    """
    plain = renewed(plain)
    missing = [group for group in GROUPS if group.usual and group.name not in plain]
    return plain | {group.name: shipped(group.name, str(group.usual)).model_dump() for group in missing}


def no_such_key(key: str) -> str:
    """Returns the words for a key that does not exist, or not any more."""
    return f"is called {RENAMED[key]} now" if key in RENAMED else "there is no such key"


def explain(error: ValidationError, prefix: str = "") -> str:
    """pydantic's findings as key path, value and rule, one a line."""
    rules: dict[str, dict[str, None]] = {}  # in order, each once
    hints: dict[str, str] = {}
    found = error.errors()
    paths = [".".join(str(p) for p in (prefix, *each["loc"]) if p != "" and not _is_tag(p)) for each in found]
    for finding, path in zip(found, paths, strict=True):
        given = shown(path, finding["input"])
        if finding["type"] == "string_type" and any(each.startswith(f"{path}.") for each in paths):
            continue  # a list, whose entries are what is wrong
        if finding["type"] == "extra_forbidden":
            what, rule = path, no_such_key(path)
        elif finding["type"] == "missing":
            what, rule = path, "is missing"
        elif finding["type"] == "union_tag_not_found":
            what, rule = f"{path}.fabric", "is missing. Choose process or virtual"
        elif finding["type"] == "union_tag_invalid":
            what, rule = f"{path}.fabric={finding.get('ctx', {}).get('tag')!r}", "must be process or virtual"
        elif finding["type"] == "model_attributes_type":
            what, rule = f"{path}={given!r}", "must be a mapping"
        elif finding["type"] == "value_error" and isinstance(finding["input"], dict):
            what, rule = path, finding["msg"].removeprefix("Value error, ")  # it names the keys that it is about
        elif finding["type"] == "too_short":
            least = finding.get("ctx", {}).get("min_length", 1)
            many = "one entry" if least == 1 else f"{least} entries"
            what, rule = f"{path}={given!r}", f"must have {many} at least"
        else:
            said = finding["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
            what, rule = f"{path}={given!r}", said
            if finding["type"] == "string_type" and isinstance(finding["input"], bool | int | float):
                name = json.dumps(str(given))
                typed = name if path.rpartition(".")[2].isdigit() else shlex.quote(f"{path}={name}")  # one of a list
                hints[what] = f". Write a name in quotes: {typed}"
        rules.setdefault(what, {})[rule] = None
    return "\n".join(f"{what}: {_alternatives(those)}{hints.get(what, '')}" for what, those in rules.items())


def _alternatives(rules: Iterable[str]) -> str:
    """`must be a valid integer or a list`, of what pydantic says of each type that there might have been."""
    text = " or ".join(rules).replace(" or must be ", " or ")
    text = text.replace("valid array", "list").replace("valid list", "list")
    return text.replace("a valid boolean", "true or false")


def _is_tag(piece: object) -> bool:
    """Returns whether it is pydantic's name for a member of a union, and no part of the path."""
    named = piece in ("process", "virtual", "str", "int", "float", "bool")
    return named or "[" in str(piece) or str(piece).startswith("constrained-")
