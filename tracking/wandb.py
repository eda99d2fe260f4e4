"""Writes a run to Weights & Biases, in the helper process of helper.py."""

import netrc
import os
import secrets
import shutil
import tempfile
import threading
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from ..compat.wandb import folder_settings, load_settings, logins_of, quiet_settings
from .errors import CorruptRunError
from .files import UnusableFileError, check_regular, read_text
from .helper import print_traceback, tell, words_of
from .history import history
from .run_directory import SWEEP_NOTE, RunDirectory, follow, write_atomically
from .values import flat

Mode = Literal["online", "offline", "disabled"]
MODES = ("auto", "online", "offline")
INIT_SECONDS = 5.0  # then W&B is written offline
UPLOAD_SECONDS = 8.0  # at the end of the run, for what has not been sent
FINISH_SECONDS = 11.0  # then the helper is killed; what it wrote can still be synced
LONGEST_ID = 128  # of a run, as W&B takes it
NO_KEY = "no API key"
MAX_BINS = 512  # of a histogram, as W&B takes it


def mirror(settings: dict[str, Any], finish: threading.Event) -> None:
    """Starts wandb-core, which ends with this process.

    `settings`: those of conf/tracking/wandb.yaml, and the run's `name`, `directory`, `config` and `start_at`.
    """
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # offline means: nothing is sent anywhere
    # W&B's own folders, which it would leave in TMPDIR
    scratch = Path(settings["directory"]) / "wandb" / "tmp"
    shutil.rmtree(scratch, ignore_errors=True)  # of a helper that was killed
    scratch.mkdir(parents=True)
    tempfile.tempdir = str(scratch)
    try:
        _mirror(settings, finish)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _mirror(settings: dict[str, Any], finish: threading.Event) -> None:
    import wandb

    from .wandb_upload import mark_of

    directory = RunDirectory(Path(settings["directory"]))
    run = _init(settings, directory)
    _keep_choices(run, settings["config"])
    run.define_metric("step", hidden=True)
    run.define_metric("*", step_metric="step")
    for record in follow(directory.metrics, finish, settings["start_at"]):
        if plotted := history(record, swept="WANDB_SWEEP_ID" in os.environ):
            run.log(plotted)
    summary = directory.read_summary()
    run.summary.update(_shown(directory, summary or {}))
    online, file = not run.offline, Path(run.settings.sync_file)
    try:
        run.finish(exit_code=0 if summary and summary.get("status") == "completed" else 1)
    except TimeoutError:
        tell(f"W&B: the server did not take everything; send it again with: paceline upload {_named(directory)}")
        online = False
    wandb.teardown()
    if online and file.exists():
        mark_of(file).touch()


def _init(settings: dict[str, Any], directory: RunDirectory) -> Any:
    """The W&B run: online when asked and possible, otherwise offline, and one line that says so."""
    import wandb

    from .wandb_upload import mark_of

    files = directory.path / "wandb"
    files.mkdir(exist_ok=True)
    earlier = set(files.glob("run-*/*.wandb"))
    mode, reason = mode_of(settings["mode"], load_settings())
    if mode == "online":
        try:
            run = _open(settings, files, mode)
            tell(f"W&B: {run.url}")
            return run
        except Exception as error:
            print_traceback(error)
            wandb.teardown()  # the W&B service that failed still holds the run's id
            for file in files.glob("run-*/*.wandb"):
                if file not in earlier:
                    mark_of(file).touch()  # there is nothing in it
            mode, reason = "offline", words_of(error)
            load_settings()
    run = _open(settings, files, mode)
    if mode == "offline":
        tell(f"W&B: offline ({reason}); send it with: paceline upload {_named(directory)}")
    return run


def _named(directory: RunDirectory) -> Path:
    """Returns the path to name in a command: for a trial, its whole sweep."""
    here = Path.cwd()
    path = directory.path.parent if (directory.path / SWEEP_NOTE).exists() else directory.path
    return path.relative_to(here) if path.is_relative_to(here) else path


