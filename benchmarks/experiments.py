"""`make experiments`: what the sync modes do, each as a table and a picture under docs/experiments/.

Every point is one `paceline train experiment=NAME ...`; on the virtual cluster (all but hogwild_sparse) times are
modelled, and the same command gives the same figures on any machine that computes the same floats.
"""

import csv
import math
import multiprocessing
import statistics
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Annotated, Any

import typer

OUT = Path(__file__).parent.parent / "docs" / "experiments"
Row = dict[str, Any]


@dataclass(frozen=True)
class Point:
    """One setting: what it is called in the table, and its overrides."""

    labels: Row
    overrides: tuple[str, ...]


@dataclass(frozen=True)
class Picture:
    """One panel: `y` against `x`, a line for each value of `line`; means over seeds, with their range."""

    x: str
    y: str
    line: str
    title: str
    log_x: bool = True
    log_y: bool = False


@dataclass(frozen=True)
class Study:
    points: list[Point]
    columns: Callable[[Row, Path], Row]  # of a run's summary and directory
    pictures: list[Picture]
    jobs: int = 2  # runs at once; 1 where time is measured
    seeds: int = 3


def measured(summary: Row, run: Path) -> Row:
    """What most studies look at."""
    per_step = summary["wire"]["bytes_per_step"]
    staleness = summary["staleness"] or {}
    return {
        "accuracy": summary["accuracy"],
        "seconds_to_accuracy": summary["time_to_accuracy"],
        "epochs_to_accuracy": _epochs_to_accuracy(summary, run),
        "step_ms": 1e3 * (summary["step_time"]["median"] or 0.0),
        "bytes_per_step": per_step,
        "megabytes": summary["wire"]["total"] / 1e6,
        "staleness": staleness.get("mean"),
        "consensus_distance": summary["consensus_distance"],
        "dropped": summary["dropped"],
    }


def _epochs_to_accuracy(summary: Row, run: Path) -> float | None:
    from paceline.tracking.run_directory import RunDirectory

    for record in RunDirectory(run).records():
        if record["kind"] == "evaluation" and record["accuracy"] >= summary["target_accuracy"]:
            return record["epoch"]
    return None


def _points(grid: Iterable[tuple[Row, Sequence[str]]]) -> list[Point]:
    return [Point(labels, tuple(overrides)) for labels, overrides in grid]


