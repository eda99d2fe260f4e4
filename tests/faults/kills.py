"""Each kind of process killed, and runs stopped, at named and at random moments, over strategies and sync modes."""

import os
import random
import signal
import threading
import time
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from tempfile import mkdtemp

from process_table import is_alive

from paceline.engine.base.checkpoint import steps_of

from .judge import Case, WrongError
from .launched import MOMENTS, Launched, Moment, resume, train, weights

STEPS = 40
PAUSED = ("model=trouble", "model.pause=0.02", f"steps={STEPS}")


@dataclass(frozen=True)
class Scene:
    """A small run. `servers`: how many follow its workers; `goes_on`: without a worker that is not replica 0."""

    words: tuple[str, ...]
    workers: int
    servers: int = 0
    goes_on: bool = False
    exact: bool = False  # resumed, it ends with the bits of a run that nobody touched


def _scene(sync: str, workers: int = 2, servers: int = 0, goes_on: bool = False, exact: bool = False) -> Scene:
    return Scene((*PAUSED, f"sync={sync}", f"hardware.workers={workers}"), workers, servers, goes_on, exact)


SCENES = {
    "bsp": _scene("bsp", exact=True),
    "bsp, torch DDP": Scene((*PAUSED, "strategy=torch_ddp"), 2, exact=True),
    "bsp, two replicas of a pipeline": Scene((*PAUSED, "strategy=pipeline", "hardware.workers=4"), 4, exact=True),
    "bsp, offload": Scene((*PAUSED, "strategy=offload"), 2, exact=True),
    "parameter_server": _scene("parameter_server", servers=1),
    "backup_workers": _scene("backup_workers", 3, servers=1, goes_on=True),
    "asp": _scene("asp", 3, servers=1, goes_on=True),
    "ssp": _scene("ssp", 3, servers=1, goes_on=True),
    "fedavg": _scene("fedavg", 3, servers=1, goes_on=True),
    "fedbuff": _scene("fedbuff", 3, servers=1, goes_on=True),
    "easgd_async": _scene("easgd_async", 3, servers=1, goes_on=True),
    "gossip": _scene("gossip", 3, goes_on=True),
    "gossip_async": _scene("gossip_async", 3, goes_on=True),
    "hogwild": _scene("hogwild", 3, goes_on=True),
    "local_sgd": _scene("local_sgd"),
    "independent": _scene("independent", 3, goes_on=True),
    "routed": Scene((*PAUSED, "sync=routed", "partition=clusters", "hardware.workers=3"), 3, goes_on=True),
}
_BUSY = threading.Lock()


@cache
def _reference(scene: Scene) -> bytes:
    place = Path(mkdtemp(prefix="fault-reference-"))
    train(place, *scene.words).ends({0})
    return weights(place)


def reference(scene: Scene) -> bytes:
    """The weights of a run of the scene that nobody touched."""
    with _BUSY:
        return _reference(scene)


def cases(chance: random.Random, count: int) -> list[Case]:
    """Kills of the launcher, of workers and servers, of the fork server."""
    found: list[Case] = []
    while len(found) < count:
        name = chance.choice(list(SCENES))
        scene = SCENES[name]
        who = chance.choice(["launcher", "launcher", "worker", "worker", "worker", "fork server"])
        rank = chance.randrange(scene.workers + scene.servers) if who == "worker" else 0
        moments = MOMENTS if who == "launcher" else MOMENTS[2:]
        moment, later = chance.choice(moments), chance.uniform(0, 0.4)
        victim = f"worker {rank}" if who == "worker" else who
        what = f"{name}: {victim}, {moment} + {later:.2f} s"
        found.append(Case(f"kill of a {who}", what, partial(_kill, scene, who, rank, moment, later)))
    return found


def _kill(scene: Scene, who: str, rank: int, moment: str, later: float, place: Path) -> None:
    launched = train(place, *scene.words)
    hit = _strike(launched, who, rank, moment, later)
    if who == "launcher":
        launched.ends({-signal.SIGKILL} if hit else {0})
    elif not hit:
        launched.ends({0})
    else:
        may_complete = (scene.goes_on and rank != 0 and rank < scene.workers) or launched.steps() >= STEPS
        status = launched.ends({0, 4} if may_complete else {4})
        words = (f" {rank}",) if who == "worker" else ("fork server",)
        if status and not any(word in launched.last_line() for word in words):
            raise WrongError(f"{words[0].strip()} is not named: {launched.last_line()}")
    _goes_on(scene, launched)


def _strike(launched: Launched, who: str, rank: int, moment: str, later: float) -> bool:
    """Kill the victim; False when the command had ended, or the victim had."""
    if not launched.comes(Moment(moment)):
        return False
    time.sleep(later)
    if who == "launcher":
        pid = launched.process.pid
    elif who == "fork server":
        pid = next((pid for pid, line in launched.alive().items() if _is_fork_server(pid, line, launched)), 0)
    else:
        launched.comes(lambda it: rank in it.workers() or it.steps() >= STEPS)
        pid = launched.workers().get(rank, 0)
    if not pid or launched.process.poll() is not None or not is_alive(pid):
        return False
    os.kill(pid, signal.SIGKILL)
    return True


def _is_fork_server(pid: int, line: str, launched: Launched) -> bool:
    return "forkserver" in line and pid not in launched.workers().values()


def _goes_on(scene: Scene, launched: Launched) -> None:
    """From its last checkpoint, to the same weights where the mode promises it."""
    launched.keeps_whole_checkpoints()
    if not steps_of(launched.run.checkpoints) or launched.process.returncode == 0:
        return
    again = resume(launched.place)
    if again.ends({0, 2}) == 2:  # it had made all its steps
        if "has made them" not in again.said():
            raise WrongError(f"cannot go on: {again.said()}")
        return
    if scene.exact and weights(launched.place) != reference(scene):
        raise WrongError("resumed, it ended with other weights")


def stops(chance: random.Random, count: int) -> list[Case]:
    """SIGINT and SIGTERM to the launcher or to its whole group, once or twice."""
    found: list[Case] = []
    names = [name for name, scene in SCENES.items() if scene.exact or scene.goes_on]
    for _ in range(count):
        name, number = chance.choice(names), chance.choice([signal.SIGINT, signal.SIGTERM])
        group, times = chance.random() < 0.5, chance.choice([1, 1, 2])
        moment, later = chance.choice(MOMENTS), chance.uniform(0, 0.4)
        where = "the group" if group else "the launcher"
        what = f"{name}: {times} {number.name} to {where}, {moment} + {later:.2f} s"
        check = partial(_stop, SCENES[name], number, group, times, moment, later)
        found.append(Case("once stopped" if times == 1 else "twice stopped", what, check))
    return found


def _stop(
    scene: Scene, number: signal.Signals, group: bool, times: int, moment: str, later: float, place: Path
) -> None:
    launched = train(place, *scene.words)
    hit = launched.comes(Moment(moment))
    early = moment == "at once" and later < 0.4  # Python itself may be starting: it has its own way out
    late = times == 2  # the second may come when the run is complete, and Python leaves
    for _ in range(times if hit else 0):
        time.sleep(later)
        launched.signal(number, group)
        later = 0.5
    stopped = {128 + number, -number} if early or late else {128 + number}
    if early and hit and number == signal.SIGINT and launched.ends({0, 1, *stopped}, traceback=True) == 1:
        if "KeyboardInterrupt" not in launched.last_line() or "/cli/" in launched.said():
            raise WrongError(f"not Python's own way out as it starts: {launched.said()[-2000:]}")
        return
    launched.ends({0, *stopped} if hit else {0})
    _goes_on(scene, launched)
