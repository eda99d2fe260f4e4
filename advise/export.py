"""Writes the recommended layout as a configuration of another tool."""

from dataclasses import replace
from math import ceil
from pathlib import Path

from ..conf.errors import ConfigError
from ..cost.devices import DEVICES
from ..cost.predicted import NotPredicted
from ..engine.config.targets import build
from ..engine.predict.step_time import gpt_knobs, layout_of
from ..strategies.core.clip import Clip
from ..strategies.precision import Precision
from ..tracking.visible import visible
from .answer import Answer
from .candidate import Predicted
from .commands import command
from .formats import FORMATS, ExportedFile, ExportedLayout, InexpressibleError
from .plans import prepared


def export(found: Answer, name: str, file: Path) -> ExportedFile:
    """Returns the recommended layout in the format of this name. Raises `ConfigError`."""
    try:
        return _written(found, found.rows[0], name, file)
    except InexpressibleError as why:
        raise ConfigError(f"--export {name}={file}: {why}. {_instead(found, name, file)}") from None


def _instead(found: Answer, name: str, file: Path) -> str:
    """Returns the formats that can express the layout, and the first layout that this format can express."""
    ways = [other for other in FORMATS if _can(found, found.rows[0], other, file)]
    line = next((i for i, row in enumerate(found.rows, 1) if _can(found, row, name, file)), None)
    if line is not None:
        its = found.rows[line - 1].candidate
        ways.append(f"type the settings of line {line} ({its.family}, {its.group})")
    return f"Choose {', or '.join(ways)}." if ways else "Choose another layout or other hardware."


def _can(found: Answer, row: Predicted, name: str, file: Path) -> bool:
    try:
        _written(found, row, name, file)
    except (ConfigError, InexpressibleError):
        return False
    return True


def _written(found: Answer, row: Predicted, name: str, file: Path) -> ExportedFile:
    made, adapt = FORMATS[name](_exported(found, row), file), found.question.experiment.choice("adapt").name
    if adapt == "none":
        return made
    return replace(made, notes=[*made.notes, f"adapt={adapt} is the script's: without it, all weights are trained."])


def _exported(found: Answer, row: Predicted) -> ExportedLayout:
    question, its = found.question, row.candidate
    machine = question.experiment.hardware.machine
    if machine is None or machine.accelerator is None or not DEVICES[machine.accelerator].cuda:
        raise InexpressibleError("the hardware describes no GPUs")
    if its.raced:
        raise InexpressibleError(f"no other tool has the layout {its.family}, {its.group}")
    ready = prepared(question, its)
    try:
        layout = its.layout or layout_of(ready.experiment, ready.plan().layout, question.allowed)
    except NotPredicted as why:
        raise InexpressibleError(f"the layout has no closed form ({why})") from None
    experiment, knobs, allowed = ready.experiment, ready.experiment.strategy.knobs, question.allowed
    return ExportedLayout(
        layout=layout,
        command=visible(command(question, its)),
        model=experiment.model.name,
        layers=gpt_knobs(experiment)["n_layer"],
        tokens=question.of_sample,
        workers=its.workers,
        hosts=ceil(its.workers / machine.devices),
        schedule=knobs.get("schedule"),
        groups=layout.data // (knobs.get("shard_over") or layout.data),
        reshards=layout.zero == 3 and knobs.get("reshard") is not False,
        config=knobs.get("config"),
        clip=build("clip", experiment.choice("clip"), Clip, allowed, {}),
        precision=build("precision", experiment.choice("precision"), Precision, allowed, {}),
    )
