"""The errors that can end a run, each with the exit status that the command ends with."""


class MachineError(RuntimeError):
    """The machine lacks something."""

    exit_code = 3


class LoaderError(RuntimeError):
    """A process that reads batches ahead has ended, or takes too long."""

    exit_code = 4


class UntrainedError(RuntimeError):
    """A run came to its end, and no step of it changed a weight."""

    exit_code = 4


class ChangedModelError(RuntimeError):
    """User code changed, in mid-run, which parameters there are to train."""

    exit_code = 4


class ReplicasDifferError(RuntimeError):
    """Replicas that step together have different weights."""

    exit_code = 4


class DivergedError(RuntimeError):
    """The loss is NaN or infinite."""

    exit_code = 6


class CorruptCheckpointError(RuntimeError):
    """A checkpoint's files are not what its manifest says."""

    exit_code = 7


class WorkerFailedError(RuntimeError):
    """A worker ended a run. `exit_code` is that of the cause, and `cause` its type where it is an error of ours.

    `details` are the lines to show before the message.
    """

    def __init__(self, message: str, exit_code: int, details: list[str], cause: str = "") -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.details = details
        self.cause = cause


class InterruptedRunError(RuntimeError):
    """The run was asked to stop (Ctrl-C, SIGTERM)."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code
