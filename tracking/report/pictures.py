"""The report's pictures in SVG: memory over a step, where each worker's step goes, topologies, attacks; sections of
images.

An image runs no script and fetches nothing, whatever is in it, and follows the page's light or dark.
"""

from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..drawn import adversarial, memory, steps, topologies
from ..drawn.topologies import HeatMapCell
from ..figures.facts import finite, is_modelled, section, seeds_of, trained
from ..prediction import seconds_by_part
from ..run_data import RunData
from ..text import shown

MOST = 12  # runs that have pictures of their own in a section
AXES = ("tensor", "stage", "domain", "replica")  # of a mesh: those that are put across come first
Plain = dict[str, Any]


def image(svg: str) -> str:
    """Returns the picture's address in the page."""
    return f"data:image/svg+xml;base64,{b64encode(svg.encode()).decode()}"


def sections(runs: Sequence[RunData]) -> list[Plain]:
    """[{"id", "title", "note", "figures": [{"name", "says", "pictures": [{"alt", "source"}]}]}], those with any."""
    found = [
        {
            "id": "adversarial",
            "title": "Adversarial examples",
            "note": "",
            "figures": [*_curves(runs), *_examples(runs)],
        },
        _each(runs, "step-workers", "Where a step goes, worker by worker", _step),
        _each(runs, "memory-step", "Memory over a step", _memory),
        {"id": "topologies", "title": "Topologies", "note": "", "figures": list(_topologies(runs))},
    ]
    return [each for each in found if each["figures"]]


def _each(runs: Sequence[RunData], name: str, title: str, draw: Callable[[RunData], Plain | None]) -> Plain:
    repeated = {place for _, places in seeds_of(list(runs)) for place in places[1:]}
    firsts = [run for place, run in enumerate(runs) if place not in repeated]
    drawn = [figure for run in firsts[: 4 * MOST] if (figure := draw(run)) is not None]
    notes = ["Of a setting with several seeds, the first seed is shown."] if repeated else []
    notes += [f"The first {MOST} {'settings' if repeated else 'runs'} are shown."] if len(drawn) > MOST else []
    return {"id": name, "title": title, "note": " ".join(notes), "figures": drawn[:MOST]}


def _figure(run: RunData, says: str, svg: str) -> Plain:
    return {"name": shown(run.name), "says": says, "pictures": [{"alt": says, "source": image(svg)}]}


def _step(run: RunData) -> Plain | None:
    workers = workers_of(run)
    if not workers:
        return None
    predicted = seconds_by_part(run)
    title = f"{shown(run.name)}: a step of each worker"
    step = section(run.summary, "step_time")
    return _figure(run, steps.in_words(workers, predicted, step), steps.as_svg(title, workers, predicted, step))


def workers_of(run: RunData) -> list[Plain]:
    """The parts of each worker's step, of those that were measured."""
    told = run.summary.get("per_worker")
    rows = [row for row in told if isinstance(row, dict)] if isinstance(told, list) else []
    names = ("compute", "hidden", "communication", "waiting")
    read = [
        {"rank": int(rank), **{name: finite(row.get(name)) or 0.0 for name in names}}
        for row in rows
        if (rank := finite(row.get("rank"))) is not None and finite(row.get("compute")) is not None
    ]
    return sorted(read, key=lambda row: row["rank"])


def _memory(run: RunData) -> Plain | None:
    measured = _known(section(run.summary, "memory"))
    predicted = _known(section(section(run.summary, "predicted"), "memory"))
    if not measured and not predicted:
        return None
    cap = cap_of(run)
    svg = memory.as_svg(f"{shown(run.name)}: memory over a step", predicted, measured, cap)
    return _figure(run, memory.in_words(predicted, measured, cap), svg)


def _known(held: Plain) -> dict[str, float]:
    return {kind: value for kind in memory.KINDS if (value := finite(held.get(kind))) is not None and value >= 0}


def cap_of(run: RunData) -> float | None:
    """Bytes of a device, where the run's configuration says."""
    hardware = section(run.config, "hardware")
    held = finite(section(hardware, "machine").get("device_memory"))
    return held if held is not None and held > 0 else None


