"""Tables of predicted and measured values, as Markdown."""

import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable

import numpy as np

from paceline.cost.device import Efficiency
from paceline.cost.devices import INSIDE
from paceline.cost.links import Links
from paceline.cost.published import held_by

from .levels import beside_plan, predicted
from .rows import BETWEEN, VTRAIN, Case, Row, is_fitted, measured, software_of

TIMES = ("step time: group", "rows", "median", "mean", "90 %", "excess", "one constant", "and bubble", "notes")
SOFTWARE = ("step time: software", "device", "rows", "median", "mean", "90 %", "excess", "8 in 10 took")
BESIDE_PLAN = ("beside plan: software", "device", "rows", "median", "mean", "90 %", "8 in 10 took")
PLANS = ("PyTorch", "DeepSpeed")
RANKINGS = ("ranking: group", "sets of layouts", "layouts in each", "best is our first", "among our first three")
HELD = (
    "memory: software",
    "stated peaks",
    "median",
    "mean",
    "90 %",
    "excess",
    "8 in 10 held",
    "ran, and we say so",
    "with its margin",
    "ran out, and we say so",
)
MEMORY = ("memory: group", "stated peaks", "median error", "ran, and we say so", "ran out, and we say so")
ALIKE = ("group", "model", "hidden", "layers", "seq", "gpu", "gpus", "global_batch", "framework", "precision")
FEWEST = 4  # layouts that can be ranked
DOUBLED = "algorithmic throughput"  # all_reduce_bench.py prints 2 S / t under this name, "for send + receive"


def times(
    cases: list[Case], unscored: dict[str, Counter[str]], fits: Efficiency, worst: int, groups: list[str]
) -> list[str]:
    """Relative errors of step time by group, beside those of one constant efficiency for the group."""
    lines = _heading(TIMES)
    everyone: dict[str, list[float]] = {"one host": [], "several hosts": []}
    by_group = _by_group(cases)
    for name, its in by_group.items():
        if groups and its[0].row["group"] not in groups:
            continue
        timed = [case for case in its if case.seconds]
        notes = _notes(its, timed, unscored.get(name, Counter()))
        if not timed:
            lines.append(_line(name, 0, *[""] * 6, notes))
            continue
        excess = [predicted(case, fits) / measured(case) - 1 for case in timed]
        constant, bubbled = _constant(timed, lambda _: 1.0), _constant(timed, _bubble)
        figures = [*_spread(excess), f"{100 * np.median(excess):+.1f} %", _percent(constant), _percent(bubbled)]
        lines.append(_line(name, len(timed), *figures, notes))
        order = sorted(range(len(timed)), key=lambda i: -abs(excess[i]))[:worst]
        lines += [_line(f"{_said(timed[i])}: {100 * excess[i]:+.0f} %", *[""] * 8) for i in order]
        for case, x in zip(timed, excess, strict=True):
            if not is_fitted(case.row):
                everyone["several hosts" if case.several_hosts else "one host"].append(x)
    for name in sorted(unscored.keys() - by_group.keys()):
        if not groups or name in groups:
            lines.append(_line(name, 0, *[""] * 6, _counted(unscored[name])))
    for name, excess in everyone.items():
        if excess:
            lines.append(_line(f"**{name}, not fitted**", len(excess), *_spread(excess), *[""] * 4))
    return lines


def software(cases: list[Case], fits: Efficiency) -> list[str]:
    """Relative errors of step time by software and device, of rows that nothing was fitted on. vTrain's thousand runs
    are one line.
    """
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for case in cases:
        if case.seconds and not is_fitted(case.row):
            found[software_of(case.row), case.cluster.device.name].append(predicted(case, fits) / case.seconds - 1)
    lines = _heading(SOFTWARE)
    for (kind, device), excess in sorted(found.items()):
        lines.append(
            _line(kind, device, len(excess), *_spread(excess), f"{100 * np.median(excess):+.1f} %", _took(excess))
        )
    for kind in sorted({kind for kind, _ in found}):
        every = [x for (each, _), excess in found.items() if each == kind for x in excess]
        lines.append(_line(kind, "all", len(every), *_spread(every), f"{100 * np.median(every):+.1f} %", _took(every)))
    for several in (False, True):
        rest = [
            case
            for case in cases
            if case.seconds and case.several_hosts is several and not case.row["group"].startswith(VTRAIN)
        ]
        hosts = f"{'several hosts' if several else 'one host'}, without vTrain"
        for name, whole in ((hosts, False), (f"{hosts}, whole groups left out", True)):
            if excess := [predicted(case, fits, whole) / measured(case) - 1 for case in rest]:
                lines.append(_line(f"**{name}**", "", len(excess), *_spread(excess), "", ""))
    return lines


