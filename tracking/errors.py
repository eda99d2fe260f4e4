"""The errors of a run's results, each with the exit status that the command ends with."""


class RunNameError(Exception):
    """A run's name is not allowed, is taken, or belongs to no run."""

    exit_code = 2


class RunNameTakenError(RunNameError):
    """A run has the name already."""


class TableError(Exception):
    """A comparison was asked for a column, format or baseline that does not exist."""

    exit_code = 2


class TrackingConfigError(Exception):
    """A value under `tracking` in the configuration is not allowed."""

    exit_code = 2


class TrackerMissingError(Exception):
    """The package of a tracker that was chosen is not installed, or cannot be imported."""

    exit_code = 3


class StorageError(Exception):
    """The run directory cannot be written: full disk, quota, permissions."""

    exit_code = 3


class CorruptRunError(Exception):
    """A file of a run directory is damaged."""

    exit_code = 7


class UploadError(Exception):
    """W&B did not take runs: no API key, no server, no permission."""

    exit_code = 3


class MissingPackageError(Exception):
    """An optional package is needed and is not installed."""

    exit_code = 3
