"""Shows how a collective makes a sum, step by step, from its own messages: a part of `paceline explain
collective=NAME`.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..conf.errors import ConfigError
from .output import aligned, terminal_width

if TYPE_CHECKING:
    from ..exchange.collectives.recorded import RecordedMessage, RecordedStep, Recording


PLANNED = "That is of the sum drawn here; paceline plan says what is chosen for the sums of a model, which are larger."
# What the picture has unless it is given. The first that the collective takes is used.
USUAL = (("hardware.workers=4",), ("hardware.workers=4", "hardware.workers_per_host=2"))


def recorded(
    choice: str, overrides: Sequence[str], config_dir: Path | None, allowed: Sequence[str]
) -> "tuple[Recording | None, str]":
    """Returns the sum, or None and the reason why there is no picture of it."""

    given = {each.partition("=")[0] for each in overrides}
    why = ""
    for usual in USUAL:
        base = [each for each in ("hardware=virtual", *usual) if each.partition("=")[0] not in given]
        try:
            return _recorded([*base, *overrides, choice], config_dir, list(allowed)), ""
        except ConfigError as error:
            why = why or str(error)
    return None, why


def _recorded(overrides: list[str], config_dir: Path | None, allowed: list[str]) -> "Recording":
    """Raises `ConfigError` or `TableError`."""
    from .. import engine
    from ..engine.fabrics import fabric_of
    from ..engine.features import injected
    from ..exchange.collectives import Collective
    from ..exchange.collectives.recorded import nbytes_of, record
    from ..strategies.core.cost import World

    experiment = engine.prepare(overrides, config_dir, allowed).experiment
    collective = injected.make(experiment, tuple(allowed))["collective"]
    assert isinstance(collective, Collective)
    hardware, fabric = experiment.hardware, fabric_of(experiment)
    workers = hardware.workers or 2
    with injected.naming(experiment):
        hosts = fabric.hosts(hardware, workers)
        # refuses what has no use for these hosts
        collective.phases(nbytes_of(workers), World(workers, hosts=hosts))
        recording = record(collective, workers, hosts.count(0) if hosts else 1)
    name = experiment.choice("collective").name
    return replace(recording, chosen=tuple(f"collective={name}: {why}" for why in recording.chosen))


def raw(name: str, recording: "Recording") -> dict[str, Any]:
    """Chunks hold the workers whose values have been added up."""
    return {
        "collective": name,
        "hosts": list(recording.hosts),
        "chosen": list(recording.chosen),
        "steps": [
            {
                "name": step.name,
                "messages": [
                    {
                        "from": message.source,
                        "to": message.destination,
                        "chunks": list(message.chunks),
                        "adds": message.adds,
                    }
                    for message in step.messages
                ],
                "after": [[sorted(chunk) for chunk in row] for row in step.after],
            }
            for step in recording.steps
        ],
    }


# -- for people


def drawn(name: str, recording: "Recording") -> str:
    workers, steps = recording.workers, recording.steps
    hosts = len({*recording.hosts})
    messages = sum(len(step.messages) for step in steps)
    on = f" on {hosts} hosts" if 1 < hosts < workers else ""
    title = (
        f"{name}: a sum of {workers} chunks among {workers} workers{on}, {len(steps)} steps, {messages} messages\n"
        f"After each step: how many workers' values each chunk is the sum of; + just added to, = just replaced"
    )
    if recording.chosen:
        title = "\n".join([*recording.chosen, PLANNED, title])
    return "\n\n".join([title, *(_step(i, step, recording) for i, step in enumerate(steps))])


def _step(i: int, step: "RecordedStep", recording: "Recording") -> str:
    named = f": {step.name}" if step.name else ""
    title = f"step {i + 1} of {len(recording.steps)}{named}"
    return "\n".join([title, *_messages(step), *_state(step, recording)])


def _messages(step: "RecordedStep") -> list[str]:
    said = [f"{message.source} -> {message.destination} {_chunks(message)}" for message in step.messages]
    width = max(len(text) for text in said) + 3
    each = max((min(terminal_width() or 100, 120) - 2) // width, 1)
    return [
        "  " + "".join(text.ljust(width) for text in said[i : i + each]).rstrip() for i in range(0, len(said), each)
    ]


def _chunks(message: "RecordedMessage") -> str:
    """Returns the chunks as ranges: chunks 0-2, 5."""
    runs = [
        [chunk for _, chunk in run] for _, run in groupby(enumerate(message.chunks), key=lambda each: each[1] - each[0])
    ]
    ranges = ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)
    return f"chunk{'s' if len(message.chunks) > 1 else ''} {ranges}"


def _state(step: "RecordedStep", recording: "Recording") -> list[str]:
    marks = {
        (message.destination, chunk): "+" if message.adds else "="
        for message in step.messages
        for chunk in message.chunks
    }
    levels = 1 < len({*recording.hosts}) < recording.workers
    rows = [["", *(f"chunk {chunk}" for chunk in range(recording.workers))]]
    for rank, row in enumerate(step.after):
        host = f" (host {recording.hosts[rank]})" if levels else ""
        cells = [f"{len(chunk)}{marks.get((rank, place), ' ')}" for place, chunk in enumerate(row)]
        rows.append([f"worker {rank}{host}", *cells])
    return [f"  {line}" for line in aligned(rows, numbers_from=1)]