def plans(cases: list[Case], fits: Efficiency) -> list[str]:
    """Returns the ranges that `paceline plan` prints: of runs of PyTorch, and of DeepSpeed, whose kernels are
    PyTorch's.
    """
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for case in cases:
        kind = software_of(case.row).removeprefix("vTrain's runs (").removesuffix(")")
        if case.seconds and not is_fitted(case.row) and kind in PLANS:
            for device in (case.cluster.device.name, "all"):
                found[kind, device].append(beside_plan(case, fits) / case.seconds - 1)
    lines = _heading(BESIDE_PLAN)
    lines += [_line(*of, len(excess), *_spread(excess), _took(excess)) for of, excess in sorted(found.items())]
    return lines


def rankings(cases: list[Case], fits: Efficiency) -> list[str]:
    """Layouts of one model, batch and number of devices, each with its best micro-batch: where do we rank the best?"""
    alike: dict[tuple[str, ...], list[Case]] = defaultdict(list)
    for case in cases:
        if case.seconds:
            alike[tuple(case.row[key] for key in ALIKE)].append(case)
    found: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for key, its in alike.items():
        fastest: dict[tuple[int, ...], float] = {}
        ours: dict[tuple[int, ...], float] = {}
        for case in its:
            at = (case.layout.data, case.layout.tensor, case.layout.stages)
            fastest[at] = min(fastest.get(at, np.inf), measured(case))
            ours[at] = min(ours.get(at, np.inf), predicted(case, fits))
        if len(fastest) >= FEWEST:
            best = min(fastest, key=fastest.__getitem__)
            found[key[0]].append((sorted(ours, key=ours.__getitem__).index(best), len(fastest)))
    lines = _heading(RANKINGS)
    for group, places in [*found.items(), ("**all**", [place for its in found.values() for place in its])]:
        first, three = (sum(place < n for place, _ in places) / max(1, len(places)) for n in (1, 3))
        if not (sizes := [size for _, size in places]):
            continue
        lines.append(_line(group, len(places), f"{min(sizes)} to {max(sizes)}", _percent(first), _percent(three)))
    return lines


def memory(cases: list[Case]) -> list[str]:
    """Stated peaks beside ours; and of the runs that ran, and that did not, those of which we say so."""
    lines = _heading(MEMORY)
    groups = {case.row["group"] for case in cases if case.excess is not None or case.room is not None}
    for group in sorted(groups):
        its = [case for case in cases if case.row["group"] == group]
        errors = [abs(case.excess) for case in its if case.excess is not None]
        median = _percent(statistics.median(errors)) if errors else ""
        lines.append(_line(group, len(errors), median, *_called(its)))
    return lines


def held(cases: list[Case]) -> list[str]:
    """The same by software. Its margin is what `paceline advise` leaves: the high end of what runs held."""
    kinds = sorted({software_of(case.row) for case in cases if case.excess is not None or case.room is not None})
    lines = _heading(HELD)
    for kind in [*kinds, None]:
        its = [case for case in cases if kind is None or software_of(case.row) == kind]
        excess = [case.excess for case in its if case.excess is not None]
        figures = [*_spread(excess), f"{100 * np.median(excess):+.1f} %", _took(excess)] if excess else [""] * 5
        ran, out = _called(its)
        margins = {name: 1.0 if kept is None else kept.margin for name in kinds for kept in [held_by(name)]}
        roomy = [
            case.need * margins[software_of(case.row)] <= case.room
            for case in its
            if case.room is not None and case.row["outcome"] == "ok"
        ]
        with_margin = f"{sum(roomy)} of {len(roomy)}" if roomy else ""
        lines.append(_line(kind or "**all**", len(excess), *figures, ran, with_margin, out))
    return lines


