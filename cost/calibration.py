"""The measurements of `paceline calibrate`, as they stand in a choice of `hardware`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Any

from .alpha_beta import AlphaBeta
from .kernels import STREAMS, KernelRates, KernelTable
from .rules import MOST, CostError, NumberRule

FORMAT = 1
LOADED = 0.15  # spread of repeated measures from which the machine was not left alone
MOST_DIFFERING = 0.2  # share of the cases that differed from one pass to the next, likewise
DIFFER = 0.15  # two times of one case that are further apart than this share of the smaller are not of a quiet machine
COUNT, RATE = NumberRule(1, 1e6, whole=True), NumberRule(1, MOST)
FROM_ZERO, FINITE = NumberRule(0, MOST), NumberRule(-MOST, MOST)
COSTS = ("module", "graph", "node", "view", "view_back", "parameter", "stepped", "step")


@dataclass(frozen=True)
class MeasuredOperation:
    """An operation of comm/ among so many workers of one host: what it takes for the bytes that leave a worker."""

    operation: str
    workers: int
    fit: AlphaBeta


@dataclass(frozen=True)
class Disk:
    bandwidth: float  # bytes a second, written and forced to the disk
    latency: float  # seconds to force a file of a few bytes


@dataclass(frozen=True)
class Calibration:
    date: str
    host: str
    cpu: str
    cores: int  # that processes may use
    versions: Mapping[str, str]
    spread: float  # of repeated measures of the same: interquartile range over median
    rates: Sequence[KernelRates]
    links: Sequence[MeasuredOperation]
    disk: Disk
    host_link: float | None  # bytes a second between a device and its host; None: there is no device
    differing: float | None = None  # share of the cases whose times differed from pass to pass; None: of one pass

    def of(self, threads: int, processes: int) -> KernelRates:
        """Returns the rates whose measurement is nearest to so many processes that compute at once, with `threads`
        each.
        """
        busy = min(processes, max(1, self.cores // threads))
        return min(
            self.rates,
            key=lambda each: (abs(log(each.threads / threads)), abs(log(each.processes / busy)), each.processes),
        )

    def link(self, operation: str, workers: int) -> AlphaBeta:
        """Returns the fit of an operation among so many workers, or the nearest measured number. Raises `CostError` if
        the operation was not measured.
        """
        found = [each for each in self.links if each.operation == operation]
        if not found:
            raise CostError(f"{operation}: is not in the calibration of {self.host}; run paceline calibrate anew")
        return min(found, key=lambda each: abs(log(each.workers / workers))).fit

    def disturbance(self) -> str:
        """Says which measurements other work has disturbed; empty if the machine was left alone."""
        said: list[str] = []
        if self.spread > LOADED:
            said.append(f"times of one product spread by {self.spread:.0%}, where up to {LOADED:.0%} is usual")
        if self.differing is not None and self.differing > MOST_DIFFERING:
            said.append(
                f"{self.differing:.0%} of what was measured twice took times that differ by more than {DIFFER:.0%}, "
                f"where up to {MOST_DIFFERING:.0%} is usual"
            )
        return "; ".join(said)

    def differs(self, host: str, cpu: str, cores: int) -> list[str]:
        """Says in words how this machine differs from the measured one; nothing if they are alike."""
        pairs = (("host", self.host, host), ("CPU", self.cpu, cpu), ("cores", self.cores, cores))
        return [f"{name} {mine} where it was measured on {its}" for name, its, mine in pairs if its != mine]


def plain(calibration: Calibration) -> dict[str, Any]:
    """Returns values for YAML. A table is one text, `sizes seconds` separated by semicolons: thousands of numbers make
    YAML slow.
    """
    return {
        "format": FORMAT,
        "date": calibration.date,
        "host": calibration.host,
        "cpu": calibration.cpu,
        "cores": calibration.cores,
        "versions": dict(calibration.versions),
        "spread": _short(calibration.spread),
        "differing": None if calibration.differing is None else _short(calibration.differing),
        "disk": {"bandwidth": _short(calibration.disk.bandwidth), "latency": _short(calibration.disk.latency)},
        "host_link": None if calibration.host_link is None else _short(calibration.host_link),
        "links": [
            {
                "operation": each.operation,
                "workers": each.workers,
                "alpha": _short(each.fit.alpha),
                "beta": _short(each.fit.beta),
                "residual": _short(each.fit.residual),
            }
            for each in calibration.links
        ],
        "rates": [
            {
                "threads": each.threads,
                "processes": each.processes,
                "costs": {name: _short(cost) for name, cost in each.costs.items()},
                "tables": {name: _written(table) for name, table in each.tables.items()},
            }
            for each in calibration.rates
        ],
    }


def read(told: Mapping[str, Any]) -> Calibration:
    """Reads the values that `plain` returned. Raises `CostError`."""
    try:
        if told["format"] != FORMAT:
            raise CostError(f"format={told['format']}: this version reads {FORMAT}; run paceline calibrate anew")
        if told["rates"] == []:
            raise CostError("calibration: has no rates")
        return Calibration(
            date=str(told["date"]),
            host=str(told["host"]),
            cpu=str(told["cpu"]),
            cores=int(_number(told, "cores", COUNT)),
            versions={str(key): str(value) for key, value in told["versions"].items()},
            spread=_number(told, "spread", FROM_ZERO),
            rates=[_rates(each) for each in told["rates"]],
            links=[
                MeasuredOperation(
                    str(each["operation"]),
                    int(_number(each, "workers", COUNT)),
                    AlphaBeta(*(_number(each, name, FROM_ZERO) for name in ("alpha", "beta", "residual"))),
                )
                for each in told["links"]
            ],
            disk=Disk(_number(told["disk"], "bandwidth", RATE), _number(told["disk"], "latency", FROM_ZERO)),
            host_link=None if told["host_link"] is None else _number(told, "host_link", RATE),
            differing=None if told.get("differing") is None else _number(told, "differing", FROM_ZERO),
        )
    except CostError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise CostError(f"calibration: is not as paceline calibrate writes it: {what}") from error


def _number(told: Mapping[str, Any], name: str, rule: NumberRule) -> float:
    value = float(told[name])
    if not rule.holds(value):
        raise CostError(f"calibration: {name}={value:g}: {rule}")
    return value


def _rates(told: Mapping[str, Any]) -> KernelRates:
    tables = {str(name): _table(str(name), text) for name, text in told["tables"].items()}
    costs = {name: _number(told["costs"], name, FINITE) for name in COSTS}
    if STREAMS not in tables or not tables[STREAMS].flat:
        raise CostError(f"calibration: has no table of {STREAMS}, of sizes and seconds")
    return KernelRates(int(_number(told, "threads", COUNT)), int(_number(told, "processes", COUNT)), tables, costs)


def _table(name: str, text: str) -> KernelTable:
    try:
        return KernelTable(tuple(tuple(float(number) for number in point.split()) for point in text.split(";")))
    except ValueError as error:
        raise CostError(f"calibration: table {name}: {error}") from error


def _written(table: KernelTable) -> str:
    return "; ".join(" ".join(f"{number:.4g}" for number in point) for point in table.points)


def _short(number: float) -> float:
    return float(f"{number:.4g}")
