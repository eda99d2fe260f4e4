"""Right classes of a user's own pass the checks of paceline.testing, and wrong ones fail the check meant for them."""

import contextlib
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from own_classes import RIGHT, LocalAverage
from wrong_classes import BREAKS, OneScaleForEachBlock, SumsGradients

from paceline.testing import (
    InvariantCheck,
    InvariantError,
    aggregator_checks,
    check_aggregator,
    check_compressor,
    check_strategy,
    check_sync,
    compressor_checks,
    strategy_checks,
    sync_checks,
)
from paceline.testing.aggregators import AGGREGATORS
from paceline.testing.checks import Invariant
from paceline.testing.compressors import COMPRESSORS
from paceline.testing.pairs import PAIRS

CHECKS: dict[str, Any] = {
    "sync": sync_checks,
    "compressor": compressor_checks,
    "aggregator": aggregator_checks,
    "strategy": strategy_checks,
}
CHECK: dict[str, Any] = {
    "sync": check_sync,
    "compressor": check_compressor,
    "aggregator": check_aggregator,
    "strategy": check_strategy,
}
SUITES = {"sync": PAIRS, "compressor": COMPRESSORS, "aggregator": AGGREGATORS}
PASSED = [check for kind, classes in RIGHT.items() for cls in classes for check in CHECKS[kind](cls)]
WRONG = [(kind, name, cls) for kind, by_name in BREAKS.items() for name, classes in by_name.items() for cls in classes]


@pytest.mark.budget(3)
@pytest.mark.parametrize("check", PASSED, ids=str)
def test_a_right_class_passes(check: InvariantCheck) -> None:
    check()


@pytest.mark.budget(3)
@pytest.mark.parametrize(("kind", "name", "cls"), WRONG)
def test_a_wrong_class_fails_and_the_message_names_it_and_the_invariant(kind: str, name: str, cls: type) -> None:
    [check] = [each for each in CHECKS[kind](cls) if each.invariant.name == name]
    with pytest.raises(InvariantError, match=rf"^{cls.__name__} breaks the invariant '{name}'\.\n") as error:
        check()
    text = str(error.value)
    assert check.invariant.sentence in text and check.invariant.source in text
    assert re.search(r"expected: .+\n +measured: .+|\w+Error: .+", text)


@pytest.mark.parametrize("kind", SUITES)
def test_each_invariant_has_a_class_that_breaks_it(kind: str) -> None:
    broken = set(BREAKS[kind]) | (set(BREAKS["strategy"]) if kind == "sync" else set())
    assert broken == {each.name for each in SUITES[kind].invariants}


@pytest.mark.budget(1.3)
@pytest.mark.parametrize("kind", CHECKS)
def test_a_check_has_a_name_for_pytest_and_all_of_them_make_one_error(kind: str) -> None:
    checks = CHECKS[kind](RIGHT[kind][0])
    assert [check.__name__ for check in checks] == [check.invariant.name for check in checks]
    wrong = [cls for classes in BREAKS[kind].values() for cls in classes]
    with pytest.raises(InvariantError, match=f"^{wrong[0].__name__} breaks the invariant"):
        CHECK[kind](wrong[0])
    assert CHECK[kind](RIGHT[kind][0]) == [check.invariant.name for check in checks]


def test_a_scale_for_each_block_is_not_entrywise_for_any_length_of_a_block() -> None:
    missed = list[int]()
    for length in range(2, 400):
        checks = compressor_checks(partial(OneScaleForEachBlock, length))
        with contextlib.suppress(InvariantError):
            next(check for check in checks if check.invariant.name == "entries are treated by themselves")()
            missed.append(length)
    assert not missed


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.parametrize("check", [each for cls in RIGHT["sync"] for each in sync_checks(cls, "process")], ids=str)
def test_a_right_class_passes_on_real_processes(check: InvariantCheck, fork_server: None) -> None:
    check()


@pytest.mark.dist
def test_a_wrong_class_fails_on_real_processes(fork_server: None) -> None:
    with pytest.raises(InvariantError, match="SumsGradients breaks the invariant 'replicas train as one worker'"):
        next(each for each in sync_checks(SumsGradients, "process") if "one worker" in str(each))()


def test_a_class_that_no_process_can_import_is_named() -> None:
    class Local(LocalAverage): ...

    with pytest.raises(
        InvariantError, match=r"Local breaks .*\n.*fabric=process: .*local object.* Choose a class at the top"
    ):
        sync_checks(Local, "process")[-1]()


@pytest.mark.parametrize("kind", SUITES)
def test_the_page_has_each_invariant_with_its_sentence(kind: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "testing_your_own.md").read_text()
    assert [row for row in map(row_of, SUITES[kind].invariants) if row not in page] == []


def row_of(invariant: Invariant[Any]) -> str:
    """Returns its row in the table of the page."""
    return f"| {invariant.name} | {invariant.sentence} |"
