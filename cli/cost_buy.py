"""`paceline cost buy`: what a dollar gets done on devices that are bought, and on rented ones."""

from typing import Annotated, Any

import typer

from ..cost.quantity import Quantity
from .cost_numbers import Number, refuse_together, short
from .cost_view import Answer, show_answer
from .options import Format

DEVICES = Number("--devices", "n", "devices", "devices", "how many there are")
FLOPS = Number("--flops", "X", "flops", "flops a second, a device", "what one device does in a second, such as 19.5e12")
OCCUPANCY = Number("--occupancy", "u", "occupancy", "of the year", "the share of the year that they are at work")
OWNING = Number("--owning", "D", "owning", "US$ a year", "what they cost in a year")
PRICE = Number("--price", "price", "price", "US$", "of all devices together; or --owning DOLLARS, that of a year")
DEPRECIATION = Number(
    "--depreciation", "d", "depreciation", "of the price, a year", "the share of the price, such as 25%"
)
RUNNING = Number("--running", "running", "running", "US$ a year", "power, cooling, hosting, people")
RENTING = Number("--renting", "R", "renting", "US$ a year", "what the hours at work of a year cost")
NOTHING_ELSE = Quantity("running", "running", 0.0, "US$ a year", "default: none; --running says power, hosting, ...")
RENT = Number(
    "--price-per-hour", "rent", "price_per_hour", "US$ an hour", "of all devices; or --renting DOLLARS, a year's"
)


def _option(name: str, metavar: str, help: str) -> Any:
    return typer.Option(name, metavar=metavar, help=help, show_default=False)


def buy(
    devices: Annotated[str | None, _option("--devices", "N", "How many devices.")] = None,
    flops: Annotated[str | None, _option("--flops", "X", "Flops a second of one device: 19.5e12 or 19.5T.")] = None,
    occupancy: Annotated[str | None, _option("--occupancy", "SHARE", "Of the year at work: 0.5 or 50%.")] = None,
    price: Annotated[str | None, _option("--price", "DOLLARS", "To buy all of them.")] = None,
    depreciation: Annotated[
        str | None, _option("--depreciation", "SHARE", "Of the price, lost in a year (straight-line): 0.25.")
    ] = None,
    running: Annotated[
        str | None, _option("--running", "DOLLARS", "A year beside the price: power, cooling, hosting, people.")
    ] = None,
    owning: Annotated[
        str | None, _option("--owning", "DOLLARS", "A year of owning, in place of --price and --depreciation.")
    ] = None,
    price_per_hour: Annotated[
        str | None, _option("--price-per-hour", "DOLLARS", "To rent all of them; hours at work alone are paid for.")
    ] = None,
    renting: Annotated[
        str | None, _option("--renting", "DOLLARS", "A year of renting, in place of --price-per-hour.")
    ] = None,
    format: Format = "table",
) -> None:
    """Buy or rent: PFLOP a dollar (1 PFLOP = 10^15 flops), of a year.

    \b
    work       W = n X 31,536,000 s u
    owning     D = price d + running     straight-line depreciation: d = 25 % writes the price off in four years
    renting    R = rent 8,760 h u        on demand; hours without work are not paid for

    \b
    paceline cost buy --devices 8 --flops 19.5e12 --occupancy 0.5 --owning 55534 --renting 143544
    paceline cost buy --devices 8 --flops 19.5e12 --occupancy 0.5 --price 222136 --depreciation 0.25 --renting 143544
    """
    from ..cost import purchase

    machines = [DEVICES.need(devices), FLOPS.need(flops), OCCUPANCY.need(occupancy)]
    many, speed, share = (each.value for each in machines)
    work = purchase.work_of_a_year(many, speed, share)
    own, own_inputs, own_formula = _owning(owning, price, depreciation, running)
    rent, rent_inputs, rent_formula = _renting(renting, price_per_hour, share)
    of_own, of_rent = purchase.pflop_per_dollar(work, own), purchase.pflop_per_dollar(work, rent)
    even = purchase.break_even(own, rent, share)
    says = [
        f"bought, a dollar is worth {of_own:,.1f} PFLOP; on demand, {of_rent:,.1f}",
        f"a year of work is {work / purchase.PFLOP:,.0f} PFLOP",
        f"owning costs less from an occupancy of {even:.1%} on" if even <= 1 else "owning costs more at any occupancy",
    ]
    formulas = [
        f"W = n X 31,536,000 s u = {short(many)} x {short(speed)} x 31,536,000 x {short(share)}",
        "PFLOP a dollar = W / 10^15 / D when bought, W / 10^15 / R on demand",
        *own_formula,
        *rent_formula,
    ]
    results = {
        "work_pflop": work / purchase.PFLOP,
        "owning_dollars_per_year": own,
        "renting_dollars_per_year": rent,
        "owning_pflop_per_dollar": of_own,
        "renting_pflop_per_dollar": of_rent,
        "break_even_occupancy": even,
    }
    table = [
        ["", "US$ a year", "PFLOP a dollar"],
        ["bought", f"{own:,.0f}", f"{of_own:,.1f}"],
        ["on demand", f"{rent:,.0f}", f"{of_rent:,.1f}"],
    ]
    show_answer(Answer("buy", says, formulas, [*machines, *own_inputs, *rent_inputs], results, table), format)


def _owning(
    given: str | None, price: str | None, depreciation: str | None, running: str | None
) -> tuple[float, list[Quantity], list[str]]:
    """US dollars a year, of which inputs, and by which formula."""
    from ..cost import purchase

    if given is not None:
        for option, text in (("--price", price), ("--depreciation", depreciation), ("--running", running)):
            if text is not None:
                raise refuse_together("--owning", option, "owning follows from it")
        bought = OWNING.need(given)
        return bought.value, [bought], []
    paid, lost, kept = PRICE.need(price), DEPRECIATION.need(depreciation), RUNNING.read(running) or NOTHING_ELSE
    year = purchase.owning(paid.value, lost.value, kept.value)
    formula = f"D = price d + running = {short(year)}: straight-line, each year loses the same share of the price"
    return year, [paid, lost, kept], [formula]


def _renting(given: str | None, hourly: str | None, share: float) -> tuple[float, list[Quantity], list[str]]:
    """The same, of machines on demand."""
    from ..cost import purchase

    if given is not None:
        if hourly is not None:
            raise refuse_together("--renting", "--price-per-hour", "renting follows from it")
        rented = RENTING.need(given)
        return rented.value, [rented], []
    rent = RENT.need(hourly)
    year = purchase.renting(rent.value, share)
    return year, [rent], [f"R = rent 8,760 h u = {short(year)}: hours without work are not paid for"]
