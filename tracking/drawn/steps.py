"""Draws how each worker's step divides: compute, hidden and exposed communication, waiting. The straggler is named."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from . import svg

WIDTH, ROW, DEEP, LEFT, TOP = 720, 24, 18, 130, 62  # pixels
MOST = 64  # workers that are drawn
PARTS = ("compute", "hidden", "communication", "waiting")
SLOWER, WAITED = 1.15, 0.05  # a straggler computes so many times the others' median, who wait this share of a step
OF_PARTS = {  # of a prediction: what its bar looks like; None: a gap
    "compute": 0,
    "optimizer": 4,
    "tensor": 1,
    "data": 1,
    "communication": 1,
    "shards": 1,
    "offload": 3,
    "input": 5,
    "host": 6,
    "bubble": None,
    "waiting": None,
}
Worker = Mapping[str, Any]  # {"rank", "compute", "hidden", "communication", "waiting"}: seconds of its median step


def as_svg(
    title: str,
    workers: Sequence[Worker],
    predicted: Mapping[str, float] | None,
    step: Mapping[str, Any] | None = None,
) -> str:
    """`predicted`: seconds of a step by part, cost/predicted.py's. `step`: of `in_words`."""
    shown = list(workers[:MOST])
    ends = [sum(_part(each, name) for name in ("compute", "communication", "waiting")) for each in shown]
    most = max([*ends, sum((predicted or {}).values())], default=0.0) or 1.0
    scale = WIDTH / most
    slow = straggler(workers)
    parts = [
        svg.text(10, 22, title, "title"),
        *svg.legend(10, 34, [(0, "compute"), (2, "with communication under way"), (1, "communication, exposed")]),
        svg.gap(548, 34, 18, 12, "waiting"),
        svg.text(572, 44.5, "waiting", "small"),
    ]
    top = float(TOP)
    if predicted:
        parts.append(svg.text(10, top + 13, "predicted"))
        left = float(LEFT)
        for name, seconds in predicted.items():
            said, colour = f"predicted: {name} {ms(seconds)}", OF_PARTS.get(name, 7)
            if colour is None:
                parts.append(svg.gap(left, top, seconds * scale, DEEP, said))
            else:
                parts.append(svg.bar(left, top, seconds * scale, DEEP, colour, said, pale=True))
            if seconds * scale > svg.LETTER * len(name):
                parts.append(svg.text(left + 3, top + 13, name, "small"))
            left += seconds * scale
        top += ROW + 6
    for each in shown:
        name, left = f"worker {each['rank']}", float(LEFT)
        parts.append(svg.text(10, top + 13, f"{name}, slowest" if each["rank"] == slow else name))
        hidden = min(_part(each, "hidden"), _part(each, "compute"))
        for colour, words, seconds in (
            (0, "compute", _part(each, "compute") - hidden),
            (2, "compute with communication under way, at most", hidden),
            (1, "communication", _part(each, "communication")),
        ):
            parts.append(svg.bar(left, top, seconds * scale, DEEP, colour, f"{name}: {words} {ms(seconds)}"))
            left += seconds * scale
        waits = _part(each, "waiting")
        parts.append(svg.gap(left, top, waits * scale, DEEP, f"{name}: waiting {ms(waits)}"))
        top += ROW
    for tick in svg.ticks(most, 6):
        parts.append(svg.text(LEFT + tick * scale, top + 16, ms(tick), "small", "middle"))
    if len(workers) > MOST:
        parts.append(svg.text(10, top + 36, f"the first {MOST} of {len(workers)} workers", "small"))
    return svg.document(title, in_words(workers, predicted, step), LEFT + WIDTH + 50, top + 44, parts)


def straggler(workers: Sequence[Worker]) -> int | None:
    """The rank of the worker that computes longest, where that is much longer than others do, and these wait."""
    if len(workers) < 2:
        return None
    slowest = max(workers, key=lambda each: _part(each, "compute"))
    others = [each for each in workers if each is not slowest]
    usual = median(_part(each, "compute") for each in others)
    steps = sum(_part(each, name) for each in others for name in ("compute", "communication", "waiting"))
    waits = sum(_part(each, "waiting") for each in others)
    is_one = _part(slowest, "compute") > SLOWER * usual and waits > WAITED * steps
    return int(slowest["rank"]) if is_one else None


def in_words(
    workers: Sequence[Worker], predicted: Mapping[str, float] | None, step: Mapping[str, Any] | None = None
) -> str:
    """`step`: the parts of the run's median step, where they are known; else they are the mean of the workers'."""
    if not workers:
        seconds = sum((predicted or {}).values())
        return f"Predicted: {ms(seconds)}. " * bool(predicted) + "Nothing was measured of single workers."
    known = [step] if step is not None and step.get("compute") is not None else workers
    parts = {name: sum(_part(each, name) for each in known) / len(known) for name in PARTS}
    whole = parts["compute"] + parts["communication"] + parts["waiting"]
    shares = {name: seconds / (whole or 1.0) for name, seconds in parts.items()}
    told = (
        f"Of a step of {ms(whole)}, compute is {shares['compute']:.0%} "
        f"({shares['hidden']:.0%} of the step at most with communication under way), exposed communication "
        f"{shares['communication']:.0%}, waiting {shares['waiting']:.0%}."
    )
    slow = straggler(workers)
    if slow is None:
        told += " No worker is much slower than the others." if len(workers) > 1 else ""
    else:
        own = next(_part(each, "compute") for each in workers if each["rank"] == slow)
        usual = median(_part(each, "compute") for each in workers if each["rank"] != slow)
        told += f" The straggler is worker {slow}: it computes {ms(own)}, the median of the others {ms(usual)}."
    if predicted:
        seconds = sum(predicted.values())
        told += f" Predicted: {ms(seconds)}, {100 * (seconds / (whole or 1.0) - 1):+.0f} % off."
    else:
        told += " Nothing was predicted of its time."
    return told


def _part(worker: Worker, name: str) -> float:
    value = worker.get(name)
    return float(value) if isinstance(value, int | float) else 0.0


def ms(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"
