"""Shows the results of `paceline verify`."""

import csv
import io
from typing import TYPE_CHECKING, Any

from ..conf.counted import counted
from .output import aligned

if TYPE_CHECKING:
    from ..verify import Verification
    from ..verify.judge import Deviation, VerificationRow

TITLES = ["way", "workers", "replicas", "loss", "gradients", "weights", "of allowed", "verdict"]


def raw(found: "Verification") -> dict[str, Any]:
    """Everything, in plain values."""
    experiment, reference = found.experiment, found.reference
    return {
        "model": experiment.model.name,
        "data": experiment.data.name,
        "optimizer": experiment.optimizer.name,
        "batch_size": experiment.batch_size,
        "seed": experiment.seed,
        "steps": found.steps,
        "hardware": experiment.hardware.fabric,
        "passed": found.passed,
        "seconds": found.seconds,
        "tolerance": None
        if reference is None
        else {
            "stated": found.stated,
            "losses": reference.allowed.losses,
            "gradients": reference.allowed.gradients,
            "weights": reference.allowed.weights,
        },
        "serial_losses": None if reference is None else reference.serial.losses,
        "ways": [row.as_dict() for row in found.rows],
    }


def for_people(found: "Verification", parameters: bool) -> str:
    compared = [row for row in found.rows if row.word in ("pass", "fail")]
    blocks = [_title(found)]
    if compared:
        blocks.append("\n".join(aligned([TITLES, *map(_cells, compared)], numbers_from=1)))
    if failed := [row for row in found.rows if row.word == "fail"]:
        blocks.append("\n".join(["failed:", *(f"  {_way(row)}: {_why(row)}" for row in failed)]))
    if parameters:
        blocks += [_by_parameter(row) for row in compared if row.weights or row.gradients]
    for word, title in {
        "by design": "not serial training by design, and not judged as such:",
        "refused": "cannot be laid out:",
        "not run": "not tried:",
    }.items():
        if those := [row for row in found.rows if row.word == word]:
            blocks.append("\n".join([title, *_reasons(those)]))
    blocks.append(_sum(found))
    return "\n\n".join(blocks)


def _title(found: "Verification") -> str:
    experiment, reference = found.experiment, found.reference
    where = "the virtual cluster" if experiment.hardware.fabric == "virtual" else "processes"
    lines = [
        f"model={experiment.model.name} data={experiment.data.name} optimizer={experiment.optimizer.name} "
        f"batch_size={experiment.batch_size} seed={experiment.seed}: {counted(found.steps, 'step')} on {where}, "
        "compared with serial training in plain torch"
    ]
    if found.stated is not None:
        lines += [f"allowed: {found.stated:g} of a tensor's largest entry, as asked for"]
    elif reference is not None:
        serial, allowed = reference.serial, reference.allowed
        gradient = _allowed(allowed.gradients[-1], serial.gradients[-1])
        weight = _allowed(allowed.weights[-1], serial.weights[-1])
        lines += [
            "allowed: 8 times what rounding did to serial training itself, as float64 shows; after the last step, at "
            f"the median, {gradient} of a gradient's largest entry and {weight} of a weight's"
        ]
    lines += ["loss, gradients, weights: the largest difference, relative to the loss or to a tensor's largest entry"]
    return "\n".join(lines)


def _allowed(allowed: dict[str, float], tensors: dict[str, Any]) -> str:
    from statistics import median

    from ..verify.reference import largest

    shares = [allowed[name] / size for name, tensor in tensors.items() if (size := largest(tensor)) > 0]
    return f"{median(shares):.1e}" if shares else "nothing"


def _way(row: "VerificationRow") -> str:
    return " ".join(text.removeprefix("strategy=") if i == 0 else text for i, text in enumerate(row.overrides))


def _why(row: "VerificationRow") -> str:
    more = f" ({row.differing} tensors differ so in that step)" if row.differing > 1 else ""
    return f"{row.why}{more}"


def _cells(row: "VerificationRow") -> list[str]:
    every = [*([row.loss] if row.loss else []), *row.gradients.values(), *row.weights.values()]
    share = max((each.share for each in every), default=None)
    return [
        _way(row),
        "-" if row.workers is None else str(row.workers),
        "-" if row.replicas is None else str(row.replicas),
        _relative([row.loss] if row.loss else []),
        _relative([*row.gradients.values()]),
        _relative([*row.weights.values()]),
        "-" if share is None else f"{share:.2g}",
        row.word,
    ]


def _relative(found: "list[Deviation]") -> str:
    return f"{max(each.largest for each in found):.1e}" if found else "-"


def _by_parameter(row: "VerificationRow") -> str:
    names = dict.fromkeys([*row.gradients, *row.weights])
    table = [["parameter", "gradient", "of allowed", "weight", "of allowed"]]
    for name in names:
        cells = [name]
        for each in (row.gradients.get(name), row.weights.get(name)):
            cells += ["-", "-"] if each is None else [f"{each.largest:.1e}", f"{each.share:.2g}"]
        table.append(cells)
    return "\n".join([f"{_way(row)}, workers: {row.workers}", *aligned(table, numbers_from=1)])


def _reasons(rows: "list[VerificationRow]") -> list[str]:
    """Ways with the same reason under one line."""
    ways: dict[str, dict[str, None]] = {}
    for row in rows:
        ways.setdefault(row.why, {})[_way(row)] = None
    return [f"  {', '.join(names)}: {why}" for why, names in ways.items()]


def _sum(found: "Verification") -> str:
    words = [row.word for row in found.rows]
    counts = {"pass": "passed", "fail": "failed", "by design": "by design", "refused": "refused", "not run": "not run"}
    said = ", ".join(f"{words.count(word)} {text}" for word, text in counts.items() if word in words)
    dashes = any(row.word == "pass" and not row.gradients for row in found.rows)
    explained = "-: gradients that nobody holds whole (servers, or shares of them); the weights follow from them\n"
    return f"{explained if dashes else ''}{said}, in {found.seconds:.0f} s"


def _table(found: "Verification") -> list[list[str]]:
    rows = [[*_cells(row), _why(row)] for row in found.rows]
    return [[*TITLES, "why"], *rows]


def as_csv(found: "Verification") -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(_table(found))
    return text.getvalue()


def as_markdown(found: "Verification") -> str:
    head, *rows = [[cell.replace("|", "\\|") for cell in row] for row in _table(found)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))
