"""The output of `paceline plan --fit`."""

from math import ceil
from typing import TYPE_CHECKING, Any

from ..conf.counted import counted
from ..cost.layout import DTYPES
from .output import aligned

if TYPE_CHECKING:
    from ..engine.config.experiment import Machine
    from ..engine.predict.fit import Fit, Verdict


def raw_fit(fit: "Fit") -> dict[str, Any]:
    """Everything, in plain values: bytes, entries of parameters."""
    from ..engine.predict.fit import size_of

    capacity = fit.capacity
    return {
        "machine": capacity.machine.model_dump(),
        "capacity": {"device": capacity.device, "host": capacity.host, "workers_per_host": capacity.per_host},
        "largest_model": {"overrides": fit.overrides, "parameters": fit.parameters} | _raw(fit.model)
        if fit.model
        else None,
        "next_larger_model": {"parameters": size_of(fit.next_model)} | _raw(fit.next_model) if fit.next_model else None,
        "largest_batch_size": fit.batch_size or None,
        "chosen": _raw(fit.chosen),
        "strategies": [_raw(verdict) for verdict in fit.strategies],
    }


def _raw(verdict: "Verdict") -> dict[str, Any]:
    plan, need = verdict.plan, verdict.need
    return {
        "strategy": verdict.strategy,
        "fits": verdict.fits,
        "why": verdict.why or None,
        "memory": plan.peak_memory() if plan else None,
        "need": {"device": need.device, "host": need.host} if need else None,
    }


# -- for people


def fit_for_people(fit: "Fit") -> str:
    return "\n\n".join(
        [
            _machine(fit),
            "\n".join([*aligned([_model(fit), *_why(fit), _batch(fit)], numbers_from=2)]),
            "\n".join([_title(fit), *_strategies(fit)]),
            _notes(fit),
        ]
    )


def _machine(fit: "Fit") -> str:
    from ..tracking.compare import human_bytes

    plan, capacity = fit.chosen.plan, fit.capacity
    assert plan is not None
    machine = capacity.machine
    host = f"{human_bytes(machine.host_memory)} of host memory, {human_bytes(capacity.host)} to fill"
    shared = f"shared by {capacity.per_host} workers and servers" if capacity.per_host > 1 else "for 1 worker"
    lines = [f"machine: {host}, {shared}"]
    if capacity.device is not None:
        devices = f"{machine.devices} device{'' if machine.devices == 1 else 's'}"
        lines += [f"{devices} of {human_bytes(machine.device_memory)}, {human_bytes(capacity.device)} of each to fill"]
    if rates := _rates(machine):
        lines += [rates]
    if (hosts := ceil(plan.layout.world_size / capacity.per_host)) > 1:
        price = f", {hosts * machine.price_per_hour:.2f} US dollars an hour together" if machine.price_per_hour else ""
        lines += [f"{counted(plan.layout.workers, 'worker')} take {hosts} such machines{price}"]
    trained_in = DTYPES.get(plan.strategy.setting.precision.name, plan.strategy.setting.precision.name)
    if machine.flops and trained_in not in machine.flops:
        lines += [f"no rate in {trained_in} is known of it: see that it computes in that, and how fast"]
    return "\n         ".join(lines)


def _rates(machine: "Machine") -> str:
    said = [f"{flops / 1e12:,.3g} TFLOP/s in {dtype}" for dtype, flops in machine.flops.items()]
    said = [f"sustains {' and '.join(said)}"] if said else []
    if machine.host_link:
        said.append(f"{machine.host_link / 1e9:,.3g} GB/s to the host")
    if machine.link:
        said.append(f"{machine.link.bandwidth / 1e9:,.3g} GB/s between devices")
    if machine.price_per_hour:
        said.append(f"{machine.price_per_hour:.2f} US dollars an hour")
    return ", ".join(said)


def _model(fit: "Fit") -> list[str]:
    if fit.model is None:
        return ["largest GPT", "none of the family: the smallest does not fit either"]
    return ["largest GPT", f"{_entries(fit.parameters)} parameters: {fit.overrides}"]


