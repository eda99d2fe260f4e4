"""User code that raises, exits, hangs, crashes, or returns what it must not."""

import random
from functools import partial
from pathlib import Path

from .judge import Case, WrongError
from .launched import train

FINE, CONFIG, MACHINE, FAILED, HUNG = 0, 2, 3, 4, 5

# what the model does -> the exit statuses that are right, and words that the last line must hold
RAISES = {
    "raise": "BurntError: the coffee machine is on fire",
    "raise_long": "BurntError: the coffee machine is on fire and burns",
    "raise_empty": "BurntError",
    "raise_lucky": "LuckyError: all is well",
    "raise_mute": "MuteError",
    "raise_escapes": "BurntError",
    "raise_surrogates": "BurntError",
    "raise_interrupt": "KeyboardInterrupt",
    "raise_generator_exit": "GeneratorExit",
    "assert": "AssertionError",
    "recurse": "RecursionError",
    "exit_0": "left before the end",
    "exit_text": "so long",
    "vanish_0": "left before the end, with status 0",
    "vanish_130": "left before the end, with status 130",
    "abort": "SIGABRT",
    "segfault": "SIGSEGV",
    "kill_itself": "SIGKILL",
}
OF_THE_MODEL = ("raise", "assert", "recurse")  # beginnings: what its constructor raises is an error of `model=`
RETURNS = ("object", "nothing", "text")
HARMLESS = ("none", "print_much", "print_escapes", "thread_raises", "finalizer_raises", "go_elsewhere")
HANGS = ("hang", "spin", "hang_deaf", "stop_itself")
SYNCS = ("bsp", "parameter_server", "local_sgd")


def cases(chance: random.Random, count: int) -> list[Case]:
    """`count` cases, each act about as often as any other."""
    found: list[Case] = []
    acts = [
        *RAISES,
        *RETURNS,
        *HARMLESS,
        *HANGS,
        "raise_memory_error",
        "allocate",
        "signal_itself",
        "lose_the_run",
        "close_all",
    ]
    while len(found) < count:
        for act in chance.sample(acts, len(acts)):
            rank, sync = chance.choice((0, 1)), chance.choice(SYNCS)
            at = -1 if act in RAISES and chance.random() < 0.3 else chance.randrange(1, 12)
            where = "in its constructor" if at < 0 else f"in step {at}"
            kind = "user code: " + _kind(act)
            what = f"{act} by worker {rank} {where}, sync={sync}"
            found.append(Case(kind, what, partial(_check, act, rank, at, sync)))
    return found[:count]


def _kind(act: str) -> str:
    kinds = {"raises or exits": RAISES, "returns nonsense": RETURNS, "harmless": HARMLESS, "hangs": HANGS}
    return next((kind for kind, acts in kinds.items() if act in acts), "takes what is not there")


def _check(act: str, rank: int, at: int, sync: str, place: Path) -> None:
    timeout = 4 if act in HANGS else 20
    model = ("model=trouble", f"model.act={act}", f"model.rank={rank}", f"model.at={at}")
    # who is told to stop looks up now and then: so many steps last longer than that
    length = ("steps=400", "model.pause=0.02") if act == "signal_itself" else ("steps=16",)
    launched = train(place, *model, f"sync={sync}", *length, f"hardware.timeout={timeout}")
    statuses = {
        **{name: {FAILED} for name in RAISES},
        **{name: {CONFIG, FAILED} for name in RETURNS},
        **{name: {FINE} for name in HARMLESS},
        **{name: {HUNG} for name in HANGS},
        "raise_memory_error": {MACHINE, FAILED},
        "signal_itself": {FAILED},
        "allocate": {MACHINE, FAILED},
        "lose_the_run": {MACHINE, FAILED},
        "close_all": {MACHINE, FAILED, HUNG},
    }[act]
    launched.ends({CONFIG, FAILED} if at < 0 and act.startswith(OF_THE_MODEL) else statuses)
    if act in RAISES:
        last = launched.last_line()
        if RAISES[act] not in last:
            raise WrongError(f"the cause ({RAISES[act]}) is not in the last line: {last[-500:]!r}")
        if f"worker {rank}" not in last:
            raise WrongError(f"worker {rank} is not named: {last[-500:]!r}")
    if act in HANGS and f"worker {rank}" not in launched.last_line():
        raise WrongError(f"worker {rank} is not named: {launched.last_line()[-500:]!r}")
