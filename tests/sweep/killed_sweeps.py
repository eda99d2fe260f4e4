"""Sweeps that are killed and gone on with, and what must hold of them then; for tests and benchmarks/sweep_kills.py."""

import json
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from process_table import MARK, marked, until, workers_of
from short_runs import clean_environment

GONE = 3.0  # seconds after which nothing of a killed sweep may be left
LIFE = 300.0  # seconds that one sweeper may take on a busy machine
SMALL = (
    *("data.limit=256", "epochs=1", "hardware.threads=1", "checkpoint.every=0", "sync=bsp", "strategy=data_parallel"),
    *("batch_size=16", "model.hidden=[16]"),
)
QUIET = "tracking=none"
RATES = "optimizer.lr=0.2,0.1,0.05,0.02"
ACKNOWLEDGED = re.compile(r"^trial (\S+): (?:accuracy|failed|pruned|no )", re.MULTILINE)
STATES = ("COMPLETE", "PRUNED", "FAIL")
MEASURED = ("accuracy", "loss", "steps", "epochs", "seed", "wire")  # of a summary: bit for bit the same each time


@dataclass(frozen=True)
class Scene:
    """A small sweep. `points` with their seeds: what there must be at the end; None: a search, of `trials`."""

    name: str
    words: tuple[str, ...]
    count: int
    grid: bool = True


SCENES = {
    scene.name: scene
    for scene in (
        Scene("grid", (RATES, QUIET), 4),
        Scene("seeds", ("optimizer.lr=0.1,0.05", QUIET, "--seeds", "2"), 4),
        Scene("jobs", (RATES, QUIET, "hardware.workers=1", "--jobs", "2"), 4),
        Scene("bayes", ("optimizer.lr=interval(0.01,0.2)", QUIET, "--trials", "5"), 5, False),
        Scene("wandb", ("optimizer.lr=0.2,0.1,0.05", "tracking=wandb", "tracking.mode=offline"), 3),
    )
}


