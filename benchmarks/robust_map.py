"""Makes the tables of docs/robust.md: `python -m benchmarks.robust_map map`, or `unlike`, `example`, `draco`, `times`.

Each but the last makes the sweeps that it needs in runs/, three seeds a point, or goes on with those that were stopped,
and prints tables of what came out. `map` draws docs/robust.png.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch

from paceline.exchange import aggregate
from paceline.exchange.aggregation import Aggregation
from paceline.sweep.define import define

SEEDS = "seed=0,1,2"
ROOT = Path(__file__).parents[1]
FILE = str(ROOT / "sweeps" / "robust.yaml")
UNLIKE = str(ROOT / "sweeps" / "robust_unlike.yaml")
WORKERS = 11
OWN = {"trimmed_mean": ["aggregate.f=2"], "majority_vote": ["optimizer.lr=0.002"]}  # what a rule is given beside
RULES: dict[str, Callable[[], aggregate.Aggregator]] = {  # as the map has them
    "mean": aggregate.Mean,
    "median": aggregate.Median,
    "trimmed_mean": lambda: aggregate.TrimmedMean(2),
    "krum": aggregate.Krum,
    "multi_krum": aggregate.MultiKrum,
    "bulyan": aggregate.Bulyan,
    "geometric_median": aggregate.GeometricMedian,
    "centered_clipping": aggregate.CenteredClipping,
    "mda": aggregate.MinimumDiameter,
    "majority_vote": aggregate.MajorityVote,
    "fltrust": aggregate.FLTrust,
}
LIARS = 2, 5
POINTS = 10.0  # of accuracy: who loses more is broken
NONE = "none"
SUCCESS = "backdoor_success"


@dataclass(frozen=True)
class MapRun:
    point: dict[str, Any]  # what its trial set
    summary: dict[str, Any]  # {}: it ended early

    def __getitem__(self, key: str) -> Any:
        return self.point.get(key)

    def percent(self, key: str = "accuracy") -> float | None:
        """None: a loss that is no number, or more rows that are none than the rule withstands."""
        value = self.summary.get(key)
        return None if value is None else 100 * value


def runs_of(name: str, overrides: Sequence[str]) -> list[MapRun]:
    """Returns the runs of the sweep in runs/`name`, which is made, or resumed."""
    folder = Path("runs") / name
    given = ["--resume"] if folder.exists() else [*overrides, SEEDS]
    command = [str(Path(sys.executable).with_name("paceline")), "sweep", *given, "--name", name]
    print(" ".join(["paceline", *command[1:]]), file=sys.stderr, flush=True)
    status = subprocess.run(command, stdout=subprocess.DEVNULL).returncode
    if status not in (0, 4):  # 4: some runs diverged, which is a result
        sys.exit(status)
    runs: list[MapRun] = []
    for trial in sorted(folder.glob("*/trial.json")):
        summary = trial.with_name("summary.json")
        told = json.loads(summary.read_text()) if summary.exists() else {}
        runs.append(MapRun(json.loads(trial.read_text())["parameters"], told))
    return runs


def together(runs: Iterable[MapRun], key: str = "accuracy") -> float | None:
    """The mean over seeds in percent; None where one of them ended early."""
    found = [run.percent(key) for run in runs]
    numbers = [each for each in found if each is not None]
    assert found, "no such run"
    return mean(numbers) if len(numbers) == len(found) else None


def said(value: float | None, more: str = "") -> str:
    return "x" if value is None else f"{value:.1f}{more}"


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def spread(runs: Iterable[MapRun], key: str = "accuracy") -> str:
    """Returns the range from the worst seed to the best."""
    found = sorted(each for run in runs if (each := run.percent(key)) is not None)
    return f"{found[0]:.1f} to {found[-1]:.1f}" if found else ""


# -- accuracy by rule, attack and how many lie


class Map:
    """Runs of three seeds by rule, attack and number of Byzantine workers."""

    def __init__(self) -> None:
        definition = define([FILE])
        rules, attacks = ([str(each) for each in definition.parameters[key].all()] for key in ("aggregate", "attack"))
        self.rules, self.attacks = [*rules, *OWN], attacks
        self._cells: dict[tuple[str, str, int], list[MapRun]] = {}
        for rule in self.rules:
            own = [f"aggregate={rule}", *OWN.get(rule, ())]
            self._cells[rule, NONE, 0] = runs_of(f"robust_0_{rule}", [*definition.fixed, *own, "attack=none"])
            for byzantine in LIARS:
                lie = [f"attack.workers={byzantine}", f"attack={','.join(attacks)}"]
                for run in runs_of(f"robust_{byzantine}_{rule}", [FILE, *own, *lie]):
                    self._cells.setdefault((rule, run["attack"], byzantine), []).append(run)

    def runs(self, rule: str, attack: str, byzantine: int) -> list[MapRun]:
        return self._cells[rule, attack, 0 if attack == NONE else byzantine]

    def accuracy(self, rule: str, attack: str, byzantine: int) -> float | None:
        return together(self.runs(rule, attack, byzantine))

    def breaks(self, rule: str, attack: str) -> int | None:
        """The fewest liars, of those tried, that take more than so many points from the rule without liars."""
        honest = self.accuracy(rule, NONE, 0)
        assert honest is not None
        for byzantine in LIARS:
            reached = self.accuracy(rule, attack, byzantine)
            if reached is None or reached < honest - POINTS:
                return byzantine
        return None


def the_map() -> None:
    found = Map()
    _where_they_break(found)
    for byzantine in LIARS:
        print(f"\nAccuracy, {byzantine} of 11 lie\n")
        rows = [
            [f"`{r}`", *(said(found.accuracy(r, attack, byzantine)) for attack in found.attacks)] for r in found.rules
        ]
        print(markdown(["rule", *(f"`{attack}`" for attack in found.attacks)], rows))
    _without_a_lie(found)
    _backdoors(found)
    draw(found, ROOT / "docs" / "robust.png")


def _where_they_break(found: Map) -> None:
    print(f"\nThe fewest liars that take more than {POINTS:.0f} points; in bold within the rule's bound\n")
    rows: list[list[str]] = []
    for rule in found.rules:
        bound = RULES[rule]().withstands(WORKERS)
        broken = [found.breaks(rule, attack) for attack in found.attacks]
        texts = ["" if each is None else f"**{each}**" if each <= bound else f"{each}" for each in broken]
        rows.append([f"`{rule}`", str(bound), *texts])
    print(markdown(["rule", "bound", *(f"`{attack}`" for attack in found.attacks)], rows))


def _without_a_lie(found: Map) -> None:
    print("\nWithout a lie: accuracy, from the worst seed to the best, and the modelled step in ms\n")
    rows: list[list[str]] = []
    for rule in sorted(found.rules, key=lambda rule: -(found.accuracy(rule, NONE, 0) or 0)):
        runs = found.runs(rule, NONE, 0)
        step = median(1e3 * run.summary["step_time"]["median"] for run in runs)
        rows.append([f"`{rule}`", said(together(runs)), spread(runs), f"{step:.3f}"])
    print(markdown(["rule", "accuracy, %", "seeds", "step, ms"], rows))


def _backdoors(found: Map) -> None:
    print("\nA backdoor: images of other classes that get the liars' label, and accuracy on clean ones\n")
    rows: list[list[str]] = []
    for rule in found.rules:
        cells = [found.runs(rule, "backdoor", byzantine) for byzantine in LIARS]
        rows.append([f"`{rule}`", *(f"{said(together(runs, SUCCESS))} ({said(together(runs))})" for runs in cells)])
    print(markdown(["rule", *(f"{byzantine} of 11" for byzantine in LIARS)], rows))


def draw(found: Map, path: Path) -> None:
    """A panel for each number of liars."""
    from matplotlib import colormaps
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.8 * len(LIARS)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(LIARS), 1, squeeze=False)
    columns = [NONE, *found.attacks]
    for axes, byzantine in zip(panels.flat, LIARS, strict=True):
        grid = [[found.accuracy(rule, attack, byzantine) for attack in columns] for rule in found.rules]
        shown = [[value or 0.0 for value in line] for line in grid]
        axes.imshow(shown, cmap=colormaps["cividis"], vmin=0, vmax=100, aspect="auto")
        for i, line in enumerate(grid):
            for j, value in enumerate(line):
                text, color = "x" if value is None else f"{value:.0f}", "black" if (value or 0.0) > 50 else "white"
                axes.text(j, i, text, ha="center", va="center", fontsize=9, color=color)
        axes.set_xticks(range(len(columns)), columns, rotation=40, ha="right", fontsize=9)
        axes.set_yticks(range(len(found.rules)), found.rules, fontsize=9)
        axes.set_title(f"{byzantine} of 11 lie", fontsize=11)
    figure.suptitle("accuracy in %, the mean of three seeds; x: a run ended before its last step", fontsize=11)
    figure.savefig(path, dpi=90)


# -- the other tables


def unlike() -> None:
    runs = runs_of("robust_unlike", [UNLIKE])
    honest = runs_of(
        "robust_unlike_honest",
        [*(text for text in define([UNLIKE]).fixed if not text.startswith("attack")), "partition.alpha=0.1,1"],
    )
    for alpha in ("0.1", "1"):
        clean = together(run for run in honest if str(run["partition.alpha"]) == alpha)
        print(f"\nalpha {alpha}; the mean without a lie {said(clean)}\n")
        here = [run for run in runs if str(run["partition.alpha"]) == alpha]
        attacks = list(dict.fromkeys(run["attack"] for run in here))
        befores = list(dict.fromkeys(run["aggregate.before"] for run in here))
        rows: list[list[str]] = []
        for rule in dict.fromkeys(run["aggregate"] for run in here):
            row = [f"`{rule}`"]
            for attack in attacks:
                for before in befores:
                    wanted = (rule, attack, before)
                    cell = [run for run in here if (run["aggregate"], run["attack"], run["aggregate.before"]) == wanted]
                    row.append(said(together(cell)))
            rows.append(row)
        print(markdown(["rule", *(f"`{a}`, {b}" for a in attacks for b in befores)], rows))


EXAMPLE = (
    *("sync=bsp", "hardware=virtual", "hardware.workers=12", "epochs=10", "batch_size=8"),
    *("evaluate.every=10", "checkpoint.every=0", "tracking=none"),
)
KRUM = ["aggregate=krum", "aggregate.before=nnm"]


def example() -> None:
    """The command of the page's first lines."""
    lie = ["attack=alie", "attack.workers=3"]
    cases = {
        "nobody lies, `mean`": ("none_mean", []),
        "nobody lies, `krum` after `nnm`": ("none_krum", KRUM),
        "`alie` by 3 of 12, `mean`": ("alie_mean", lie),
        "`alie` by 3 of 12, `krum` after `nnm`": ("alie_krum", [*lie, *KRUM]),
    }
    rows: list[list[str]] = []
    for case, (name, given) in cases.items():
        runs = runs_of(f"robust_example_{name}", [*EXAMPLE, *given])
        rows.append([case, said(together(runs)), spread(runs)])
    print(markdown(["", "accuracy, %", "seeds"], rows))


