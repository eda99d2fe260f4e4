"""Fuzzed overrides: each is composed and planned, or refused in words; never a crash, never a hang."""

import json
import multiprocessing
import os
import random
import string
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import Any

from paceline.conf.groups import BY_NAME

from .judge import Case, WrongError

SECONDS = 60.0  # for one override on a busy machine
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
    status, said = _answer(words)
    if status not in EXPECTED:
        raise WrongError(f"exit status {status}: {said[-500:]}")
    if status and not said.strip():
        raise WrongError(f"exit status {status} without a word")
    if "Traceback" in said:
        raise WrongError(f"a traceback: {said[-500:]}")


_of_this_thread = threading.local()  # its process: one that dies must not take along what another thread tries
_pools: list[ProcessPoolExecutor] = []  # kept until the end: Python's exit stumbles over one that went with its thread


def _answer(words: list[str]) -> tuple[int, str]:
    """What `paceline train --dry-run` says of overrides."""
    return asked(dry_run, words)


def asked(function: Callable[[list[str]], str], words: list[str]) -> tuple[int, str]:
    """What `function` answers in a process that has torch at hand; one that dies or hangs is replaced."""
    pool: ProcessPoolExecutor | None = getattr(_of_this_thread, "pool", None)
    if pool is None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch", "paceline.engine.planning", "paceline.cli.main"])
        pool = _of_this_thread.pool = ProcessPoolExecutor(1, mp_context=context, initializer=silence)
        _pools.append(pool)
    try:
        status, said = json.loads(pool.submit(function, words).result(SECONDS))
    except (TimeoutError, BrokenProcessPool) as error:
        _of_this_thread.pool = None
        for process in (pool._processes or {}).values():
            process.kill()
        pool.shutdown(wait=False, cancel_futures=True)
        return -1, f"{type(error).__name__}: the process hung or died"
    return status, said


def silence() -> None:
    """What a dry run prints goes to the descriptor, past what `dry_run` puts in the place of sys.stdout."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def dry_run(words: list[str]) -> str:
    return command(["train", "--dry-run", "--", *words])


def command(arguments: list[str]) -> str:
    """The exit status of `paceline ARGUMENTS` and what it printed, as JSON."""
    import contextlib
    import io
    import sys

    from paceline.cli.main import main

    said = io.StringIO()
    sys.argv = ["paceline", *arguments]
    status: Any = 0
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        try:
            main()
        except SystemExit as end:
            status = end.code
    return json.dumps([status if isinstance(status, int) else 0, said.getvalue()])
