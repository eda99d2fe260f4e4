"""A plugin of pytest for `make mutations`: which tests reach which functions, in whichever process, and in what time.

`instrumented` puts a call of `reach` into each function. The plugin writes the name of the current test to a file, so
that worker processes know it, too. `MUTATIONS_REACHED` is the folder of these files. `MUTATIONS_CHOSEN` is a file with
a JSON list of node ids: the plugin runs those tests alone, in that order.
"""

import ast
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mutants import functions, line_starts

WHERE = Path(os.environ.get("MUTATIONS_REACHED", "/nowhere"))
_noted: set[tuple[str, ...]] = set()
_here: list[str] = []  # the test, in the process of pytest


def reach(file: str, function: str) -> None:
    """Notes that the current test called a function."""
    if WHERE.exists():
        entry = (_here[0] if _here else (WHERE / "now").read_text(), file, function)
        if entry not in _noted:
            _noted.add(entry)
            note("reached", *entry)


def note(name: str, *values: Any) -> None:
    with (WHERE / f"{name}-{os.getpid()}").open("a") as out:
        out.write(json.dumps(values) + "\n")


def noted(folder: Path, name: str) -> list[Any]:
    """Returns the notes of all processes."""
    return [json.loads(line) for path in folder.glob(f"{name}-*") for line in path.read_text().splitlines()]


def instrumented(source: str, file: str) -> str:
    text, lines = source.encode(), line_starts(source)
    places: list[tuple[int, str]] = []
    for name, function in functions(ast.parse(source)).items():
        for first in function.body[1 if ast.get_docstring(function, clean=False) is not None else 0 :][:1]:
            decorators = first.decorator_list if isinstance(first, ast.FunctionDef | ast.ClassDef) else []
            line = decorators[0].lineno if decorators else first.lineno
            at = lines[line - 1] + first.col_offset
            before = text[lines[line - 1] : at].decode()
            call = f'__import__("reached").reach({file!r}, {name!r})'
            places.append((at, f"{call}; " if before.strip() else f"{call}\n{before}"))
    for at, call in sorted(places, reverse=True):
        text = text[:at] + call.encode() + text[at:]
    return text.decode()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if "MUTATIONS_CHOSEN" in os.environ:
        by_name = {item.nodeid: item for item in items}
        chosen = json.loads(Path(os.environ["MUTATIONS_CHOSEN"]).read_text())
        items[:] = [by_name[name] for name in chosen if name in by_name]


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    began = time.monotonic()
    if WHERE.exists():
        _here[:] = [item.nodeid]
        (WHERE / "next").write_text(item.nodeid)
        (WHERE / "next").replace(WHERE / "now")
    yield
    if WHERE.exists():
        note("took", item.nodeid, time.monotonic() - began)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if WHERE.exists() and report.failed:
        note("failed", report.nodeid, report.longreprtext.strip().splitlines()[-2:])
