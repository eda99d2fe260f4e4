"""Fixtures of the tests of reports."""

from collections.abc import Iterator

import pytest
from browser import Browser, browser
from needs import require


@pytest.fixture(scope="session")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A headless Chromium."""
    require("chromium")
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened
