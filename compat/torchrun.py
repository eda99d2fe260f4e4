"""torchrun, with the exit status of the worker that failed. The worker itself has said what was wrong.

    python -m paceline.compat.torchrun, with torchrun's own arguments

torchrun itself would end with exit status 1, whatever the worker's was, and print its own traceback.
"""

import logging
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

LAUNCHER = "PACELINE_LAUNCHER"  # environment variable: the process that starts this one
SAID = "said"  # the file beside a host's workers that holds the words of the first that explained its end
_OURS = {2, 3, 4, 5, 6, 130, 143}  # what paceline ends a worker with, after a sentence of its own: docs/running.md
_FAILED = 4
_ORDER = {_FAILED: 2, 5: 2, 143: 3, -signal.SIGTERM: 3}  # a peer was lost, or waited for; the agent ended it
_LAST = 15.0  # seconds after which an end tells nothing: the agent kills those that do not end by SIGTERM in 30


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
    said = False
    try:
        # torchrun's own folder of logs would stay
        with TemporaryDirectory(prefix="torchelastic_", ignore_cleanup_errors=True) as logs:
            try:
                run.main(["--log-dir", logs, *sys.argv[1:]])
            finally:
                said = "--no-python" in sys.argv or any(Path(logs).glob(f"*/*/{SAID}"))  # a job's workers say it
    except ChildFailedError as error:
        rank, first = error.get_first_failure()
        early = {each: its for each, its in error.failures.items() if its.timestamp < first.timestamp + _LAST}
        sys.exit(status({each: its.exitcode for each, its in early.items()}, rank, said))
    except SignalException as stopped:
        sys.exit(128 + int(stopped.sigval))
    except KeyboardInterrupt:
        sys.exit(130)


def status(codes: Mapping[int, int], first: int, said: bool) -> int:
    """Returns the exit status of all workers together.

    A worker's own end comes before a kill, and both before the loss of a peer. Those that the agent ended come last.

    `codes`: the exit statuses of workers that failed, by rank; below 0: minus a signal. `first`: the rank of the worker
    that ended first. `said`: whether a worker explained its end.
    """
    rank = min([first, *codes], key=lambda rank: _ORDER.get(codes[rank], 1 if codes[rank] < 0 else 0))
    code = codes[rank]
    if code < 0:
        hint = " (out of memory?)" if code == -signal.SIGKILL else ""
        print(f"worker {rank} {killed_by(-code)}{hint}", file=sys.stderr)
        return _FAILED
    if code not in _OURS or not said:
        print(
            f"worker {rank} ended with exit status {code}. Look at its last lines above, or for sys.exit and os._exit "
            "in the script.",
            file=sys.stderr,
        )
    return code


def killed_by(number: int) -> str:
    """Says which signal ended a process; those of real time have no names."""
    named = number in set(signal.Signals)
    return f"was killed by {signal.Signals(number).name if named else f'signal {number}'}"


if __name__ == "__main__":
    main()
