"""The questions of `paceline cost`. Each answer is rows of one table: a value, its unit and its formula."""

from dataclasses import dataclass
from typing import Protocol

from . import energy, interruptions, purchase, training_time
from .rules import RULES, CostError


@dataclass(frozen=True)
class AnswerRow:
    """A row of the table.

    Args:
        key: its name in JSON, which ends with the unit
        value: None if it is unknown; `formula` then says which input is missing
        unit: hours for any duration
    """

    key: str
    what: str
    value: float | None
    unit: str
    formula: str


class Inputs(Protocol):
    """The numbers that were given, counted or taken by default."""

    def need(self, key: str) -> float:
        """Raises `ConfigError` if the input is missing."""
        ...

    def read(self, key: str) -> float | None: ...


def training(inputs: Inputs) -> tuple[float, list[AnswerRow]]:
    """Returns the hours that training takes, too. Raises `CostError`."""
    parameters, tokens, factor = inputs.need("parameters"), inputs.need("tokens"), inputs.need("flops_per_parameter")
    seconds = training_time.seconds_of(parameters, tokens, factor, inputs.need("devices"), inputs.need("flops"))
    flops = training_time.flops_of(parameters, tokens, factor)
    return seconds / 3600, [
        AnswerRow("training_hours", "training time", seconds / 3600, "hours", f"t = F T P / (n X)   ({_TRAINING})"),
        AnswerRow("training_flops", "flops", flops, "", "F T P"),
    ]


_TRAINING = training_time.SOURCE


def rent(inputs: Inputs, hours: float) -> AnswerRow:
    """Raises `CostError`."""
    price = inputs.read("price_per_hour")
    key, what, unit = "rent_dollars", "rent on demand", "US$"
    if price is None:
        return AnswerRow(key, what, None, unit, "t m p; price_per_hour=DOLLARS gives the price of one machine")
    return AnswerRow(
        key, what, training_time.dollars_of(3600 * hours, inputs.need("machines"), price), unit, "t m p, t in hours"
    )


def energy_of(inputs: Inputs, hours: float) -> list[AnswerRow]:
    """Raises `CostError`."""
    devices, watts = inputs.need("devices"), inputs.need("watts")
    kwh = energy.kwh_of(hours, devices, watts, inputs.need("utilisation"), inputs.need("pue"))
    emitted = energy.kg_co2e(kwh, inputs.need("intensity"))
    return [
        AnswerRow("energy_kwh", "energy", kwh, "kWh", f"t n w u PUE / 1000, t in hours   ({energy.SOURCE})"),
        AnswerRow("emissions_kg_co2e", "emissions", emitted, "kg CO2e", "kWh c"),
    ]


def spot(inputs: Inputs, hours: float) -> list[AnswerRow]:
    """Returns the cost by Young's interval between checkpoints, by Daly's, and by the given one. Raises `CostError`."""
    machines, price = inputs.need("machines"), inputs.read("spot_price")
    together = inputs.need("between") / machines
    if not RULES["between"].holds(together):
        every = f"{machines:g} machines are interrupted every {together:g} hours"
        raise CostError(f"between: {every}, and that {RULES['between']} hours")
    checkpoint, restart, own = inputs.need("checkpoint"), inputs.need("restart"), inputs.read("interval")
    intervals = [
        (
            "Young",
            interruptions.young(checkpoint, together),
            f"tau = sqrt(2 d M), M = M1 / m   ({interruptions.YOUNG})",
        ),
        (
            "Daly",
            interruptions.daly(checkpoint, together),
            "tau = sqrt(2 d M) (1 + 1/3 sqrt(d / 2M) + 1/9 (d / 2M)) - d where d < 2M, else M   "
            f"({interruptions.DALY})",
        ),
        *([("given", own, "tau")] if own is not None else []),
    ]
    found: list[AnswerRow] = []
    for name, tau, formula in intervals:
        try:
            took = interruptions.expected_time(hours, tau, checkpoint, restart, together)
        except CostError as error:
            raise CostError(f"{'interval' if name == 'given' else 'between'}: {error}") from error
        number, stops = interruptions.pieces(hours, tau), interruptions.expected_interruptions(took, together)
        expected = f"E = N M e^(R / M) (e^((t / N + d) / M) - 1)   ({interruptions.DALY_TIME})"
        dollars = None if price is None else took * machines * price
        rented = "E m s" if price is not None else "E m s; spot_price=DOLLARS gives the price of one spot machine"
        for key, what, value, unit, how in (
            ("interval_hours", "checkpoint interval", tau, "hours", formula),
            ("checkpoints", "checkpoints", number, "", "N = t / tau, rounded up"),
            ("expected_hours", "expected time", took, "hours", expected),
            ("overhead", "overhead", took / hours - 1, "share", "E / t - 1"),
            ("interruptions", "interruptions", stops, "", "E / M"),
            ("spot_dollars", "rent on spot", dollars, "US$", rented),
        ):
            found.append(AnswerRow(f"{name.lower()}_{key}", f"{what} ({name})", value, unit, how))
    return found


def buy_or_rent(inputs: Inputs) -> list[AnswerRow]:
    """Raises `CostError`."""
    share = inputs.need("occupancy")
    work = purchase.work_of_a_year(inputs.need("devices"), inputs.need("flops"), share)
    own, own_how = inputs.read("owning"), "D, given"
    if own is None:
        own = purchase.owning(inputs.need("price"), inputs.need("depreciation"), inputs.need("running"))
        own_how = "D = price delta + running, straight-line depreciation"
    hire, hire_how = inputs.read("renting"), "H, given"
    if hire is None:
        hire = purchase.renting(inputs.need("price_per_hour") * inputs.need("machines"), share)
        hire_how = "H = 8,760 o m p, hours without work are not paid for"
    even = purchase.break_even(own, hire, share)
    return [
        AnswerRow("year_pflop", "work of a year", work / purchase.PFLOP, "PFLOP", "Y = 31,536,000 o n X"),
        AnswerRow("owning_dollars_per_year", "owning, a year", own, "US$", own_how),
        AnswerRow("renting_dollars_per_year", "renting, a year", hire, "US$", hire_how),
        AnswerRow("owning_pflop_per_dollar", "bought", purchase.pflop_per_dollar(work, own), "PFLOP a dollar", "Y / D"),
        AnswerRow(
            "renting_pflop_per_dollar", "rented", purchase.pflop_per_dollar(work, hire), "PFLOP a dollar", "Y / H"
        ),
        AnswerRow(
            "break_even_occupancy",
            "owning costs less from an occupancy of",
            even,
            "share",
            "D o / H" if even <= 1 else "D o / H; above 100 %: owning costs more at any occupancy",
        ),
    ]
