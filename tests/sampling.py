"""`--sample 0.1 --seed 7`: a tenth of the chosen tests, the same for a seed, whichever processes run them.

Each test's own name and the seed decide, so that a test that is added or removed changes nothing for the others. Each
sample has the `costly` ones (budget.py). Who runs a sample has little time: tests whose `timeout` mark says that they
may take longer than `LONGEST` are in none.
"""

import random

import pytest

LONGEST = 900.0  # seconds


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sample", type=float, default=1.0, metavar="SHARE", help="run this share of the tests")
    parser.addoption("--costs", metavar="FILE", help="append what each test costs; see budget.py")
    parser.addoption("--all-cases", action="store_true", help="budgets leave no case of a test to the slow part")
    parser.addoption("--seed", type=int, default=0, help="of the choice that --sample makes")


def is_sampled(name: str, share: float, seed: int) -> bool:
    return random.Random(f"{seed} {name}").random() < share


def draw(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the others out of `items`."""
    share, seed = config.getoption("--sample"), config.getoption("--seed")
    assert share is not None and seed is not None
    drawn = [item for item in items if share == 1 or _is_drawn(item, share, seed)]
    if len(drawn) < len(items):
        kept = set(drawn)
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = drawn


def _is_drawn(item: pytest.Item, share: float, seed: int) -> bool:
    is_costly = item.get_closest_marker("costly") is not None
    return (is_costly or is_sampled(_name(item), share, seed)) and not _is_long(item)


def _is_long(item: pytest.Item) -> bool:
    mark = item.get_closest_marker("timeout")
    return mark is not None and mark.args[0] > LONGEST


def _name(item: pytest.Item) -> str:
    """Of those that run in order in one process, as each may need what the others leave, all or none are drawn, but
    where they say that they share a fixture and nothing else (`drawn_alone`).
    """
    group = item.get_closest_marker("xdist_group")
    return item.nodeid if group is None or item.get_closest_marker("drawn_alone") else str(group.args[0])


def pytest_report_header(config: pytest.Config) -> str | None:
    share = config.getoption("--sample")
    return None if share == 1 else f"sample: {share:g} of the tests, --seed {config.getoption('--seed')}"
