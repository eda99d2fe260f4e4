"""`paceline cost days`: how long a transformer trains, and what that costs."""

from typing import Annotated, Any, Literal

import typer

from ..cost.quantity import Quantity
from .completion import complete_override
from .cost_choices import Chosen, choose
from .cost_numbers import Number, refuse_together, short
from .cost_view import Answer, dollars, duration, show_answer
from .options import AllowModule, ConfigDir, Format
from .output import results_alone

PARAMETERS = Number(
    "--parameters", "P", "parameters", "parameters", "how many the model has; or model=gpt_1b data=text"
)
TOKENS = Number("--tokens", "T", "tokens", "tokens", "how many the model is trained on, such as 300e9")
DEVICES = Number("--devices", "n", "devices", "devices", "how many train; or hardware=a100_8 hardware.workers=64")
FLOPS = Number("--flops", "X", "flops", "flops a second, a device", "what one device sustains; or hardware=a100_8")
PRICE = Number("--price-per-hour", "p", "price_per_hour", "US$ an hour, a device", "what one device costs")
PAPER = "Narayanan et al. 2021"


def _option(name: str, metavar: str, help: str) -> Any:
    return typer.Option(name, metavar=metavar, help=help, show_default=False)


@results_alone()
def days(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="OVERRIDES",
            help="Model and hardware in place of options: model=gpt_1b data=text hardware=a100_8 hardware.workers=64.",
            show_default=False,
            autocompletion=complete_override,
        ),
    ] = None,
    tokens: Annotated[str | None, _option("--tokens", "T", "Tokens to train on: 300e9 or 300B.")] = None,
    parameters: Annotated[str | None, _option("--parameters", "P", "Of the model: 175e9 or 175B.")] = None,
    devices: Annotated[str | None, _option("--devices", "N", "How many train.")] = None,
    flops: Annotated[
        str | None, _option("--flops", "X", "Flops a second that one device sustains: 140e12 or 140T.")
    ] = None,
    recompute: Annotated[
        bool | None,
        typer.Option(
            "--recompute/--no-recompute",
            help="Whether backward computes activations again: 8 flops a parameter and token, or 6. "
            "Default: 8, or what the chosen model does.",
            show_default=False,
        ),
    ] = None,
    precision: Annotated[
        Literal["float32", "bfloat16", "float16"] | None,
        typer.Option(help="Which of the chosen hardware's rates. Default: the strategy's.", show_default=False),
    ] = None,
    price_per_hour: Annotated[str | None, _option("--price-per-hour", "DOLLARS", "Of one device.")] = None,
    config_dir: ConfigDir = None,
    allow_module: AllowModule = None,
    format: Format = "table",
) -> None:
    """Days of training: F T P / (n X), and dollars where a price is known.

    T tokens, P parameters, n devices that sustain X flops a second each; F is 8 flops a parameter and token, 6 without
    recomputation (Narayanan et al. 2021, equation 4).

    \b
    paceline cost days --parameters 175e9 --tokens 300e9 --devices 1 --flops 46.2e12      GPT-3 on one V100: 288 years
    paceline cost days --parameters 175B --tokens 300B --devices 1024 --flops 140T        on 1,024 A100: 34 days
    paceline cost days model=gpt_1b data=text hardware=a100_8 --tokens 20B --precision bfloat16
    """
    from ..cost import training_time

    chosen = choose(overrides or [], config_dir, allow_module or [])
    size = _parameters(chosen, parameters)
    amount = TOKENS.need(tokens)
    factor = _factor(chosen, recompute)
    many, machines, rate, price = _hardware(chosen, devices, flops, price_per_hour, precision)
    seconds = training_time.seconds_of(size.value, amount.value, factor.value, many.value, rate.value)
    rent = training_time.dollars_of(seconds, machines.value, price.value) if price else None
    product = " x ".join(short(each.value) for each in (factor, amount, size))
    formulas = [
        f"seconds = F T P / (n X) = {product} / ({short(many.value)} x {short(rate.value)}) = {short(seconds)}   "
        f"({training_time.SOURCE})"
    ]
    inputs = [factor, amount, size, many, rate]
    if price:
        hours = f"{short(seconds / 3600)} x {short(machines.value)} x {short(price.value)}"
        formulas.append(f"dollars = hours {machines.symbol} p = {hours}")
        inputs += [price] if machines is many else [machines, price]
    flops_in_all = training_time.flops_of(size.value, amount.value, factor.value)
    results = {
        "flops": flops_in_all,
        "seconds": seconds,
        "days": seconds / training_time.DAY,
        "years": seconds / training_time.YEAR,
        "dollars": rent,
    }
    says = [f"training takes {duration(seconds)}", _money(rent, chosen)]
    show_answer(Answer("days", says, formulas, inputs, results), format)


def _money(rent: float | None, chosen: Chosen | None) -> str:
    if rent is not None:
        return f"{dollars(rent)} of rent"
    of_hardware = "hardware.machine.price_per_hour=DOLLARS gives that of a machine"
    given = of_hardware if chosen and chosen.machine else "--price-per-hour DOLLARS gives that of one device"
    return f"dollars: unknown, as no price is known; {given}"


def _parameters(chosen: Chosen | None, given: str | None) -> Quantity:
    if chosen is None or not chosen.names_a_model:
        return PARAMETERS.need(given)
    if given is not None:
        raise refuse_together("--parameters", f"model={chosen.experiment.model.name}", "has its own")
    return chosen.parameters()


def _factor(chosen: Chosen | None, recompute: bool | None) -> Quantity:
    """F, of the option, else of the model that is chosen, else with recomputation."""
    from ..cost.training_time import flops_per_parameter

    said = chosen.recomputes() if chosen is not None and chosen.names_a_model else None
    if said is not None and recompute is not None and said[0] != recompute:
        flag = "--recompute" if recompute else "--no-recompute"
        raise refuse_together(flag, said[1], "says the opposite")
    if recompute is not None:
        does, source = recompute, f"given: --{'' if recompute else 'no-'}recompute"
    elif said is not None:
        does, source = said
    else:
        does, source = True, f"default: with recomputation, as in {PAPER}; --no-recompute is 6"
    what = "2 forward, 4 backward, 2 again" if does else "2 forward, 4 backward"
    return Quantity(
        "F", "flops_per_parameter", flops_per_parameter(does), f"flops a parameter and token: {what}", source
    )


def _hardware(
    chosen: Chosen | None, devices: str | None, flops: str | None, price: str | None, precision: str | None
) -> tuple[Quantity, Quantity, Quantity, Quantity | None]:
    """Devices, what is rented by the hour (machines, or the devices themselves), a device's rate, and the price."""
    if chosen is not None and chosen.machine is not None:
        keys = {"--devices": "workers", "--flops": "machine.flops", "--price-per-hour": "machine.price_per_hour"}
        for (option, key), text in zip(keys.items(), (devices, flops, price), strict=True):
            if text is not None:
                raise refuse_together(option, "hardware", f"has hardware.{key}")
        many, machines = chosen.devices()
        return many, machines, chosen.rate(precision), chosen.price()
    if precision is not None:
        from ..engine.base.errors import ConfigError

        raise ConfigError(f"--precision {precision}: goes with a choice of hardware; --flops is what a device sustains")
    many = DEVICES.need(devices)
    return many, many, FLOPS.need(flops), PRICE.read(price)
