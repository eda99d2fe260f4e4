"""`paceline advise` from Python. The room advise uses engine, and engine does not use it: this is a door, and no more.

See docs/decisions/0042-paceline-from-python.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import ConfigError
from .settings import Settings, asked

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, repr=False)
class Advice:
    """`answer`: as the room advise gives it. `rows`: its best ways, one each: strategy, choices (as they are typed),
    workers, hosts, seconds (of a step), device_bytes, sent_bytes (of a worker and step), dollars, command; None where
    that is not known.
    """

    answer: Any
    rows: list[dict[str, Any]]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> dict[str, Any]:
        return self.rows[place]

    def frame(self) -> "DataFrame":
        """A row each. Raises MissingPackageError."""
        from ..tracking.frames import plain_table

        return plain_table(self.rows)

    def _lines(self) -> list[list[str]]:
        heads = ["", "strategy", "workers", "hosts", "step s", "device GiB", "dollars", "command"]
        return [heads, *([str(i), *_texts(row)] for i, row in enumerate(self.rows))]

    def __repr__(self) -> str:
        lines = self._lines()
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)

    def _repr_html_(self) -> str:
        from ..tracking.display import table_of

        heads, *lines = self._lines()
        return table_of(heads, [2 <= i <= 6 for i in range(len(heads))], lines)


def _texts(row: dict[str, Any]) -> list[str]:
    def number(key: str, form: str, unit: float = 1.0) -> str:
        return "-" if row[key] is None else format(row[key] / unit, form)

    sizes = [number("seconds", ".3g"), number("device_bytes", ".1f", 2**30), number("dollars", ",.2f")]
    return [row["strategy"], str(row["workers"]), str(row["hosts"]), *sizes, row["command"]]


def advise(
    settings: Settings = (),
    *,
    batch: int | None = None,
    tokens: float | None = None,
    budget: float | None = None,
    deadline: float | None = None,
    sort: str | None = None,
    top: int = 10,
    config_dir: Path | str | None = None,
    allow_modules: Sequence[str] = (),
    **more: Any,
) -> Advice:
    """The best ways to train this here, as `paceline advise` ranks them: what `settings` fix is fixed.

    `batch`: samples of a step, of all replicas; `budget`: US dollars; `deadline`: seconds. Raises `ConfigError`.
    """
    given = asked(settings, more)
    if given.experiment is not None or given.built or given.callbacks:
        raise ConfigError(
            "advise: looks at other choices than the ones given; give those that are fixed, by their names"
        )
    question_of, answers, commands = (
        import_module(f"paceline.advise.{name}") for name in ("question", "answer", "commands")
    )
    directory = Path(config_dir) if config_dir else None
    allowed = [*allow_modules, *given.allowed]
    question = question_of.ask(given.overrides, batch, tokens, budget, deadline, directory, allowed)
    answer = answers.answer(question, sort, top)
    return Advice(answer, [_row(row, commands.command(question, row.candidate)) for row in answer.rows])


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
        "command": command,
    }
