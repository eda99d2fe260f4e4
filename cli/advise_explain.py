"""`paceline advise --explain N`: where the time of a line goes, and what would help most."""

from typing import TYPE_CHECKING

from .output import aligned

if TYPE_CHECKING:
    from ..advise.answer import Answer


def explained(found: "Answer", line: int) -> str:
    from ..advise.commands import command
    from ..advise.explain import explain
    from ..cost.predicted import PARTS
    from ..tracking.compare import human_bytes
    from .step_time import LEAST, time_of

    told = explain(found, found.rows[line - 1])
    row, step = told.row, told.step
    lines = [f"line {line}: {command(found.question, row.candidate)}"]
    sent = "what it sends, the data must say" if row.sent is None else f"{human_bytes(row.sent)} sent a step"
    lines.append(f"memory: {human_bytes(row.device)} needed of a device, {human_bytes(row.host)} of a host; {sent}")
    if step is None:
        return "\n".join([*lines, f"where the time goes is not predicted: {row.untimed}"])
    lines += ["", f"a step of {time_of(step.seconds)}:"]
    shown = [(name, part) for name, part in step.parts.items() if part > LEAST * step.seconds]
    shown.sort(key=lambda each: -each[1])
    table = aligned(
        [[PARTS[name], time_of(part), f"{part / step.seconds:.1%}"] for name, part in shown], numbers_from=1
    )
    lines += [f"  {text}  {step.formulas[name]}" for text, (name, _) in zip(table, shown, strict=True)]
    if told.changes:
        lines += ["", "what would help most, each predicted again with that alone changed:"]
        words = [
            [change.what, f"{change.saves:.1%} sooner" if change.saves > 0 else f"{-change.saves:.1%} later"]
            for change in told.changes
            if abs(change.saves) > LEAST
        ]
        lines += [f"  {text}" for text in aligned([[b, a] for a, b in words], numbers_from=2)]
        if not words:
            lines.append("  nothing that is tried here")
    return "\n".join(lines)
