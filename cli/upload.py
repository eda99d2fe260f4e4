"""`paceline upload`: what runs recorded for W&B while offline, sent later."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..conf.counted import counted
from .completion import complete_source
from .output import note, show

if TYPE_CHECKING:
    from ..tracking.wandb_upload import OfflineRecording, UploadOutcome

FORMER_NAME = "sync"  # until `sync=` was the name of a group, too
SWEEP = "sweep.yaml"  # in a sweep's directory, which holds run directories
FORBIDDEN = "/\\#?%:"  # in a W&B project's name
LONGEST = 128


def upload(
    ctx: typer.Context,
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN",
            help="Names of runs or sweeps, or their directories. Default: all under runs/ that were not sent yet.",
            show_default=False,
            autocompletion=complete_source,
        ),
    ] = None,
    project: Annotated[
        str | None, typer.Option(metavar="NAME", help="The W&B project to send to, instead of the one recorded.")
    ] = None,
    entity: Annotated[
        str | None, typer.Option(metavar="NAME", help="The W&B user or team to send to, instead of the one recorded.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be sent, and send nothing.")] = False,
) -> None:
    """Send runs that were recorded offline to Weights & Biases.

    By W&B's own client, with the API key of `wandb login` or of WANDB_API_KEY. What was sent is not sent again; what
    could not be sent stays as it is, for the same command later.

    \b
    paceline upload                    every run that was not sent yet
    paceline upload first-asp          one run
    paceline upload runs/sync_modes    every run of a sweep
    paceline upload --dry-run          what would be sent
    """
    if ctx.info_name == FORMER_NAME:
        note("paceline sync is called paceline upload now")
    _check_target("project", project)
    _check_target("entity", entity)
    found = _named(runs) if runs else _everything()
    width = max(len(each.name) for each in found)
    waiting: list[OfflineRecording] = []
    for each in found:
        unsent = each.unsent()
        if unsent.files:
            waiting.append(unsent)
        elif runs:
            show(f"{each.name:{width}}  {'was sent before' if each.files else 'recorded nothing for W&B offline'}")
    if dry_run:
        for each in waiting:
            show(f"{each.name:{width}}  would be sent: {_size(each)}")
    elif waiting:
        _check_server()
        note(f"to send: {len(waiting)} of {counted(len(found), 'run')}")
        _send(waiting, project, entity, width)
    if dry_run or not waiting:
        note(f"{counted(len(found), 'run')}, {len(waiting)} of them with something to send")


def _send(waiting: list["OfflineRecording"], project: str | None, entity: str | None, width: int) -> None:
    """Raises UploadError, or CorruptRunError where nothing but damaged recordings is left."""
    from ..tracking.errors import CorruptRunError, UploadError
    from ..tracking.wandb_upload import send

    states: list[str] = []
    try:
        for each, outcome in send(waiting, project, entity):
            states.append(outcome.state)
            show(f"{each.name:{width}}  {_told(outcome)}")
    except UploadError as error:
        left = len(waiting) - sum(state in ("sent", "partly") for state in states)
        raise UploadError(
            f"{left} of {counted(len(waiting), 'run')} not sent, and kept for the next time: {error}"
        ) from None
    failed = [state for state in states if state in ("failed", "damaged")]
    if failed:
        error = CorruptRunError if set(failed) == {"damaged"} else UploadError
        raise error(
            f"{len(failed)} of {counted(len(waiting), 'run')} not sent, and kept as they are; why stands beside each"
        )


def _told(outcome: "UploadOutcome") -> str:
    match outcome.state:
        case "sent":
            return f"sent: {outcome.said}"
        case "partly":
            return f"sent as far as it was recorded (the run was killed, or goes on): {outcome.said}"
        case "damaged":
            return f"not sent, its recording is damaged: {outcome.said}"
        case "failed":
            return f"not sent: {outcome.said}"


def _size(recording: "OfflineRecording") -> str:
    from ..tracking.compare import human_bytes

    size = human_bytes(sum(file.stat().st_size for file in recording.files))
    return size if len(recording.files) == 1 else f"{size}, in {len(recording.files)} parts"


def _everything() -> list["OfflineRecording"]:
    """Returns the recordings of every run under runs/, those of sweeps too. Raises RunNameError when there is none."""
    from ..engine import ROOT
    from ..tracking.errors import RunNameError
    from ..tracking.run_directory import run_names
    from ..tracking.wandb_upload import recording

    found = [recording(name, ROOT / name) for name in run_names(ROOT)]
    found += [run for sweep in sorted(ROOT.glob(f"*/{SWEEP}")) for run in _of_sweep(sweep.parent)]
    if not found:
        raise RunNameError(f"there are no runs under {ROOT} yet; train one: paceline train")
    return found


def _named(names: list[str]) -> list["OfflineRecording"]:
    """Each run once. Raises RunNameError for a name of neither a run nor a sweep."""
    from ..engine import ROOT
    from ..tracking.errors import RunNameError
    from ..tracking.run_directory import RunDirectory, is_run
    from ..tracking.wandb_upload import recording

    found: dict[Path, OfflineRecording] = {}
    for name in names:
        sweep = next((path for path in (ROOT / name, Path(name)) if (path / SWEEP).is_file()), None)
        if sweep is not None:
            swept = _of_sweep(sweep)
            if not swept:
                raise RunNameError(f"the sweep {sweep} has no runs yet")
            found |= {run.path: run for run in swept}
        else:
            below = ROOT / name  # SWEEP/RUN
            run = RunDirectory.open(ROOT, below if is_run(below) else name)
            found.setdefault(run.path, recording(run.name, run.path))
    return list(found.values())


def _of_sweep(sweep: Path) -> list["OfflineRecording"]:
    from ..tracking.run_directory import run_names
    from ..tracking.wandb_upload import recording

    path = Path(os.path.realpath(sweep))
    return [recording(f"{path.name}/{name}", path / name) for name in run_names(path)]


def _check_server() -> None:
    """Raises `TrackingConfigError` if only a file of the current folder may say the server."""
    from ..compat.wandb import folder_settings
    from ..tracking.errors import TrackingConfigError

    if (file := folder_settings()) and not os.environ.get("WANDB_BASE_URL"):
        raise TrackingConfigError(
            f"{file}: W&B's settings in the current folder are not followed. "
            "Remove the file, or say the server: WANDB_BASE_URL=https://api.wandb.ai"
        )


def _check_target(option: str, name: str | None) -> None:
    from ..tracking.errors import TrackingConfigError

    if name is not None and not (1 <= len(name) <= LONGEST and not set(name) & set(FORBIDDEN) and name.isprintable()):
        raise TrackingConfigError(
            f"--{option}={name}: must be a name of 1 to {LONGEST} characters without {' '.join(FORBIDDEN)}"
        )
