"""Fuzzed overrides: each is composed and planned, or refused in words; never a crash, never a hang."""

import random
import string
from functools import partial
from pathlib import Path
from typing import Any

from paceline.conf.groups import BY_NAME

from .judge import Case, WrongError
from .loaded import answer

EXPECTED = {0, 2, 3, 7}
GROUPS = (*BY_NAME, "hardware", "tracking", "experiment")
ODD = (
    *(
        "",
        "null",
        "true",
        "-1",
        "0",
        "1",
        "1e309",
        "-0.0",
        "nan",
        "inf",
        "9" * 30,
        "9" * 5000,
        "0x10",
        "1_000",
        "'",
        '"',
    ),
    *("[]", "{}", "[1,2,3]", "{a:1}", "[" * 120 + "]" * 120, "{a:" * 60 + "1" + "}" * 60, "${seed}", "${nothing}"),
    *(
        "${oc.env:HOME}",
        "${hydra:runtime.cwd}",
        "${now:%Y}",
        "../../etc/passwd",
        "/dev/zero",
        "/dev/stdin",
        "\\",
        "a b",
    ),
    *("é", "\u202e", "\x1b[31m", "\x00", "\ud800", "🂡", "choice(1,2)", "range(1,10)", "interval(0,1)", "glob(*)"),
    *(
        "a,b",
        "shuffle(1,2)",
        "tag(log,interval(1,2))",
        "extend_list(1)",
        "'unclosed",
        "key=value",
        "=",
        "==",
        "~x",
        "+y=1",
    ),
    *(
        "torch.load",
        "os.system",
        "builtins.eval",
        "paceline.engine.run",
        "subprocess.Popen",
        "1.5",
        "1e-400",
        "yes",
        "~",
    ),
)


def cases(chance: random.Random, count: int) -> list[Case]:
    keys, choices = _known()
    found = []
    for _ in range(count):
        words = [_override(chance, keys, choices) for _ in range(chance.choice([1, 1, 1, 2, 3]))]
        shown = " ".join(word if len(word) < 200 else f"{word[:100]}...{word[-100:]}" for word in map(ascii, words))
        found.append(Case("fuzzed overrides", shown, partial(_check, words)))
    return found


def _known() -> tuple[list[str], dict[str, list[str]]]:
    """Every key of the default configuration, and every group's choices."""
    from paceline import conf, engine

    def walk(node: Any, prefix: str) -> list[str]:
        if not isinstance(node, dict):
            return [prefix]
        return [prefix, *(key for name, value in node.items() for key in walk(value, f"{prefix}.{name}"))]

    plain = engine.prepare([]).experiment.model_dump()
    keys = [key.removeprefix(".").replace(".knobs", "") for key in walk(plain, "") if key]
    root = Path(next(iter(conf.__path__)))
    return keys, {group: [path.stem for path in sorted((root / group).glob("*.yaml"))] for group in GROUPS}


def _override(chance: random.Random, keys: list[str], choices: dict[str, list[str]]) -> str:
    key = chance.choice([*keys, *GROUPS, "hardware/network", "hydra.run.dir", "_target_", "sync._target_"])
    value = chance.choice(ODD)
    match chance.randrange(6):
        case 0:
            group = chance.choice(GROUPS)
            key, value = group, chance.choice([*choices[group], value])
        case 1:
            value = str(chance.choice([chance.randint(-5, 2**70), chance.uniform(-1e3, 1e3), chance.randint(0, 9)]))
        case 2:
            key = chance.choice(["+", "++", "~"]) + key
        case 3:
            key = _mistyped(chance, key)
        case 4:
            value = "".join(chance.choices(string.printable, k=chance.randrange(1, 30)))
    text = f"{key}={value}"
    return _mistyped(chance, text) if chance.random() < 0.1 else text


def _mistyped(chance: random.Random, text: str) -> str:
    at = chance.randrange(len(text) + 1)
    return text[:at] + chance.choice([chance.choice(string.printable), "", text[at : at + 2] * 2]) + text[at + 1 :]


def _check(words: list[str], place: Path) -> None:
    status, said = answer(["train", "--dry-run", "--", *words])
    if status not in EXPECTED:
        raise WrongError(f"exit status {status}: {said[-500:]}")
    if status and not said.strip():
        raise WrongError(f"exit status {status} without a word")
    if "Traceback" in said:
        raise WrongError(f"a traceback: {said[-500:]}")
