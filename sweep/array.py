"""Finds what the sweepers of a job array ask SLURM for: all of them the same, as any of them may get any trial."""

from pathlib import Path

from ..conf.errors import ConfigError
from ..engine.api.preparing import prepare
from ..engine.jobs.array import JobArray
from .definition import Definition
from .lacking import first_point


def job_array(directory: Path, definition: Definition) -> JobArray:
    """Returns the array of a sweep's sweepers. Raises `ConfigError` or `MachineError`."""
    swept = [*definition.parameters, *(text.partition("=")[0] for _, way in definition.ways for text in way)]
    for key in swept:
        if key.lstrip("+~").partition(".")[0] == "launcher":
            raise ConfigError(f"{key}: is swept, and all sweepers of --array ask for the same. Choose one value.")
    own = Path(definition.config_dir) if definition.config_dir else None
    overrides = definition.overrides(first_point(definition), definition.each_seed()[0])
    prepared = prepare(overrides, own, definition.allow_modules)
    return JobArray(directory.absolute(), prepared.experiment, prepared.allowed)
