"""Finds the largest GPT, the largest batch and the strategies that fit in a machine's memory, by plan's prediction.

A worker needs, on its device, the stated kinds of plan.py, where activations share their place with what there is only
while there are none: in the chief the largest tensor of the model that is evaluated (training/laid_out.py: what has no
room there stays on the host), and in torch's optimizers a copy of the parameters (their foreach form). In its host's
memory it needs the "host_*" kinds, and while it is set up its own part and the whole model, which a host's workers
build once if it is large (training/one_build.py); the chief keeps a copy of it there to evaluate. On a CPU all of this
is in the host's memory. Kinds peak at different moments, so what is said to fit does, and a little more may.

Kept back, of each device and of the host:

    1 GiB a process     on a device the CUDA context with cuBLAS's and NCCL's workspaces (0.5 to 0.9 GiB on today's
                        cards); in the host's memory Python, torch and its libraries (0.4 GiB on a CPU, 2 with CUDA)
    5 % of the memory   what the allocator loses by rounding and between blocks; on the host, the system's own

The family of GPTs, by its number of heads h: width 64 h, depth max(min(h, 24), ceil(h / 2)). It goes through the
models of 125 M, 760 M, 1.3 B, 6.7 B, 13 B and 175 B parameters of Brown et al. 2020, "Language Models are Few-Shot
Learners" (arXiv 2005.14165), table 2.1, whose heads are 64 wide in the smaller and 128 in the larger; the width of a
head changes no byte of this.
"""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, prod
from pathlib import Path
from typing import Any

import torch

from ...compat.dynamo import without_dynamo
from ...conf.errors import ConfigError
from ...conf.groups import BY_NAME
from ...strategies import Strategy
from ...tasks.losses.base import Task
from ...tasks.models.gpt import GPT
from ..base.failures import exit_code_of
from ..base.memory import BUILT_ONCE
from ..config.compose import compose
from ..config.experiment import Choice, Experiment, Machine
from ..config.targets import load_class, load_maker, values_of
from ..config.typed import instead
from ..fabrics import fabric_of
from ..planning.make_plan import make_plan
from ..planning.planned import PartPlan, Plan
from .step_time import gpt_knobs

PROCESS, SHARE = 2**30, 0.05  # kept back: bytes a process, and of all
MOST_HEADS, MOST_SAMPLES = 1024, 2**20  # where the searches end
VARIED = ("stage", "offload", "recompute")  # knobs of a strategy that decide what is held where: each value is tried
FLOAT = 4  # bytes that a weight has when it is drawn
HOST = "host_"  # before a kind that is in the host's memory


