"""Modified clients of secure sums, whose lie must end the run, by name where it can be told; and stopped workers."""

import os
import random
import signal
from functools import partial
from pathlib import Path

from .judge import Case, WrongError
from .kills import PAUSED
from .launched import Moment, train
from .lying_clients import ACTS, LIAR, UNNAMED

FAILED, HUNG = 4, 5
ROUNDS = ("sync=fedavg", "hardware.workers=5", "steps=12")
ALONE = {  # modes in which no replica waits for another
    "hogwild": ("sync=hogwild",),
    "hogwild_locked": ("sync=hogwild_locked",),
    "independent": ("sync=independent",),
    "asp": ("sync=asp",),
}


def cases(chance: random.Random, count: int) -> list[Case]:
    """`count` cases, each lie about as often as any other."""
    found: list[Case] = []
    while len(found) < count:
        for act in chance.sample([*ACTS, *UNNAMED], len(ACTS) + len(UNNAMED)):
            found.append(Case("liar in a secure sum", act, partial(_lie, act)))
    return found[:count]


def _lie(act: str, place: Path) -> None:
    secure = f"secure={{_target_:lying_clients.ByzantineWorker,act:'{act}'}}"
    launched = train(place, *ROUNDS, secure, options=["--allow-module", "lying_clients"])
    launched.ends({FAILED})
    line, says = launched.last_line(), (ACTS | UNNAMED)[act][1]
    if says not in line:
        raise WrongError(f"the lie is not said ({says}): {line}")
    if act in ACTS and not any(f"{who} {LIAR}" in line for who in ("client", "worker")):
        raise WrongError(f"worker {LIAR} is not named for its lie: {line}")
    if "goes on without" in launched.said():
        raise WrongError(f"a client was driven out: {launched.said()[-2000:]}")


def frozen(chance: random.Random, count: int) -> list[Case]:
    """Workers that are stopped where nobody waits for them."""
    found: list[Case] = []
    while len(found) < count:
        for name in ALONE:
            rank, moment = chance.choice((1, 2)), chance.choice(("first step", "a checkpoint whole"))
            found.append(
                Case("stopped worker", f"{name}: worker {rank}, {moment}", partial(_freeze, name, rank, moment))
            )
    return found[:count]


def _freeze(name: str, rank: int, moment: str, place: Path) -> None:
    words = [word for word in PAUSED if not word.startswith("steps=")]
    launched = train(place, *words, "steps=100000", *ALONE[name], "hardware.workers=3", "hardware.timeout=3")
    if not launched.comes(Moment(moment)) or not launched.comes(lambda it: rank in it.workers()):
        raise WrongError(f"it ended before it was stopped: {launched.said()[-2000:]}")
    os.kill(launched.workers()[rank], signal.SIGSTOP)
    launched.ends({HUNG}, 40)
    if f"worker {rank} (last" not in launched.last_line():
        raise WrongError(f"worker {rank} is not named: {launched.last_line()}")
