"""What differs between two runs."""

from pathlib import Path
from typing import Any

import pytest

from paceline.tracking.difference import ValuePair, difference
from paceline.tracking.errors import CorruptRunError
from paceline.tracking.run_data import RunData
from paceline.tracking.run_directory import RunDirectory
from paceline.tracking.sources import from_directory


def made(root: Path, name: str, lr: float, accuracy: float | None, torch: str, **summary: Any) -> RunDirectory:
    run = RunDirectory.create(root, name)
    knobs = {"lr": lr, "momentum": 0.9}
    run.write_config(f"name: {name}\nseed: 1\noptimizer:\n  name: sgd\n  target: x\n  knobs: {knobs}\n")
    run.write_environment({"packages": {"torch": torch, "numpy": "2"}, "gpus": []})
    if accuracy is not None:
        run.write_summary({"name": name, "status": "completed", "accuracy": accuracy, "workers": 2, **summary})
    return run


def of(*runs: RunDirectory) -> list[RunData]:
    return [from_directory(run) for run in runs]


def test_keys_versions_and_results_that_differ_are_named(tmp_path: Path) -> None:
    one = made(tmp_path, "one", 0.1, 0.5, "2.13", model_sha256="aa")
    other = made(tmp_path, "other", 0.2, 0.75, "2.14", model_sha256="bb")
    found = difference(*of(one, other))
    assert found.configuration == [ValuePair("optimizer.lr", 0.1, 0.2)]
    assert found.environment == [ValuePair("packages.torch", "2.13", "2.14")]
    results = {pair.key: pair for pair in found.results}
    assert results["accuracy"].difference == 0.25 and results["accuracy"].ratio == 1.5
    assert results["accuracy"].texts() == ["accuracy", "50.00%", "75.00%", "+25.00%", "+50.0%"]
    assert results["workers"].texts()[3:] == ["0", "+0.0%"]
    assert results["model_sha256"].plain() == {"key": "model_sha256", "first": "aa", "second": "bb"}


def test_a_difference_of_times_says_that_other_programs_disturbed_one_of_the_runs(tmp_path: Path) -> None:
    one = made(tmp_path, "one", 0.1, 0.5, "2.13", throughput=100.0)
    loud = made(tmp_path, "loud", 0.1, 0.75, "2.13", throughput=50.0, disturbed="the load average was 20 on 2 cores")
    for runs, sign in ((of(one, loud), "-"), (of(loud, one), "+")):
        found = {pair.key: pair for pair in difference(*runs).results}
        throughput = found["throughput_samples_per_s"]
        assert throughput.texts()[3].startswith(f"~{sign}") and throughput.texts()[4].startswith(f"~{sign}")
        assert throughput.plain()["disturbed"] is True
        assert "~" not in "".join(found["accuracy"].texts()) and "disturbed" not in found["accuracy"].plain()
    quiet = {pair.key: pair for pair in difference(*of(one, one)).results}
    assert "~" not in "".join(quiet["throughput_samples_per_s"].texts())


def test_a_run_and_itself_differ_in_nothing(tmp_path: Path) -> None:
    run = made(tmp_path, "one", 0.1, 0.5, "2.13", model_sha256="aa")
    found = difference(*of(run, run))
    assert found.configuration == [] and found.environment == []
    assert found.results and all(pair.difference == 0 for pair in found.results)


def test_what_is_not_known_has_no_difference(tmp_path: Path) -> None:
    one, other = made(tmp_path, "one", 0.1, 0.5, "2.13"), made(tmp_path, "other", 0.1, None, "2.13")
    other.environment.unlink()
    found = difference(*of(one, other))
    assert found.environment is None
    [accuracy] = [pair for pair in found.results if pair.key == "accuracy"]
    assert accuracy.texts() == ["accuracy", "50.00%", "-", "", ""] and "difference" not in accuracy.plain()


@pytest.mark.parametrize("content", ["[]", "{"])
def test_a_damaged_environment_is_an_error_that_names_the_file(content: str, tmp_path: Path) -> None:
    run = made(tmp_path, "one", 0.1, 0.5, "2.13")
    run.environment.write_text(content)
    with pytest.raises(CorruptRunError, match=r"one/environment\.json"):
        difference(*of(run, run))
