"""`paceline cost energy`: kilowatt hours, and what they emit."""

from typing import Annotated

import typer

from .cost_numbers import Number, refuse_together, short
from .cost_view import Answer, show_answer
from .options import Format

TIME = Number("--time", "h", "hours", "hours", "how long they run, such as 14.8d")
DEVICES = Number("--devices", "n", "devices", "devices", "how many there are")
WATTS = Number(
    "--watts",
    "w",
    "watts",
    "W a device",
    "the power of one device; --card a100 (or t4, v100, h100, h200, b200, mi300x, l4, a10g) has its TDP",
)
UTILISATION = Number("--utilisation", "u", "utilisation", "of the power", "the share of the power that is drawn")
PUE = Number("--pue", "PUE", "pue", "", "what the data centre draws over what its computers draw")
INTENSITY = Number("--intensity", "c", "intensity", "kg CO2e a kWh", "what the grid emits")


def energy(
    time: Annotated[
        str | None,
        typer.Option("--time", metavar="TIME", help="How long: 90s, 10min, 24h or 3d.", show_default=False),
    ] = None,
    devices: Annotated[
        str | None, typer.Option("--devices", metavar="N", help="How many devices.", show_default=False)
    ] = None,
    card: Annotated[
        str | None,
        typer.Option(
            "--card",
            metavar="NAME",
            help="Its TDP: t4, v100, a100, h100, h200, b200, mi300x, l4 or a10g.",
            show_default=False,
        ),
    ] = None,
    watts: Annotated[
        str | None,
        typer.Option("--watts", metavar="W", help="Of one device, in place of --card.", show_default=False),
    ] = None,
    utilisation: Annotated[
        str | None,
        typer.Option(
            "--utilisation", metavar="SHARE", help="Of the power that is drawn. Default: 1.", show_default=False
        ),
    ] = None,
    pue: Annotated[
        str | None,
        typer.Option(
            "--pue", metavar="RATIO", help="Of the data centre. Default: 1.58, the mean of 2023.", show_default=False
        ),
    ] = None,
    intensity: Annotated[
        str | None,
        typer.Option(
            "--intensity", metavar="KG", help="Of CO2e a kWh. Default: 0.481, the world's in 2023.", show_default=False
        ),
    ] = None,
    format: Format = "table",
) -> None:
    """Kilowatt hours and kilograms of CO2e, from the power of devices; nothing is measured.

    \b
    kWh = h n w u PUE / 1000     kg CO2e = kWh c

    \b
    paceline cost energy --time 34d --devices 1024 --card a100
    paceline cost energy --time 14.8d --devices 10000 --watts 330 --pue 1.1 --intensity 0.429
    """
    from ..cost import energy as model
    from ..engine.base.errors import ConfigError

    if card is not None and watts is not None:
        raise refuse_together("--watts", "--card", "has its own power")
    if card is not None and card not in model.TDP:
        from ..tracking.text import shown

        raise ConfigError(f"--card {shown(card)}: must be one of {', '.join(model.TDP)}; or --watts says its power")
    hours, many = TIME.need(time), DEVICES.need(devices)
    power = WATTS.need(watts) if card is None else model.TDP[card]
    share = UTILISATION.read(utilisation) or model.UTILISATION
    centre, grid = PUE.read(pue) or model.PUE, INTENSITY.read(intensity) or model.WORLD
    inputs = [hours, many, power, share, centre, grid]
    kwh = model.kwh_of(*(each.value for each in inputs[:-1]))
    emitted = model.kg_co2e(kwh, grid.value)
    product = " x ".join(short(each.value) for each in inputs[:-1])
    show_answer(
        Answer(
            "energy",
            [f"{_rounded(kwh)} kWh, {_rounded(emitted)} kg CO2e"],
            [
                f"kWh = h n w u PUE / 1000 = {product} / 1000   ({model.SOURCE})",
                f"kg CO2e = kWh c = {short(kwh)} x {short(grid.value)}",
                *(["a card's TDP alone: its host, network and disks are left out"] if card is not None else []),
            ],
            inputs,
            {"kwh": kwh, "kg_co2e": emitted},
        ),
        format,
    )


def _rounded(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