@dataclass(frozen=True)
class Capacity:
    """Bytes that training may fill. `device`: of each; None: workers compute on the CPU, in the host's memory."""

    machine: Machine
    device: int | None
    host: int
    per_host: int  # workers and servers that share one host


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes of the device, and of the host, that need most."""

    device: int
    host: int


@dataclass(frozen=True)
class Verdict:
    """The memory that a plan needs of a machine. `plan` is None where the configuration is refused: `why` says so."""

    strategy: str  # as it would be typed
    plan: Plan | None
    need: MemoryNeed | None
    why: str  # "" where it fits

    @property
    def fits(self) -> bool:
        return not self.why


@dataclass(frozen=True)
class Fit:
    chosen: Verdict  # with the model that was named; where none was, with the largest GPT
    capacity: Capacity
    model: Verdict | None  # with the largest GPT that fits; None: not even the smallest does
    overrides: str  # that choose it, those given among them
    parameters: int  # that it has
    next_model: Verdict | None  # the next larger one, which does not fit; None: the family ends
    batch_size: int  # the largest that fits with the chosen model; 0: none does
    strategies: list[Verdict]  # for the chosen model and batch_size


@without_dynamo()
def search(
    overrides: Sequence[str],
    strategies: Sequence[str],
    config_dir: Path | None = None,
    allowed: tuple[str, ...] = (),
    world_size: int | None = None,
) -> Fit:
    """Search for what fits. `strategies`: the names of the choices to try. Raises what `make_plan` raises, and
    `ConfigError` for hardware of unknown size.
    """
    experiment = compose(list(overrides), config_dir)

    judged: dict[str, Verdict] = {}

    def judge(changed: Experiment) -> Verdict:
        key = changed.model_dump_json()
        if key not in judged:
            judged[key] = _judge(changed, allowed, world_size)
        return judged[key]

    chosen_plan = make_plan(experiment, allowed, world_size)
    capacity = capacity_of(chosen_plan)
    chosen = _verdict(experiment, chosen_plan)
    of_gpt, said = experiment, list(overrides)
    maker = load_maker("model", experiment.model.target, torch.nn.Module, allowed)
    if not (isinstance(maker, type) and issubclass(maker, GPT)):
        said = instead(said, {"model": "gpt", "data": "text", **_task_of_text(experiment, allowed)})
        of_gpt = compose(said, config_dir)
    heads, model, next_model = _largest_model(of_gpt, judge)
    shape = [f"model.{knob}={value}" for knob, value in _member(of_gpt, heads).items()] if heads else []
    asked = list(overrides)
    if not _names_a_model(overrides):  # then the GPT is what was asked about, and not the model that runs by default
        asked = [*said, *shape]
        experiment = compose(asked, config_dir)
        chosen = judge(experiment)
    return Fit(
        chosen,
        capacity,
        model,
        " ".join([*said, *shape]),
        size_of(model),
        next_model,
        _largest_batch(experiment, judge),
        _strategies(experiment, chosen, asked, strategies, config_dir, allowed, judge),
    )


def _task_of_text(experiment: Experiment, allowed: tuple[str, ...]) -> dict[str, str]:
    """The usual task, where the one that was named does not learn labels."""
    learns_labels = load_class("task", experiment.task.target, Task, allowed).targets == "labels"
    return {} if learns_labels else {"task": str(BY_NAME["task"].usual)}


def _names_a_model(overrides: Sequence[str]) -> bool:
    return any(re.split(r"[=.@]", text.lstrip("+~"))[0] in ("model", "data", "experiment") for text in overrides)


def family(heads: int) -> dict[str, int]:
    """The knobs of the member with so many heads."""
    return {"n_layer": max(min(heads, 24), ceil(heads / 2)), "n_head": heads, "width": 64 * heads}


def _member(experiment: Experiment, heads: int) -> dict[str, int]:
    """The same, with the ratio of the feed-forward layer to the width that was given."""
    found, knobs = family(heads), gpt_knobs(experiment)
    if knobs["ffn_width"] is not None:
        found["ffn_width"] = max(1, round(knobs["ffn_width"] * found["width"] / knobs["width"]))
    return found


# -- machine and need


def this_machine() -> Machine:
    """Returns this machine with the sizes of its memory. Its other fields are not measured, and are empty."""
    sizes = [torch.cuda.get_device_properties(i).total_memory for i in range(torch.cuda.device_count())]
    return Machine(
        devices=len(sizes),
        device_memory=min(sizes, default=0),
        host_memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        flops={},
        host_link=None,
        link=None,
        price_per_hour=None,
    )


def capacity_of(plan: Plan) -> Capacity:
    """Raises `ConfigError` where the hardware does not say how large it is."""
    hardware, world = plan.experiment.hardware, plan.layout.world_size
    fabric = fabric_of(plan.experiment)
    if hardware.machine is None and fabric.modelled:
        raise ConfigError(
            "hardware.machine=null: a virtual cluster's hosts hold whatever they need. Describe "
            "them in hardware.machine (keys: see hardware=h200), or choose the hardware to fit into, as hardware=h200."
        )
    machine = hardware.machine or this_machine()
    on_devices = machine.devices > 0 if fabric.modelled else plan.device.type == "cuda"
    per_host = fabric.workers_per_host(hardware) or (machine.devices if on_devices else world)
    per_host = min(per_host, world)
    device = max(int(machine.device_memory * (1 - SHARE)) - PROCESS, 0)
    host = max(int(machine.host_memory * (1 - SHARE)) - PROCESS * per_host, 0)
    return Capacity(machine, device if on_devices else None, host, per_host)


def need_of(plan: Plan, capacity: Capacity) -> MemoryNeed:
    """Returns the need of the device and the host that need most. Ranks fill one host after the other."""
    needs = [_need_of(plan, phase.parts, capacity) for phase in plan.phases]
    return MemoryNeed(max(need.device for need in needs), max(need.host for need in needs))


def _need_of(plan: Plan, parts: list[PartPlan], capacity: Capacity) -> MemoryNeed:
    layout, whole = plan.layout, sum(part.held_in_parameters for part in parts)
    sizes = [prod(shape) for shape in plan.shapes.values()]
    fetched = whole * max(sizes) // sum(sizes)
    built = max(whole, FLOAT * sum(sizes))  # `adapt` may narrow the weights after they are drawn
    once = whole >= BUILT_ONCE and min(capacity.per_host, layout.world_size) > 1  # a host builds it once
    devices: list[int] = []
    hosts = [0] * ceil(layout.world_size / capacity.per_host)
    for rank in range(layout.world_size):
        role = layout.role(rank)
        part = parts[role.part]
        held = part.memory if role.kind == "worker" else part.server_memory
        there = sum(size for kind, size in held.items() if kind.startswith(HOST))
        activations = held.get("activations", 0)
        states = sum(size for kind, size in held.items() if not kind.startswith(HOST)) - activations
        chief = rank == layout.chief
        stepped = min(held.get("parameters", 0), held.get("gradients", 0))  # a share of them, or those that are trained
        devices.append(states + max(activations, fetched if chief else 0, stepped))
        if capacity.device is None:
            there += states + activations
        else:  # what a worker cuts or casts is on the host until it is moved
            there = max(there, min(held.get("parameters", 0), part.held_in_parameters))
        hosts[rank // capacity.per_host] += (there if once else max(there, built)) + (whole if chief else 0)
    on_host = max(hosts) + (built if once else 0)
    return MemoryNeed(max(devices) if capacity.device is not None else 0, on_host)


def _verdict(experiment: Experiment, plan: Plan) -> Verdict:
    capacity = capacity_of(plan)
    need = need_of(plan, capacity)
    over = []
    if capacity.device is not None and need.device > capacity.device:
        over.append(f"{_gib(need.device - capacity.device)} too much for a device")
    if need.host > capacity.host:
        over.append(f"{_gib(need.host - capacity.host)} too much for a host")
    return Verdict(_typed(experiment.strategy), plan, need, ", ".join(over))


def _judge(experiment: Experiment, allowed: tuple[str, ...], world_size: int | None) -> Verdict:
    """Raises nothing for a configuration that is refused: the verdict says why."""
    try:
        return _verdict(experiment, make_plan(experiment, allowed, world_size))
    except (ValueError, RuntimeError) as error:
        if exit_code_of(error) is None:
            raise
        return Verdict(_typed(experiment.strategy), None, None, " ".join(str(error).split()))


def _gib(size: int) -> str:
    return f"{size / 2**30:,.2f} GiB"


def _typed(strategy: Choice) -> str:
    knobs = [f"strategy.{key}={value}" for key, value in strategy.knobs.items() if key in VARIED]
    return " ".join([strategy.name, *map(_yaml, knobs)])


def _yaml(knob: str) -> str:
    for python, yaml in (("=True", "=true"), ("=False", "=false"), ("=None", "=null")):
        knob = knob.replace(python, yaml)
    return knob


# -- the searches

Judge = Callable[[Experiment], Verdict]


def boundary(fits: Callable[[int], bool], guess: int, most: int) -> int:
    """The largest n from 1 to `most` with fits(n), 0 if there is none; what fits, fits with less.

    A good guess takes two questions, a bad one a few for each doubling of the distance.
    """
    low, high, step = 0, most + 1, 1  # low fits and high does not, once they are others than these
    n = min(max(guess, 1), most)
    while high - low > 1:
        if fits(n):
            low = n
        else:
            high = n
        if low == 0:
            n = max(high - step, 1)
        elif high > most:
            n = min(low + step, most)
        else:
            n = (low + high) // 2
        step *= 2
    return low


def size_of(verdict: Verdict | None) -> int:
    """The parameters of its model."""
    return sum(part.own for part in verdict.plan.parts) if verdict and verdict.plan else 0


def _largest_model(experiment: Experiment, judge: Judge) -> tuple[int, Verdict | None, Verdict | None]:
    """Returns the heads of the largest member of the family that fits, its verdict, and that of the next larger one."""
    found: dict[int, Verdict] = {}
    unit = experiment.model.knobs.get("n_kv_head") or 1  # of so many heads each member has a multiple
    most = max(MOST_HEADS // unit, 1)

    def fits(units: int) -> bool:
        knobs = {**experiment.model.knobs, **_member(experiment, units * unit)}
        found[units] = judge(_with(experiment, model=experiment.model.model_copy(update={"knobs": knobs})))
        return found[units].fits

    guess = max(16 // unit, 1)
    for power in (1 / 3, 1 / 2.5):  # parameters go as heads^3, and activations as heads^2
        fits(guess)
        if used := _used(found[guess]):
            guess = min(max(int(guess * used**-power), 1), most)
    units = boundary(fits, guess, most)
    return units * unit, found.get(units), found.get(units + 1)


def _largest_batch(experiment: Experiment, judge: Judge) -> int:
    """Returns the largest batch that fits.

    The memory needed is the largest of several terms, each a constant plus a part that grows with the batch. Where it
    is level, the growing parts are still hidden.
    """

    def verdict(size: int) -> Verdict:
        return judge(_with(experiment, batch_size=max(size, experiment.accumulate)))  # fewer cannot be cut

    size, guess = 64, 128
    for _ in range(8):
        less, more = _used(verdict(size)), _used(verdict(guess))
        if less is None or more is None or size == guess:
            break
        level = more == less
        size, guess = guess, guess * 4 if level else int(guess + (guess - size) * (1 - more) / (more - less))
        guess = min(max(guess, 1), MOST_SAMPLES)
    return boundary(lambda size: verdict(size).fits, guess, MOST_SAMPLES)


def _used(verdict: Verdict) -> float | None:
    """The share of what there is that is needed, where it is most; above 1 it does not fit."""
    if verdict.plan is None or verdict.need is None:
        return None
    capacity = capacity_of(verdict.plan)
    shares = [verdict.need.host / max(capacity.host, 1)]
    if capacity.device is not None:
        shares.append(verdict.need.device / max(capacity.device, 1))
    return max(shares)


def _with(experiment: Experiment, **changes: Any) -> Experiment:
    return experiment.model_copy(update=changes)


def _strategies(
    experiment: Experiment,
    chosen: Verdict,
    overrides: Sequence[str],
    names: Sequence[str],
    config_dir: Path | None,
    allowed: tuple[str, ...],
    judge: Judge,
) -> list[Verdict]:
    """The chosen strategy, then the others with each value of the knobs that decide what is held where.

    Refused variants of a strategy are left out, but where all are refused, the first says why.
    """
    rows = [chosen]
    for name in names:
        base = experiment.strategy
        if name != base.name:
            base = compose(instead(list(overrides), {"strategy": name}), config_dir).strategy
        judged = [judge(_with(experiment, strategy=variant)) for variant in _variants(base, allowed)]
        judged = [verdict for verdict in judged if not _same(verdict, chosen)]
        planned = [verdict for verdict in judged if verdict.plan is not None]
        if not planned and name != experiment.strategy.name:
            planned = [replace(verdict, strategy=name) for verdict in judged[:1]]
        rows += planned
    return rows


def _same(one: Verdict, other: Verdict) -> bool:
    """Also where one leaves a knob to its default that the other names."""
    if one.plan is None or other.plan is None:
        return one.strategy == other.strategy
    mine, its = one.plan.strategy, other.plan.strategy
    resolved = [getattr(mine, knob, None) == getattr(its, knob, None) for knob in VARIED]
    return type(mine) is type(its) and all(resolved)


def _variants(strategy: Choice, allowed: tuple[str, ...]) -> list[Choice]:
    cls = load_class("strategy", strategy.target, Strategy, allowed)
    variants = [strategy.knobs]
    for knob in VARIED:
        if knob in strategy.knobs:
            values = values_of(cls, knob) or [strategy.knobs[knob]]
            variants = [{**knobs, knob: value} for knobs in variants for value in values]
    return [strategy.model_copy(update={"knobs": knobs}) for knobs in variants]
