"""`paceline advise` from Python. The room advise uses engine, and engine does not use it: this is a door, and no more.

See docs/decisions/0042-paceline-from-python.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...conf.errors import ConfigError, check_options
from ...conf.grammar import listed
from ..config.settings import Settings, asked

if TYPE_CHECKING:
    from pandas import DataFrame

MOST, MOST_SAMPLES = 1000, 2**31 - 1  # lines; samples of a step
SORTS = ("time", "dollars", "memory", "bytes")
LIMITS = {
    "tokens": "20e9",
    "budget": "5000 (US dollars)",
    "deadline": "604800 (seconds)",
    "mtbf": "50000 (hours)",
    "restart": "60 (seconds)",
    "storage": "1e9 (bytes a second)",
}


@dataclass(frozen=True, repr=False)
class Advice:
    """`answer`: as the room advise gives it. `rows`: its best ways, one each: strategy, choices (as they are typed),
    workers, hosts, seconds (of a step), device_bytes, sent_bytes (of a worker and step), dollars, goodput (the share of
    the time that is kept work, with `mtbf`), exact (bytes are those of the plan, and no estimate), margin (memory is
    left for what published runs held beside their prediction), command; None where that is not known. `why`: where
    there are none, by how much which limit is missed, or what does not fit.
    """

    answer: Any
    rows: list[dict[str, Any]]
    why: str = ""

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> dict[str, Any]:
        return self.rows[place]

    def frame(self) -> "DataFrame":
        """A row each. Raises MissingPackageError."""
        from ...tracking.frames import plain_table

        return plain_table(self.rows)

    def _lines(self) -> list[list[str]]:
        heads = ["", "strategy", "workers", "hosts", "step s", "device GiB", "dollars", "command"]
        return [heads, *([str(i), *_texts(row)] for i, row in enumerate(self.rows))]

    def __repr__(self) -> str:
        if not self.rows:
            return self.why
        lines = self._lines()
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)

    def _repr_html_(self) -> str:
        from ...tracking.display import table_of

        if not self.rows:
            return f"<p>{escape(self.why)}</p>"
        heads, *lines = self._lines()
        return table_of(heads, [2 <= i <= 6 for i in range(len(heads))], lines)


def _texts(row: dict[str, Any]) -> list[str]:
    def number(key: str, form: str, unit: float = 1.0) -> str:
        return "-" if row[key] is None else format(row[key] / unit, form)

    memory = f"{'' if row['exact'] else '~'}{number('device_bytes', '.1f', 2**30)}{'' if row['margin'] else '!'}"
    sizes = [number("seconds", ".3g"), memory, number("dollars", ",.2f")]
    return [row["strategy"], str(row["workers"]), str(row["hosts"]), *sizes, row["command"]]


def advise(
    settings: Settings = (),
    *,
    batch: int | None = None,
    tokens: float | None = None,
    budget: float | None = None,
    deadline: float | None = None,
    mtbf: float | None = None,
    restart: float | None = None,
    storage: float | None = None,
    sort: str | None = None,
    top: int = 10,
    config_dir: Path | str | None = None,
    allow_modules: Sequence[str] = (),
    **more: Any,
) -> Advice:
    """The best ways to train this here, as `paceline advise` ranks them: what `settings` fix is fixed.

    `batch`: samples of a step, of all replicas; `budget`: US dollars; `deadline`: seconds. `mtbf`: mean hours between
    failures of one worker; `restart`: seconds until a failed worker is back; `storage`: bytes a second of a checkpoint.
    Raises `ConfigError`.
    """
    numbers = {"tokens": tokens, "budget": budget, "deadline": deadline}
    _check(batch, {**numbers, "mtbf": mtbf, "restart": restart, "storage": storage}, sort, top)
    if mtbf is None and not restart is storage is None:
        raise ConfigError(f"{'storage' if restart is None else 'restart'}: is of a worker that fails. Give mtbf, too.")
    check_options("a text, a Path or None", config_dir=config_dir)
    check_options("a list of texts", allow_modules=allow_modules)
    given = asked(settings, more)
    if given.experiment is not None or given.built or given.callbacks:
        raise ConfigError(
            "advise: looks at other choices than the ones given; give those that are fixed, by their names"
        )
    question_of, answers, commands, failing = (
        import_module(f"paceline.advise.{name}") for name in ("question", "answer", "commands", "failures")
    )
    directory = Path(config_dir) if config_dir else None
    allowed = [*listed(allow_modules), *given.allowed]
    hours = None if restart is None else restart / 3600
    failures = None if mtbf is None else failing.ExpectedFailures.of(mtbf, hours, storage)
    question = question_of.ask(given.overrides, batch, tokens, budget, deadline, directory, allowed, failures)
    answer = answers.answer(question, sort, top)
    why = "" if answer.rows else import_module("paceline.advise.none").why_none(answer)
    return Advice(answer, [_row(row, commands.command(question, row.candidate)) for row in answer.rows], why)


def _check(batch: Any, limits: dict[str, Any], sort: Any, top: Any) -> None:
    """Refuses the values that the command line's options refuse by themselves. Raises `ConfigError`."""
    for name, value, most in (("top", top, MOST), ("batch", batch, MOST_SAMPLES)):
        if name == "batch" and value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            raise ConfigError(f"{name}={value!r}: must be a whole number, at least 1 and at most {most:,}")
    for name, value in limits.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (is_number and 0 < value < float("inf")):
            raise ConfigError(f"{name}={value!r}: must be a number above 0, such as {LIMITS[name]}")
    if sort is not None and sort not in SORTS:
        raise ConfigError(f"sort={sort!r}: must be one of {', '.join(SORTS)}")


def _row(row: Any, command: str) -> dict[str, Any]:
    way = row.candidate
    return {
        "strategy": way.family,
        "choices": " ".join(f"{key}={value}" for key, value in way.settings),
        "workers": way.workers,
        "hosts": way.hosts,
        "seconds": row.seconds,
        "device_bytes": row.device,
        "sent_bytes": row.sent,
        "dollars": row.dollars,
        "goodput": row.goodput,
        "exact": row.exact,
        "margin": row.roomy,
        "command": command,
    }
