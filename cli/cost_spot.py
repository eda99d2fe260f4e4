"""`paceline cost spot`: training on machines that may be taken away, against machines on demand."""

from typing import Annotated, Any

import typer

from .cost_numbers import Number, short
from .cost_view import Answer, dollars, duration, show_answer
from .options import Format

TIME = Number("--time", "W", "work", "hours", "how long training takes where nothing interrupts it, such as 500h")
BETWEEN = Number("--between", "M1", "between", "hours", "the mean time between interruptions of one machine")
MACHINES = Number("--machines", "m", "machines", "machines", "how many train together")
CHECKPOINT = Number("--checkpoint", "d", "checkpoint", "hours", "how long training stops for a checkpoint")
RESTART = Number("--restart", "R", "restart", "hours", "the time from an interruption until training goes on")
INTERVAL = Number("--interval", "tau", "interval", "hours", "the work between two checkpoints")
SPOT = Number("--spot-price", "s", "price_per_hour", "US$ an hour, a machine", "the price of one on the spot market")
DEMAND = Number("--price-per-hour", "p", "price_per_hour", "US$ an hour, a machine", "the price of one on demand")


def _option(name: str, metavar: str, help: str) -> Any:
    return typer.Option(name, metavar=metavar, help=help, show_default=False)


def spot(
    time: Annotated[str | None, _option("--time", "TIME", "Of training without interruptions: 500h or 3d.")] = None,
    between: Annotated[
        str | None, _option("--between", "TIME", "Mean time between interruptions of one machine: 24h.")
    ] = None,
    checkpoint: Annotated[str | None, _option("--checkpoint", "TIME", "That a checkpoint takes: 90s.")] = None,
    restart: Annotated[
        str | None, _option("--restart", "TIME", "From an interruption until training goes on: 10min.")
    ] = None,
    machines: Annotated[
        str | None, _option("--machines", "N", "That train together: one that is taken stops all. Default: 1.")
    ] = None,
    interval: Annotated[
        str | None, _option("--interval", "TIME", "One of your own between checkpoints, beside Young's and Daly's.")
    ] = None,
    spot_price: Annotated[str | None, _option("--spot-price", "DOLLARS", "An hour of one spot machine.")] = None,
    price_per_hour: Annotated[
        str | None, _option("--price-per-hour", "DOLLARS", "An hour of one machine on demand.")
    ] = None,
    format: Format = "table",
) -> None:
    """How often to write a checkpoint on spot machines, the expected time, and the dollars against on demand.

    Interruptions come at random, with exponential times between them. On demand there are none, and no checkpoints.
    Every hour is paid for, restarts included.

    \b
    Young   tau = sqrt(2 d M)
    Daly    tau = sqrt(2 d M) (1 + 1/3 sqrt(d / 2M) + 1/9 (d / 2M)) - d    where d < 2M, else M
    time    E = N M e^(R / M) (e^((W / N + d) / M) - 1)      N = W / tau pieces, rounded up; M = M1 / m, of m machines

    \b
    paceline cost spot --time 500h --between 24h --checkpoint 5min --restart 10min
    paceline cost spot --time 72h --between 6h --checkpoint 90s --restart 10min --spot-price 12 --price-per-hour 40
    """
    from ..cost import interruptions
    from ..cost.quantity import Quantity
    from ..cost.rules import RULES, CostError
    from ..engine.base.errors import ConfigError

    work, mean = TIME.need(time), BETWEEN.need(between)
    saving, again = CHECKPOINT.need(checkpoint), RESTART.need(restart)
    many = MACHINES.read(machines) or Quantity("m", "machines", 1, "machines", "default: one")
    own, cheap, dear = INTERVAL.read(interval), SPOT.read(spot_price), DEMAND.read(price_per_hour)
    together = mean.value / many.value
    if not RULES["between"].holds(together):
        every = f"{short(many.value)} machines are interrupted every {short(together)} hours"
        raise ConfigError(f"--between {between}: {every}, and that {RULES['between']} hours")
    ways = [
        ("Young", interruptions.young(saving.value, together)),
        ("Daly", interruptions.daly(saving.value, together)),
        *([("given", own.value)] if own else []),
    ]
    rows = []
    for name, tau in ways:
        try:
            took = interruptions.expected_time(work.value, tau, saving.value, again.value, together)
        except CostError as error:
            asked = "--interval" if name == "given" else "--between"
            raise ConfigError(f"{asked}: {error}") from error
        rows.append(
            {
                "by": name,
                "interval_hours": tau,
                "checkpoints": interruptions.pieces(work.value, tau),
                "expected_hours": took,
                "overhead": took / work.value - 1,
                "interruptions": interruptions.expected_interruptions(took, together),
                "dollars": took * many.value * cheap.value if cheap else None,
            }
        )
    demanded = work.value * many.value * dear.value if dear else None
    formulas = [
        f"Young: tau = sqrt(2 d M)   ({interruptions.YOUNG})",
        "Daly: tau = sqrt(2 d M) (1 + 1/3 sqrt(d / 2M) + 1/9 (d / 2M)) - d where d < 2M, else M   "
        f"({interruptions.DALY})",
        f"expected time = N M e^(R / M) (e^((W / N + d) / M) - 1)   ({interruptions.DALY_TIME})",
        f"N = W / tau, rounded up; M = M1 / m = {short(together)} hours",
    ]
    inputs = [work, mean, many, saving, again, *(each for each in (own, cheap, dear) if each)]
    results = {"rows": rows, "on_demand_hours": work.value, "on_demand_dollars": demanded}
    says = [_time(rows[-1], work.value), _prices(rows[-1]["dollars"], demanded)]
    show_answer(Answer("spot", says, formulas, inputs, results, _table(rows)), format)


def _time(row: dict[str, Any], work: float) -> str:
    return (
        f"a checkpoint after each {duration(3600 * work / row['checkpoints'])} of work ({row['by']}): "
        f"{duration(3600 * work)} of training are expected to take {duration(3600 * row['expected_hours'])}, "
        f"{row['overhead']:.1%} more, with {row['interruptions']:,.1f} interruptions"
    )


def _table(rows: list[dict[str, Any]]) -> list[list[str]]:
    table = [["interval by", "minutes", "checkpoints", "expected hours", "overhead", "interruptions", "US$ on spot"]]
    for row in rows:
        table.append(
            [
                row["by"],
                f"{60 * row['interval_hours']:,.1f}",
                f"{row['checkpoints']:,}",
                f"{row['expected_hours']:,.2f}",
                f"{row['overhead']:.2%}",
                f"{row['interruptions']:,.1f}",
                "unknown" if row["dollars"] is None else f"{row['dollars']:,.2f}",
            ]
        )
    return table


def _prices(on_spot: float | None, on_demand: float | None) -> str:
    known = {"on spot": on_spot, "on demand": on_demand}
    sums = ", ".join(f"{dollars(sum)} {where}" for where, sum in known.items() if sum is not None)
    if on_spot is None or on_demand is None:
        options = {"on spot": "--spot-price", "on demand": "--price-per-hour"}
        lacking = ", ".join(f"{option} for that {where}" for where, option in options.items() if known[where] is None)
        return f"dollars: {f'{sums}; ' if sums else ''}unknown, as no price is known: {lacking}"
    change, less = abs(1 - on_spot / on_demand), on_spot <= on_demand
    return f"{sums}: spot costs {change:.0%} {'less' if less else 'more'}"
