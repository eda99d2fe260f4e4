"""The values of a run's records that trackers plot over the step, and their names."""

from typing import Any

from .run_directory import Record

NON_FINITE = ("nan", "inf", "-inf")
SHARED = ("step", "epoch", "time")  # axes to plot over


def history(record: Record, swept: bool = False) -> dict[str, Any]:
    """`train/*` of a step, `evaluation/*` of an evaluation, over `step`; {} of any other record.

    `swept`: a W&B sweep looks for its metric while the run goes on, by the name that it has in the summary.
    """
    group = {"step": "train", "evaluation": "evaluation"}.get(record.get("kind", ""))
    if group is None:
        return {}
    told = {key: float(value) if value in NON_FINITE else value for key, value in record.items() if key != "kind"}
    plotted = {key if key in SHARED else f"{group}/{key}": value for key, value in told.items()}
    return plotted | told if swept and group == "evaluation" else plotted


def numbers(plotted: dict[str, Any]) -> dict[str, float]:
    """Returns the values that are numbers, without the step."""
    return {
        key: float(value)
        for key, value in plotted.items()
        if key != "step" and isinstance(value, int | float) and not isinstance(value, bool)
    }
