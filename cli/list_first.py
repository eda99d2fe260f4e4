"""The one screen of `paceline list`: the groups that people choose from first, with the usual choices of each."""

import textwrap

from ..conf.groups import BY_NAME
from .choices import ListedChoice
from .output import NO_WORD

INDENT = "    "
FIRST: dict[str, tuple[str, ...]] = {
    "strategy": ("data_parallel", "pipeline", "tensor", "hybrid", "zero", "torch_ddp", "torch_fsdp", "single"),
    "sync": ("bsp", "local_sgd", "diloco", "ssp", "asp", "easgd", "gossip", "fedavg"),
    "model": ("mlp", "cnn", "resnet", "vit", "gpt", "llama_8b"),
    "data": ("digits", "fashion_mnist", "images", "table", "text", "hugging_face"),
    "hardware": ("local", "virtual", "a100_8", "h100_8", "rtx_4090", "t4"),
}
HARDWARE = "the machine: this one, a virtual cluster, or accelerators to plan for"


def overview(known: dict[str, list[ListedChoice]], default: dict[str, str], own: set[str]) -> str:
    """Returns at most 24 lines of 80 characters. `own`: `GROUP=CHOICE` of the user's choices, which come first."""
    lines = ["What people choose first. The star marks the default."]
    for group, first in FIRST.items():
        meaning = BY_NAME[group].meaning if group in BY_NAME else HARDWARE
        lines.append(f"{group}=  {meaning}")
        lines += _wrapped(_names(group, known[group], first, default.get(group, ""), own))
    rest = [group for group in known if group not in FIRST]
    lines += ["", "Other groups:", *_wrapped(", ".join(rest))]
    lines += [
        "",
        "paceline list sync           all of one group, with keys (--all: every group)",
        "paceline list pairs          which strategies and sync modes go together",
        "paceline explain sync=ssp    what a choice does, and when to use it",
    ]
    return "\n".join(lines)


def _names(group: str, choices: list[ListedChoice], first: tuple[str, ...], default: str, own: set[str]) -> str:
    there = [choice.name for choice in choices]
    shown = [name for name in there if f"{group}={name}" in own] + [name for name in first if name in there]
    shown = list(dict.fromkeys(shown))
    more = len(there) - len(shown)
    names = [f"* {name}" if name == default else name for name in shown]
    return "  ".join(names) + (f"  and {more} more" if more else "")


def _wrapped(text: str) -> list[str]:
    """Returns lines in which no name is broken, and no star or number is parted from its word."""
    kept = text.replace("* ", "*\0").replace("and ", "and\0").replace(" more", "\0more")
    lines = textwrap.wrap(
        kept, NO_WORD - len(INDENT), break_long_words=False, break_on_hyphens=False, replace_whitespace=False
    )
    return [INDENT + line.replace("\0", " ") for line in lines]
