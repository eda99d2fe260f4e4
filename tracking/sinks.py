"""Which sinks a run's configuration asks for."""

from typing import Any

from .errors import TrackingConfigError
from .mirror import Sink
from .progress import progress
from .run_directory import RunDirectory
from .wandb import MODES, WandbMirror

KEYS = ("wandb", "mode", "project", "entity", "group", "tags", "job_type")


def sinks_from(
    tracking: dict[str, Any], *, run: RunDirectory, config: dict[str, Any], quiet: bool = False, plain: bool = False
) -> list[Sink]:
    """The sinks for the configuration group `tracking` (conf/tracking/*.yaml).

    `config` is the whole experiment; W&B is given a redacted copy. `quiet` leaves the terminal out; `plain`: lines on
    a terminal, too. Raises TrackingConfigError on a value that is not allowed; nothing is started or imported before a
    first record.
    """
    check(tracking)
    sinks: list[Sink] = [] if quiet else [progress(run.path, plain=plain)]
    if tracking["wandb"]:
        sinks.append(
            WandbMirror(
                config=config,
                name=run.name,
                directory=run.path,
                project=tracking["project"],
                entity=tracking["entity"],
                group=tracking["group"],
                tags=tracking["tags"],
                job_type=tracking["job_type"],
                mode=tracking["mode"],
                start_at=run.opened_at,
            )
        )
    return sinks


def check(tracking: dict[str, Any]) -> None:
    """Raises TrackingConfigError unless the group's values are allowed."""
    unknown = [key for key in tracking if key not in KEYS]
    if unknown:
        raise TrackingConfigError(f"tracking.{unknown[0]}: there is no such key; valid: {', '.join(KEYS)}")
    if not isinstance(tracking.get("wandb"), bool):
        raise TrackingConfigError(f"tracking.wandb={tracking.get('wandb')}: must be true or false")
    if not tracking["wandb"]:
        return
    if tracking["mode"] not in MODES:
        raise TrackingConfigError(f"tracking.mode={tracking['mode']}: must be one of {', '.join(MODES)}")
    tags = tracking["tags"]
    if not isinstance(tags, list) or not all(isinstance(tag, str) and 1 <= len(tag) <= 64 for tag in tags):
        raise TrackingConfigError(f"tracking.tags={tags}: must be a list of texts of 1 to 64 characters")
    if not isinstance(tracking["project"], str) or not tracking["project"]:
        raise TrackingConfigError(f"tracking.project={tracking['project']}: must be a name")
    for key in ("entity", "group", "job_type"):
        if tracking[key] is not None and not isinstance(tracking[key], str):
            raise TrackingConfigError(f"tracking.{key}={tracking[key]}: must be a text or null")
