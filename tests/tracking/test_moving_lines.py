"""Lines about something that takes long."""

import sys

import pytest

from paceline.tracking import moving_lines
from paceline.tracking.moving_lines import ERASED, MovingLines


def test_on_a_terminal_a_line_that_moves_is_replaced(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    show = MovingLines()
    show("compiling: 1 s", moves=True)
    show("compiling: 2 s" + "x" * 100, moves=True)
    show("compiled \x1b[2J")
    first, second, last = capsys.readouterr().err.split(ERASED)[1:]
    assert (first, len(second)) == ("compiling: 1 s", 78) and last == "compiled \\x1b[2J\n"


def test_elsewhere_few_of_them_are_shown(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    now = [0.0]
    monkeypatch.setattr(moving_lines.time, "monotonic", lambda: now[0])
    show = MovingLines()
    show("begins")
    for second in range(1, 32):
        now[0] = float(second)
        show(f"{second} s", moves=True)
    assert capsys.readouterr().err == "begins\n15 s\n30 s\n"
