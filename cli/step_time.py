"""Shows the predicted time of a step in the terminal."""

from typing import TYPE_CHECKING, Any

from ..conf.counted import counted
from ..conf.errors import ConfigError
from ..cost.durations import time_of as time_of
from .output import aligned

if TYPE_CHECKING:
    from ..cost.predicted import PredictedStep
    from ..engine.api.preparing import Prepared
    from ..engine.planning.planned import Plan
    from ..engine.predict.device_use import DeviceUse

LEAST = 5e-4  # of the step: parts below it are left out


def drawn_step(step: "PredictedStep", plan: "Plan", tokens: float | None) -> list[str]:
    """The step, its parts with the formula of each, an epoch, and what `tokens` take."""
    from ..cost.predicted import PARTS

    seconds = step.seconds
    rate = f"{step.samples / seconds:,.4g} samples"
    if step.tokens is not None:
        rate += f" and {step.tokens / seconds:,.4g} tokens"
    share = "" if step.mfu is None else f", MFU {step.mfu:.1%}"
    lines = [
        f"predicted step: {time_of(seconds)} on {step.workers} {step.on} in {step.dtype}, {rate} a second"
        f"{share} ({step.how})",
    ]
    if step.range is not None:
        lines.append("  " + " to ".join(map(time_of, step.range)) + f": {step.published}")
    shown = [(name, step.parts[name]) for name in PARTS if step.parts.get(name, 0.0) > LEAST * seconds]
    table = aligned([[PARTS[name], time_of(part), f"{part / seconds:.1%}"] for name, part in shown], numbers_from=1)
    lines += [f"  {line}  {step.formulas[name]}" for line, (name, _) in zip(table, shown, strict=True)]
    if plan.steps_per_epoch is not None:
        lines.append(
            f"an epoch of {counted(plan.steps_per_epoch, 'step')}: {_cost(step, plan.steps_per_epoch * seconds)}"
        )
    if tokens is not None:
        seconds = step.of_tokens(tokens)
        low, high = step.range or (0.0, 0.0)
        spread = f"; {time_of(low / step.seconds * seconds)} to {time_of(high / step.seconds * seconds)} as above"
        lines.append(f"{tokens:.4g} tokens: {_cost(step, seconds)}{spread if step.range else ''}")
        if step.peak is not None:
            lines.append("  of steps alone: paceline cost uses the rates of long runs, with their pauses")
    return lines


def drawn_memory(use: "DeviceUse") -> list[str]:
    """The memory of a device that is described, and whether it fits."""
    from ..tracking.compare import human_bytes

    held, there = human_bytes(use.held), human_bytes(use.device_memory)
    lines = [f"memory of a device: {held} of {there}, with the runtime's"]
    if use.range is not None:
        lines.append("  " + " to ".join(map(human_bytes, use.range)) + f": {use.published}")
    return [*lines, *lack_of_memory(use)]


def lack_of_memory(use: "DeviceUse | None") -> list[str]:
    """Says that the plan does not fit, or may not; empty if it fits or no device is described."""
    from ..tracking.compare import human_bytes

    if use is None:
        return []
    held, there = human_bytes(use.held), human_bytes(use.device_memory)
    if not use.fits:
        return [
            f"it does not fit: {held} held on a device of {there}; a step's time is that of a device with enough. "
            "paceline plan --fit says what fits"
        ]
    if use.beyond_margin > 0:
        return [f"it may run out of memory: the range goes beyond a device of {there}"]
    return []


def raw_memory(use: "DeviceUse") -> dict[str, Any]:
    ends = None if use.range is None else list(use.range)
    fits = {"fits": use.fits, "margin": use.beyond_margin <= 0}
    return {"held": use.held, "range": ends, "of": use.device_memory, **fits}


def raw_step(step: "PredictedStep", plan: "Plan", tokens: float | None, use: "DeviceUse | None") -> dict[str, Any]:
    raw = step.as_dict()
    raw["fits"] = None if use is None else use.fits
    if plan.steps_per_epoch is not None:
        raw["epoch"] = _raw_cost(step, plan.steps_per_epoch * step.seconds)
    if tokens is not None:
        raw["tokens"] = {"tokens": tokens, **_raw_cost(step, step.of_tokens(tokens))}
    return raw


def predicted(prepared: "Prepared", plan: "Plan", tokens: float | None) -> tuple[list[str], dict[str, Any]]:
    """Returns the prediction for people and for programs, or the reason why there is none. Raises `ConfigError` where
    `tokens` need it.
    """
    from ..cost.predicted import NotPredicted
    from ..engine.predict.device_use import device_use_of

    use = device_use_of(plan)
    memory = [] if use is None else drawn_memory(use)
    of_device = {"device_memory": None if use is None else raw_memory(use)}
    try:
        step = prepared.step_time(plan)
        if tokens is not None:
            step.of_tokens(tokens)
    except NotPredicted as why:
        if tokens is not None:
            raise ConfigError(f"--tokens: a step's time is not predicted: {why}") from why
        hardware = plan.experiment.hardware
        measured = hardware.fabric == "process" and hardware.calibration is not None
        asked = measured or (hardware.machine is not None and hardware.machine.accelerator is not None)
        none = [f"predicted step: none; {why}"] if asked else []
        return [*memory, *none], {"step": None, "step_why": str(why), **of_device}
    return [*memory, *drawn_step(step, plan, tokens)], {"step": raw_step(step, plan, tokens, use), **of_device}


def _cost(step: "PredictedStep", seconds: float) -> str:
    price = step.price(seconds)
    return time_of(seconds) + (", and what the machine costs is not known" if price is None else f", ${price:,.2f}")


def _raw_cost(step: "PredictedStep", seconds: float) -> dict[str, float | None]:
    return {"seconds": seconds, "dollars": step.price(seconds)}
