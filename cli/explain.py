"""`paceline explain`: what a choice does, from its own file and a small run; or what a run spent its time on."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ..conf.errors import ConfigError
from .choices import group_of
from .compare import check_file
from .completion import complete_override
from .options import AllowModule, ConfigDir
from .output import note, note_disturbed, results_alone, shortest, show, show_json

if TYPE_CHECKING:
    from ..engine.api.small_run import SmallRun
    from ..engine.config.explained import ChoiceExplanation

Format = Literal["text", "json"]


@results_alone()
def explain(
    what: Annotated[
        str,
        typer.Argument(
            metavar="RUN|CHOICE",
            help="A run, SWEEP/RUN or a directory; or group=choice, such as sync=ssp, strategy=pipeline.",
            autocompletion=complete_override,
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="OVERRIDES",
            help="Of a choice's small run: hardware.workers=4 sync.staleness=1.",
            show_default=False,
            autocompletion=complete_override,
        ),
    ] = None,
    format: Annotated[Format, typer.Option(help="json holds raw values.")] = "text",
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page with the pictures, too.", show_default=False)
    ] = None,
    svg: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the picture alone, too.", show_default=False)
    ] = None,
    config_dir: ConfigDir = None,
    allow_module: AllowModule = None,
) -> None:
    """Explain a run: what it spent its time, memory and bytes on, against its prediction, and what would help most.

    Or explain a choice: what it does, its equation, its cost, when to use it, its paper, and who sends what when.

    The pictures are of a small real run of it on the virtual cluster: sixteen workers on digits, unless you say
    otherwise. The page of --html plays it. A collective has a picture more: how it makes a sum of four workers.

    \b
    paceline explain first-asp
    paceline explain sync=ssp
    paceline explain sync=ssp sync.staleness=1 hardware.workers=4 --svg ssp.svg
    paceline explain collective=ring hardware.workers=6 --html ring.html
    """
    check_file("--html", html)
    check_file("--svg", svg)
    if "=" not in what or Path(what).is_dir():
        _check_no_key(what, config_dir)
        _explain_run(what, overrides or [], tuple(allow_module or ()), format == "json", html, svg)
        return
    explain_choice(what, overrides or [], config_dir, tuple(allow_module or ()), format == "json", html, svg)


def _check_no_key(what: str, config_dir: Path | None) -> None:
    """Raises `ConfigError` where a key stands in a run's place, or a word that is nearer to a choice than to a run."""
    from ..engine import ROOT
    from ..tracking.run_directory import run_names
    from ..tracking.sources import sweep_names
    from ..tracking.text import did_you_mean
    from .explain_key import about, near

    if Path(what).exists() or (Path(ROOT) / what).exists():
        return
    hint = about(what, config_dir)
    if not hint and not did_you_mean(what, [*run_names(ROOT), *sweep_names(ROOT)]):
        hint = near(what, config_dir)
    if hint:
        raise ConfigError(f"{what}: {hint}")


def _explain_run(
    what: str, overrides: list[str], allowed: tuple[str, ...], as_json: bool, html: Path | None, svg: Path | None
) -> None:
    """Raises `ConfigError`, `RunNameError` or `CorruptRunError`."""
    from ..tracking.sources import check
    from .explain_run import as_page, for_people, raw, told_of
    from .find import find

    if overrides:
        raise ConfigError(f"{overrides[0]}: overrides go with a choice, such as sync=ssp; a run has its configuration")
    if svg is not None:
        raise ConfigError("--svg: goes with a choice; of a run, --html FILE has the pictures")
    run = find(what)
    check(run)
    told = told_of(run, allowed)
    if as_json:
        show_json(raw(told))
    else:
        show(for_people(told))
    note_disturbed([{"run": run.name, "disturbed": run.summary.get("disturbed")}])
    _write(html, as_page(told) if html is not None else "")


def explain_choice(
    what: str,
    overrides: list[str],
    config_dir: Path | None,
    allowed: tuple[str, ...],
    as_json: bool,
    html: Path | None,
    svg: Path | None,
) -> None:
    """Raises `ConfigError`."""
    from ..engine.api.small_run import NoPictureError, small_run
    from ..tracking.drawn import lanes as lanes_drawn
    from ..tracking.drawn import player
    from ..tracking.player import of_sum, too_long
    from . import collective as summed
    from .explain_choice import as_page, for_people, lanes_of, raw

    check_file("--html", html)
    check_file("--svg", svg)
    explained = _explained(what, config_dir, allowed)
    run: SmallRun | None = None
    why = ""
    try:
        run = small_run(what, overrides, config_dir, allowed, watch=as_json or html is not None)
    except NoPictureError as error:
        why = str(error)
    lanes = None if run is None else lanes_of(run)
    recording, unseen = None, ""
    if explained.group == "collective":
        recording, unseen = summed.recorded(what, overrides, config_dir, allowed)
    raw_sum = None if recording is None else summed.raw(explained.name, recording)
    drawn_sum = unseen and f"There is no picture: {unseen}"
    if recording is not None:
        drawn_sum = summed.drawn(explained.name, recording)
    if as_json:
        show_json(raw(explained, run, lanes, why) | ({"sum": raw_sum} if explained.group == "collective" else {}))
    else:
        show(for_people(explained, run, lanes, why, drawn_sum))
    if lanes is None and raw_sum is None and svg is not None:
        raise ConfigError(f"--svg: there is no picture of {what}: {why}")
    second = None if raw_sum is None else of_sum(raw_sum)
    if second is not None and (html or svg) and (unseen := too_long(second)):
        if svg is not None:
            raise ConfigError(f"--svg: there is no picture of {what}: {unseen}")
        second = None
    _write(html, as_page(explained, run, lanes, why, second or unseen) if html is not None else "")
    if second is not None:
        _write(svg, player.as_svg(second))
    elif lanes is not None:
        _write(svg, lanes_drawn.as_svg(what, lanes))


def _write(file: Path | None, text: str) -> None:
    from ..tracking.run_directory import write_atomically

    if file is not None:
        write_atomically(file, text)
        note(f"picture: {shortest(file)}")


def _explained(what: str, config_dir: Path | None, allowed: tuple[str, ...]) -> "ChoiceExplanation":
    """Raises `ConfigError`, naming the nearest."""
    from ..conf.groups import BY_NAME
    from ..engine.config.described import composed, is_composed
    from ..engine.config.experiment import Choice
    from ..engine.config.explained import explain as of_file
    from ..tracking.text import did_you_mean
    from .explain_key import about

    group, _, name = what.partition("=")
    if group not in BY_NAME:
        if instead := about(what, config_dir):
            raise ConfigError(f"{what}: {instead}")
        hint = did_you_mean(group, BY_NAME) or f"there are {', '.join(BY_NAME)}"
        raise ConfigError(f"{group}: must be a group whose choices are classes, as in GROUP=CHOICE; {hint}")
    found = {choice.name: choice for choice in group_of(group, config_dir)}
    if is_composed(group, name):
        line = f"a local step, then the exchange of {name.replace('+', ', then of ')}"
        return of_file(group, composed(group, name, config_dir), line, allowed)
    if name not in found:
        hint = did_you_mean(name, found) or f"there are {', '.join(found)}"
        raise ConfigError(f"{what}: there is no such choice; {hint}")
    choice = found[name]
    target = choice.target()
    if not target:
        raise ConfigError(f"{what}: {choice.path} names no class (_target_)")
    chosen = Choice(name=name, target=target, knobs=choice.knobs())
    return of_file(group, chosen, choice.description, allowed)
