"""Runs that a test leaves open are no news as pytest ends."""

import atexit
from collections.abc import Callable

import pytest

from paceline.wrap.run import Run


@pytest.fixture(autouse=True)
def open_runs_are_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def register(function: Callable[..., object], *given: object) -> None:
        if not isinstance(getattr(function, "__self__", None), Run):
            register_at_exit(function, *given)

    register_at_exit = atexit.register
    monkeypatch.setattr(atexit, "register", register)
