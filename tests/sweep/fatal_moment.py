"""`fatal_moment.py MOMENT NTH ARGUMENTS...`: runs `paceline ARGUMENTS`, which is killed when MOMENT comes the NTH time.

The product knows nothing of this: functions are replaced, in this process alone, by ones that send it SIGKILL first, or
last. A moment that does not come leaves the sweep to its end.
"""

import os
import random
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

LONGEST = 0.6  # seconds after a run's workers were started


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Count:
    """Kills at the `nth` time that it is called."""

    def __init__(self, nth: int) -> None:
        self._left, self._lock = nth, threading.Lock()

    def __call__(self) -> None:
        with self._lock:
            self._left -= 1
            if self._left == 0:
                die()


Chosen = Callable[..., bool]


def before(owner: Any, name: str, hit: Count, chosen: Chosen = lambda *_, **__: True) -> None:
    original = getattr(owner, name)

    def instead(*arguments: Any, **named: Any) -> Any:
        if chosen(*arguments, **named):
            hit()
        return original(*arguments, **named)

    setattr(owner, name, instead)


def after(owner: Any, name: str, hit: Count, chosen: Chosen = lambda *_, **__: True) -> None:
    original = getattr(owner, name)

    def instead(*arguments: Any, **named: Any) -> Any:
        result = original(*arguments, **named)
        if chosen(*arguments, **named):
            hit()
        return result

    setattr(owner, name, instead)


def file_named(*names: str) -> Chosen:
    """Of a method of Path, or of shutil.rmtree."""
    return lambda path, *_, **__: any(name in Path(path).name for name in names)


def training(hit: Count) -> None:
    """At a random time within a run."""
    from paceline.engine.launch.local_workers import LocalWorkers

    original = LocalWorkers.watch

    def instead(local_workers: LocalWorkers) -> Any:
        def later() -> None:
            time.sleep(random.uniform(0, LONGEST))
            hit()

        threading.Thread(target=later, daemon=True).start()
        return original(local_workers)

    cast(Any, LocalWorkers).watch = instead


def attribute(key: str) -> Chosen:
    return lambda *arguments, **named: key in arguments or named.get("key") == key


def install(moment: str, hit: Count) -> None:
    import optuna
    from optuna.storages import RDBStorage
    from sqlalchemy.engine.default import DefaultDialect

    import paceline.cli.sweep_view as view
    import paceline.sweep.study as study
    import paceline.sweep.sweeper as sweeper
    import paceline.tracking.report as report

    {
        "training": lambda: training(hit),
        "the place, half written": lambda: before(Path, "replace", hit, file_named(".place")),
        "study made, no definition": lambda: before(optuna.Study, "set_user_attr", hit),
        "adding points": lambda: after(RDBStorage, "_create_new_trial", hit),
        "before a commit": lambda: before(DefaultDialect, "do_commit", hit),
        "after a commit": lambda: after(DefaultDialect, "do_commit", hit),
        "sweep.yaml, half written": lambda: before(Path, "replace", hit, file_named(".sweep.yaml")),
        "asked": lambda: after(optuna.Study, "ask", hit),
        "claimed": lambda: after(study.Study, "next", hit),
        "run directory, half made": lambda: before(Path, "touch", hit, file_named("metrics.jsonl")),
        "before trial.json": lambda: before(sweeper.Sweeper, "_note", hit),
        "trial.json, half written": lambda: before(Path, "replace", hit, file_named(".trial.json")),
        "first step": lambda: before(sweeper.Sweeper, "_tell", hit, lambda _, what, *__: what == "step"),
        "trained": lambda: after(sweeper, "carry_out", hit),
        "before it is acknowledged": lambda: before(study.Study, "acknowledge", hit),
        "half of its facts": lambda: after(RDBStorage, "set_trial_user_attr", hit, attribute("runs")),
        "all of its facts": lambda: after(RDBStorage, "set_trial_user_attr", hit, attribute("exit_code")),
        "acknowledged, not told": lambda: after(optuna.Study, "tell", hit),
        "told": lambda: after(view.SweepLines, "ended", hit),
        "before it is put away": lambda: before(Path, "rename", hit),
        "put away, not removed": lambda: before(shutil, "rmtree", hit),
        "queued again, not given up": lambda: after(optuna.Study, "enqueue_trial", hit),
        "taken over": lambda: after(sweeper.Sweeper, "take_over", hit),
        "before the report": lambda: before(report, "write_report", hit),
        "the report, half written": lambda: before(Path, "replace", hit, file_named(".report.html")),
    }[moment]()


def main() -> None:
    moment, nth = sys.argv[1], int(sys.argv[2])
    sys.argv = ["paceline", *sys.argv[3:]]
    if moment != "-":
        install(moment, Count(nth))
    from paceline.cli.main import main

    main()


if __name__ == "__main__":
    main()
