"""`paceline diff`: what differs between two runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ..conf.errors import ConfigError
from .completion import complete_source
from .options import ConfigDir
from .output import aligned, note_damage, note_disturbed, show, show_json

if TYPE_CHECKING:
    from ..tracking.difference import RunDifference, ValuePair
    from ..tracking.run_data import RunData

Run = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="A run, SWEEP/RUN, a directory, or a configuration: FILE.yaml.",
        autocompletion=complete_source,
    ),
]
Format = Annotated[Literal["text", "json"], typer.Option(help="json: raw values, with units in the names.")]


def diff(first: Run, second: Run, config_dir: ConfigDir = None, format: Format = "text") -> None:
    """Say what differs between two runs: configuration, versions and machine, results with their difference.

    A YAML file is a configuration, as --config of train takes it: then only configurations are compared. The exit
    status is 0 whether or not something differs, 2 for a run or file that is not there, 7 for a damaged one.

    \b
    paceline diff first-asp first-bsp
    paceline diff my-sweep/0001-bsp my-sweep/0002-ssp --format json
    paceline diff mine.yaml runs/first-asp/config.yaml
    """
    from ..engine import ROOT
    from ..tracking import sources
    from ..tracking.difference import difference
    from ..tracking.errors import CorruptRunError
    from .find import find

    files = [sources.is_configuration(name, Path(ROOT)) for name in (first, second)]
    runs = [
        _of_file(Path(name), config_dir) if is_file else find(name)
        for name, is_file in zip((first, second), files, strict=True)
    ]
    note_damage(runs)
    for run in runs:
        sources.check(run)
        if not run.config and run.damage:
            raise CorruptRunError(run.damage[0])
    found = difference(*runs)
    if format == "json":
        show_json(found.plain())
    else:
        show(_text(found, only_configurations=any(files)))
    note_disturbed([{"run": run.name, "disturbed": run.summary.get("disturbed")} for run in runs])


def _of_file(file: Path, config_dir: Path | None) -> "RunData":
    """Returns the configuration in a file, with defaults for all that it leaves out. Raises ConfigError."""
    from ..engine.config.compose import compose
    from ..engine.config.config_file import with_file
    from ..tracking.redact import redact
    from ..tracking.run_data import RunData

    try:
        composed = compose(with_file(file, [], config_dir).overrides, config_dir)
    except ConfigError as error:
        raise ConfigError(str(error).removeprefix("--config ")) from None
    return RunData(str(file), {}, redact(composed.model_dump()), [], None)


def _text(found: "RunDifference", only_configurations: bool) -> str:
    head = ["", found.first, found.second, "difference", ""]
    apart = [pair for pair in found.results if pair.first != pair.second]
    alike = len(found.results) - len(apart)
    weights = [pair for pair in apart if pair.key == "model_sha256" and pair.first and pair.second]
    measured = [pair for pair in apart if pair.key != "model_sha256"]
    results = _table([head, *(pair.texts() for pair in measured)]) if measured else []
    results += [f"{alike} other{'s are' if alike > 1 else ' is'} the same"] if alike else []
    results += ["the weights differ"] if weights else []
    sections = [
        ["configuration", *_section(found.configuration, found)],
        ["environment", *_section(found.environment, found)],
        ["results", *(results or ["none yet"])],
    ]
    if only_configurations:
        del sections[1:]
    return "\n".join(f"{title}\n" + "".join(f"  {line}\n" for line in lines) for title, *lines in sections)


def _section(pairs: "list[ValuePair] | None", found: "RunDifference") -> list[str]:
    if pairs is None:
        return ["not recorded of both"]
    return _table([["", found.first, found.second], *(pair.texts()[:3] for pair in pairs)]) if pairs else ["the same"]


def _table(table: list[list[str]]) -> list[str]:
    from ..tracking.visible import visible

    return aligned([[visible(cell) for cell in row] for row in table], numbers_from=1)
