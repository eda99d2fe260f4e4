"""Measuring twice: a burst of other work during one pass spoils no coefficient, and is told."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from measured_machines import machine

from paceline.cost.calibration import DIFFER, MOST_DIFFERING, Calibration, plain, read
from paceline.engine.calibration.operators import cases
from paceline.engine.calibration.timing import TimedPasses


def test_what_disturbs_one_pass_spoils_no_time_and_is_counted() -> None:
    quiet, disturbed = {str(case): 1e-3 * (1 + case) for case in range(10)}, {"3", "7"}
    passes = TimedPasses()
    for number in range(2):
        for case, seconds in quiet.items():
            burst = 4.0 if (number == 0 and case == "3") or (number == 1 and case == "7") else 1.01
            passes.add(case, burst * seconds)
    assert set(passes.differing) == disturbed and passes.share == pytest.approx(2 / 10)
    for case in disturbed:  # the third pass
        passes.add(case, 0.99 * quiet[case])
    assert all(passes.middle(case) == pytest.approx(1.01 * seconds) for case, seconds in quiet.items())
    assert set(passes.differing) == disturbed  # all the same


def test_where_a_machine_is_never_quite_at_rest_its_usual_time_counts_and_not_the_least() -> None:
    assert TimedPasses({"case": [1.3, 1.0, 1.2]}).middle("case") == 1.2
    assert TimedPasses({"case": [1.1, 1.0]}).middle("case") == pytest.approx(1.05)


@pytest.mark.parametrize(("factor", "differs"), [(1 + 0.9 * DIFFER, False), (1 + 1.1 * DIFFER, True)])
def test_cases_differ_from_15_percent_of_the_smaller_on_whichever_came_first(factor: float, differs: bool) -> None:
    for times in ((1.0, factor), (factor, 1.0)):
        passes = TimedPasses({"case": list(times)})
        assert passes.differ("case") is differs and bool(passes.differing) is differs


def test_one_pass_differs_from_none() -> None:
    assert TimedPasses({"case": [1.0]}).differing == [] and TimedPasses().share == 0.0


def test_each_pass_has_the_same_cases_in_the_same_order_and_makes_tensors_only_when_it_measures() -> None:
    kernels = [case.kernel for case in cases()]
    assert kernels == [case.kernel for case in cases()] and len(kernels) > 400  # tensors of all would be gigabytes


@pytest.fixture
def measured(tmp_path: Path) -> Calibration:
    told = yaml.safe_load((machine(tmp_path) / "hardware" / "lab.yaml").read_text())
    return read(told["calibration"])


def test_either_sign_of_other_work_is_enough_and_both_are_said(measured: Calibration) -> None:
    assert replace(measured, spread=0.1, differing=MOST_DIFFERING).disturbance() == ""
    assert "spread by 30%" in replace(measured, spread=0.3).disturbance()
    single = replace(measured, spread=0.03, differing=0.4).disturbance()
    assert single.startswith("40% of what was measured twice took times that differ by more than 15%")
    assert "; " in replace(measured, spread=0.3, differing=0.4).disturbance()


def test_the_share_is_kept_and_a_file_from_before_has_none(measured: Calibration) -> None:
    told = plain(replace(measured, differing=0.125))
    assert read(told).differing == 0.125
    assert read({key: value for key, value in told.items() if key != "differing"}).differing is None
