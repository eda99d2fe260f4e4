"""What a sweep is judged by is read from its own file."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from some_runs import recorded

from paceline.tracking.compare import rows
from paceline.tracking.judged import best_first, metric_of
from paceline.tracking.run_data import RunData, Swept


def swept(directory: Path, metric: Any = "throughput", count: int = 2) -> list[RunData]:
    """Runs of a sweep in `directory`, whose file names the metric."""
    directory.mkdir()
    (directory / "sweep.yaml").write_text(yaml.safe_dump({"metric": {"name": metric, "goal": "maximize"}}))
    return [
        replace(recorded(f"run-{i}", number=i, swept=Swept(directory.name, i, 0, {"seed": i})), path=directory / str(i))
        for i in range(count)
    ]


def test_the_runs_of_a_sweep_are_judged_by_its_metric(tmp_path: Path) -> None:
    assert metric_of(swept(tmp_path / "one")) == "throughput"


def test_runs_beside_a_sweep_and_sweeps_of_two_metrics_have_no_metric_in_common(tmp_path: Path) -> None:
    one, two = swept(tmp_path / "one"), swept(tmp_path / "two")
    assert metric_of([*one, *two]) == "throughput"
    assert metric_of([*one, recorded()]) is None
    assert metric_of([*one, *swept(tmp_path / "three", "loss")]) is None
    assert metric_of([]) is None


@pytest.mark.parametrize("content", ["", "[", "metric: 5", "\x00", "[" * 50_000])
def test_a_damaged_file_gives_no_metric(content: str, tmp_path: Path) -> None:
    runs = swept(tmp_path / "one")
    (tmp_path / "one" / "sweep.yaml").write_text(content)
    assert metric_of(runs) is None


def test_the_best_is_first_by_a_metric_that_the_table_has() -> None:
    table = rows([recorded("slow", number=5), recorded("fast", number=0)])
    assert [row["run"] for row in best_first(table, "throughput", [])] == ["fast", "slow"]
    assert best_first(table, "val/f1", []) == table
