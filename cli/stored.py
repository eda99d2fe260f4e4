"""`paceline ls`, `paceline rm` and `paceline prune`: the runs on disk, and their removal."""

import re
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ..conf.errors import ConfigError
from .completion import complete_entry
from .output import aligned, note, shortest, show, show_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..tracking.stored import StoredEntry

AGES = {"m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}  # seconds
NUMBERS_FROM = 2  # column of the table

# -- options

Order = Literal["age", "size", "name"]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Remove without a question.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="List what would be removed, and remove nothing.")]


def list_stored(
    sort: Annotated[Order, typer.Option(help="age: the last changed first; size: the largest first.")] = "age",
    names: Annotated[bool, typer.Option("--names", "-q", help="Print names alone, one a line.")] = False,
    format: Annotated[
        Literal["table", "json"], typer.Option(help="json: one document, sizes in bytes and ages in seconds.")
    ] = "table",
) -> None:
    """List the runs and sweeps under runs/: size, age, status and result.

    A sweep is one line: its result is the best one of its runs. The age is the time since the last change of a file.

    \b
    paceline ls
    paceline ls --sort size | head -n 5       the largest five, below the heading
    paceline ls --format json | jq -r '.[] | select(.status == "failed") | .name'
    paceline rm NAME                          remove one
    paceline prune --older 30d --failed       remove failed runs that are older than 30 days
    """
    from ..engine import ROOT
    from ..tracking.stored import stored

    entries = _sorted(stored(ROOT), sort)
    if format == "json":
        show_json([_raw(entry) for entry in entries])
    elif names:
        show("".join(f"{entry.name}\n" for entry in entries)) if entries else None
    elif entries:
        show("\n".join(_table(entries)))
        if len(entries) > 1:
            note(_total(entries))
    if not entries:
        note(f"there are no runs under {ROOT} yet. Train one: paceline train")


def rm(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN", help="Runs or sweeps under runs/.", autocompletion=complete_entry),
    ],
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Remove runs and sweeps, with all of their files.

    Lists what will be removed with its size, and asks. A sweep is removed as a whole. Nothing outside of runs/ is
    removed, and no run that goes on. Without a terminal, --yes is needed.

    \b
    paceline rm first-asp
    paceline rm first-asp my-sweep --yes
    paceline rm my-sweep --dry-run            what would be removed

    Exit status: 0 removed, or not wanted after the question; 2 nothing was removed, because a name is wrong, a run
    goes on, or nobody can be asked; 3 the disk refused.
    """
    from ..engine import ROOT
    from ..tracking.stored import check_removable, named

    entries = named(runs, ROOT)
    check_removable(entries)
    _remove(entries, yes, dry_run)


def prune(
    older: Annotated[
        str | None,
        typer.Option(metavar="AGE", help="Unchanged for so long: 12h, 30d, 8w.", show_default=False),
    ] = None,
    failed: Annotated[
        bool, typer.Option("--failed", help="Not completed: failed, died, diverged, interrupted, damaged.")
    ] = False,
    keep_best: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="Keep the best N of each model, data set and task.", show_default=False),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="With --keep-best: a column. Default: accuracy or R^2.", show_default=False),
    ] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Remove the runs and sweeps under runs/ that fulfil every condition given.

    Lists them with their sizes, and asks. A sweep is removed as a whole: it counts as failed if none of its runs
    completed, it is as old as its last change, and as good as its best run. Runs that go on are left out.

    \b
    paceline prune --failed                              what did not complete
    paceline prune --older 30d --failed                  of these, what is older than 30 days
    paceline prune --keep-best 5 --metric accuracy       all but the best five
    paceline prune --older 8w --keep-best 5 --yes        for cron: old ones, but for the best five

    Exit status: 0 removed, or there was nothing to remove; 2 no condition, or nobody can be asked; 3 the disk refused.
    """
    from ..engine import ROOT
    from ..tracking.stored import is_live, prunable, stored

    if older is None and not failed and keep_best is None:
        raise ConfigError("prune: no condition was given. Choose --older AGE, --failed or --keep-best N.")
    if metric is not None and keep_best is None:
        raise ConfigError(f"--metric {metric}: goes with --keep-best N")
    chosen = prunable(stored(ROOT), None if older is None else _seconds(older), failed, keep_best, metric)
    for why, left in (
        ("goes on", [entry for entry in chosen if not entry.is_link and is_live(entry)]),
        ("is a symbolic link", [entry for entry in chosen if entry.is_link]),
    ):
        chosen = [entry for entry in chosen if entry not in left]
        for entry in left:
            note(f"left out: {entry.name} {why}")
    if chosen:
        _remove(_sorted(chosen, "age"), yes, dry_run)
    else:
        note(f"nothing under {ROOT} fulfils the conditions")


