"""The error of a script's loop."""


class ScriptError(RuntimeError):
    """The script's loop does something that the sync mode cannot follow; the message says what to do."""

    exit_code = 2
