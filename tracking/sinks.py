"""Makes the sinks that a run's configuration asks for."""

from importlib.util import find_spec
from typing import Any

from . import wandb
from .errors import TrackerMissingError, TrackingConfigError
from .helper import HelperMirror
from .imports import failure
from .mirror import Sink
from .run_directory import RunDirectory
from .shown_progress import progress
from .visible import visible

KEYS = ("wandb", "mode", "project", "entity", "group", "tags", "job_type", "tensorboard", "mlflow", "uri", "experiment")
LABELS = {"tensorboard": "TensorBoard", "mlflow": "MLflow"}


def sinks_from(
    tracking: dict[str, Any], *, run: RunDirectory, config: dict[str, Any], quiet: bool = False, plain: bool = False
) -> list[Sink]:
    """The sinks for the configuration group `tracking` (conf/tracking/*.yaml).

    `config` is the whole experiment; W&B is given a redacted copy. `quiet` leaves the terminal out; `plain`: lines on
    a terminal, too. Raises what `check` does; no tracker is started before a first record.
    """
    check(tracking)
    sinks: list[Sink] = [] if quiet else [progress(run.path, plain=plain)]
    if tracking["wandb"]:
        told = {key: tracking[key] for key in ("project", "entity", "group", "tags", "job_type", "mode")}
        sinks.append(
            HelperMirror("W&B", "wandb", run.path, config, run.opened_at, wandb.FINISH_SECONDS, name=run.name, **told)
        )
    if tracking.get("tensorboard"):
        sinks.append(HelperMirror(LABELS["tensorboard"], "tensorboard", run.path, config, run.opened_at))
    if tracking.get("mlflow"):
        told = {key: tracking.get(key) for key in ("uri", "experiment", "group")}
        sinks.append(HelperMirror(LABELS["mlflow"], "mlflow", run.path, config, run.opened_at, name=run.name, **told))
    return sinks


def check(tracking: dict[str, Any]) -> None:
    """Raises TrackingConfigError unless the group's values are allowed.

    Raises TrackerMissingError where the tracker's package is not there, or (TensorBoard, MLflow) cannot be imported.
    """
    unknown = [key for key in tracking if key not in KEYS]
    if unknown:
        raise TrackingConfigError(f"tracking.{unknown[0]}: there is no such key; valid: {', '.join(KEYS)}")
    if not isinstance(tracking.get("wandb"), bool):
        raise TrackingConfigError(f"tracking.wandb={tracking.get('wandb')}: must be true or false")
    for tracker in LABELS:
        if not isinstance(tracking.get(tracker, False), bool):
            raise TrackingConfigError(f"tracking.{tracker}={tracking[tracker]}: must be true or false")
    if tracking.get("mlflow"):
        _check_mlflow(tracking)
    if tracking["wandb"]:
        _check_wandb(tracking)
    for tracker, label in LABELS.items():
        if tracking.get(tracker):
            _check_package(tracker, label)


def _check_package(tracker: str, label: str) -> None:
    """The package is there, and can be imported. Raises `TrackerMissingError`."""
    if find_spec(tracker) is None:
        raise TrackerMissingError(
            f"tracking={tracker}: {label} is not installed; pip install 'paceline[{tracker}]', or tracking=none"
        )
    if why := failure(tracker):
        raise TrackerMissingError(
            f"tracking={tracker}: {label} is installed and cannot be imported ({visible(why)}); "
            f"pip install --force-reinstall 'paceline[{tracker}]' puts it right, or tracking=none"
        )


def _check_wandb(tracking: dict[str, Any]) -> None:
    if find_spec("wandb") is None:  # to import it here would make every run begin later
        raise TrackerMissingError("tracking=wandb: W&B is not installed; pip install wandb, or tracking=none")
    if tracking["mode"] not in wandb.MODES:
        raise TrackingConfigError(f"tracking.mode={tracking['mode']}: must be one of {', '.join(wandb.MODES)}")
    tags = tracking["tags"]
    if not isinstance(tags, list) or not all(isinstance(tag, str) and 1 <= len(tag) <= 64 for tag in tags):
        raise TrackingConfigError(f"tracking.tags={tags}: must be a list of texts of 1 to 64 characters")
    if not isinstance(tracking["project"], str) or not tracking["project"]:
        raise TrackingConfigError(f"tracking.project={tracking['project']}: must be a name")
    for key in ("entity", "group", "job_type"):
        if tracking[key] is not None and not isinstance(tracking[key], str):
            raise TrackingConfigError(f"tracking.{key}={tracking[key]}: must be a text or null")


def _check_mlflow(tracking: dict[str, Any]) -> None:
    if not isinstance(tracking.get("experiment"), str) or not tracking["experiment"]:
        raise TrackingConfigError(f"tracking.experiment={tracking.get('experiment')}: must be a name")
    for key in ("uri", "group"):
        if tracking.get(key) is not None and not isinstance(tracking[key], str):
            raise TrackingConfigError(f"tracking.{key}={tracking[key]}: must be a text or null")