class Cell:
    """A network and a /dev/shm of our own, in which others' sockets and segments are not seen."""

    def __init__(self) -> None:
        made = "mount -t tmpfs tmpfs /dev/shm && ip link set lo up && echo made && exec cat >&2"  # until we end
        self._holder = subprocess.Popen(
            ["unshare", "-rmn", "sh", "-c", made], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._holder.stdout is not None
        self._made = self._holder.stdout.readline() == "made\n"
        if not self._made:
            self.close()

    def prefix(self, directory: Path) -> list[str]:
        """Of a command that runs in it; without the kernel's leave to make one, none."""
        if not self._made:
            return []
        enter = ["nsenter", "-t", str(self._holder.pid), "-U", "--preserve-credentials", "-m", "-n", "--"]
        return [*enter, "env", "-C", str(directory)]

    def left(self) -> list[str]:
        """Shared-memory segments and listening sockets."""
        if not self._made:
            return []
        root = Path("/proc", str(self._holder.pid))
        segments = [f"/dev/shm/{path.name}" for path in (root / "root/dev/shm").iterdir()]
        sockets = [line.split() for file in ("tcp", "tcp6") for line in (root / "net" / file).read_text().splitlines()]
        return segments + [f"listening on {words[1]}" for words in sockets if words[3] == "0A"]

    def close(self) -> None:
        self._holder.kill()
        self._holder.communicate()


@dataclass
class Kept:
    """An acknowledged trial, and the files of its runs, as they were then."""

    state: str
    value: float | None
    files: dict[str, tuple[int, int, bytes]]


@dataclass
class Sweep:
    """One sweep, as a user runs it; each of its sweepers is a process that may be killed."""

    scene: Scene
    root: Path  # its current directory: runs/NAME is under it
    cell: Cell
    name: str = "swept"
    kept: dict[int, Kept] = field(default_factory=dict)
    lives: int = 0
    hits: list[str] = field(default_factory=list)

    @property
    def directory(self) -> Path:
        return self.root / "runs" / self.name

    def start(self, moment: str = "-", nth: int = 1, extra: Sequence[str] = ()) -> "Life":
        """A sweeper that begins the sweep or goes on with it."""
        self.lives += 1
        self.root.mkdir(parents=True, exist_ok=True)
        begun = any((self.directory / file).exists() for file in ("study.db", "sweep.yaml"))
        words = ["sweep", *self.scene.words, *SMALL, "--name", self.name, *(["--resume"] if begun else []), *extra]
        command = [sys.executable, str(Path(__file__).with_name("fatal_moment.py")), moment, str(nth), *words]
        return Life(self, command, moment)

    def live(self, moment: str = "-", nth: int = 1) -> "Life":
        """A sweeper from its start to its end, by itself or at `moment`, with what must hold then."""
        life = self.start(moment, nth)
        life.wait()
        return life

    # -- what must hold

    def check(self, life: "Life") -> None:
        """After a sweeper has ended, however. Raises AssertionError."""
        until(lambda: not life.alive(), GONE, f"all of it gone: {life.alive()}")
        assert not self.cell.left(), self.cell.left()
        if not (self.directory / "study.db").exists():
            return
        trials = self.trials()
        said = set(ACKNOWLEDGED.findall(life.said()))
        known = {run for trial in trials if trial["state"] in STATES for run in trial.get("runs", ())}
        assert said <= known, f"acknowledged on stderr, not in the study: {said - known}"
        for number, kept in self.kept.items():
            trial = next(trial for trial in trials if trial["number"] == number)
            assert (trial["state"], trial["value"]) == (kept.state, kept.value), f"trial {number} changed: {trial}"
            assert self._files(trial["runs"]) == kept.files, f"trial {number} was run again: {trial['runs']}"
        for trial in trials:
            if trial["state"] in ("COMPLETE", "PRUNED"):
                self.kept.setdefault(trial["number"], Kept(trial["state"], trial["value"], self._files(trial["runs"])))

    def check_whole(self, reference: "Sweep | None" = None) -> None:
        """After the last sweeper, which was let end. Raises AssertionError."""
        complete = [trial for trial in self.trials() if trial["state"] == "COMPLETE"]
        places = [(trial["point"], *trial["seeds"]) for trial in complete]
        assert len(places) == len(set(places)) == self.scene.count, f"complete: {places}"
        runs = [run for trial in complete for run in trial["runs"]]
        there = {path.name for path in self.directory.iterdir() if path.is_dir()}
        assert there == set(runs) and len(runs) == len(there), f"run directories {there}, of complete trials {runs}"
        assert not list(self.directory.glob(".*")), "files that a killed sweeper had half written"
        for run in runs:
            records = [json.loads(line) for line in (self.directory / run / "metrics.jsonl").read_text().splitlines()]
            kinds = [record["kind"] for record in records]
            assert kinds.count("start") == 1 and kinds.count("end") == 1, f"{run}: {kinds}"
        if reference is not None:
            assert self.results() == reference.results()

    def results(self) -> list[dict[str, Any]]:
        """The table's columns that are the same each time, read from the files alone."""
        notes = []
        for path in self.directory.glob("*/summary.json"):
            note = json.loads((path.parent / "trial.json").read_text())
            summary = json.loads(path.read_text())
            notes.append({**note, **{key: summary[key] for key in MEASURED}})
        return sorted(notes, key=lambda note: (note["trial"], note["seed"]))

    def trials(self) -> list[dict[str, Any]]:
        """The study's rows, read without Optuna."""
        with sqlite3.connect(self.directory / "study.db") as database:
            if not database.execute("select 1 from sqlite_master where name = 'trial_values'").fetchall():
                return []
            found = []
            for key, number, state in database.execute("select trial_id, number, state from trials order by number"):
                facts = database.execute("select key, value_json from trial_user_attributes where trial_id = ?", (key,))
                value = database.execute("select value from trial_values where trial_id = ?", (key,)).fetchone()
                attributes = {name: json.loads(text) for name, text in facts}
                found.append({"number": number, "state": state, "value": value and value[0], **attributes})
        database.close()
        return found

    def _files(self, runs: Iterable[str]) -> dict[str, tuple[int, int, bytes]]:
        found = {}
        for run in runs:
            for name in ("metrics.jsonl", "summary.json"):
                path = self.directory / run / name
                stat = path.stat()
                found[f"{run}/{name}"] = stat.st_ino, stat.st_mtime_ns, path.read_bytes()
        return found


class Life:
    """One sweeper's process."""

    def __init__(self, sweep: Sweep, command: list[str], moment: str) -> None:
        self._sweep, self.moment, self._mark = sweep, moment, uuid.uuid4().hex
        self._stderr = sweep.root / f"stderr-{sweep.lives}"
        self._stdout = sweep.root / f"stdout-{sweep.lives}"
        with self._stderr.open("wb") as errors, self._stdout.open("wb") as output:
            self.process = subprocess.Popen(
                [*sweep.cell.prefix(sweep.root), *command],
                cwd=sweep.root,
                env={**clean_environment(sweep.root), MARK: self._mark, "MKL_CBWR": "COMPATIBLE"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )

    @property
    def killed(self) -> bool:
        return self.process.returncode == -signal.SIGKILL

    def said(self) -> str:
        return self._stderr.read_text()

    def table(self) -> str:
        return self._stdout.read_text()

    def alive(self) -> dict[int, str]:
        return marked(self._mark)

    def wait(self) -> int:
        """Its exit status, once it and all that it started have gone and what must hold was looked at."""
        code = self.process.wait(LIFE)
        if self.killed:
            self._sweep.hits.append(self.moment)
        self._sweep.check(self)
        return code

    def until(self, condition: Any, what: str) -> Any:
        found = until(lambda: condition() or self.process.poll() is not None, LIFE, what)
        assert self.process.poll() is None or condition(), f"ended before {what}: {self.said()}"
        return found

    def kill(self) -> None:
        self.process.kill()

    def begun(self) -> list[Path]:
        """Run directories whose workers have begun."""
        return [path.parent.parent for path in self._sweep.directory.glob("*/logs/worker-*.log")]

    def one_worker(self) -> int:
        """The pid of a worker, once there is one."""
        return self.until(lambda: next((p for run in self.begun() for p in workers_of(run).values()), 0), "a worker")

    def child(self, named: str) -> int:
        """The pid of a process of this sweeper with `named` in its command line."""
        return self.until(lambda: next((pid for pid, line in self.alive().items() if named in line), 0), named)

    def shoot(self, pid: int) -> None:
        """Kill a process of the sweep that is not the sweeper."""
        try:
            os.kill(pid, signal.SIGKILL)
            self._sweep.hits.append(self.moment)
        except ProcessLookupError:
            pass


# Moments of fatal_moment.py, each with the last of the times that it comes in a small sweep, or so.
OPENING = {
    "the place, half written": 1,
    "study made, no definition": 1,
    "adding points": 4,
    "before a commit": 30,
    "after a commit": 30,
    "sweep.yaml, half written": 1,
}
TRIALS = {
    "before a commit": 30,
    "after a commit": 30,
    "asked": 2,
    "claimed": 2,
    "run directory, half made": 2,
    "before trial.json": 2,
    "trial.json, half written": 2,
    "training": 2,
    "first step": 2,
    "trained": 2,
    "before it is acknowledged": 2,
    "half of its facts": 2,
    "all of its facts": 2,
    "acknowledged, not told": 2,
    "told": 2,
    "before the report": 1,
    "the report, half written": 1,
}
RESUMING = {
    "before it is put away": 1,
    "put away, not removed": 1,
    "queued again, not given up": 1,
    "taken over": 1,
}
SHOTS = {"a worker": None, "the fork server": "forkserver", "the logger": "wandb-core"}


def shoot(sweep: Sweep, who: str, chance: random.Random) -> Life:
    """A life in which another process of the sweep is killed, after a random part of its own."""
    life = sweep.start()
    life.moment = who
    named, before = SHOTS[who], len(sweep.hits)
    try:
        while len(sweep.hits) == before:  # a worker may end before it is shot: then the next one
            pid = life.one_worker() if named is None else life.child(named)
            if named is not None:
                life.one_worker()
            time.sleep(chance.uniform(0, 0.1))
            life.shoot(pid)
    except AssertionError:  # the sweep had ended: nothing was there to shoot
        pass
    life.wait()
    return life


def remove(sweep: Sweep) -> None:
    shutil.rmtree(sweep.root)
