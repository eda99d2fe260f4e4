"""Pages of `explain`, `plan` and `advise` in a real browser: axe finds nothing, and none is wider than its window."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from axe import violations
from browser import Browser
from needs import needs_axe, needs_chromium

pytestmark = [pytest.mark.browser, needs_chromium]

COMMANDS = {
    "points": "explain sync=easgd hardware.workers=3 steps=5",
    "rows": "explain aggregate=krum attack=sign_flip attack.workers=1 hardware.workers=5 steps=3",
    "sum": "explain collective=ring hardware.workers=3",
    "no picture": "explain strategy=zero",
    "plan": "plan model=gpt data=text hardware=a100_8 hardware.workers=2 strategy=pipeline strategy.schedule=1f1b",
    "advise": "advise model=gpt data=text hardware=a100_8 strategy=zero --tokens 1B --top 2",
}


@needs_axe
@pytest.mark.parametrize("name", COMMANDS)
def test_axe_finds_nothing_in_a_page_at_both_widths_light_and_dark(window: Browser, tmp_path: Path, name: str) -> None:
    words = [sys.executable, "-m", "paceline.cli.main", *shlex.split(COMMANDS[name]), "--html", "page.html"]
    subprocess.run(words, cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
    for width in (1280, 390):
        for dark in (False, True):
            window.open(tmp_path / "page.html", dark=dark, width=width)
            assert violations(window) == [], (width, dark)
            assert window.run("return document.documentElement.scrollWidth") <= width
            assert window.complaints() == [] and window.requests() == []
    window.run("document.querySelector('main').replaceWith(...document.querySelector('main').childNodes)")
    assert "region" in [rule for rule, _ in violations(window)], "it does look"
