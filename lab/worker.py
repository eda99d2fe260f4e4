"""A process that makes one run of the lab: `python -m paceline.lab.worker`.

It reads the arguments of `engine.run` as JSON from standard input.
It ends with its server, by whatever means that ends. Its exit status and the last line on standard error are those of
`paceline train`.
"""

import json
import sys

from ..engine.base import parent_death  # noqa: F401  (before anything that takes long)


def main() -> int:
    """Returns the exit status."""
    from ..engine.api.session import run
    from ..engine.base.failures import ending_of, named

    asked = json.load(sys.stdin)
    try:
        run(**asked, quiet=True)
    except Exception as error:
        status, words = (ending_of(error) or (1, f"this is a mistake in paceline: {named(error)}"))[:2]
        print(" ".join(words.split()), file=sys.stderr)
        return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
