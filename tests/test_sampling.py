"""A share of the tests by chance, which its seed repeats."""

import pytest
from sampling import is_sampled

pytest_plugins = ["pytester"]
NAMES = [f"test_file.py::test[{number}]" for number in range(2000)]


def drawn(share: float, seed: int) -> set[str]:
    return {name for name in NAMES if is_sampled(name, share, seed)}


def test_a_seed_repeats_its_sample_and_another_draws_another_of_the_same_share() -> None:
    assert drawn(0.1, 7) == drawn(0.1, 7) != drawn(0.1, 8)
    assert all(120 < len(drawn(0.1, seed)) < 280 for seed in range(5))  # 6 standard deviations
    assert drawn(0.1, 7) < drawn(0.5, 7) and len(drawn(1.0, 7)) == len(NAMES)
    assert drawn(0.1, 7) & drawn(0.1, 8), "drawn independently"


def test_the_sample_is_of_what_was_chosen_and_the_header_says_its_seed(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import pytest\n@pytest.mark.parametrize('n', range(200))\ndef test_it(n): pass\n")
    pytester.makeconftest("from sampling import draw as pytest_collection_modifyitems")
    result = pytester.runpytest_inprocess("-p", "sampling", "--sample", "0.25", "--seed", "3", "-k", "test_it")
    passed = result.parseoutcomes()["passed"]
    assert 20 < passed < 80 and result.parseoutcomes()["deselected"] == 200 - passed
    result.stdout.fnmatch_lines(["sample: 0.25 of the tests, --seed 3"])


@pytest.mark.xdist_group("one_process")
def test_tests_of_a_group_run_in_one_process(request: pytest.FixtureRequest) -> None:
    if not hasattr(request.config, "workerinput"):
        pytest.skip("not run by pytest-xdist")
    assert request.node.nodeid.endswith("@one_process"), "pytest-xdist no longer tells its scheduler of groups"


def test_a_group_is_drawn_as_a_whole_but_where_its_tests_can_be_drawn_alone(pytester: pytest.Pytester) -> None:
    cases = "@pytest.mark.parametrize('n', range(100))\ndef test_{0}(n): pass\n"
    group, alone = "@pytest.mark.xdist_group('{0}')\n", "@pytest.mark.drawn_alone\n"
    pytester.makepyfile(
        "import pytest\n"
        + group.format("whole")
        + cases.format("whole")
        + group.format("apart")
        + alone
        + cases.format("apart")
    )
    pytester.makeini("[pytest]\nmarkers =\n  xdist_group(name)\n  drawn_alone")
    pytester.makeconftest("from sampling import draw as pytest_collection_modifyitems")
    words = ("-p", "sampling", "--sample", "0.3", "--seed", "3")
    assert pytester.runpytest_inprocess(*words, "-k", "test_whole").parseoutcomes().get("passed", 0) in (0, 100)
    assert 10 < pytester.runpytest_inprocess(*words, "-k", "test_apart").parseoutcomes()["passed"] < 60


def test_what_may_take_longest_is_in_no_sample(pytester: pytest.Pytester) -> None:
    long = "@pytest.mark.timeout(901)\n@pytest.mark.parametrize('n', range(9))\ndef test_long(n): pass\n"
    pytester.makepyfile(f"import pytest\n{long}@pytest.mark.timeout(900)\ndef test_short(): pass\n")
    pytester.makeconftest("from sampling import draw as pytest_collection_modifyitems")
    found = [
        pytester.runpytest_inprocess("-p", "sampling", "--sample", share).parseoutcomes() for share in ("0.99999", "1")
    ]
    assert [each["passed"] for each in found] == [1, 10]


def test_what_is_too_costly_for_the_fast_part_is_in_every_sample(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import pytest\n@pytest.mark.costly\ndef test_it(): pass\ndef test_other(): pass\n")
    pytester.makeini("[pytest]\nmarkers =\n  costly")
    pytester.makeconftest("from sampling import draw as pytest_collection_modifyitems")
    found = pytester.runpytest_inprocess("-p", "sampling", "--sample", "0.00001").parseoutcomes()
    assert (found["passed"], found["deselected"]) == (1, 1)
