"""Files of a run and its weights, damaged: what is read must be refused by name, or give what it gave before."""

import json
import os
import random
import re
import shutil
import threading
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from tempfile import mkdtemp

from .judge import Case, WrongError
from .launched import NAME, SMALL, Launched, train, weights

_BUSY = threading.Lock()


SWEEP = ["sweep", *SMALL, "optimizer.lr=0.1,0.05", "model.hidden=[8]", "steps=3", "--name", "swept"]
RESUME = ["train", "--resume", NAME, "steps=14"]
COMMANDS = {"resume": RESUME, "show": ["show", NAME], "compare": ["compare"], "sweep": [*SWEEP, "--resume"]}


@cache
def _template() -> Path:
    """A run, one that went on from it, to compare with, and a sweep."""
    place = Path(mkdtemp(prefix="fault-template-"))
    train(place, "steps=10").ends({0})
    Launched(place, SWEEP).ends({0})
    shutil.copytree(place / "runs", place / "untouched")
    Launched(place, RESUME).ends({0})
    shutil.move(place / "runs", place / "resumed")
    return place


def template() -> Path:
    with _BUSY:
        return _template()


Damage = Callable[[Path, random.Random], None]


def _flip(path: Path, chance: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def _truncate(path: Path, chance: random.Random) -> None:
    os.truncate(path, chance.randrange(path.stat().st_size))


def _append(path: Path, chance: random.Random) -> None:
    with path.open("ab") as file:
        file.write(chance.randbytes(chance.randrange(1, 100)))


def _garble(path: Path, chance: random.Random) -> None:
    path.write_bytes(chance.randbytes(path.stat().st_size))


def _nest(path: Path, chance: random.Random) -> None:
    path.write_text("[" * 50_000 + "]" * 50_000 if chance.random() < 0.5 else '{"a":' * 50_000 + "1" + "}" * 50_000)


def _many_digits(path: Path, _: random.Random) -> None:
    text = path.read_text(errors="replace")
    path.write_text(re.sub(r"(?<=: )\d+", "9" * 5000, text, count=1) if ": " in text else "9" * 5000)


def _not_text(path: Path, chance: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content.insert(chance.randrange(len(content)), 0xFF)
    path.write_bytes(content)


def _other_number(path: Path, chance: random.Random) -> None:
    """A number of a text file becomes another number: still well-formed."""
    text = path.read_text(errors="replace")
    numbers = list(re.finditer(r"\d+", text))
    if not numbers:
        _flip(path, chance)
        return
    chosen = chance.choice(numbers)
    path.write_text(text[: chosen.start()] + str(int(chosen[0][:15]) + 1) + text[chosen.end() :])


def _other_types(path: Path, chance: random.Random) -> None:
    """A value of a JSON object, or a whole YAML, of another type."""
    wrong = chance.choice(["x", [], {}, None, -1, 1e999, True])
    try:
        plain = json.loads(path.read_text())
        plain[chance.choice(list(plain))] = wrong
    except (ValueError, KeyError, TypeError, IndexError):
        plain = wrong
    path.write_text(json.dumps(plain))


def _fifo(path: Path, _: random.Random) -> None:
    path.unlink()
    os.mkfifo(path)


def _endless(path: Path, _: random.Random) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def _directory(path: Path, _: random.Random) -> None:
    path.unlink()
    path.mkdir()


def _gone(path: Path, _: random.Random) -> None:
    path.unlink()


def _empty(path: Path, _: random.Random) -> None:
    path.write_bytes(b"")


DAMAGES: dict[str, Damage] = {
    "a bit flipped": _flip,
    "cut short": _truncate,
    "bytes appended": _append,
    "other bytes": _garble,
    "nested deeply": _nest,
    "an integer of 5,000 digits": _many_digits,
    "a byte that is no text": _not_text,
    "another number": _other_number,
    "another type": _other_types,
    "a FIFO": _fifo,
    "an endless file": _endless,
    "a directory": _directory,
    "gone": _gone,
    "empty": _empty,
}
FILES = {  # below runs/ -> the commands that read it
    f"{NAME}/config.yaml": ("resume", "show", "compare"),
    f"{NAME}/metrics.jsonl": ("resume", "show", "compare"),
    f"{NAME}/summary.json": ("resume", "show", "compare"),
    f"{NAME}/environment.json": ("show", "compare"),
    f"{NAME}/model.safetensors": ("weights",),
    f"{NAME}/checkpoints/step-00000010/manifest.json": ("resume",),
    f"{NAME}/checkpoints/step-00000010/part-000.safetensors": ("resume",),
    "swept/sweep.yaml": ("compare", "sweep"),
    "swept/study.db": ("compare", "sweep"),
    "swept/*/trial.json": ("compare", "sweep"),
    "swept/*/summary.json": ("compare", "sweep"),
}


def cases(chance: random.Random, count: int) -> list[Case]:
    found: list[Case] = []
    for number in range(count):
        file, damage = chance.choice(list(FILES)), chance.choice(list(DAMAGES))
        command = chance.choice(FILES[file])
        check = partial(_check, file, damage, command, number)
        found.append(Case(f"damaged file, {command}", f"{file}: {damage} ({number})", check))
    return found


def _check(file: str, damage: str, command: str, number: int, place: Path) -> None:
    before = template()
    shutil.copytree(before / "untouched", place / "runs")
    victim = min((place / "runs").glob(file))
    DAMAGES[damage](victim, random.Random(number))
    if command == "weights":
        launched = Launched(place, ["train", "--dry-run", "model.hidden=[32]", f"weights={victim}"])
    else:
        launched = Launched(place, COMMANDS[command])
    status = launched.ends({0, 2, 3, 4, 7} if command == "sweep" else {0, 2, 7})
    said = launched.said() + launched.printed()
    if status in (2, 7) and not any(name in said for name in (victim.name, victim.resolve().name)):
        raise WrongError(f"does not name {victim.name}: {said}")
    if status == 0 and command == "weights":
        raise WrongError("damaged weights were accepted")
    if status == 0 and command == "resume" and weights(place) != weights(before / "resumed", runs="."):
        raise WrongError("accepted, and it ended with other weights")