def _topologies(runs: Sequence[RunData]) -> Iterator[Plain]:
    """One for each model, data and number of workers of which there are several layouts; modelled ones apart."""
    groups: dict[tuple[str, ...], list[RunData]] = {}
    for run in runs:
        keys = ("model", "data", "workers", "modelled")
        if _mesh(run):
            groups.setdefault(tuple(shown(run.summary.get(key)) for key in keys), []).append(run)
    for (model, data, workers, modelled), some in groups.items():
        sizes = {axis: {_mesh(run).get(axis, 1) for run in some} for axis in AXES}
        across = [axis for axis in AXES if len(sizes[axis]) > 1][:2]
        if len(across) < 2:
            continue
        x, y = across
        cells = list(_cells(some, x, y))
        what = f"{model} on {data}, {workers} workers{', modelled' if modelled == 'True' else ''}"
        says = topologies.in_words(x, y, cells)
        svg = topologies.as_svg(f"{what}: {x} x {y}", x, y, cells)
        yield {"name": what, "says": says, "pictures": [{"alt": says, "source": image(svg)}]}


def _cells(runs: Sequence[RunData], x: str, y: str) -> Iterator[HeatMapCell]:
    """The fastest run of each pair of degrees; one does not fit where all of its runs were too large."""
    of: dict[tuple[int, int], list[RunData]] = {}
    for run in runs:
        of.setdefault((_mesh(run).get(x, 1), _mesh(run).get(y, 1)), []).append(run)
    for (across, down), some in sorted(of.items()):
        measured = [rate for run in some if (rate := finite(run.summary.get("throughput")))]
        predicted = [rate for run in some if (rate := _predicted_rate(run)) is not None]
        fits = bool(measured) or not all(map(_was_too_large, some))
        yield HeatMapCell(across, down, max(predicted, default=None), max(measured, default=None), fits)


def _predicted_rate(run: RunData) -> float | None:
    """Samples a second."""
    parts, samples = seconds_by_part(run), finite(run.summary.get("batch_size"))
    replicas = finite(run.summary.get("replicas"))
    return None if not parts or not samples or not replicas else samples * replicas / sum(parts.values())


def _mesh(run: RunData) -> dict[str, int]:
    sizes = section(run.summary, "mesh")
    return {axis: int(size) for axis in AXES if (size := finite(sizes.get(axis))) is not None and 0 < size < 1e6}


def _was_too_large(run: RunData) -> bool:
    cap, held = cap_of(run), _known(section(section(run.summary, "predicted"), "memory"))
    return cap is not None and sum(held.values()) > cap


def _curves(runs: Sequence[RunData]) -> Iterator[Plain]:
    """Yields a figure for each model, data set and norm, with a line for each setting and method, over all seeds with
    the same eps.
    """
    groups = seeds_of(list(runs))
    several = {place for _, places in groups for place in places}
    settings = [*groups, *((shown(run.name), [i]) for i, run in enumerate(runs) if i not in several)]
    figures: dict[tuple[str, str], list[adversarial.AccuracyCurve]] = {}
    for number, (label, places) in enumerate(sorted(settings, key=lambda setting: setting[1])):
        kept = [(runs[place], found) for place in places if (found := runs[place].adversarial) is not None]
        if not kept:
            continue
        first, told = kept[0]
        alike = [each for _, each in kept if each["curve"]["eps"] == told["curve"]["eps"]]
        modelled = ", modelled" if is_modelled(first) else ""
        lines = figures.setdefault((f"{trained(first)}{modelled}", told["norm"]), [])
        for method in adversarial.WORDS:
            values = tuple(tuple(each["curve"][method]) for each in alike if each["curve"][method] is not None)
            if values and len(values) == len(alike):
                lines.append(adversarial.AccuracyCurve(label, method, number, tuple(told["curve"]["eps"]), values))
    for (what, norm), lines in figures.items():
        svg = adversarial.curves_as_svg(f"{what}: accuracy under attack", norm, lines)
        says = adversarial.in_words(norm, lines)
        yield {"name": what, "says": says, "pictures": [{"alt": says, "source": image(svg)}]}


def _examples(runs: Sequence[RunData]) -> Iterator[Plain]:
    """Yields examples of the first runs that have some."""
    kept = [(run, run.adversarial) for run in runs if run.adversarial is not None]
    for run, told in kept[:MOST]:
        doubts = adversarial.doubts_in_words(told)
        if told["examples"] is None:
            yield {"name": shown(run.name), "says": doubts, "pictures": []}
            continue
        says = f"{adversarial.examples_in_words(told)} {doubts}"
        svg = adversarial.examples_as_svg(f"{shown(run.name)}: samples under {adversarial.attack_in_words(told)}", told)
        yield _figure(run, says, svg)
