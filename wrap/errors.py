"""The errors of a script's loop and of its other workers."""


class ScriptError(RuntimeError):
    """The script's loop does something that the sync mode cannot follow; the message says what to do."""

    exit_code = 2


class ElsewhereError(RuntimeError):
    """Another worker cannot begin, or cannot save; `exit_code` is its error's."""

    def __init__(self, said: str, exit_code: int) -> None:
        super().__init__(said)
        self.exit_code = exit_code
