"""The recommendation that an answer of `paceline advise` begins with."""

from typing import TYPE_CHECKING

from .step_time import time_of

if TYPE_CHECKING:
    from ..advise.answer import Answer
    from ..advise.recommend import Recommendation

LEAST = 0.01  # of the step: limits below it are left out


def recommended(found: "Answer") -> list[str]:
    """Returns at most 7 lines."""
    from ..advise.commands import command
    from ..advise.recommend import recommend
    from ..advise.why_not import beside
    from ..cost.predicted import PARTS
    from ..tracking.compare import human_bytes

    best = recommend(found)
    row, machine = best.row, found.question.experiment.hardware.machine
    of = "host" if machine is None or not machine.devices else "device"
    room = "" if best.room is None else f" of {human_bytes(best.room)} that it can use"
    if best.use is not None and (ends := best.use.range) is not None:
        low, high = map(human_bytes, ends)
        room += f" ({low} to {high} with the runtime's as published runs, of {human_bytes(best.use.device_memory)}"
        room += ")" if row.roomy else ": it may run out of memory)"
    lines = [
        f"{'recommended' if row.seconds is not None else f'first by {found.sort}'}: "
        f"{command(found.question, row.candidate)}",
        *([_unplanned(found)] if found.unplanned else []),
        f"  time: {_time(found, best)}",
        f"  memory of a {of}: {'' if row.exact else '~'}{human_bytes(row.device)}{room}",
    ]
    if best.limits:
        shares = ", ".join(f"{name} {share:.0%}" for name, share in best.limits.items() if share >= LEAST)
        lines.append(f"  limited by: {shares} of a step")
    if best.after is not None:
        after = f"{best.after.candidate.family}, {beside(best.after, row, found.sort)}"
        longer = best.longer
        if longer is not None:
            after += f"; {time_of(longer[1])} more of {PARTS[longer[0]]}"
        lines.append(f"  next best: {after}")
    else:
        near = [f"; {each.name}, {each.others[0]}" for each in found.families if each.best is None and each.others]
        lines.append(f"  next best: no other{' of these' if found.unplanned else ''} fits{(near or [''])[0]}")
    if best.change is not None:
        lines.append(f"  to try: {best.change.what}: {best.change.saves:.0%} less time for a sample")
    elif machine is None and len(found.rows) > 1:
        lines.append("  to try: --race 2 trains the first two here, until one wins")
    return lines


def _unplanned(found: "Answer") -> str:
    every = found.points + found.unplanned
    return f"  best of the first {found.points} of {every} configurations: the others were not planned"


def dollars_of(price: float) -> str:
    return f"{price:,.2f}" if price >= 1 else f"{price:.2g}"


def _time(found: "Answer", best: "Recommendation") -> str:
    from ..advise.limits import in_all

    row, tokens = best.row, found.question.tokens
    if row.seconds is None:
        return "not predicted, for the reason below the table"
    price = "price not known" if row.dollars is None else f"${dollars_of(row.dollars)}"
    step, its = f"{time_of(row.seconds)} a step", best.published
    goodput = "" if row.goodput is None else f", at a goodput of {row.goodput:.1%} (modelled)"
    if its is not None:
        low, high = time_of(its.low * row.seconds), time_of(its.high * row.seconds)
        step += f" ({low} to {high} as published runs of {its.software})"
    if tokens is None:
        return f"{step}, {price}" + (" a step" if row.dollars is not None else "") + goodput
    return f"{step}, {time_of(in_all(found.question, row.seconds))} for all tokens, {price}{goodput}"
