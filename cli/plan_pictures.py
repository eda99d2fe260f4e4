"""The pictures of a plan, before anything runs: memory over a step, where a step goes, the schedule, a roofline.

`paceline plan --html` shows them; whatever else has a plan may ask for them here.
"""

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from .timetable import title_of

if TYPE_CHECKING:
    from ..engine.api.preparing import Prepared
    from ..engine.planning.planned import Plan


@dataclass(frozen=True)
class PlanPicture:
    """`svg`: None where there is none, and `says` says why; else it is the picture in words."""

    title: str
    svg: str | None
    says: str


def pictures(prepared: "Prepared", plan: "Plan", timetable: dict[str, Any] | None) -> list[PlanPicture]:
    """`timetable`: as engine's Timetable.as_dict(), where the strategy has a schedule."""
    found = [_memory(plan), _step(prepared, plan)]
    found += [_schedule(plan, timetable)] if timetable is not None else []
    return [*found, _roofline(prepared, plan)]


def as_page(title: str, some: list[PlanPicture]) -> str:
    from ..tracking.drawn.lanes import as_html, in_page

    parts = [
        f"<h2>{escape(each.title)}</h2>\n{in_page(each.svg) if each.svg else ''}\n<p>{escape(each.says)}</p>"
        for each in some
    ]
    return as_html(title, "\n".join(parts))


def _memory(plan: "Plan") -> PlanPicture:
    from ..tracking.drawn.memory import as_svg, in_words

    title, machine = "Memory over a step", plan.experiment.hardware.machine
    largest = max((part.memory for part in plan.parts), key=lambda held: sum(held.values()))
    cap = None if machine is None else float(machine.device_memory)
    return PlanPicture(title, as_svg(title, largest, None, cap), in_words(largest, None, cap))


def _step(prepared: "Prepared", plan: "Plan") -> PlanPicture:
    from ..cost.predicted import NotPredicted
    from ..tracking.drawn.steps import as_svg, in_words

    title = "Where a step goes"
    try:
        parts = {name: seconds for name, seconds in prepared.step_time(plan).parts.items() if seconds > 0}
    except NotPredicted as why:
        return PlanPicture(title, None, f"Its time is not predicted: {why}.")
    return PlanPicture(title, as_svg(title, [], parts), in_words([], parts))


def _schedule(plan: "Plan", timetable: dict[str, Any]) -> PlanPicture:
    from ..engine.predict.timetable import schedule_of
    from ..tracking.drawn.schedule import as_svg, in_words

    title = title_of(schedule_of(plan.experiment), timetable)
    return PlanPicture("Schedule", as_svg(title, timetable), in_words(timetable))


def _roofline(prepared: "Prepared", plan: "Plan") -> PlanPicture:
    from ..cost.predicted import NotPredicted
    from ..engine.predict.roofline import roofline
    from ..tracking.drawn.roofline import as_svg, in_words

    title = "Roofline of a layer's forward products, as predicted"
    try:
        roof, points = roofline(plan, prepared.allowed)
    except NotPredicted as why:
        return PlanPicture(title, None, f"There is no roof: {why}.")
    return PlanPicture(title, as_svg(title, roof, points), in_words(roof, points))
