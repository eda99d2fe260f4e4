"""What a strategy or sync mode refuses."""


class MissingToolError(RuntimeError):
    """This machine lacks what a strategy needs; the message says how to get it."""

    exit_code = 3


class TooFewClientsError(RuntimeError):
    """So many workers are lost that no round can be secure, or robust, as it was asked to be."""

    exit_code = 4


class NotFiniteError(RuntimeError):
    """What a worker is to send is NaN or infinite, or liars sent what no rule can join: the run has diverged."""

    exit_code = 6
