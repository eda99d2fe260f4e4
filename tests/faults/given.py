"""Files that somebody gave: configurations that read secrets, YAML and images that fill the memory, foreign caches."""

import os
import random
import resource
import struct
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

from .judge import Case, WrongError
from .loaded import asked, command

SECRET = "swordfish-9417"
VARIABLE = "PACELINE_FAULTS_SECRET"
MOST_MIB = 600  # that the answer to one file may take
NOBODY = 65534

# -- secrets


EXPRESSIONS = (
    "${oc.env:VAR}",
    "${ oc.env : VAR }",
    "${oc.${tracking.group}:VAR}",
    "${oc.${.group}:VAR}",
    "${${name}.${tracking.group}:VAR}",
    "${oc.env:VAR,none}",
    '${oc.decode:"\\${oc.${tracking.group}:VAR}"}',
    "${oc.create:{a:${oc.env:VAR}}}",
    "${oc.select:${oc.env:VAR}}",
    "${.${oc.env:VAR}}",
    "${oc.deprecated:${oc.env:VAR}}",
    "x${oc.env:VAR}y",
)
PLACES = ("override", "file", "tags", "preset", "defaults", "hardware", "target")


def secrets(chance: random.Random, count: int) -> list[Case]:
    pairs = [(chance.choice(EXPRESSIONS), chance.choice(PLACES)) for _ in range(count)]
    return [Case("secrets", f"{text} in {place}", partial(_secret, text, place)) for text, place in pairs]


def _secret(text: str, place: str, folder: Path) -> None:
    text = text.replace("VAR", VARIABLE)
    quoted = "'" + text.replace("'", "''") + "'"
    words = ["name=oc", "tracking.group=env"]
    head = "# @package _global_\nname: oc\n"
    match place:
        case "override":
            words.append("tracking.project='" + text.replace("'", "\\'") + "'")
        case "tags":
            words.append("tracking.tags=['" + text.replace("'", "\\'") + "']")
        case "file":
            (folder / "theirs.yaml").write_text(f"name: oc\ntracking: {{group: env, project: {quoted}}}\n")
            words = ["--config", str(folder / "theirs.yaml")]
        case "hardware":
            words = _preset(folder, "hardware", f"workers: {quoted}\n")
        case "preset":
            words = _preset(folder, "experiment", f"{head}tracking: {{group: env, project: {quoted}}}\n")
        case "defaults":
            words = _preset(folder, "experiment", f"# @package _global_\ndefaults:\n  - override /model: {quoted}\n")
        case _:
            words = _preset(folder, "model", f"_target_: {quoted}\n")
    status, said = asked(_with_secret, [str(folder), "train", "--dry-run", *words])
    if status != 2:
        raise WrongError(f"exit status {status}: {said[-300:]}")
    if SECRET in said or any(
        SECRET in file.read_text(errors="replace") for file in folder.rglob("*") if file.is_file()
    ):
        raise WrongError("the secret was told")
    if "Traceback" in said:
        raise WrongError(f"a traceback: {said[-300:]}")


def _preset(folder: Path, group: str, text: str) -> list[str]:
    (folder / group).mkdir()
    (folder / group / "theirs.yaml").write_text(text)
    return ["--config-dir", str(folder), f"{group}=theirs"]


def _with_secret(arguments: list[str]) -> str:
    os.environ[VARIABLE] = SECRET
    return within([*arguments])


def within(arguments: list[str]) -> str:
    """The first argument is the folder to be in. Raises MemoryError where the answer took too much."""
    os.chdir(arguments[0])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    said = command(arguments[1:])
    taken = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    if taken > MOST_MIB:
        raise MemoryError(f"{taken} MiB for {arguments}")
    return said


# -- bombs of YAML

READERS = ("config", "preset", "brought in", "hardware", "sweep", "show", "compare", "diff")