SYNCS = sorted(path.stem for path in (Path(__file__).parent.parent / "conf" / "sync").glob("*.yaml"))
RATES = {
    "hogwild": 0.002,  # 64 writers, each steps in full
    "hogwild_locked": 0.002,
    "easgd_round_robin": 0.01,  # who meets the centre once in 64 steps goes far
    "independent": 0.01,  # the mean of models that went far apart is a poor one
}
WORKERS = (1, 2, 4, 8, 16, 32, 64, 128)
STUDIES: dict[str, Study] = {
    "digits_64": Study(
        _points(
            ({"sync": sync}, [f"sync={sync}", *([f"optimizer.lr={RATES[sync]}"] if sync in RATES else [])])
            for sync in SYNCS
        ),
        measured,
        [
            Picture("sync", "accuracy", "", "Accuracy at the end, 64 workers", False),
            Picture("sync", "seconds_to_accuracy", "", "Modelled time to 95 %, s", False, True),
            Picture("sync", "bytes_per_step", "", "Bytes a worker sends in a step", False),
        ],
    ),
    "stragglers_scaling": Study(
        _points(
            ({"sync": name, "workers": n}, [*sync, f"hardware.workers={n}"])
            for name, sync in {"bsp": ["sync=bsp"], "asp": ["sync=asp"], "ssp, s = 3": ["sync=ssp"]}.items()
            for n in WORKERS
        ),
        measured,
        [
            Picture("workers", "seconds_to_accuracy", "sync", "Modelled time to 93 % on digits", log_y=True),
            Picture("workers", "epochs_to_accuracy", "sync", "Passes over the data"),
        ],
    ),
    "backup_workers": Study(
        _points(({"backups": b}, [f"sync.backups={b}"]) for b in (0, 1, 2, 4, 8, 12, 16, 20, 24, 26, 28, 30)),
        measured,
        [
            Picture("backups", "step_ms", "", "Modelled step time, ms", log_x=False),
            Picture("backups", "epochs_to_accuracy", "", "Epochs of steps to 95 %", log_x=False),
            Picture("backups", "seconds_to_accuracy", "", "Modelled time to 95 %, s", log_x=False),
        ],
    ),
    "local_sgd_period": Study(
        _points(
            ({"data": name, "period": h, "batch": 8}, [partition, f"sync.period={h}"])
            for name, partition in {"iid": "partition=shuffled", "two labels a worker": "partition=by_label"}.items()
            for h in (1, 2, 4, 8, 16, 32)
        ),
        lambda summary, run: {**measured(summary, run), "rounds_to_accuracy": _rounds(summary, run)},
        [
            Picture("period", "rounds_to_accuracy", "data", "Rounds of averaging to 90 %", log_y=True),
            Picture("period", "accuracy", "data", "Accuracy at the end"),
        ],
    ),
    "easgd_downpour": Study(
        _points(
            ({"algorithm": name, "period": tau}, [arg.format(tau=tau) for arg in args])
            for name, args in {
                "EASGD": ["sync=easgd_async", "sync.period={tau}"],
                "Downpour": ["sync=asp", "sync.push={tau}", "sync.fetch={tau}"],
            }.items()
            for tau in (1, 4, 16, 64, 256)
        ),
        measured,
        [
            Picture("period", "accuracy", "algorithm", "Accuracy at the end"),
            Picture("period", "seconds_to_accuracy", "algorithm", "Modelled time to 90 %, s"),
        ],
    ),
    "gossip_topologies": Study(
        _points(
            ({"topology": name}, sync)
            for name, sync in {
                "all-reduce": ["sync=local_sgd", "sync.period=1"],
                "ring": ["sync=gossip"],
                "exponential": ["sync=gossip_exponential"],
                "matching": ["sync=gossip_matching"],
                "asynchronous pairs": ["sync=gossip_async"],
                "push-sum": ["sync=push_sum"],
                "none": ["sync=independent"],
            }.items()
        ),
        measured,
        [
            Picture("bytes_per_step", "consensus_distance", "topology", "Consensus distance", False, True),
            Picture("bytes_per_step", "accuracy", "topology", "Accuracy of the mean", False),
        ],
    ),
    "hogwild_sparse": Study(
        _points(
            ({"way": name}, overrides)
            for name, overrides in {
                "1 process": ["hardware.workers=1"],
                "2 lock-free": ["hardware.workers=2"],
                "2 locked": ["hardware.workers=2", "sync=hogwild_locked"],
            }.items()
        ),
        lambda summary, run: {
            "updates_per_second": summary["throughput"] / summary["batch_size"],
            "accuracy": summary["accuracy"],
        },
        [Picture("way", "updates_per_second", "", "Updates a second, measured", False)],
        jobs=1,
    ),
}


def _rounds(summary: Row, run: Path) -> float | None:
    """Averages taken until the target was reached: steps / period."""
    import yaml

    epochs = _epochs_to_accuracy(summary, run)
    period = yaml.safe_load((run / "config.yaml").read_text())["sync"]["knobs"]["period"]
    return None if epochs is None else math.ceil(epochs * summary["steps"] / summary["epochs"] / period)


def run_point(study: str, index: int, seed: int) -> Row:
    """One run, in this process."""
    from paceline import engine

    point = STUDIES[study].points[index]
    overrides = [f"experiment={study}", *point.overrides, f"seed={seed}", "tracking=none"]
    with tempfile.TemporaryDirectory() as root:
        result = engine.run(overrides, root=root, quiet=True)
        assert result is not None
        return {**point.labels, "seed": seed, **STUDIES[study].columns(result.summary, result.path)}


