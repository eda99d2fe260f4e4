"""A run explained: what it spent its time, memory and bytes on, against its prediction, and what would help most."""

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from ..conf.errors import ConfigError
from .output import aligned

if TYPE_CHECKING:
    from ..engine.api.changes import Change
    from ..tracking.run_data import RunData

Plain = dict[str, Any]
STEP = ("compute", "communication", "waiting")


@dataclass(frozen=True)
class Told:
    """Everything that is said of a run. Seconds, bytes; shares of a step."""

    run: "RunData"
    workers: list[Plain]  # the parts of each one's step
    step: Plain  # median, and its parts
    prediction: Plain | None  # of its time, as it was made before the run
    memory: Plain  # {"predicted", "measured", "cap"}, by kind
    sent: Plain  # {"predicted", "measured", "by_primitive", "by_axis"}
    mfu: float | None
    no_mfu: str
    changes: "list[Change]"
    no_changes: str


def told_of(run: "RunData", allowed: tuple[str, ...]) -> Told:
    from ..engine.api.changes import StepShares, changes, step_of
    from ..engine.config.overrides import overrides_of
    from ..tracking.drawn import memory, steps
    from ..tracking.figures.facts import finite, section
    from ..tracking.prediction import prediction_of
    from ..tracking.report.pictures import cap_of, workers_of
    from ..tracking.run_directory import RunDirectory

    predicted, wire, step = (section(run.summary, key) for key in ("predicted", "wire", "step_time"))
    held = [
        {kind: size for kind in memory.KINDS if (size := finite(each.get(kind))) is not None}
        for each in (section(predicted, "memory"), section(run.summary, "memory"))
    ]
    parts = {part: finite(step.get(part)) for part in ("median", *STEP, "hidden")}
    workers, whole = workers_of(run), sum(parts[part] or 0.0 for part in STEP)
    mfu, no_mfu, found, no_changes = None, "", [], ""
    try:
        if run.path is not None and RunDirectory(run.path).is_of_script():
            raise ConfigError("a script trained it, and a prediction or another choice needs its model and data")
        overrides = overrides_of(run.config)
        estimated, no_mfu = step_of(overrides, allowed)
    except (KeyError, TypeError, AttributeError):
        no_mfu = no_changes = "its configuration is not one of this version's, or not known"
    except ConfigError as error:
        no_mfu = no_changes = str(error)
    else:
        if estimated is not None and estimated.flops and estimated.peak and parts["median"]:
            mfu = estimated.flops / (parts["median"] * estimated.workers * estimated.peak)
        elif estimated is not None:
            no_mfu = "how many flops a step takes, how fast its device is, or how long a step took is not known"
        shares = None
        if whole > 0:
            late = steps.straggler(workers)
            shares = StepShares((parts["waiting"] or 0.0) / whole, (parts["communication"] or 0.0) / whole, late)
        found = changes(overrides, allowed, shares)
        if not found:
            no_changes = "nothing that was tried would make a sample take less time"
            if estimated is None and shares is None:
                no_changes = "nothing was predicted of its step, and it was too short to measure"
    sent = {
        "predicted": finite(predicted.get("bytes_per_step")),
        "measured": finite(wire.get("bytes_per_step")),
        "by_primitive": _numbers(section(wire, "by_primitive")),
        "by_axis": _numbers(section(wire, "by_axis")),
    }
    kinds = {"predicted": held[0], "measured": held[1], "cap": cap_of(run)}
    return Told(run, workers, parts, prediction_of(run), kinds, sent, mfu, no_mfu, found, no_changes)


def _numbers(told: Plain) -> dict[str, float]:
    from ..tracking.figures.facts import finite

    return {str(key): value for key, each in told.items() if (value := finite(each)) is not None}


def raw(told: Told) -> Plain:
    """Returns the explanation for `--format json`."""
    from ..engine.api.changes import as_dict
    from ..tracking.drawn import steps

    return {
        "run": told.run.name,
        "status": told.run.summary.get("status"),
        "step": told.step,
        "workers": told.workers,
        "straggler": steps.straggler(told.workers),
        "prediction": told.prediction,
        "memory": told.memory,
        "sent": told.sent,
        "mfu": told.mfu,
        "no_mfu": told.no_mfu or None,
        "changes": [as_dict(change) for change in told.changes],
        "no_changes": told.no_changes or None,
    }


