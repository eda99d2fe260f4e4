"""The `paceline` command. Ctrl-C ends it without a traceback while its modules are imported, too."""

from . import importing


def main() -> None:
    """Imports the commands and runs the one that sys.argv names."""
    importing.begin()
    from .main import main as run

    importing.end()
    run()