def bombs(chance: random.Random, count: int) -> list[Case]:
    found = []
    for _ in range(count):
        kind, reader = chance.choice(["merges", "lists", "mappings", "itself", "deep"]), chance.choice(READERS)
        width, depth = chance.randint(2, 40), chance.randint(7, 60)
        width = width if depth < 20 else max(width // 4, 2)
        what = f"{kind} of {width}, {depth} deep, read by {reader}"
        found.append(Case("YAML bombs", what, partial(_bomb, _yaml(kind, width, depth), reader)))
    return found


def _yaml(kind: str, width: int, depth: int) -> str:
    if kind == "itself":
        return "a: &a [1, *a]\n"
    if kind == "deep":
        return "a: " + "[" * width * depth * 50 + "\n"
    first = {"merges": "{x: 1}", "lists": "[1]", "mappings": "{x: 1}"}[kind]
    lines = [f"a0: &a0 {first}"]
    for i in range(1, depth):
        each = [f"*a{i - 1}"] * width
        if kind == "merges":
            lines.append(f"a{i}: &a{i}\n  <<: [{', '.join(each)}]")
        elif kind == "lists":
            lines.append(f"a{i}: &a{i} [{', '.join(each)}]")
        else:
            lines.append(f"a{i}: &a{i} {{{', '.join(f'k{j}: {one}' for j, one in enumerate(each))}}}")
    return "\n".join(lines) + "\n"


def _bomb(text: str, reader: str, folder: Path) -> None:
    file = folder / "theirs.yaml"
    file.write_text(text)
    run = folder / "runs" / "theirs"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(text)
    (run / "metrics.jsonl").write_text("")
    (run / "summary.json").write_text("{}")
    arguments = {
        "config": lambda: ["train", "--dry-run", "--config", str(file)],
        "preset": lambda: ["train", "--dry-run", *_preset(folder, "experiment", f"# @package _global_\n{text}")],
        "hardware": lambda: ["train", "--dry-run", *_preset(folder, "hardware", text)],
        "brought in": lambda: ["train", "--dry-run", *_preset(folder, "model", "defaults:\n  - /theirs\n")],
        "sweep": lambda: ["sweep", str(file), "--dry-run"],
        "show": lambda: ["show", "theirs"],
        "compare": lambda: ["compare", "theirs"],
        "diff": lambda: ["diff", "theirs.yaml", "theirs"],
    }[reader]()
    status, said = asked(within, [str(folder), *arguments])
    if status not in ({0, 2, 7} if reader in ("show", "compare") else {2}) or "Traceback" in said:
        raise WrongError(f"exit status {status}: {said[-300:]}")


# -- images


def images(chance: random.Random, count: int) -> list[Case]:
    found = []
    for number in range(count):
        kind = chance.choice(["foreign", "cut", "noise", "huge", "large", "text"])
        place, seed = chance.choice(["first", "later"]), chance.randrange(2**32)
        found.append(Case("image bombs", f"{kind}, {place}, {number}", partial(_image, kind, place, seed)))
    return found


def png(width: int, height: int, rows: bytes, more: bytes = b"") -> bytes:
    head = _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + more + _chunk(b"IDAT", zlib.compress(rows)) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


FOREIGN = (
    b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n",
    b"<svg xmlns='http://www.w3.org/2000/svg'/>",
    b"SIMPLE  =                    T" + b" " * 50 + b"BITPIX  =                    8" + b" " * 2750,
    b"%PDF-1.4\n",
    b"",
)


def _image(kind: str, place: str, seed: int, folder: Path) -> None:
    chance = random.Random(seed)
    good = png(8, 8, chance.randbytes(72))
    side = chance.randint(3000, 13_000)
    bad = {
        "foreign": lambda: chance.choice(FOREIGN),
        "cut": lambda: good[: chance.randrange(len(good) - 30)],
        "noise": lambda: good[:8] + chance.randbytes(chance.randrange(2000)),
        "huge": lambda: png(chance.choice([50_000, 2**31 - 1]), 50_000, b""),
        "large": lambda: png(side, side, bytes((side + 1) * side)),
        "text": lambda: png(
            8, 8, bytes(72), _chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(chance.randint(2, 99) << 20)))
        ),
    }[kind]()
    for name in "ab":
        (folder / "photos" / name).mkdir(parents=True)
        for i in range(5):
            (folder / "photos" / name / f"{i}.png").write_bytes(good)
    (folder / "photos" / "a" / ("0.png" if place == "first" else "3.png")).write_bytes(bad)
    function: Callable[[list[str]], str] = within if place == "first" else _read_all
    status, said = asked(function, [str(folder), "train", "--dry-run", "data=images", f"data.path={folder / 'photos'}"])
    # of one that is as large as a sample may be, the others are of another size: nobody has read them yet
    if status != 7 and not (kind == "large" and side**2 <= 1 << 24 and place == "first"):
        raise WrongError(f"exit status {status}: {said[-300:]}")
    if "Traceback" in said:
        raise WrongError(f"a traceback: {said[-300:]}")


def _read_all(arguments: list[str]) -> str:
    """Reads them as a run does."""
    import json

    from paceline.tasks.data.images import Images

    try:
        for split in Images(str(Path(arguments[0]) / "photos")).load():
            split.take(slice(None))
    except Exception as error:
        return json.dumps([getattr(error, "exit_code", 1), str(error)])
    return json.dumps([0, ""])


# -- caches


def caches(chance: random.Random, count: int) -> list[Case]:
    found = []
    for _ in range(count):
        at, mode = (
            chance.choice(["", "paceline", "paceline/native"]),
            chance.choice([0o777, 0o1777, 0o707, 0o703, 0o700]),
        )
        foreign = os.geteuid() == 0 and chance.random() < 0.5
        what = f"cache/{at} has mode {mode:o}" + (" and is another user's" if foreign else "")
        found.append(Case("caches", what, partial(_cache, at, mode, foreign)))
    return found


def _cache(at: str, mode: int, foreign: bool, folder: Path) -> None:
    cache = folder / "cache"
    (cache / "paceline" / "native").mkdir(parents=True, mode=0o700)
    changed = cache / at
    changed.chmod(mode)
    if foreign:
        os.chown(changed, NOBODY, NOBODY)
    status, said = asked(_loads, [str(cache)])
    is_safe = not foreign and (mode == 0o700 or (mode == 0o1777 and at != "paceline/native"))
    if (status == 0) != is_safe:
        raise WrongError(f"native code was {'loaded' if status == 0 else 'not loaded'}: {said}")


def _loads(arguments: list[str]) -> str:
    """Returns whether this cache's folder is trusted to load a library from; no compiler is needed."""
    import json

    from paceline.comm.private import private, user_cache

    os.environ["XDG_CACHE_HOME"] = arguments[0]
    try:
        private(user_cache("native"))
    except OSError as error:
        return json.dumps([1, str(error)])
    return json.dumps([0, ""])
