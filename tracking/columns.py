"""The columns of a comparison: what each is called, how it is shown, and which way it is better."""

import json
import math
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from typing import Any

from ..conf.groups import SHOWN
from .errors import TableError
from .text import did_you_mean

SWEPT = 2
ONE_WORKER = "one worker"  # of a replica
TRAINED = ("model", "data", "task")  # runs that differ in one of them are not compared
METRICS = ("accuracy", "r2")  # what tasks report beside the loss: a run has one of them
DEVICE_KINDS = ("parameters", "gradients", "optimizer", "average", "activations", "buffers")
MEMORY_KINDS = (*DEVICE_KINDS, *(f"host_{kind}" for kind in DEVICE_KINDS), "other")  # of a worker; host_: on its host


@dataclass(frozen=True)
class Column:
    key: str  # in rows, CSV and JSON
    title: str  # for people
    text: Callable[[Any], str] = str
    larger_first: bool = False
    short: str = ""  # another word for it, for options such as --sort
    usual: Any = None  # for people, no column of its own when every run has this
    rank: int = (
        7  # in a table that must fit a width, lower ones come first and stay longest; a sweep's parameter: SWEPT
    )

    @property
    def is_number(self) -> bool:
        return self.text not in (str, words, shortened, is_told, listed)


def human_bytes(count: float) -> str:
    """1536 -> `1.5 KiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def _fixed(digits: int) -> Callable[[float], str]:
    return lambda value: f"{value:,.{digits}f}"


def _seconds(value: float) -> str:
    return f"{value:.1f}" if value >= 1 else f"{value:.3g}"  # modelled runs take milliseconds


def _milliseconds(value: float) -> str:
    return f"{value:,.1f}" if value >= 1 else f"{value:.3f}"


def _mebibytes(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.2f}"


def _significant(value: float) -> str:
    return f"{value:.3g}"


def _loss(value: float) -> str:
    return f"{value:.4f}" if abs(value) < 1e6 else f"{value:.4g}"  # of a run that diverged


def _times(value: float) -> str:
    return f"{value:.2f}x"


def _dollars(value: float) -> str:
    return f"${value:,.2f}" if value >= 1 else f"${value:.2g}"


def shortened(text: str, most: int = 60) -> str:
    """Returns the text's first line, cut at `most` characters."""
    first, _, rest = text.partition("\n")
    return first if len(first) <= most and not rest else f"{first[: most - 3]}..."


def anything(value: Any) -> str:
    """A configuration's or W&B's value, for people."""
    match value:
        case None:
            return "-"
        case bool():
            return str(value).lower()
        case float():
            return f"{value:.6g}"
        case str() | int():
            return str(value)
    return json.dumps(value, default=str)


def words(value: Any) -> str:
    """Returns the same as `anything`; a column that holds text has this function."""
    return anything(value)


def is_told(value: str) -> str:
    """Returns a short word for a reason, which a note beside the table tells."""
    return "yes" if value else "-"


def listed(value: list[str]) -> str:
    return ", ".join(map(str, value))


