"""Fixtures of the tests of reports."""

from collections.abc import Iterator

import pytest
from browser import Browser, browser


@pytest.fixture(scope="session")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A headless Chromium; skip a test that asks for it where browser.MISSING says why there is none."""
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened
