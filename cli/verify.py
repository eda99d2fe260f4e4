"""`paceline verify`: does the model train the same in every way that it can be laid out?"""

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ..conf.errors import ConfigError
from .options import AllowModule, Config, ConfigDir, Overrides, with_config
from .output import note, results_alone, show, show_json
from .verify_view import as_csv, as_markdown, for_people, raw

if TYPE_CHECKING:
    from ..verify import Verification

Format = Literal["table", "json", "markdown", "csv"]
FAILED, TIMED_OUT = 4, 5


@results_alone()
def verify(
    overrides: Overrides = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CHOICE",
            help="Only ways with it: a strategy, a sync mode, a group as compress, or sync=ssp. May be repeated.",
        ),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, max=1000, help="Steps to train.")] = 3,
    workers: Annotated[int, typer.Option(min=1, max=16, help="The most workers of a way.")] = 4,
    every: Annotated[
        bool,
        typer.Option("--every", help="All combinations of a strategy's knobs, and each sync mode with each strategy."),
    ] = False,
    tolerance: Annotated[
        float | None,
        typer.Option(help="What may differ, relative to a tensor's largest entry. Default: what rounding explains."),
    ] = None,
    time_limit: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Begin nothing more after so long, and exit with 5.")
    ] = None,
    parameters: Annotated[
        bool, typer.Option("--parameters", help="Show the largest difference of each parameter, too.")
    ] = False,
    config: Config = None,
    config_dir: ConfigDir = None,
    allow_module: AllowModule = None,
    format: Annotated[
        Format, typer.Option(help="json holds every parameter of every way; csv and markdown a line a way.")
    ] = "table",
) -> int:
    """Train one model in every way, and compare each with serial training.

    Every strategy, mesh degree, sharding stage, number of micro-batches and precision, every sync mode, collective and
    compressor; workers are real processes, or threads of the virtual cluster with hardware=virtual, which is faster.
    Exits with 4 when a way differs by more than rounding explains.

    \b
    paceline verify model=cnn hardware=virtual          every way that the virtual cluster has
    paceline verify model=cnn --only zero               DeepSpeed's ZeRO, by stage
    paceline verify model=mine --config-dir conf --allow-module mine --only data_parallel
    paceline verify --only sync=ssp --parameters --format json
    """
    from ..verify import verify as verify_all

    for option, value in {"--tolerance": tolerance, "--time-limit": time_limit}.items():
        if value is not None and not 0 < value < float("inf"):
            raise ConfigError(f"{option}={value:g}: must be above 0")
    chosen, blamed = with_config(config, overrides or [], config_dir)
    with blamed:
        found = verify_all(
            chosen,
            config_dir=config_dir,
            allow_modules=allow_module or [],
            steps=steps,
            workers=workers,
            only=only or [],
            every=every,
            tolerance=tolerance,
            time_limit=time_limit,
            say=note,
        )
    match format:
        case "table":
            show(for_people(found, parameters))
        case "json":
            show_json(raw(found))
        case "markdown":
            show(as_markdown(found))
        case "csv":
            show(as_csv(found))
    return _status(found)


def _status(found: "Verification") -> int:
    """Said on standard error, too, in a sentence."""
    words = [row.word for row in found.rows]
    if failed := [row for row in found.rows if row.word == "fail"]:
        note(f"{len(failed)} of {len(words)} ways failed; the first: {' '.join(failed[0].overrides)}: {failed[0].why}")
        return FAILED
    if "not run" in words:
        note(f"{words.count('not run')} ways were not tried: the time limit was reached (--time-limit)")
        return TIMED_OUT
    if "pass" not in words:
        note("nothing was compared with serial training: see the reasons in the table")
        return FAILED
    return 0