def _called(cases: list[Case]) -> tuple[str, str]:
    said = Counter((case.row["outcome"] == "ok", case.need <= case.room) for case in cases if case.room is not None)
    ran, not_ran = said[True, True] + said[True, False], said[False, True] + said[False, False]
    return f"{said[True, True]} of {ran}" if ran else "", f"{said[False, False]} of {not_ran}" if not_ran else ""


def links_inside(rows: list[Row]) -> list[str]:
    """Measured all-reduces of 1 MB and more beside alpha + 2 (n-1)/n S beta with the constants of `INSIDE`."""
    errors: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        name = next((name for name in INSIDE if re.search(rf"\b{name}\b", row["hardware"])), None)
        nbytes = float(row["payload_bytes"] or 0)
        if row["kind"] != "all_reduce" or row["nodes"] != "1" or name is None or nbytes < 1e6:
            continue
        if row["time_us"]:
            seconds = float(row["time_us"]) / 1e6
        elif row["algbw_GBps"]:
            seconds = nbytes / float(row["algbw_GBps"]) / 1e9 * (2 if DOUBLED in row["note"] else 1)
        else:
            continue
        workers = int(row["gpus"])
        predicted = Links(INSIDE[name], BETWEEN, workers).all_reduce(nbytes, workers, 1)
        errors[row["hardware"]].append(abs(predicted / seconds - 1))
    lines = _heading(("all-reduce in one host", "sizes", "median", "largest"))
    for hardware, its in errors.items():
        lines.append(_line(hardware, len(its), _percent(statistics.median(its)), _percent(max(its))))
    return lines


# -- parts of tables


def _heading(titles: tuple[str, ...]) -> list[str]:
    return [_line(*titles), "|---|" + "---:|" * (len(titles) - 1)]


def _line(*cells: object) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _spread(excess: list[float]) -> list[str]:
    errors = [abs(x) for x in excess]
    return [_percent(float(x)) for x in (np.median(errors), np.mean(errors), np.quantile(errors, 0.9))]


def _took(excess: list[float]) -> str:
    """The measured time of a step beside the predicted one."""
    low, high = (float(np.quantile([1 / (1 + x) for x in excess], q)) for q in (0.1, 0.9))
    return f"{low:.2f} to {high:.2f} times"


def _by_group(cases: list[Case]) -> dict[str, list[Case]]:
    groups: dict[str, list[Case]] = {}
    for case in cases:
        name = case.row["group"] + (" (fitted)" if is_fitted(case.row) else "")
        groups.setdefault(name, []).append(case)
    return groups


def _notes(its: list[Case], timed: list[Case], reasons: Counter[str]) -> str:
    without = Counter(case.row["outcome"].replace("ok", "without a time") for case in its if not case.seconds)
    assumed = Counter({"recomputation not stated": sum(not case.recompute_stated for case in timed)})
    return _counted(reasons + without + assumed)


def _counted(reasons: Counter[str]) -> str:
    return "; ".join(f"{count} {reason}" for reason, count in reasons.items())


def _said(case: Case) -> str:
    row, at = case.row, case.layout
    return (
        f"{row['id']} {row['model']} on {row['gpus']} {row['gpu']}, {at.data} x {at.tensor} x {at.stages} "
        f"(data, tensor, stages), micro-batch {at.micro_batch} of {at.batch}: {case.seconds:.3g} s"
    )


def _bubble(case: Case) -> float:
    return 1 + (case.layout.stages - 1) / (case.layout.micro_batches * case.layout.chunks)


def _constant(cases: list[Case], factor: Callable[[Case], float]) -> float:
    """The mean relative error with one efficiency for all rows: the one that makes it least."""
    ratios = [
        case.flops * factor(case) / (case.layout.devices * case.cluster.device.peak[case.layout.dtype]) / measured(case)
        for case in cases
    ]
    return min(statistics.fmean(abs(ratio / scale - 1) for ratio in ratios) for scale in ratios)
