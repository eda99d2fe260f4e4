"""What tells runs apart that no column does."""

from copy import deepcopy
from typing import Any

import pytest
from recorded import config, data

from paceline.tracking.compare import ComparisonRequest, render, table
from paceline.tracking.differing import differing
from paceline.tracking.run_data import RunData, Swept


def pipelined(schedule: str, lr: float = 0.1, **top: Any) -> dict[str, Any]:
    knobs = {"schedule": schedule, "micro_batches": 4}
    return config(lr=lr) | {"strategy": {"name": "pipeline", "target": "a.P", "knobs": knobs}, "batch_size": 32} | top


def shown(*runs: RunData) -> str:
    return render(table(runs, ComparisonRequest())[0])


def test_runs_that_differ_in_a_knob_alone_are_told_apart_by_it() -> None:
    titles, one, other = shown(data("a", pipelined("gpipe")), data("b", pipelined("1f1b"))).splitlines()
    assert "strategy.schedule" in titles and "gpipe" in one and "1f1b" in other
    assert "micro_batches" not in titles and "optimizer" not in titles


@pytest.mark.parametrize(
    ("one", "other", "keys"),
    [
        (pipelined("gpipe"), pipelined("gpipe", lr=0.2), ["optimizer.lr"]),
        (pipelined("gpipe"), pipelined("1f1b", lr=0.2), ["optimizer.lr", "strategy.schedule"]),
        (pipelined("gpipe"), pipelined("gpipe", batch_size=64), ["batch_size"]),
        (pipelined("gpipe"), pipelined("gpipe", seed=3, name="b", tracking={"tags": []}), []),
        (pipelined("gpipe"), pipelined("1f1b", sync={"name": "asp", "target": "a.B", "knobs": {}}), []),  # asp tells
        (pipelined("gpipe"), {}, []),  # nothing is known of the other
    ],
)
def test_it_is_asked_of_runs_that_agree_in_all_that_has_a_column(one: Any, other: Any, keys: list[str]) -> None:
    assert sorted(differing([data("a", one), data("b", other)])) == keys


def test_a_knob_that_an_earlier_run_does_not_know_is_no_difference() -> None:
    earlier = deepcopy(pipelined("gpipe"))
    del earlier["strategy"]["knobs"]["schedule"]
    assert differing([data("a", pipelined("gpipe")), data("b", earlier)]) == []


def test_a_sweep_says_by_itself_what_it_varied() -> None:
    runs = [data(name, pipelined(name), Swept("s", i, 0, {"x": i})) for i, name in enumerate(("gpipe", "1f1b"))]
    assert differing(runs) == []
