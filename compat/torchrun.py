"""torchrun, as a program that ends as its worker did that failed: what was wrong, the worker has said itself.

    python -m paceline.compat.torchrun, with torchrun's own arguments

torchrun's own ends with exit status 1 whatever a worker's was, below a traceback of itself.
"""

import logging
import os
import signal
import sys
from collections.abc import Mapping


def main() -> None:
    usual = signal.getsignal(signal.SIGINT)
    if usual is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C amid the imports: an end without a traceback
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    signal.signal(signal.SIGINT, usual)
    if "PACELINE_JOB" in os.environ:  # its workers are ours, and end with it: engine/base/parent_death.py
        os.environ["PACELINE_LAUNCHER"] = str(os.getpid())
    logging.disable(logging.ERROR)  # of this process, which watches the workers and has nothing else to say
    try:
        run.main(sys.argv[1:])
    except ChildFailedError as error:
        codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
        sys.exit(status(codes, error.get_first_failure()[0]))
    except SignalException as stopped:
        sys.exit(128 + int(stopped.sigval))
    except KeyboardInterrupt:
        sys.exit(130)


def status(codes: Mapping[int, int], first: int) -> int:
    """`codes`: of workers that failed, by rank; below 0: the signal that ended one. `first`: who was first to end."""
    own = [codes[first], *codes.values()]
    if (code := next((each for each in own if each > 0), 0)) > 0:  # the others were ended for its sake
        return code
    print(f"worker {first} was ended by signal {-codes[first]}", file=sys.stderr)
    return 128 - codes[first]


if __name__ == "__main__":
    main()
