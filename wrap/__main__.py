"""`python -m paceline.wrap SCRIPT ...`: runs the script as `python SCRIPT` does, for `paceline launch --dry-run`."""

import os
import runpy
import sys
from pathlib import Path

from ..conf.errors import ConfigError
from .refusals import say_no_traceback


def main() -> None:
    script, *given = sys.argv[1:]
    sys.argv = [script, *given]
    sys.path[: not sys.flags.safe_path] = [str(Path(os.path.realpath(script)).parent)]  # not the current folder
    runpy.run_path(script, run_name="__main__")
    raise ConfigError(f"{script}: ended without a call of wrap. A dry run shows what wrap is given.")


if __name__ == "__main__":
    say_no_traceback()
    main()
