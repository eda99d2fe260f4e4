"""Accuracy over eps as curves, and samples before and after an attack, with what was added and what the model says."""

from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..figures.palette import LIGHT
from . import png, svg

WIDTH, HEIGHT, LEFT, TOP = 620, 300, 60, 40  # pixels, of the plot and around it
SIDE, GAP = 112, 14  # of a sample's images
WORDS = {"pgd": "PGD", "fgsm": "FGSM", "noise": "random noise"}
DASHES = {"pgd": "", "fgsm": "7 4", "noise": "2 4"}
NORMS = {"linf": "L-inf", "l2": "L2"}


@dataclass(frozen=True)
class AccuracyCurve:
    """`values`: of several seeds, by eps. `method`: of WORDS."""

    label: str
    method: str
    colour: int
    eps: tuple[float, ...]
    values: tuple[tuple[float, ...], ...]  # by seed

    @property
    def means(self) -> list[float]:
        return [sum(each) / len(each) for each in zip(*self.values, strict=True)]


def curves_as_svg(title: str, norm: str, lines: Sequence[AccuracyCurve]) -> str:
    most = max((eps for line in lines for eps in line.eps), default=1.0) or 1.0

    def x(eps: float) -> float:
        return LEFT + WIDTH * eps / most

    def y(share: float) -> float:
        return TOP + HEIGHT * (1 - share)

    parts = [svg.text(10, 22, title, "title")]
    for share in (0, 0.25, 0.5, 0.75, 1):
        parts.append(f'<path class="line" d="M{LEFT},{y(share):.1f} h{WIDTH}"/>')
        parts.append(svg.text(LEFT - 8, y(share) + 4, f"{share:.0%}", "small", "end"))
    for tick in svg.ticks(most, 6):
        parts.append(svg.text(x(tick), TOP + HEIGHT + 18, f"{tick:.3g}", "small", "middle"))
    words = f"eps, {NORMS[norm]}, a share of the data's range"
    parts.append(svg.text(LEFT + WIDTH / 2, TOP + HEIGHT + 38, words, "small", "middle"))
    top = TOP + HEIGHT + 60.0
    for line in lines:
        dash = f' stroke-dasharray="{DASHES[line.method]}"' if DASHES[line.method] else ""
        kind = f"s{line.colour % len(LIGHT)}"
        stroke = f'class="{kind} strong"{dash}'
        points = " ".join(f"{x(eps):.1f},{y(mean):.1f}" for eps, mean in zip(line.eps, line.means, strict=True))
        said = f"<title>{svg.escape(said_of(line))}</title>"
        parts.append(f'<polyline {stroke} points="{points}">{said}</polyline>')
        for eps, each in zip(line.eps, zip(*line.values, strict=True), strict=True):
            if len(each) > 1:
                parts.append(f'<path class="{kind}" d="M{x(eps):.1f},{y(min(each)):.1f} V{y(max(each)):.1f}"/>')
        parts.append(f'<path {stroke} d="M{LEFT},{top:.1f} h36"/>')
        parts.append(svg.text(LEFT + 44, top + 4, said_of(line), "small"))
        top += 18
    return svg.document(title, in_words(norm, lines), LEFT + WIDTH + 40, top + 8, parts)


def said_of(line: AccuracyCurve) -> str:
    seeds = f", the mean of {len(line.values)} seeds and their range" if len(line.values) > 1 else ""
    return f"{line.label}: {WORDS[line.method]}{seeds}"


def in_words(norm: str, lines: Sequence[AccuracyCurve]) -> str:
    told = [
        f"{line.label} under {WORDS[line.method]}: "
        + ", ".join(f"{mean:.1%} at {eps:.3g}" for eps, mean in zip(line.eps, line.means, strict=True))
        for line in lines
    ]
    return f"Accuracy over eps ({NORMS[norm]}, a share of the data's range). " + "; ".join(told) + "."


def examples_as_svg(title: str, kept: Mapping[str, Any]) -> str:
    """`kept`: as adversarial.json has it, with examples."""
    channels, height, width = kept["examples"]["shape"]
    scale = SIDE / max(height, width)
    parts = [svg.text(10, 22, title, "title")]
    top = 44.0
    for row, words in (("clean", "sample"), ("perturbation", "added"), ("changed", "together")):
        parts.append(svg.text(10, top + SIDE / 2, words, "small"))
        if row == "perturbation":
            parts.append(svg.text(10, top + SIDE / 2 + 16, "(grey: 0)", "small"))
        for i, item in enumerate(kept["examples"]["items"]):
            left = 76 + i * (SIDE + GAP)
            image = png.source(b64decode(item[row]), channels, height, width)
            parts.append(
                f'<image x="{left}" y="{top:.0f}" width="{width * scale:.1f}" height="{height * scale:.1f}" '
                f'style="image-rendering: pixelated" href="{image}"/>'
            )
            if row == "perturbation":
                continue
            taken = item["before" if row == "clean" else "after"]
            right = "right" if taken == item["label"] else f"wrong: it is {item['label']}"
            parts.append(svg.text(left, top + SIDE + 14, f"{taken}, {right}", "small"))
        top += SIDE + 26
    count = len(kept["examples"]["items"])
    return svg.document(title, examples_in_words(kept), 76 + count * (SIDE + GAP) + 10, top + 4, parts)


def examples_in_words(kept: Mapping[str, Any]) -> str:
    items = kept["examples"]["items"]
    led = sum(item["before"] == item["label"] != item["after"] for item in items)
    return (
        f"Samples, what {attack_in_words(kept)} added (grey: nothing; black and white: the largest change), and both "
        "together. Under each is the class that the model sees. The samples that the attack deceives come first: "
        f"{led} of the {len(items)} shown were right and are wrong then."
    )


def attack_in_words(kept: Mapping[str, Any]) -> str:
    target = "" if kept["target"] is None else f" towards {kept['target']}"
    return f"{WORDS[kept['method']]}{target} at eps {kept['eps']:.3g} ({NORMS[kept['norm']]})"


def doubts_in_words(kept: Mapping[str, Any]) -> str:
    if not kept["doubts"]:
        return "No sign of masked gradients was found."
    return "Gradients may be masked, so that accuracy is less robust than it looks: " + "; ".join(kept["doubts"]) + "."
