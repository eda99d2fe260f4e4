"""What runs are called where several have one name."""

from pathlib import Path

import pytest
from recorded import data

from paceline.tracking.labels import labels
from paceline.tracking.run_data import RunData, Swept


def at(path: str, name: str | None = None) -> RunData:
    """A run in this directory, recorded under `name`."""
    made = data(name or Path(path).name)
    sweep = Swept(Path(path).parent.name, 0, 0, {}) if "sweep" in path else None
    return RunData(Path(path).name, made.summary, {}, [], Path(path), sweep)


def elsewhere(name: str, sweep: str | None = None) -> RunData:
    return RunData(name, {"name": name}, {}, [], None, Swept(sweep, 0, 0, {}) if sweep else None)


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([at("/runs/a"), at("/runs/b")], ["a", "b"]),
        ([at("/runs/a"), at("/copied/a"), at("/runs/b")], ["runs/a", "copied/a", "b"]),
        ([at("/x/runs/a"), at("/y/runs/a")], ["x/runs/a", "y/runs/a"]),
        ([at("/runs/a"), at("/runs/a-copy", "a")], ["a", "a-copy"]),
        ([at("/a"), at("/b/a")], ["/a", "b/a"]),
        (
            [at("/runs/sweep1/t-s0"), at("/runs/sweep1/t-s1"), at("/runs/sweep2/t-s0")],
            ["sweep1/t-s0", "sweep1/t-s1", "sweep2/t-s0"],
        ),
        ([at("/x/sweep/t"), at("/y/sweep/t"), at("/x/sweep/u")], ["x/sweep/t", "y/sweep/t", "x/sweep/u"]),
        ([at("/runs/sweep1/t"), elsewhere("t", "sweep2")], ["sweep1/t", "sweep2/t"]),
        ([elsewhere("w"), elsewhere("w")], ["w", "w"]),
    ],
)
def test_names_that_occur_twice_are_told_apart_by_where_the_runs_lie(runs, expected):
    assert labels(runs) == expected