def for_people(told: Told) -> str:
    from ..tracking.visible import visible

    paragraphs = [f"{visible(told.run.name)}: {told.run.summary.get('status')}"]
    for head, lines in sections(told):
        paragraphs += [head.upper(), "\n".join(visible(line) for line in lines)]
    return "\n\n".join(paragraphs)


def sections(told: Told) -> list[tuple[str, list[str]]]:
    return [
        ("time of a step", _time(told)),
        ("memory of the largest worker", _memory(told)),
        ("bytes that a worker sends in a step", _sent(told)),
        ("roofline", [_roof(told)]),
        ("what would help most", _help(told)),
    ]


def _time(told: Told) -> list[str]:
    from ..tracking.drawn.steps import in_words, ms
    from ..tracking.prediction import seconds_by_part

    if told.step["median"] is None:
        return ["It was too short to measure, or was not measured."]
    table = [["", "measured", "share"]]
    whole = sum(told.step[part] or 0.0 for part in STEP) or 1.0
    table += [
        [part, ms(seconds), f"{seconds / whole:.0%}"] for part in STEP if (seconds := told.step[part]) is not None
    ]
    estimated = seconds_by_part(told.run) or {}
    lines = aligned(table, numbers_from=1)
    if estimated:
        total = sum(estimated.values())
        off = 100 * (total / told.step["median"] - 1)
        parts = ", ".join(f"{part} {ms(seconds)}" for part, seconds in estimated.items())
        lines.append(f"predicted: {ms(total)} ({off:+.0f} %): {parts}")
    else:
        lines.append("predicted: nothing (the run has no prediction.json)")
    return [*lines, in_words(told.workers, estimated or None, told.step)]


def _memory(told: Told) -> list[str]:
    from ..tracking.compare import human_bytes
    from ..tracking.drawn.memory import KINDS, in_words

    predicted, measured = told.memory["predicted"], told.memory["measured"]
    if not predicted and not measured:
        return ["Nothing was recorded of it."]
    table = [["", "predicted", "measured"]]
    for kind in (kind for kind in KINDS if kind in predicted or kind in measured):
        table.append([kind, *(human_bytes(held[kind]) if kind in held else "-" for held in (predicted, measured))])
    return [*aligned(table, numbers_from=1), in_words(predicted, measured, told.memory["cap"])]


def _sent(told: Told) -> list[str]:
    from ..tracking.compare import human_bytes

    both = [told.sent["predicted"], told.sent["measured"]]
    if both == [None, None]:
        return ["Nothing was recorded of them."]
    said = ["nothing known" if each is None else human_bytes(each) for each in both]
    lines = [f"predicted {said[0]}, measured {said[1]}"]
    for name, key in (("by primitive", "by_primitive"), ("by axis of the mesh", "by_axis")):
        if told.sent[key]:
            lines.append(f"{name}: " + ", ".join(f"{each} {human_bytes(n)}" for each, n in told.sent[key].items()))
    return lines


def _roof(told: Told) -> str:
    if told.mfu is None:
        return f"Not known: {told.no_mfu}."
    return f"It reached {told.mfu:.1%} of what its devices compute at most (model flops utilisation)."


def _help(told: Told) -> list[str]:
    if not told.changes:
        return [f"Nothing is known: {told.no_changes}."]
    lines: list[str] = []
    for number, change in enumerate(told.changes, 1):
        least = f"at most {change.speedup:.2f}x" if change.bound else f"{change.speedup:.2f}x"
        lines += [f"{number}. {' '.join(change.overrides)}: {least} the samples a second ({change.why})"]
        lines += [f"   {change.command}"]
    if any(change.bound for change in told.changes):
        lines.append("At most: if all of that time were gone. What it costs in accuracy for each step has to be tried.")
    return lines


def as_page(told: Told) -> str:
    from ..tracking.drawn import memory, steps
    from ..tracking.drawn.lanes import as_html, in_page
    from ..tracking.prediction import seconds_by_part

    parts: list[str] = []
    if told.workers:
        drawn = steps.as_svg("A step of each worker", told.workers, seconds_by_part(told.run), told.step)
        parts.append(in_page(drawn))
    held = told.memory
    if held["predicted"] or held["measured"]:
        drawn = memory.as_svg("Memory over a step", held["predicted"], held["measured"], held["cap"])
        parts.append(in_page(drawn))
    for head, lines in sections(told):
        parts.append(f'<h2>{escape(head.capitalize())}</h2>\n<pre tabindex="0">{escape(chr(10).join(lines))}</pre>')
    return as_html(told.run.name, "\n".join(parts))
