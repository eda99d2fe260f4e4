"""`paceline cost`: what training takes, in days, dollars and kilowatt hours."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from ..conf.errors import ConfigError
from .completion import Candidates, complete_override
from .cost_inputs import NUMBERS, QUESTIONS, former
from .options import AllowModule, Config, ConfigDir, Format
from .output import aligned, note, results_alone, show, show_json

if TYPE_CHECKING:
    from ..cost.answers import AnswerRow
    from ..cost.quantity import Quantity
    from .cost_inputs import Given

# A number may be negative, and be refused for that; `former` reads the options of the four commands that there were.
PASSED = {"ignore_unknown_options": True}


def _complete(ctx: typer.Context, incomplete: str) -> Candidates:
    keys = [*NUMBERS, "card", "recompute"]
    return [(f"{key}=", "") for key in keys if key.startswith(incomplete)] + complete_override(ctx, incomplete)


@results_alone()
def cost(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE...",
            help="Inputs, such as tokens=300B; or choices of model and hardware that have them.",
            show_default=False,
            autocompletion=_complete,
        ),
    ] = None,
    config: Config = None,
    config_dir: ConfigDir = None,
    allow_module: AllowModule = None,
    format: Format = "table",
) -> None:
    """Answer from closed forms what training takes, in days, dollars and kilowatt hours. Nothing is trained.

    Each question is answered whose inputs are given. Answers follow from each other: an energy needs time=34d, or
    the inputs of a training time. The table has the formula of each result, and every input with its source.

    \b
    training time     tokens parameters devices flops [recompute=false]
    rent on demand    price_per_hour, of one machine [machines: each device is one]
    energy            card (such as a100) or watts [utilisation pue intensity]
    spot machines     between checkpoint restart [interval spot_price machines]
    buy or rent       devices flops occupancy, owning or price and depreciation [running], renting or price_per_hour

    \b
    paceline cost tokens=300B parameters=175B devices=1024 flops=140T
    paceline cost tokens=300B parameters=175B devices=1024 flops=140T card=a100
    paceline cost tokens=20B model=gpt_1b data=text hardware=a100_8 hardware.workers=64 precision=bf16
    paceline cost time=34d devices=1024 card=a100
    paceline cost time=500h between=24h checkpoint=5min restart=10min
    paceline cost devices=8 flops=19.5T occupancy=50% owning=55534 renting=143544
    paceline cost --config inputs.yaml devices=2048
    """
    from .cost_inputs import given_by

    if words and (now := former(words)) is not None:
        note(f"cost {words[0]}: is now one command. Write: paceline cost {' '.join(now)}")
        words = now
    given = given_by(words or [], config, config_dir, allow_module)
    results = list(_answers(given))
    given.check_all_used()
    if format == "json":
        show_json(
            {
                "results": {each.key: each.value for each in results},
                "formulas": {each.key: each.formula for each in results},
                "inputs": [asdict(quantity) for quantity in given.used],
            }
        )
    else:
        show("\n\n".join("\n".join(lines) for lines in (_table(results), _inputs(given.used))))
        if any(each.name == "flops" and "hardware=" in each.source for each in given.used):
            note(
                "note: X is what long runs sustained, pauses among them. paceline plan --tokens predicts the kernels "
                "of your model and layout, without pauses, and says how far published runs were from that"
            )


def _answers(given: "Given") -> "Iterator[AnswerRow]":
    """Raises `ConfigError`."""
    from ..cost import answers
    from ..cost.rules import CostError

    asked = [name for name in QUESTIONS if given.asks(name)]
    try:
        if "training time" in asked:
            hours, results = answers.training(given)
            yield from results
            yield answers.rent(given, hours)
        else:
            hours = given.need("time") if given.has("time") or {"energy", "spot machines"} & {*asked} else None
            if hours is not None and (given.has("price_per_hour") or not asked):
                yield answers.rent(given, hours)
        if hours is not None and "energy" in asked:
            yield from answers.energy_of(given, hours)
        if hours is not None and "spot machines" in asked:
            yield from answers.spot(given, hours)
        if "buy or rent" in asked:
            yield from answers.buy_or_rent(given)
    except CostError as error:
        key, _, says = str(error).partition(": ")
        raise ConfigError(f"{key}={given.texts[key]}: {says}" if key in given.texts else str(error)) from error
    if not asked and hours is None:
        raise given.unasked()


def _table(results: "list[AnswerRow]") -> list[str]:
    rows = [[each.what, *_shown(each), each.formula] for each in results]
    width = max(len(row[1]) for row in rows)
    return aligned([[what, value.rjust(width), *rest] for what, value, *rest in rows], numbers_from=4)


def _inputs(inputs: "list[Quantity]") -> list[str]:
    from .cost_numbers import short

    rows = [[each.symbol, short(each.value), each.unit, each.name, each.source] for each in inputs]
    width = max(len(row[1]) for row in rows)
    return aligned([[symbol, value.rjust(width), *rest] for symbol, value, *rest in rows], numbers_from=5)


def _shown(result: "AnswerRow") -> tuple[str, str]:
    """The value and its unit."""
    from .cost_numbers import short

    value, unit = result.value, result.unit
    if value is None:
        return "unknown", unit
    if unit == "share":
        return f"{100 * value:.1f}", "%"
    if unit == "hours":
        for name, size, least in (("years", 8760, 2), ("days", 24, 2), ("hours", 1, 1), ("minutes", 1 / 60, 1)):
            if value >= least * size:
                value, unit = value / size, name
                break
        else:
            value, unit = 3600 * value, "seconds"
    if value >= 1e9:
        return short(value), unit
    return (f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"), unit
