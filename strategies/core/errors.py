"""Errors by which a strategy or sync mode refuses a run."""


class MissingToolError(RuntimeError):
    """Raised where this machine lacks a tool that a strategy needs; the message says how to get it."""

    exit_code = 3


class TooFewClientsError(RuntimeError):
    """Raised when so many workers are lost that no round can be secure, or robust, as it was asked to be."""

    exit_code = 4


class NotFiniteError(RuntimeError):
    """Raised when a worker's message would be NaN or infinite, or when Byzantine workers sent values that no rule can
    aggregate: the run has diverged.
    """

    exit_code = 6
