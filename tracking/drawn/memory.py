"""Memory by kind over one step, stacked, with the device's cap: predicted beside measured.

What a step holds when follows from what each kind is for: weights and optimizer state all the time, activations from
forward until backward has used them, gradients from backward until the next step begins. Recorded is the peak of each
kind, so a bar is the most that there is at its moment.
"""

from collections.abc import Mapping
from typing import Any

from . import svg

KINDS = {  # and their colours, those of figures/palette.py
    "parameters": 0,
    "gradients": 1,
    "optimizer": 2,
    "average": 4,
    "activations": 3,
    "buffers": 5,
}
MOMENTS = {
    "between steps": ("parameters", "optimizer", "average", "buffers"),
    "end of forward": ("parameters", "optimizer", "average", "activations", "buffers"),
    "in backward, at most": ("parameters", "gradients", "optimizer", "average", "activations", "buffers"),
    "optimizer's step": ("parameters", "gradients", "optimizer", "average", "buffers"),
}
WIDTH, ROW, DEEP, LEFT, TOP = 720, 50, 18, 160, 62  # pixels


def over_a_step(held: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Bytes by kind at each moment, of what a device holds of each kind at most; the host's memory is aside."""
    return {
        moment: {kind: float(held[kind]) for kind in kinds if isinstance(held.get(kind), int | float)}
        for moment, kinds in MOMENTS.items()
    }


def as_svg(
    title: str, predicted: Mapping[str, Any] | None, measured: Mapping[str, Any] | None, cap: float | None
) -> str:
    """`predicted`, `measured`: bytes by kind of the worker that holds most; `cap`: bytes of its device."""
    both = [(name, over_a_step(held)) for name, held in (("predicted", predicted), ("measured", measured)) if held]
    most = max([cap or 0.0, *(sum(kinds.values()) for _, each in both for kinds in each.values())]) or 1.0
    scale = WIDTH / most
    kinds = [(KINDS[kind], kind) for kind in KINDS if any(kind in held for _, each in both for held in each.values())]
    parts = [svg.text(10, 22, title, "title"), *svg.legend(10, 34, kinds)]
    for place, moment in enumerate(MOMENTS):
        top = TOP + ROW * place
        parts.append(svg.text(10, top + 20, moment))
        for line, (name, each) in enumerate(both):
            left, y = float(LEFT), top + (DEEP + 2) * line
            for kind, count in each[moment].items():
                said = f"{moment}, {name}: {kind} {human(count)}"
                parts.append(svg.bar(left, y, count * scale, DEEP, KINDS[kind], said, pale=name == "predicted"))
                left += count * scale
            parts.append(svg.text(left + 4, y + 13, f"{human(left_bytes(each[moment]))} {name}", "small"))
    bottom = TOP + ROW * len(MOMENTS)
    if cap is not None:
        x = LEFT + cap * scale
        parts.append(f'<path class="dark strong" stroke-dasharray="6 3" d="M{x:.2f},{TOP - 6} V{bottom}"/>')
        parts.append(svg.text(x, bottom + 16, f"the device has {human(cap)}", "small", "end"))
    return svg.document(title, in_words(predicted, measured, cap), LEFT + WIDTH + 150, bottom + 26, parts)


def in_words(predicted: Mapping[str, Any] | None, measured: Mapping[str, Any] | None, cap: float | None) -> str:
    """Describes the peak: its moment, its kinds, how predicted and measured differ, and which of them are missing."""
    told: list[str] = []
    peaks: dict[str, float] = {}
    for name, held in (("predicted", predicted), ("measured", measured)):
        if not held:
            told.append(f"Nothing is {name}")
            continue
        moments = over_a_step(held)
        moment = max(moments, key=lambda each: left_bytes(moments[each]))
        kinds = moments[moment]
        peaks[name] = left_bytes(kinds)
        largest = max(kinds, key=lambda kind: kinds[kind], default="")
        told.append(f"{name.capitalize()}: {human(peaks[name])} {moment}, most of it {largest}")
    if len(peaks) == 2 and peaks["measured"]:
        told.append(f"The prediction is {100 * (peaks['predicted'] / peaks['measured'] - 1):+.1f} % off")
    if cap is None:
        told.append("How much the device holds is not known (hardware.machine)")
    elif peaks:
        share = max(peaks.values()) / cap
        told.append(f"That is {share:.0%} of the device's {human(cap)}" + (": it does not fit" if share > 1 else ""))
    return ". ".join(told) + ". Temporaries and the runtime are not in it."


def left_bytes(kinds: Mapping[str, float]) -> float:
    return sum(kinds.values())


def human(count: float) -> str:
    from ..columns import human_bytes

    return human_bytes(count)
