"""`python -m benchmarks.sweep_kills --kills 200`: small sweeps are killed again and again, gone on with, and looked at.

Every kill is SIGKILL: of the sweeper at a random time or at a named moment, of a worker, of the fork server, of W&B's
helper. After each, nothing of the sweep may be left running or listening, or in /dev/shm, and what it had acknowledged
must be there; at the end each point is there once, from one run, with the bits of a sweep that nobody killed.
"""

import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

TESTS = Path(__file__).parent.parent / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "engine"), str(TESTS / "sweep")]
from killed_sweeps import OPENING, RESUMING, SCENES, SHOTS, TRIALS, Cell, Sweep, remove, shoot  # noqa: E402

IN_A_ROW = 5  # kills of one sweep, at most


def main(
    kills: Annotated[int, typer.Option(min=1, help="How many.")] = 200,
    seed: Annotated[int, typer.Option(help="Of the choice of sweeps and moments.")] = 0,
    verbose: Annotated[bool, typer.Option("--verbose", help="A line for each sweeper.")] = False,
) -> None:
    """Kill sweeps and print what was found, by moment. Exit status 1 when something was lost, doubled or left."""
    chance, cell, start = random.Random(seed), Cell(), time.monotonic()
    hits: Counter[str] = Counter()
    wrong: list[str] = []
    kept = sweepers = sweeps = 0
    root = Path(tempfile.mkdtemp(prefix="sweep-kills-"))
    references = {}
    for scene in SCENES.values():
        references[scene.name] = Sweep(scene, root / f"{scene.name}-whole", cell)
        references[scene.name].live()
        references[scene.name].check_whole()
    while hits.total() < kills:
        scene = list(SCENES.values())[sweeps % len(SCENES)]
        sweep = Sweep(scene, root / f"{scene.name}-{sweeps:03d}", cell)
        sweeps += 1
        try:
            kill_and_resume(sweep, chance, min(IN_A_ROW, kills - hits.total()), verbose)
            sweep.check_whole(references[scene.name] if scene.grid else None)
            remove(sweep)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            wrong.append(f"{sweep.root}: after {', '.join(sweep.hits)}: {error}")
            print(f"WRONG: {wrong[-1]}", flush=True)
        hits.update(sweep.hits)
        kept += len(sweep.kept)
        sweepers += sweep.lives
        print(
            f"{hits.total()} kills, {time.monotonic() - start:.0f} s: {scene.name}: {', '.join(sweep.hits)}", flush=True
        )
    cell.close()
    for moment, count in sorted(hits.items()):
        print(f"{count:5}  {moment}")
    print(
        f"{hits.total()} kills of {sweepers} sweepers in {sweeps} sweeps, {time.monotonic() - start:.0f} s; "
        f"{kept} acknowledged trials followed; {len(wrong)} sweeps went wrong"
    )
    for line in wrong:
        print(f"  {line}")
    raise typer.Exit(1 if wrong else 0)


def kill_and_resume(sweep: Sweep, chance: random.Random, most: int, verbose: bool) -> None:
    """Kills and resumes the sweep until it has been killed `most` times or has ended, and then lets it end."""
    shots = [who for who in SHOTS if who != "the logger" or sweep.scene.name == "wandb"]
    while len(sweep.hits) < most:
        moments = {**TRIALS, **(RESUMING if sweep.hits else OPENING)}
        moment = chance.choice(["training", "training", *moments, *shots])
        begun = time.monotonic()
        if moment in shots:
            life = shoot(sweep, moment, chance)
        else:
            life = sweep.live(moment, chance.randint(1, moments[moment]))
        if verbose:
            print(f"    {moment}: status {life.process.returncode}, {time.monotonic() - begun:.1f} s", flush=True)
        if life.process.returncode == 0:
            break
        assert life.killed or life.process.returncode == 4, f"ended with {life.process.returncode}: {life.said()}"
    life = sweep.live()
    assert life.process.returncode == 0, f"ended with {life.process.returncode}: {life.said()}"


if __name__ == "__main__":
    typer.run(main)
