"""torchrun, with the exit status of the worker that failed. The worker itself has said what was wrong.

    python -m paceline.compat.torchrun, with torchrun's own arguments

torchrun itself would end with exit status 1, whatever the worker's was, and print its own traceback.
"""

import logging
import os
import signal
import sys
from collections.abc import Mapping
from tempfile import TemporaryDirectory

LAUNCHER = "PACELINE_LAUNCHER"  # environment variable: the process that starts this one
EXPLAINED = {2, 3, 4, 6}  # a worker ends with these after a sentence of its own: docs/running.md


def main() -> None:
    usual = signal.getsignal(signal.SIGINT)
    if usual is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C during the imports ends without a traceback
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    signal.signal(signal.SIGINT, usual)
    os.environ[LAUNCHER] = str(os.getpid())  # its workers end with it: engine/base/parent_death.py
    logging.disable(logging.ERROR)  # this process watches the workers, and its log has nothing to add
    try:
        # torchrun's own folder of logs would stay
        with TemporaryDirectory(prefix="torchelastic_", ignore_cleanup_errors=True) as logs:
            run.main(["--log-dir", logs, *sys.argv[1:]])
    except ChildFailedError as error:
        codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
        sys.exit(status(codes, error.get_first_failure()[0]))
    except SignalException as stopped:
        sys.exit(128 + int(stopped.sigval))
    except KeyboardInterrupt:
        sys.exit(130)


def status(codes: Mapping[int, int], first: int) -> int:
    """Returns the exit status of all workers together.

    `codes`: the exit statuses of workers that failed, by rank; below 0: minus a signal. `first`: the rank of the worker
    that ended first.
    """
    own = [first, *codes]
    if (rank := next((each for each in own if codes[each] > 0), None)) is not None:  # the agent ended the others
        if codes[rank] not in EXPLAINED:
            print(
                f"worker {rank} ended with exit status {codes[rank]}. Look at its last lines above, or for os._exit in "
                "the script.",
                file=sys.stderr,
            )
        return codes[rank]
    print(f"worker {first} was ended by signal {-codes[first]}", file=sys.stderr)
    return 128 - codes[first]


if __name__ == "__main__":
    main()