def draco() -> None:
    """2 of 10 lie, in two groups of five, under each attack; beside it two workers with the mean and no liars."""
    here = ["aggregate=draco", "aggregate.f=2", "attack.workers=2", "hardware.workers=10", "steps=36"]
    lied = runs_of("robust_draco", [FILE, *here])
    fixed = [text for text in define([FILE]).fixed if not text.startswith("hardware.workers")]
    plain = runs_of("robust_draco_plain", [*fixed, "attack=none", "hardware.workers=2", "steps=36"])
    by_seed = {run.summary["seed"]: run.summary["model_sha256"] for run in plain}
    same = sum(by_seed[run.summary["seed"]] == run.summary["model_sha256"] for run in lied if run.summary)
    print(f"two workers, nobody lies: {said(together(plain))} %")
    print(f"`draco`, 2 of 10 lie: {said(together(lied))} %, in {same} of {len(lied)} runs the same weights to the bit")


# -- what a rule takes


def times() -> None:
    """Milliseconds of processor time of each rule by itself, of rows of 1,000,000 entries, the least of seven."""
    torch.set_num_threads(1)
    table = [[f"`{name}`", f"{_milliseconds(make(), WORKERS):.1f}"] for name, make in RULES.items()]
    table += [["`krum` after `nnm`", f"{_milliseconds(aggregate.Krum(before='nnm'), WORKERS):.1f}"]]
    table += [["`draco`, f = 2, 10 rows", f"{_milliseconds(aggregate.Draco(2), 10):.1f}"]]
    print(markdown(["rule", "ms"], table))


def _milliseconds(rule: aggregate.Aggregator, count: int) -> float:
    rows = torch.randn(count, 10**6, generator=torch.Generator().manual_seed(0))
    if rule.copies > 1:  # of replicas that compute the same
        rows = rows[: count // rule.copies].repeat_interleave(rule.copies, 0)
    aggregation, given = Aggregation(rule, None), dict(enumerate(rows))
    taken: list[float] = []
    for step in range(7):
        began = time.process_time()
        aggregation.join(given, dict.fromkeys(given, 1.0), count, step)
        taken.append(1e3 * (time.process_time() - began))
    return min(taken)


ASKED = {"map": the_map, "unlike": unlike, "example": example, "draco": draco, "times": times}

if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in ASKED:
        sys.exit(f"python -m benchmarks.robust_map {'|'.join(ASKED)}")
    ASKED[sys.argv[1]]()