def run_study(name: str, seeds: int | None, jobs: int | None) -> list[Row]:
    """All points of a study, in their order."""
    study = STUDIES[name]
    todo = [(index, seed) for index in range(len(study.points)) for seed in range(seeds or study.seeds)]
    rows: dict[tuple[int, int], Row] = {}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs or study.jobs, mp_context=context) as pool:
        waiting = {pool.submit(run_point, name, *which): which for which in todo}
        for future in as_completed(waiting):
            rows[waiting[future]] = future.result()
            print(f"{name}: {len(rows)}/{len(todo)}  {_brief(rows[waiting[future]])}", flush=True)
    return [rows[which] for which in todo]


def _brief(row: Row) -> str:
    return "  ".join(f"{key}={_short(value)}" for key, value in row.items() if value is not None)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def write_csv(path: Path, rows: list[Row]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({key: "" if value is None else _short(value) for key, value in row.items()})


def draw(path: Path, pictures: list[Picture], rows: list[Row], labels: list[str]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(pictures), figsize=(4.6 * len(pictures), 3.6), squeeze=False)
    for axis, picture in zip(axes[0], pictures, strict=True):
        lines = dict.fromkeys(row.get(picture.line, "") for row in rows)
        for line, marker in zip(lines, cycle("osD^vPX*"), strict=False):
            mine = [row for row in rows if row.get(picture.line, "") == line]
            _plot_line(axis, picture, mine, str(line), marker, labels)
        axis.set_title(picture.title, fontsize=10)
        axis.set_xlabel(picture.x.replace("_", " "))
        if isinstance(rows[0][picture.x], str):
            axis.tick_params(axis="x", labelrotation=90, labelsize=8)
        if picture.log_x:
            axis.set_xscale("log", base=2)
        elif not isinstance(rows[0][picture.x], str):
            axis.locator_params(axis="x", nbins=6)
        if picture.log_y:
            axis.set_yscale("log")
        axis.grid(alpha=0.3)
        if len(lines) > 1:
            axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=90, metadata={"Software": None})
    pyplot.close(figure)


def _plot_line(axis: Any, picture: Picture, rows: list[Row], name: str, marker: str, labels: list[str]) -> None:
    settings = dict.fromkeys(tuple(row[label] for label in labels) for row in rows)
    points: list[tuple[Any, float, float, float]] = []
    for setting in settings:
        same = [row for row in rows if tuple(row[label] for label in labels) == setting]
        values = [row[picture.y] for row in same if row[picture.y] is not None]
        if len(values) == len(same):  # a setting of which some runs never got there has no time
            points.append((same[0][picture.x], statistics.mean(values), min(values), max(values)))
    if points:
        xs, means, lows, highs = zip(*points, strict=True)
        below = [mean - low for mean, low in zip(means, lows, strict=True)]
        above = [high - mean for mean, high in zip(means, highs, strict=True)]
        line = "none" if isinstance(xs[0], str) else "-"
        axis.errorbar(
            xs, means, yerr=[below, above], marker=marker, capsize=3, label=name, linewidth=1.2, linestyle=line
        )


def main(
    names: Annotated[list[str] | None, typer.Argument(help=f"Of {', '.join(STUDIES)}; all when left out.")] = None,
    seeds: Annotated[int | None, typer.Option(help="Runs of each setting; 3 when left out.", min=1)] = None,
    jobs: Annotated[int | None, typer.Option(help="Runs at once.", min=1)] = None,
    out: Annotated[Path, typer.Option(help="Where NAME.csv and NAME.png go.")] = OUT,
) -> None:
    """Run studies of the sync modes and draw them."""
    unknown = [name for name in names or [] if name not in STUDIES]
    if unknown:
        raise typer.BadParameter(f"{unknown[0]}: there is no such study; there are {', '.join(STUDIES)}")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise typer.BadParameter(f"{out}: cannot be made ({error.strerror})", param_hint="--out") from None
    for name in names or STUDIES:
        rows = run_study(name, seeds, jobs)
        write_csv(out / f"{name}.csv", rows)
        draw(out / f"{name}.png", STUDIES[name].pictures, rows, list(STUDIES[name].points[0].labels))
        print(f"{name}: written to {out / name}.csv and .png", flush=True)


if __name__ == "__main__":
    typer.run(main)
