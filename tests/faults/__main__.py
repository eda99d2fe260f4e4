"""`make faults`: do to paceline what is known to go wrong, and print how often it was right; else, exit status 1."""

import random
import sys
import time
from typing import Annotated

import ctrl_c
import typer

from . import corruptions, damaged_data, disks, given, kills, liars, overrides, strangers, user_code, wrapped
from .judge import Outcome, judge, sample, table

KINDS = {  # each with how many cases a full run tries
    "kills": (kills.cases, 150),
    "stops": (kills.stops, 40),
    "frozen": (liars.frozen, 12),
    "liars": (liars.cases, 21),
    "user-code": (user_code.cases, 80),
    "wrapped": (wrapped.cases, 60),
    "corruptions": (corruptions.cases, 200),
    "damaged-data": (damaged_data.cases, 400),
    "disks": (disks.cases, 40),
    "strangers": (strangers.cases, 40),
    "overrides": (overrides.cases, 2000),
    "secrets": (given.secrets, 100),
    "yaml-bombs": (given.bombs, 100),
    "image-bombs": (given.images, 80),
    "caches": (given.caches, 40),
}

TELL = 60.0  # seconds between two lines that say how far it is


def main(
    share: Annotated[float, typer.Option(min=0.0, max=1.0, help="How much of each kind to try.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of what is tried, and of the sample.")] = 0,
    only: Annotated[list[str] | None, typer.Option(help=f"{', '.join(KINDS)}; all of them, else.")] = None,
    match: Annotated[str, typer.Option(help="Only cases with this in their words.")] = "",
    jobs: Annotated[int, typer.Option(min=1, help="Cases at a time.")] = 2,
    verbose: Annotated[bool, typer.Option("--verbose", help="A line for each case.")] = False,
) -> None:
    """Kill, stop, corrupt, starve, attack and fuzz paceline; print a table of what was tried and what was right."""
    ctrl_c.can_come()
    for name in only or ():
        if name not in KINDS:
            raise typer.BadParameter(f"--only {name}: must be one of {', '.join(KINDS)}")
    outcomes: list[Outcome] = []
    for name, (make, count) in KINDS.items():
        if only and name not in only:
            continue
        made = [case for case in make(random.Random(f"{seed} {name}"), count) if match in f"{case.kind}: {case.what}"]
        cases = sample(made, share, random.Random(seed))
        print(f"{name}: {len(cases)} of {count}", file=sys.stderr, flush=True)
        told = time.monotonic()
        for done, outcome in enumerate(judge(cases, jobs), 1):
            outcomes.append(outcome)
            if time.monotonic() - told > TELL:
                print(f"{name}: {done} of {len(cases)} are done", file=sys.stderr, flush=True)
                told = time.monotonic()
            if outcome.wrong is not None:
                print(_said(outcome), file=sys.stderr, flush=True)
            elif verbose:
                print(f"right: {outcome.case.kind}: {outcome.case.what}, {outcome.seconds:.1f} s", file=sys.stderr)
    if not outcomes:
        raise typer.BadParameter(f"--match {match}: no case has this in its words, or this machine does not allow it")
    print(table(outcomes))
    wrong = [outcome for outcome in outcomes if outcome.wrong is not None]
    for outcome in wrong:  # once more: who sees only the end of a long output sees what went wrong
        print(_said(outcome))
    print(f"seed {seed}, {share:.0%} of each kind: {len(wrong)} wrong of {len(outcomes):,}")
    raise typer.Exit(1 if wrong else 0)


def _said(outcome: Outcome) -> str:
    return f"WRONG: {outcome.case.kind}: {outcome.case.what}: {outcome.wrong}"


if __name__ == "__main__":
    typer.run(main)