def _remove(entries: "list[StoredEntry]", yes: bool, dry_run: bool) -> None:
    """Lists the entries, asks, and removes them. Raises ConfigError where nobody can be asked, or StorageError."""
    from ..tracking.stored import remove

    show("\n".join(_table(entries)))
    note(_total(entries))
    if dry_run:
        return
    if not yes and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigError("nothing was removed: there is no terminal to ask on. Choose --yes or --dry-run.")
    if not yes and not _agreed(len(entries)):
        note("nothing was removed")
        return
    for entry in entries:
        remove(entry)
    note(f"removed {_total(entries)}")


def _agreed(count: int) -> bool:
    print(f"Remove {'it' if count == 1 else f'these {count}'}? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


# -- what is shown


def _sorted(entries: "list[StoredEntry]", order: Order) -> "list[StoredEntry]":
    keys: dict[Order, Callable[[StoredEntry], Any]] = {
        "age": lambda entry: -entry.changed,
        "size": lambda entry: -entry.size,
        "name": lambda entry: entry.name,
    }
    return sorted(entries, key=keys[order])


def _table(entries: "list[StoredEntry]") -> list[str]:
    from ..tracking.columns import human_bytes
    from ..tracking.visible import visible

    rows = [
        [
            visible(entry.name),
            _kind(entry),
            human_bytes(entry.size),
            _age(time.time() - entry.changed),
            entry.status,
            _result(entry),
        ]
        for entry in entries
    ]
    titles = ["name", "kind", "size", "age", "status", "result"]
    sized = aligned([row[:4] for row in [titles, *rows]], numbers_from=NUMBERS_FROM)
    told = aligned([row[4:] for row in [titles, *rows]], numbers_from=NUMBERS_FROM)
    return [f"{left}  {right}".rstrip() for left, right in zip(sized, told, strict=True)]


def _kind(entry: "StoredEntry") -> str:
    return f"sweep of {len(entry.runs)}" if entry.is_sweep else "link" if entry.is_link else "run"


def _result(entry: "StoredEntry") -> str:
    from ..tracking.rendering import column_of
    from ..tracking.visible import visible

    found = entry.result()
    if found is None:
        return "-"
    column = column_of(found[0], list(entry.rows))
    return f"{visible(column.title)} {column.text(found[1])}"


def _raw(entry: "StoredEntry") -> dict[str, Any]:
    metric, value = entry.result() or (None, None)
    return {
        "name": entry.name,
        "kind": "sweep" if entry.is_sweep else "run",
        "runs": len(entry.runs),
        "status": entry.status,
        "failed": entry.is_failed,
        "bytes": entry.size,
        "age_s": round(time.time() - entry.changed, 1),
        "metric": metric,
        "value": value,
        "path": str(shortest(entry.path)),
    }


def _total(entries: "list[StoredEntry]") -> str:
    from ..tracking.columns import human_bytes

    sweeps = sum(entry.is_sweep for entry in entries)
    counts = ((len(entries) - sweeps, "run"), (sweeps, "sweep"))
    told = " and ".join(f"{count} {word}{'s' * (count != 1)}" for count, word in counts if count)
    return f"{told}, {human_bytes(sum(entry.size for entry in entries))}"


def _age(seconds: float) -> str:
    """`90 s`, `3 h`, `12 d`."""
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def _seconds(age: str) -> float:
    """Raises ConfigError."""
    match = re.fullmatch(r"(\d{1,6})([mhdw])", age)
    if match is None:
        raise ConfigError(f"--older {age}: must be a number and m, h, d or w. Choose 12h, 30d or 8w.")
    return int(match[1]) * AGES[match[2]]
