"""The picture and the table of docs/robust.md: accuracy by rule, attack and how many lie, the mean over seeds.

paceline sweep sweeps/robust.yaml --seeds 3         and the rules without a lie, as its second line says, --name honest
python -m benchmarks.robust_map runs/robust runs/honest docs/robust.png
"""

import json
import sys
from collections import defaultdict
from math import nan
from pathlib import Path
from statistics import mean

Cells = dict[tuple[str, str], list[float | None]]  # (rule, attack and liars) -> accuracies by seed; None: diverged


def cells_of(sweeps: list[Path]) -> Cells:
    found: Cells = defaultdict(list)
    for trial in sorted(path for sweep in sweeps for path in sweep.glob("*/trial.json")):
        point = json.loads(trial.read_text())["parameters"]
        summary = trial.with_name("summary.json")
        told = json.loads(summary.read_text()) if summary.exists() else {}
        attack = point.get("attack", "none")
        column = attack if attack == "none" else f"{attack} {point['attack.workers']}"
        found[point["aggregate"], column].append(told.get("accuracy"))
    return found


def markdown(cells: Cells, rows: list[str], columns: list[str]) -> str:
    def text(accuracies: list[float | None]) -> str:
        right = [each for each in accuracies if each is not None]
        if len(right) < len(accuracies):
            return "diverged"
        return f"{100 * mean(right):.1f}" if right else ""

    lines = [["rule", *columns], ["---"] * (len(columns) + 1)]
    lines += [[f"`{row}`", *(text(cells.get((row, column), [])) for column in columns)] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def draw(cells: Cells, rows: list[str], columns: list[str], path: Path) -> None:
    from matplotlib import colormaps
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(0.62 * len(columns) + 2.6, 0.42 * len(rows) + 1.9), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    grid = [[mean([each or 0.0 for each in cells.get((row, column), [nan])]) for column in columns] for row in rows]
    axes.imshow(grid, cmap=colormaps["RdYlGn"], vmin=0.1, vmax=1.0, aspect="auto")
    for i, line in enumerate(grid):
        for j, value in enumerate(line):
            there = cells.get((rows[i], columns[j]))
            said = "" if there is None else "x" if None in there else f"{100 * value:.0f}"
            axes.text(j, i, said, ha="center", va="center", fontsize=8)
    axes.set_xticks(range(len(columns)), columns, rotation=55, ha="right", fontsize=8)
    axes.set_yticks(range(len(rows)), rows, fontsize=8)
    axes.set_title("accuracy in %, 11 workers, so many lie; x: a loss was no number", fontsize=9)
    figure.savefig(path, dpi=110)


def main() -> None:
    *sweeps, picture = map(Path, sys.argv[1:])
    cells = cells_of(sweeps)
    rows = list(dict.fromkeys(row for row, _ in cells))
    columns = sorted({column for _, column in cells}, key=lambda column: (column != "none", column))
    print(markdown(cells, rows, columns))
    draw(cells, rows, columns, picture)


if __name__ == "__main__":
    main()
