"""What the fast part may cost: of a test with many cases, as many are fast as its budget pays for; the others are slow.

`costs.tsv` has the CPU seconds of one case of each test that costs anything, as `make costs` measured them on some
machine; what they are good for is to be compared. A test whose cases are worth more says so: `@pytest.mark.budget(8)`.
Of a test whose one case takes more than `CASE` none is fast, unless its budget pays for it; each sample of the slow
part has its first case, so that nothing is without a test in CI.

    python -m pytest --costs FILE ...    # measures: all cases stay, and each writes a line
    python tests/budget.py FILE          # makes costs.tsv of those lines
"""

import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

COSTS = Path(__file__).with_name("costs.tsv")
CASES = 0.06  # CPU seconds that all cases of a test may take together, where it does not say
CASE = 0.4  # and the first of them, which is fast though it takes more than `CASES`
ALL = 320.0  # and all tests of the fast part: below 5 minutes on two cores, a third of which is collection and starts
WORTH_A_LINE = 0.1  # CPU seconds of all its cases
NOT_CUT = {"slow", "fault", "browser", "xdist_group"}  # other parts, and cases that share a fixture


def move_to_slow(items: list[pytest.Item]) -> None:
    """Mark the cases that the budget of their test does not pay for. Those that share a fixture are left alone."""
    costs, cases = costs_of(COSTS), defaultdict[str, list[pytest.Item]](list)
    for item in items:
        if NOT_CUT.isdisjoint(mark.name for mark in item.iter_markers()):
            cases[name_of(item.nodeid)].append(item)
    for test, its in cases.items():
        mark = its[0].get_closest_marker("budget")
        kept = chosen(len(its), costs.get(test, 0.0), CASES if mark is None else mark.args[0])
        for i, item in enumerate(its):
            if i not in kept:
                item.add_marker(pytest.mark.slow)
        if not kept:
            its[0].add_marker(pytest.mark.costly)


def chosen(cases: int, cost: float, budget: float) -> set[int]:
    """Returns as many of the cases as are paid for, the first among them and the others far apart."""
    paid = cases if cost * cases <= budget else max(int(cost <= CASE), int(budget / cost))
    return {i * cases // paid for i in range(paid)}


def name_of(node: str) -> str:
    """`strategies/test_bsp.py::test_x`, of `tests/strategies/test_bsp.py::test_x[virtual]@group`."""
    return node.removeprefix("tests/").split("[")[0].split("@")[0]


def costs_of(file: Path) -> dict[str, float]:
    lines = [line.split("\t") for line in file.read_text().splitlines()[1:]]
    return {test: float(seconds) for test, _, seconds in lines}


# -- measuring


def cpu_of_children() -> float:
    """CPU seconds of this process and all that came from it, as far as it is still there or was waited for."""
    children, cpu = defaultdict[int, list[int]](list), dict[int, int]()
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                stat = (process / "stat").read_text()
            except OSError:
                continue
            fields = stat[stat.rindex(")") + 2 :].split()
            children[int(fields[1])].append(int(process.name))
            cpu[int(process.name)] = sum(map(int, fields[11:15]))
    total, left = 0, [os.getpid()]
    while left:
        number = left.pop()
        total += cpu.get(number, 0)
        left += children[number]
    return total / os.sysconf("SC_CLK_TCK")


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    file = item.config.getoption("--costs")
    before, began = (cpu_of_children(), time.monotonic()) if file else (0.0, 0.0)
    yield
    if file:
        with Path(file).open("a") as out:
            out.write(
                f"{item.nodeid.splitlines()[0]}\t{cpu_of_children() - before:.2f}\t{time.monotonic() - began:.2f}\n"
            )


def summarise(lines: list[str]) -> str:
    """`costs.tsv`, of the lines that `--costs` wrote."""
    seconds = defaultdict[str, list[float]](list)
    for line in lines:
        if line.count("\t") >= 2:
            node, cpu, _ = line.rsplit("\t", 2)
            seconds[name_of(node)].append(float(cpu))
    rows = [
        f"{test}\t{len(its)}\t{sum(its) / len(its):.2f}"
        for test, its in sorted(seconds.items())
        if sum(its) >= WORTH_A_LINE
    ]
    return "\n".join(["test\tcases\tCPU seconds of a case", *rows, ""])


if __name__ == "__main__":
    COSTS.write_text(summarise(Path(sys.argv[1]).read_text(errors="replace").splitlines()))
