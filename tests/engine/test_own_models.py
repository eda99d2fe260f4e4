"""What users' models, losses and data may do, and what a run says where it cannot follow."""

import sys
from pathlib import Path
from typing import Any

import pytest
from short_runs import HERE

from paceline import engine
from paceline.engine import Result
from paceline.engine.errors import WorkerFailedError
from paceline.tracking.run_directory import RunDirectory

QUICK = ["tracking=none", "batch_size=16", "steps=4", "checkpoint.every=0", "hardware=virtual"]


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fork_server: None) -> Any:
    monkeypatch.setattr(sys, "path", [*sys.path, str(HERE)])

    def train(model: str, *overrides: str, unknown: int = 0) -> Result:
        chosen = [f"model={{_target_:own_models.{model}}}", f"data={{_target_:own_models.Rows,unknown:{unknown}}}"]
        result = engine.run(
            [*QUICK, "hardware.workers=2", *chosen, *overrides],
            allow_modules=["own_models"],
            name="own",
            root=tmp_path,
            quiet=True,
        )
        assert result is not None
        return result

    return train


@pytest.mark.dist
@pytest.mark.parametrize("sync", ["bsp", pytest.param("asp", marks=pytest.mark.slow)])
def test_nan_in_the_inputs_of_test_rows_is_no_accuracy_and_ends_the_run(train, tmp_path: Path, sync: str) -> None:
    with pytest.raises(WorkerFailedError) as caught:
        train("InPlace", f"sync={sync}", f"stop_at_target={str(sync == 'bsp').lower()}", unknown=3)
    assert caught.value.exit_code == 6
    assert "the inputs of test sample 29 (counted from 0) hold NaN or infinite values. Look at the data" in str(
        caught.value
    )
    records = list(RunDirectory(tmp_path / "own").records())
    assert not any(record["kind"] == "evaluation" for record in records)
    assert records[-1]["kind"] == "end" and records[-1]["status"] == "diverged"


@pytest.mark.dist
def test_a_forward_that_changes_its_input_is_evaluated_alike_each_time(train, tmp_path: Path) -> None:
    train("InPlace", "optimizer.lr=1e-30", "epochs=4", "evaluate.every=1", "steps=8")
    evaluations = [record for record in RunDirectory(tmp_path / "own").records() if record["kind"] == "evaluation"]
    assert len(evaluations) > 2 and len({(each["loss"], each["accuracy"]) for each in evaluations}) == 1