def _why(fit: "Fit") -> list[list[str]]:
    """Says what the largest model takes of the machine, and what the next larger one lacks."""
    from ..engine.predict.fit import size_of
    from ..tracking.compare import human_bytes

    lines: list[str] = []
    if fit.model is not None and fit.model.plan is not None and fit.model.need is not None:
        need, capacity = fit.model.need, fit.capacity
        taken = [f"{human_bytes(need.host)} of the host's {human_bytes(capacity.host)}"]
        if capacity.device is not None:
            taken.insert(0, f"{human_bytes(need.device)} of a device's {human_bytes(capacity.device)}")
        kinds = fit.model.plan.peak_memory().items()
        held = ", ".join(f"{kind} {human_bytes(size)}" for kind, size in kinds if size)
        lines += [f"it takes {' and '.join(taken)}: {held}"]
    if fit.next_model is not None and fit.next_model.why:
        lines += [f"the next larger, {_entries(size_of(fit.next_model))}: {fit.next_model.why}"]
    return [["", line] for line in lines]


def _entries(number: int) -> str:
    for unit, name in ((10**9, "billion"), (10**6, "million")):
        if number >= unit:
            return f"{number / unit:.3g} {name}"
    return f"{number:,}"


def _batch(fit: "Fit") -> list[str]:
    from ..engine.predict.fit import MOST_SAMPLES

    assert fit.chosen.plan is not None
    model = fit.chosen.plan.experiment.model.name
    if fit.batch_size == 0:
        return ["largest batch", f"none: one sample of model={model} does not fit"]
    more = " or more" if fit.batch_size == MOST_SAMPLES else ""
    return ["largest batch", f"batch_size={fit.batch_size}{more} for model={model}"]


def _title(fit: "Fit") -> str:
    plan = fit.chosen.plan
    assert plan is not None
    experiment = plan.experiment
    parameters = _entries(sum(part.own for part in plan.parts))
    batch = f"batch_size={experiment.batch_size}"
    batch += f", accumulate={experiment.accumulate}" if experiment.accumulate > 1 else ""
    return (
        f"strategies for model={experiment.model.name} ({parameters} parameters), {batch}, "
        f"optimizer={experiment.optimizer.name}, sync={experiment.sync.name}, "
        f"{counted(plan.layout.workers, 'worker')}; what the largest worker needs at its peak:"
    )


def _strategies(fit: "Fit") -> list[str]:
    """Returns a table of each strategy's memory in all, then by kind."""
    from ..tracking.compare import MEMORY_KINDS, human_bytes

    on_device = fit.capacity.device is not None
    planned = [(row, row.plan.peak_memory()) for row in fit.strategies if row.plan is not None]
    kinds = [kind for kind in MEMORY_KINDS if any(memory.get(kind) for _, memory in planned)]
    needs = [["strategy", *(["device"] if on_device else []), "host", "fits"]]
    by_kind = [["strategy", *kinds]]
    for row, memory in planned:
        assert row.need is not None
        both = [*([row.need.device] if on_device else []), row.need.host]
        needs.append([row.strategy, *map(human_bytes, both), row.why or "yes"])
        by_kind.append([row.strategy, *(human_bytes(memory[kind]) if memory.get(kind) else "-" for kind in kinds)])
    refused = [f"{row.strategy}: refused, {row.why}" for row in fit.strategies if row.plan is None]
    last = len(needs[0]) - 1
    width = max(len(row[last]) for row in needs)
    needs = [[*row[:last], row[last].ljust(width)] for row in needs]
    return [*aligned(needs, numbers_from=1), *refused, "", *aligned(by_kind, numbers_from=1)]


def _notes(fit: "Fit") -> str:
    from ..cost.published import held_by
    from ..engine.predict.fit import PROCESS, SHARE

    assert fit.chosen.plan is not None
    its = held_by(fit.chosen.plan.strategy.traits.software) if fit.capacity.device is not None else None
    where = "a device and of the host" if fit.capacity.device is not None else "the host"
    lines = [
        f"kept back of {where}: {PROCESS / 2**30:g} GiB a process (CUDA context, libraries) and {SHARE:.0%} "
        "(allocator, system)",
        "device and host: the kinds, and what else there is once activations are gone (the copy of the model that is\n"
        "evaluated, the optimizer's temporaries); on the host the whole model, too, while it is set up",
    ]
    if its is not None:
        lines.append(f"what just fits may run out of memory: {its}; paceline advise leaves a margin for it")
    return "\n".join(lines)
