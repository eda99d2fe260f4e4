"""Wrapped scripts: children that they fork, workers that fail, and gradients and parameters that they change."""

import os
import random
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file

from .judge import Case, WrongError
from .launched import NAME, Launched, environment

SCRIPTS = Path(__file__).parent.parent / "wrap"  # scripts.py: a model, an optimizer and a loader
STEPS = 12  # 6 of an epoch
EXACT = 1e-12  # float64: sums in another order
FINE = 0

FORKS = {
    "exits": "sys.exit(0)",
    "exits with 3": "sys.exit(3)",
    "raises": "raise ValueError('the child')",
    "goes on training": "break",
}
FAILS = {
    "raises": "raise ValueError('the coffee machine is on fire')",
    "exits": "sys.exit(3)",
    "is killed": "os.kill(os.getpid(), 9)",
    "makes an extra step": "run.optimizer.step(); run.optimizer.step()",
}
CHANGES = {
    "clipped": "torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)",
    "clipped by value": "torch.nn.utils.clip_grad_value_(model.parameters(), 1e-3)",
    "halved": "[each.grad.mul_(0.5) for each in model.parameters()]",
    "replaced by signs": "[setattr(each, 'grad', each.grad.sign()) for each in model.parameters()]",
    "dropped": "model.norm.weight.grad = None",
}
FREEZES = {
    "thawed": ("model.norm.weight.requires_grad_(False)", "model.norm.weight.requires_grad_(True)"),
    "frozen": ("pass", "model.norm.weight.requires_grad_(False)"),
}
SCRIPT = """
import os
import sys
import torch
from scripts import parts
from paceline.wrap import wrap
model, optimizer, loader = parts()
{before}
with wrap(model, optimizer, loader, "tracking=none", name="{name}", epochs=2) as run:
    for epoch in range(2):
        for batch in run.loader:
            run.backward(run.model(**batch).loss)
            if {when}:
                {act}
            run.optimizer.step()
            run.optimizer.zero_grad()
"""
FORK = (
    "child = os.fork()\n                if child == 0:\n                    {act}\n                os.waitpid(child, 0)"
)


def cases(chance: random.Random, count: int) -> list[Case]:
    """`count` cases, each act about as often as any other."""
    acts = [
        *(("forked child", what) for what in FORKS),
        *(("worker", what) for what in FAILS),
        *(("gradients", what) for what in CHANGES),
        *(("parameter", what) for what in FREEZES),
    ]
    found: list[Case] = []
    while len(found) < count:
        for who, what in chance.sample(acts, len(acts)):
            at = chance.randrange(1, STEPS - 1)
            workers = chance.choice((1, 2))
            if who in ("gradients", "parameter"):
                check = partial(_changed if who == "gradients" else _frozen, what, at)
                said = f"{who} {what}, step {at}, on one worker and on two"
            else:
                rank = chance.randrange(workers)
                if what == "is killed":  # who writes the record cannot write that it was killed
                    workers, rank = 2, 1
                check = partial(_forks if who == "forked child" else _fails, what, at, rank, workers)
                said = f"{who} {what}, worker {rank} of {workers}, step {at}"
            found.append(Case(f"wrapped scripts: {who}", said, check))
    return found[:count]


def _forks(what: str, at: int, rank: int, workers: int, place: Path) -> None:
    act = FORK.format(act=FORKS[what])
    launched = _launched(place, workers, act, f"run.steps == {at} and run.rank == {rank}")
    launched.ends({FINE})
    _check_end(launched, ("completed",))
    if launched.steps() != STEPS:
        raise WrongError(f"{launched.steps()} steps were recorded, not {STEPS}")


def _fails(what: str, at: int, rank: int, workers: int, place: Path) -> None:
    launched = _launched(place, workers, FAILS[what], f"run.steps == {at} and run.rank == {rank}")
    launched.ends(set(range(1, 256)), traceback=True)  # the script's own
    _check_end(launched, ("failed", "interrupted"))


def _changed(what: str, at: int, place: Path) -> None:
    _agree(place, CHANGES[what], f"run.steps >= {at}")


def _frozen(what: str, at: int, place: Path) -> None:
    before, act = FREEZES[what]
    if what == "frozen":
        _agree(place, act, f"run.steps == {at}")
        return
    for workers in (1, 2):
        launched = _launched(place / str(workers), workers, act, f"run.steps == {at}", before)
        launched.ends(set(range(1, 256)), traceback=True)
        if "norm.weight" not in launched.said():
            raise WrongError(f"norm.weight is not named: {launched.said()[-500:]!r}")
        _check_end(launched, ("failed",))


def _agree(place: Path, act: str, when: str) -> None:
    """One worker, whose gradients are torch's own, and two have the same weights."""
    weights: list[dict[str, torch.Tensor]] = []
    for workers in (1, 2):
        launched = _launched(place / str(workers), workers, act, when)
        launched.ends({FINE})
        _check_end(launched, ("completed",))
        weights.append(load_file(launched.run.path / "model.safetensors"))
    one, two = weights
    apart = max(float((one[name] - two[name]).abs().max()) for name in one)
    if not apart < EXACT:
        raise WrongError(f"the weights of one worker and of two are {apart:g} apart")


def _launched(place: Path, workers: int, act: str, when: str, before: str = "") -> Launched:
    place.mkdir(exist_ok=True)
    script = SCRIPT.format(name=NAME, act=act, when=when, before=before)
    (place / "mine.py").write_text(script)
    path = os.pathsep.join([str(SCRIPTS), environment(place)["PYTHONPATH"]])
    return Launched(place, ["launch", "--workers", str(workers), "mine.py"], env={"PYTHONPATH": path})


def _check_end(launched: Launched, statuses: tuple[str, ...]) -> None:
    records = launched.run.records()
    ends = [each.get("status") for each in records if each["kind"] == "end"]
    if len(ends) != 1 or ends[0] not in statuses or records[-1]["kind"] != "end":
        kinds = " ".join(each["kind"] for each in records)
        raise WrongError(f"must have one end, {' or '.join(statuses)}, as its last record: {ends} in {kinds}")