def _open(settings: dict[str, Any], files: Path, mode: Mode) -> Any:
    import wandb

    return wandb.init(
        id=_run_id(settings["name"], files),
        name=settings["name"],
        dir=files.parent,
        config=settings["config"],
        project=settings["project"],
        entity=settings["entity"],
        group=settings["group"],
        tags=settings["tags"] or None,  # none of ours: those of WANDB_TAGS
        job_type=settings["job_type"],
        mode=mode,
        resume="allow",
        settings=quiet_settings(INIT_SECONDS, UPLOAD_SECONDS),
    )


def _keep_choices(run: Any, config: dict[str, Any]) -> None:
    """Keeps our `sync: {name: asp, ...}` as `sync.name`, ... if a W&B sweep's `sync: asp` has taken its place."""
    replaced = {
        key: value
        for key, value in config.items()
        if isinstance(value, dict) and not isinstance(run.config.get(key), dict)
    }
    run.config.update(flat(replaced, "."))


def mode_of(asked: str, known: Any) -> tuple[Mode, str]:
    """Returns the mode and the reason for it. `known` are W&B's own settings, as `load_settings` returns them."""
    if asked == "offline":
        return "offline", "as configured"
    if asked == "auto" and known.mode in ("offline", "disabled"):
        return known.mode, "as W&B's own settings say"
    file = folder_settings()
    if file and (asked == "auto" or not os.environ.get("WANDB_BASE_URL")):
        way = "remove it, or set WANDB_BASE_URL and tracking.mode=online"
        return "offline", f"{file} of the current folder is not followed; {way}"
    if known.api_key or os.environ.get("WANDB_IDENTITY_TOKEN_FILE") or key_in_netrc(known.base_url):
        return "online", ""
    return "offline", NO_KEY


def key_in_netrc(url: str) -> bool:
    """Returns whether there is a login for the server at that URL."""
    try:
        check_regular(os.environ.get("NETRC") or Path.home() / ".netrc")
        kept = netrc.netrc(os.environ.get("NETRC"))
        logins = [kept.authenticators(urlsplit(server).netloc) for server in logins_of(url)]
    except (OSError, UnusableFileError, netrc.NetrcParseError):
        return False
    login = next(filter(None, logins), None)
    return login is not None and bool(login[2])


def _run_id(name: str, files: Path) -> str | None:
    """The run's name and a random part, kept in the run directory: resuming goes on in the same W&B run,
    a new run of an old name does not. None under a W&B agent, which has set its own.
    """
    if "WANDB_RUN_ID" in os.environ:
        return None
    kept = files / "run_id"
    try:
        return read_text(kept, LONGEST_ID)
    except FileNotFoundError:
        made = f"{name}-{secrets.token_hex(4)}"
        write_atomically(kept, made)
        return made
    except UnusableFileError as error:
        raise CorruptRunError(f"{kept} {error}") from None


def _shown(directory: RunDirectory, summary: dict[str, Any]) -> dict[str, Any]:
    """The run's row of the comparison table, under the table's names, beside the whole summary."""
    from .compare import rows

    (row,) = rows([directory])
    return flat(_with_histogram(summary)) | {key: value for key, value in row.items() if value is not None}


def _with_histogram(summary: dict[str, Any]) -> dict[str, Any]:
    """The staleness counts as one W&B histogram, instead of a number for each staleness."""
    staleness = summary.get("staleness")
    if not staleness:
        return summary
    import numpy as np
    import wandb

    values = [int(value) for value in staleness["histogram"]]
    width = max(values) // MAX_BINS + 1
    edges = np.arange(max(values) // width + 2) * width
    binned = np.histogram(values, bins=edges, weights=list(staleness["histogram"].values()))
    return summary | {"staleness": staleness | {"histogram": wandb.Histogram(np_histogram=binned)}}
