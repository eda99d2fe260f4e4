"""Errors by which a strategy or sync mode refuses a run."""


class MissingToolError(RuntimeError):
    """Raised where this machine lacks a tool that a strategy needs; the message says how to get it."""

    exit_code = 3


class TooFewClientsError(RuntimeError):
    """Raised when too few workers are left for a step, or for a round that is secure or robust, as was asked for."""

    exit_code = 4


class NotFiniteError(RuntimeError):
    """Raised when a worker's message would be NaN or infinite, or when Byzantine workers sent values that no rule can
    aggregate: the run has diverged.
    """

    exit_code = 6