COLUMNS = (
    Column("run", "run", rank=0),
    Column("front", "front", rank=0),
    Column("status", "status"),
    Column("modelled", "modelled"),
    *(Column(group.name, group.name, usual=group.usual, rank=group.rank) for group in SHOWN),
    Column("workers", "workers", _fixed(0)),
    Column("mesh", "replica", usual=ONE_WORKER),
    Column("servers", "servers", _fixed(0), usual=0),
    Column("effective_batch", "batch", _fixed(0)),
    Column("n", "n", _fixed(0), usual=1),  # completed runs that a row is the mean of
    Column("runs", "runs", listed),
    Column("others", "not counted", listed),  # of a group, those that did not complete
    Column("too_short", "too short to measure"),  # no throughput and step times for that reason
    Column("throughput_samples_per_s", "samples/s", _fixed(0), True, "throughput", rank=5),
    Column("updates_per_second", "updates/s", _fixed(0), True),
    Column("step_ms", "step ms", _milliseconds, short="step"),
    Column("predicted_step_ms", "predicted ms", _milliseconds, short="predicted"),
    Column("predicted_error", "off by", lambda value: f"{value:+.1%}"),
    Column("compute_ms", "compute ms", _milliseconds, short="compute"),
    Column("communication_ms", "comm. ms", _milliseconds, short="communication"),
    Column("waiting_ms", "wait ms", _milliseconds, short="waiting"),
    Column("disturbed", "disturbed", is_told, rank=5),
    Column("blocked", "blocked", lambda value: f"{value:.1%}"),
    Column("device_peak_mib", "GPU peak MiB", _fixed(0), short="gpu_memory"),
    Column("peak_memory_mib", "host peak MiB", _fixed(0), short="memory"),
    *(Column(f"{kind}_mib", f"{kind.replace('_', ' ')} MiB", _mebibytes, short=kind) for kind in MEMORY_KINDS),
    Column("bytes_per_step", "sent/step", human_bytes, short="bytes", rank=6),
    Column("megabytes", "MB sent", _significant),
    Column("messages", "messages", _fixed(0)),
    Column("staleness_mean", "staleness", _fixed(2), short="staleness"),
    Column("staleness_max", "max staleness", _fixed(0)),
    Column("dropped_gradients", "dropped", _fixed(0), short="dropped", usual=0),
    Column("lost_workers", "lost", _fixed(0), short="lost", usual=0),
    Column("left_rounds", "left rounds", _fixed(0), short="left", usual=0),
    Column("given_up_rounds", "given-up rounds", _fixed(0), short="given up", usual=0),
    Column("cut_share", "cut entries", lambda value: f"{value:.2%}", short="cut", usual=0),
    Column("compile_s", "compile s", _seconds, short="compile"),
    Column("worker_failures", "failed", _fixed(0), usual=0),
    Column("lost_work_s", "lost work s", _seconds, usual=0),
    Column("downtime_s", "down s", _seconds, usual=0),
    Column("checkpoint_s", "checkpoints s", _seconds, usual=0),
    Column("goodput", "goodput", lambda value: f"{value:.1%}", True),
    Column("skipped_steps", "skipped", _fixed(0), short="skipped", usual=0),
    Column("consensus_distance", "consensus", _significant, short="consensus"),
    Column("noise_scale", "critical batch", _fixed(0), short="critical_batch"),
    Column("weights_kept", "kept", _fixed(0), short="kept"),
    Column("backdoor_success", "backdoor", lambda value: f"{value:.1%}", short="backdoor"),
    Column("model_bytes", "model size", human_bytes, short="size"),
    Column("epsilon", "epsilon", _significant),
    Column("epsilon_as_dealt", "epsilon as dealt", _significant),
    Column("loss", "loss", _loss),
    Column("accuracy", "accuracy", lambda value: f"{value:.2%}", True, rank=3),
    Column("robust_accuracy", "robust acc.", lambda value: f"{value:.2%}", True, short="robust", rank=3),
    Column("target_reached", "to target", lambda value: f"{value:.2%}"),
    Column("client_mean", "client mean", lambda value: f"{value:.2%}", True),
    Column("client_worst", "worst clients", lambda value: f"{value:.2%}", True),
    Column("client_spread", "client spread", lambda value: f"{value:.2%}"),
    Column("personal_mean", "personal mean", lambda value: f"{value:.2%}", True),
    Column("personal_worst", "worst personal", lambda value: f"{value:.2%}", True),
    Column("personal_spread", "personal spread", lambda value: f"{value:.2%}"),
    Column("r2", "R^2", _fixed(4), True, rank=3),
    Column("purity", "purity", lambda value: f"{value:.2%}", True),
    Column("time_to_accuracy_s", "to acc. s", _seconds, short="time_to_accuracy", rank=4),
    Column("epochs_to_accuracy", "epochs to acc.", _significant),
    Column("rounds_to_accuracy", "rounds to acc.", _fixed(0)),
    Column("steps_to_accuracy", "steps to acc.", _fixed(0)),
    Column("time_per_pass_s", "pass s", _seconds, short="time_per_pass"),
    Column("dollars", "dollars", _dollars),
    Column("speedup_throughput", "speed-up", _times, True, "speedup", rank=0),
    Column("speedup_time_to_accuracy", "speed-up to acc.", _times, True),
    Column("no_speedup", "no speed-up", words),
    Column("bytes_ratio", "sent ratio", _times),
    Column("memory_ratio", "peak ratio", _times),
    Column("dollars_ratio", "dollar ratio", _times),
    Column("why", "why", shortened, rank=8),
)
TOO_SHORT = "too short"  # in the cells of these columns, where a run was too short to measure
TIMED = ("throughput_samples_per_s", "step_ms", "speedup_throughput")
# Columns that depend on target_accuracy.
TO_TARGET = ("time_to_accuracy_s", "epochs_to_accuracy", "rounds_to_accuracy", "steps_to_accuracy")
# Positive numbers of which two settings differ by a factor: what makes a run twice as long doubles their difference.
RATIOS = (
    *("throughput_samples_per_s", "updates_per_second", "step_ms", "predicted_step_ms", "compute_ms", "dollars"),
    *("bytes_per_step", "megabytes", "messages", "device_peak_mib", "peak_memory_mib"),
    *TO_TARGET,
    "time_per_pass_s",
)
BY_KEY = {column.key: column for column in COLUMNS}
_BY_NAME = {column.short: column for column in COLUMNS if column.short} | BY_KEY  # a key means its own column


def known(name: str) -> Column | None:
    """The column of this key or short name."""
    return _BY_NAME.get(name)


def is_ratio(name: str) -> bool:
    """Returns whether settings are compared by the ratio of this metric rather than by the difference."""
    column = known(name)
    return column is not None and column.key in RATIOS


def titled(title: str, keys: Container[str]) -> Column | None:
    """The one column of `keys` that is shown under this heading."""
    found = [column for column in COLUMNS if column.key in keys and column.title.casefold() == title.casefold()]
    return found[0] if len(found) == 1 else None


def unknown(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def no_column(name: str, keys: Iterable[str]) -> TableError:
    """The error for a name that is none of `keys` (of columns, a configuration, W&B)."""
    names = [word for key in keys for word in (BY_KEY[key].short if key in BY_KEY else "", key) if word]
    near = nearest(name, list(dict.fromkeys(names))).removesuffix("?")
    return TableError(f"no column {name!r}: {near}; what each is: paceline list columns")


def nearest(name: str, names: list[str]) -> str:
    return did_you_mean(name, names, 0.4) or f"there are {', '.join(names)}"
